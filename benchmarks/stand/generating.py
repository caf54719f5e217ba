"""A generator by itself, in this process: its first version is published, its limits are lifted, nobody scores or trains."""

from __future__ import annotations

import cProfile
import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from agrpo.queue.run_folder import RunFolder
from agrpo.records.arrow import group_from_arrow
from agrpo.records.group import RolloutGroup
from agrpo.records.progress import Attempt, Base, Hint, Probe, WeightsReady
from agrpo.stages import generator
from agrpo.stages.context import StageContext, new_incarnation
from agrpo.tensors import digest_of, digest_of_tensor

LOOK_SECONDS = 0.1
END_SECONDS = 30.0
"""How long the stage may take to end, once it is asked to."""


@dataclass(frozen=True, kw_only=True)
class Made:
    """What one generator came to."""

    groups: list[RolloutGroup]
    """In ticket order."""
    loop_seconds: float
    """Processor time of the stage's own thread, its start included."""


def publish_uniform(folder: RunFolder, vocab_size: int) -> None:
    """A first version that finds every token equally likely, as the scripted engine does."""
    import torch
    from safetensors.torch import save_file

    weight = torch.zeros(1)
    place = folder.filesystem.scratch()
    save_file({"weight": weight}, place / "model.safetensors", metadata={"format": "pt"})
    folder.filesystem.put_folder("weights/0-uniform", place)
    probe = Probe(token_ids=[3, 4], top_ids=[5, 6], top_logprobs=[-math.log(vocab_size)] * 2)
    folder.write_attempt(Attempt(attempt=0, host="here", pid=1, started_at=0.0))
    folder.write_base(Base(attempt=0, parent=None, base_step=0))
    folder.write_version(
        WeightsReady(
            version=0,
            attempt=0,
            step=0,
            digest=digest_of({"weight": digest_of_tensor(weight)}),
            folder="weights/0-uniform",
            probe=probe,
            published_at=0.0,
        )
    )


def generate(
    folder: RunFolder,
    num_groups: int,
    *,
    seconds: float,
    look: Callable[[int], None],
    profile: cProfile.Profile | None = None,
) -> Made:
    """So many groups by the generator's own stage. `look` hears how many there are.

    Raises what the stage raises, and `TimeoutError` where they are not there within `seconds`.
    """
    folder.write_hint(Hint(limit_ticket=num_groups, dropped=0, floor=0, written_at=time.time()))
    stop, errors, spent = threading.Event(), list[BaseException](), list[float]()
    context = StageContext(run_url=folder.url, stage="generator", incarnation=new_incarnation("generator"), stop=stop)

    def work() -> None:
        try:
            if profile is None:
                generator.run(context)
            else:
                profile.runcall(generator.run, context)
        except BaseException as error:
            errors.append(error)
        spent.append(time.thread_time())

    thread = threading.Thread(target=work, name="generator")
    thread.start()
    deadline = time.monotonic() + seconds
    while (made := len(folder.groups.numbers())) < num_groups and thread.is_alive() and time.monotonic() < deadline:
        look(made)
        thread.join(LOOK_SECONDS)
    stop.set()
    thread.join(END_SECONDS)
    if errors:
        raise errors[0]
    if made < num_groups:
        raise TimeoutError(f"{made} of {num_groups} groups within {seconds:.0f} s")
    groups = [group_from_arrow(folder.groups.demand(ticket)) for ticket in range(num_groups)]
    return Made(groups=groups, loop_seconds=spent[0])
