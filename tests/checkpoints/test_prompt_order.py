"""A stopped run asks the rest of the present pass in its own order: the order is a function of (data seed, ticket)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agrpo.config import resolve
from agrpo.prompts import PromptOrder
from agrpo.queue.run_folder import RunFolder, StepKey
from agrpo.records.arrow import group_from_arrow
from agrpo.runs import prepare
from agrpo.stages.keeping import Keeper
from tests.stages.walk import LOCKSTEP, Walk, settings, walk

NUM_PROMPTS, EPOCHS, GROUPS = 10, 3, 2
ROWS = [{"prompt": [{"role": "user", "content": f"{first}+{first + 2} ="}]} for first in range(NUM_PROMPTS)]


def begin(model: Path, place: Path, max_staleness: int) -> RunFolder:
    file = place / "prompts.jsonl"
    file.write_text("\n".join(json.dumps(row) for row in ROWS))
    tree = settings(
        model,
        file,
        place,
        run={"data_seed": 7},
        engine={**LOCKSTEP["engine"], "num_generations": 2, "max_completion_length": 3},
        asynchronous={"max_staleness": max_staleness},
        step={"groups": GROUPS, "zero_variance": "keep"},
        stop={"max_steps": None, "epochs": EPOCHS},
    )
    return prepare(resolve(values=tree), folder=str(place / "run"))


def stop_after(folder: RunFolder, step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run until the weights of `step` are published; a generator that sees them claims nothing more."""
    running, publish = Walk(folder), Keeper.publish

    def publish_last(keeper: Keeper, version: int, at: int, *, ordinal: int | None = None) -> None:
        if at == step:
            running.stop.set()
        publish(keeper, version, at, ordinal=ordinal)

    with monkeypatch.context() as patch:
        patch.setattr(Keeper, "publish", publish_last)
        running.start("generator", "scorer", "learner")
        for thread in running.threads:
            thread.join(120)
    assert folder.done_steps(0) == list(range(1, step + 1))


def asked(folder: RunFolder) -> list[list[int]]:
    """Rows by pass, in the order of their tickets."""
    tickets = range(NUM_PROMPTS * EPOCHS)
    prompts = [group_from_arrow(folder.groups.read(ticket)).prompt for ticket in tickets]
    assert [prompt.epoch for prompt in prompts] == [ticket // NUM_PROMPTS for ticket in tickets]
    rows = [prompt.row_index for prompt in prompts]
    return [rows[NUM_PROMPTS * epoch :][:NUM_PROMPTS] for epoch in range(EPOCHS)]


@pytest.mark.spec("K09")
@pytest.mark.parametrize(
    ("consumed", "max_staleness"),
    [(14, 0), (10, 0), (20, 0), (14, 2)],
    ids=["in a pass", "after one", "two", "asynchronous"],
)
def test_a_resumed_run_asks_what_the_run_never_stopped_would_have_asked(
    consumed: int, max_staleness: int, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    order = PromptOrder(ROWS, seed=7, shuffle=True)
    passes = [[order.prompt(NUM_PROMPTS * epoch + place).row_index for place in range(10)] for epoch in range(EPOCHS)]
    folder = begin(tiny_model, tmp_path, max_staleness)
    stop_after(folder, consumed // GROUPS, monkeypatch)
    if max_staleness == 0:
        assert len(folder.groups.numbers()) == consumed
    walk(folder)
    assert asked(folder) == passes
    assert len({tuple(rows) for rows in passes}) == EPOCHS
    steps = [StepKey(attempt, step) for attempt in (0, 1) for step in folder.done_steps(attempt)]
    plans = [folder.plan(key) for key in steps]
    assert sorted(ticket for plan in plans for ticket in plan.tickets) == list(range(NUM_PROMPTS * EPOCHS))
