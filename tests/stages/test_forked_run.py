"""A run under a chat template that forgets what was thought: two rows of one rollout are trained, and it counts once."""

from __future__ import annotations

import math
import shutil
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from agrpo.audit.verifying import verify
from agrpo.database.queries import query
from agrpo.database.writer import Database
from agrpo.queue.run_folder import RunFolder, StepKey
from agrpo.records.arrow import group_from_arrow, scored_from_arrow
from agrpo.stages.recorder import record_once
from tests.stages import test_tool_run
from tests.stages.test_conversation import FORGETFUL
from tests.stages.test_recorded_metrics import assert_sql_says_what_was_logged, logged
from tests.stages.test_tool_run import tool_run

LINES = [f'<think>{thought}</think><tool_call>{{"name": "listed"}}</tool_call>' for thought in ("a", "b c", "1")]


TOOLS = {"functions": ["tests.tools.functions:listed"], "max_tool_calling_iterations": 1}


def forgetful(model: Path, place: Path) -> Path:
    """The same weights with that template."""
    shutil.copytree(model, place)
    tokenizer: Any = AutoTokenizer.from_pretrained(place)
    tokenizer.chat_template = FORGETFUL
    tokenizer.save_pretrained(place)
    return place


@pytest.fixture(scope="module")
def folder(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """Of a run that has ended and is recorded: a step of one group of three rollouts, each of two turns that call."""
    place = tmp_path_factory.mktemp("forked")
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(test_tool_run, "LINES", LINES)
        monkeypatch.setattr(test_tool_run, "TOOLS", TOOLS)
        ended = tool_run(
            forgetful(tiny_model, place / "model"), place / "run", monkeypatch, steps=1, step={"groups": 1}
        )
    record_once(ended, Database(ended.database))
    return ended


@pytest.mark.spec("K34")
def test_two_rows_of_a_rollout_share_what_it_earned_and_train_every_sampled_token_once(folder: RunFolder):
    plan = folder.plan(StepKey(0, 1))
    assert plan is not None and plan.consumed == [0]
    for ticket in plan.consumed:
        group, scored = (
            group_from_arrow(folder.groups.demand(ticket)),
            scored_from_arrow(folder.scored.demand(ticket)),
        )
        samples = [sample for sample in plan.samples if sample.ticket == ticket]
        places = [(sample.rollout_index, sample.sequence_index) for sample in samples]
        assert sorted(places) == [(index, turn) for index in range(3) for turn in range(2)]
        assert [[seq.num_trained for seq in of_one] for of_one in group.completions_sequences] == [
            [len(turn.output_ids) for turn in rollout.turns] for rollout in group.rollouts
        ]
        mean = sum(scored.rewards) / 3  # one value for each rollout, not for each row
        std = math.sqrt(sum((reward - mean) ** 2 for reward in scored.rewards) / 2)
        for sample in samples:
            by_hand = (scored.rewards[sample.rollout_index] - mean) / (std + 1e-4)
            assert sample.advantage == pytest.approx(by_hand, abs=1e-6)
    # In the context in which it was sampled: there the learner's log-probs are the sampler's.
    measures = logged(folder)
    assert measures[1, "sampling/sampling_logp_difference/max"] < 1e-4
    assert measures[1, "rollout/fork_frac"] == 1


@pytest.mark.spec("K34")
def test_a_forked_rollout_is_one_prompt_one_rollout_and_one_reward_in_every_count(folder: RunFolder):
    assert_sql_says_what_was_logged(folder)
    (counted,) = query(
        folder.database,
        "SELECT (SELECT count(*) FROM groups) AS prompts, (SELECT count(*) FROM rollouts_with_rewards) AS rollouts, "
        "(SELECT count(*) FROM rewards) AS rewards, (SELECT count(*) FROM samples) AS rows",
    ).to_pylist()
    assert counted == {"prompts": 1, "rollouts": 3, "rewards": 3, "rows": 6}
    rewards = scored_from_arrow(folder.scored.demand(0)).rewards
    assert logged(folder)[1, "reward"] == pytest.approx(sum(rewards) / 3)
    assert verify(folder, deep=True).findings == []
