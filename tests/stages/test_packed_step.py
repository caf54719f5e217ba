"""A step carried out in rows of each packing: what is told of it is the same, but for what the rows are."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pytest

from agrpo.config import RunConfig
from agrpo.policy.model import load_policy
from agrpo.policy.optimizer import build_optimizer
from agrpo.queue.run_folder import RunFolder
from agrpo.records.progress import Done
from agrpo.stages.choosing import Chooser
from agrpo.stages.clock import StepClock
from agrpo.stages.execution import StepMaterial, Trainee, carry_out
from agrpo.stages.planning import StepNumbers, make_plan, read_groups
from agrpo.stages.shelf import ConsumedTickets, Shelf
from tests.stages.groups import a_config, a_group, publish

NUMBERS = StepNumbers(
    attempt=0, step=1, version=0, ordinal=0, digest="", num_updates=0, learning_rate=1e-3, publish=1, config_digest="c"
)
OF_ROWS = {
    "forwarded_tokens_per_step",
    "microbatches_per_step",
    "masked_token_frac",
    "samples_per_row",
    "row_tokens_mean",
}
OF_ROWS |= {"row_tokens_max", "row_fill_frac", "row_imbalance", "packing_ratio", "pad_frac"}


def a_step(folder: RunFolder, model: Path, packing: str, micro_tokens: int, ranks: int = 1) -> Done:
    """Two groups of two, 7 + 8 tokens each, carried out by a process alone."""
    config: RunConfig = a_config(
        model={"path": str(model)},
        loss={"name": "clip", "importance_min": 0.0},
        packing={"name": packing},
        step={"groups": 2, "micro_tokens": micro_tokens},
        stop={"max_steps": 1},
    )
    chooser = Chooser(
        config,
        Shelf(folder, ConsumedTickets()),
        StepClock(),
        num_prompts=None,
        prompts_per_epoch=100,
        stop=threading.Event(),
        tell=lambda taken, dropped, at_once: None,
        beat=lambda what, seconds: None,
    )
    chosen, groups = chooser.choose(0), read_groups(folder, [0, 1])
    plan = make_plan(config, chosen, groups, replace(NUMBERS, ranks=ranks))
    policy = load_policy(config.model)
    trainee = Trainee(policy, build_optimizer(policy, config.optimizer))
    material = StepMaterial(plan=plan, groups=groups, consumed=chosen.consumed, clock=StepClock())
    return carry_out(config, trainee, material).done


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> dict[tuple[str, int, int], Done]:
    folder = RunFolder.create(str(tmp_path_factory.mktemp("packed") / "run"), {"name": "test"})
    for ticket in range(2):
        publish(folder, a_group(ticket), (1.0, 0.0))
    asked = [("sequence", 64, 1), ("tree", 64, 1), ("tree", 9, 1), ("tree", 9, 3)]
    return {one: a_step(folder, tiny_model, *one) for one in asked}


@pytest.mark.spec("A-282", "A-345")
def test_a_token_that_samples_share_is_forwarded_and_counted_once(done: dict[tuple[str, int, int], Done]):
    sequence, tree = done["sequence", 64, 1], done["tree", 64, 1]
    # A prompt of three tokens; completions 30 31 1, 31 32 33 1, 31 32 1 and 32 33 34 1, of which 31 32 is there twice.
    assert (sequence.num_tokens, tree.num_tokens) == (4 * 3 + 14, 3 + 12)
    assert sequence.metrics["batch/packing_ratio"] == 1.0
    assert tree.metrics["batch/packing_ratio"] == pytest.approx(26 / 15)
    assert [row.num_tokens for row in tree.rows] == [15]
    assert sum(sample.num_tokens for sample in tree.samples) == 26


@pytest.mark.spec("K29")
@pytest.mark.parametrize("other", [("tree", 64, 1), ("tree", 9, 1), ("tree", 9, 3)])
def test_a_step_is_told_alike_whatever_its_rows(other: tuple[str, int, int], done: dict[tuple[str, int, int], Done]):
    expected, found = done["sequence", 64, 1], done[other]
    assert expected.grad_norm > 0
    assert found.loss == pytest.approx(expected.loss, rel=1e-5, abs=1e-7)
    assert found.grad_norm == pytest.approx(expected.grad_norm, rel=1e-5)
    for one, same in zip(found.samples, expected.samples, strict=True):
        assert (one.ticket, one.rollout_index, one.num_trained_tokens) == (
            same.ticket,
            same.rollout_index,
            same.num_trained_tokens,
        )
        assert one.entropy_mean == pytest.approx(same.entropy_mean, rel=1e-5)
        assert one.ratio_mean == pytest.approx(same.ratio_mean, rel=1e-5)
    timeless = {
        name
        for name in found.metrics
        if not name.startswith("perf/") and name != "num_tokens" and name.removeprefix("batch/") not in OF_ROWS
    }
    for name in timeless - {name for name in timeless if name.endswith("_s")}:
        assert found.metrics[name] == pytest.approx(expected.metrics[name], rel=1e-5, abs=1e-7), name
