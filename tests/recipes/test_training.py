"""Every recipe trains: ten steps in one process, laid under a run that says how large it may be."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from agrpo.config import resolve
from agrpo.recipes import beneath, find, recipes
from agrpo.runs import prepare
from tests.stages.walk import dones, settings, walk

NUM_STEPS = 10


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["lockstep", "asynchronous"])
@pytest.mark.parametrize("name", [*recipes()])
def test_every_recipe_trains_in_both_modes(tiny_model: Path, tmp_path: Path, name: str, mode: str):
    prompts = tmp_path / "prompts.jsonl"
    rows = [
        {"prompt": [{"role": "user", "content": f"{first}+{first + 2} ="}], "solution": str(2 * first + 2)}
        for first in range(60)
    ]
    prompts.write_text("\n".join(json.dumps(row) for row in rows))
    tree = settings(
        tiny_model,
        prompts,
        tmp_path,
        stop={"max_steps": NUM_STEPS, "stall_seconds": 60},
        asynchronous={"max_staleness": 0 if mode == "lockstep" else 2, "weight_sync_steps": 1},
        # A model that was never trained seldom ends an answer: with `mask_truncated` there would be nothing to train.
        step={"groups": 2, "micro_tokens": 512, "mask_truncated": False},
    )
    names = name if find(name).kind == "base" else f"dapo,{name}"
    folder = prepare(resolve(values=tree, beneath=beneath(names)))
    walk(folder)
    found = dones(folder)
    assert [done.step for done in found] == [*range(1, NUM_STEPS + 1)]
    assert all(math.isfinite(done.loss) and math.isfinite(done.grad_norm) for done in found)
    trained = [done for done in found if done.grad_norm > 0]
    assert trained, "no step moved the weights"
    assert len({done.digest for done in found}) == len([done for done in found if not done.empty]) + (found[0].empty)
