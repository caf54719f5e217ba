"""What each process of `torchrun` does: rank 0 trains three steps as the learner does, the other follows."""

from __future__ import annotations

import json
import math
import os
import sys
from pathlib import Path

from agrpo.config import AdapterSection, ModelSection, OptimizerSection
from agrpo.policy.digest import tensor_digests
from agrpo.policy.ranks.group import DEADLINE, Place, Ranks, join, own_device, store_of
from agrpo.policy.trainee import Origin, begin, follow
from tests.policy.ranks.conftest import numbers_of_step, rows_of_step


def main(model: str, out: Path) -> None:
    if int(os.environ["RANK"]) > 0:
        follow(join())
        return
    place = Place.of_environment()
    store = store_of(place, 60.0)
    store.set(DEADLINE, "60")
    group = Ranks(place, store, device=own_device(place.local_rank), deadline_seconds=60.0)
    optimizer = OptimizerSection(learning_rate=1e-3)
    section, adapter = ModelSection(path=model), AdapterSection()
    trainee = begin(Origin(model=section, adapter=adapter, optimizer=optimizer, seed=0, threads=1), group)
    steps = [trainee.update(rows_of_step(step), numbers_of_step(step), lambda: None) for step in range(3)]
    assert all(math.isfinite(step.loss) for step in steps)
    out.write_text(json.dumps({"losses": [step.loss for step in steps], "digests": tensor_digests(trainee.model)}))
    group.announce(None)
    group.leave()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
