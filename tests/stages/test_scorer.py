"""Scored groups: sums, marks and lengths follow from the group and its scores alone."""

from __future__ import annotations

import math
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from agrpo.errors import RewardError
from agrpo.queue.run_folder import RunFolder
from agrpo.records.arrow import group_to_arrow, scored_from_arrow
from agrpo.records.group import RolloutGroup
from agrpo.records.rollout import StopReason
from agrpo.records.score import Mark, Score, fills_step
from agrpo.stages import scorer
from agrpo.stages.context import StageContext
from agrpo.stages.process import Supervisor
from agrpo.stages.scorer import scored_group
from tests.stages.groups import a_group
from tests.stages.test_process import until
from tests.stages.walk import Walk, settings


def judged(name: str, weight: float, *values: float | None) -> Score:
    return Score(reward=name, weight=weight, values=list(values), errors=[None] * len(values))


@pytest.mark.spec("A-117", "A-118", "K22")
def test_a_source_that_gives_none_is_left_out_of_the_sum():
    group = a_group(0, lengths=(3, 3, 3, 3))
    scores = [judged("f1", 1.0, 1.0, 0.0, None, 1.0), judged("f2", 1.0, 0.5, 0.5, 0.5, None)]
    assert scored_group(group, scores, 64).rewards == [1.5, 0.5, 0.5, 1.0]


@pytest.mark.spec("K23")
def test_a_reward_counts_with_its_weight():
    scored = scored_group(a_group(0), [judged("one", 0.7, 1.0, 1.0), judged("zero", 0.3, 0.0, 0.0)], 64)
    assert scored.rewards == [0.7, 0.7]
    assert scored.marks == {Mark.EQUAL_REWARDS}


@pytest.mark.spec("A-119", "A-124")
def test_a_rollout_nobody_judged_has_reward_nan():
    scored = scored_group(a_group(0), [judged("one", 1.0, 1.0, None)], 64)
    assert scored.rewards[0] == 1.0
    assert math.isnan(scored.rewards[1])
    assert scored.marks == {Mark.TOO_FEW_SCORES}


@pytest.mark.spec("A-286")
def test_a_rollout_equal_to_an_earlier_one_is_a_duplicate():
    group = a_group(0, lengths=(1, 1, 4))
    assert scored_group(group, [judged("one", 1.0, 1.0, 0.0, 0.0)], 64).duplicates == [False, True, False]


@pytest.mark.spec("A-285")
def test_whether_a_rollout_was_cut_is_said_by_its_last_turn():
    first, second = (a_group(0, lengths=(3, 3)).rollouts[index].turns[0] for index in (0, 1))
    cut = replace(second, stop_reason=StopReason.LENGTH)
    turns_of = ([cut, first], [first, cut])
    rollouts = [
        replace(rollout, turns=turns, stop_reason=StopReason.MAX_TURNS)
        for rollout, turns in zip(a_group(0).rollouts, turns_of, strict=True)
    ]
    group = replace(a_group(0), rollouts=rollouts)
    assert scored_group(group, [judged("one", 1.0, 1.0, 0.0)], 64).terminated == [True, False]


def test_lengths_are_in_tokens():
    scored = scored_group(a_group(0, lengths=(3, 0)), [judged("one", 1.0, 1.0, None)], 64)
    assert scored.num_prompt_tokens == [3, 0]
    assert scored.num_completion_tokens == [3, 0]
    assert scored.num_forwarded_tokens == [6, 0]


@pytest.mark.parametrize(
    ("marks", "keep", "drop", "refill"),
    [
        (set(), True, True, True),
        ({Mark.EQUAL_REWARDS}, True, True, False),
        ({Mark.TOO_FEW_SCORES}, False, True, False),
        ({Mark.FAILED}, False, False, False),
        ({Mark.REFUSED_PROMPT}, False, False, False),
        ({Mark.OVERSIZE, Mark.EQUAL_REWARDS}, False, False, False),
    ],
)
def test_which_groups_take_a_place_of_a_step(marks: set[Mark], keep: bool, drop: bool, refill: bool):
    found = [fills_step(frozenset(marks), rule) for rule in ("keep", "drop", "refill")]
    assert found == [keep, drop, refill]


def test_a_reward_that_cannot_be_loaded_is_said_before_there_is_a_group(tmp_path: Path):
    tree = settings(tmp_path, tmp_path / "prompts.jsonl", tmp_path, reward="nobody_wrote_this")
    folder = RunFolder.create(str(tmp_path / "run"), {"settings": {"tree": tree, "origins": {}}})
    context = StageContext(run_url=folder.url, stage="scorer", incarnation="scorer-a", stop=threading.Event())
    with pytest.raises(RewardError, match="nobody_wrote_this"):
        scorer.run(context)
    assert folder.groups.numbers() == []


@pytest.fixture
def notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where `judges.noted` writes: a file for each scorer."""
    place = tmp_path / "notes"
    place.mkdir()
    monkeypatch.setenv("NOTES", str(place))
    return place


def run_of_groups(tmp_path: Path, *groups: RolloutGroup) -> RunFolder:
    """A run of two scorers to which groups have come."""
    tree = settings(tmp_path, tmp_path / "prompts.jsonl", tmp_path, reward="noted", workers={"scorers": 2})
    folder = RunFolder.create(str(tmp_path / "run"), {"settings": {"tree": tree, "origins": {}}})
    for group in groups:
        folder.groups.publish(group.ticket, group_to_arrow(group))
    return folder


def judged_tickets(notes: Path) -> list[list[int]]:
    """Of every scorer that has judged anything."""
    return sorted(sorted(map(int, file.read_text().split())) for file in notes.iterdir())


def score_all(folder: RunFolder, *names: str, number: int) -> None:
    """Let these scorers work until so many groups are scored."""
    work = Walk(folder).start(*names)
    work.until(lambda: len(folder.scored.numbers()) == number)
    work.stop.set()
    work.join()


def test_two_scorers_share_the_groups_out_and_do_none_twice(tmp_path: Path, notes: Path):
    folder = run_of_groups(tmp_path, *(a_group(ticket) for ticket in range(6)))
    score_all(folder, "scorer", "scorer-2", number=6)
    assert judged_tickets(notes) == [[0, 2, 4], [1, 3, 5]]


@pytest.mark.spec("A-205")
def test_an_async_reward_sees_no_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    tree = settings(tmp_path, tmp_path / "prompts.jsonl", tmp_path)
    tree["rewards"] = [{"name": "tests.rewards.judges:async_environment"}]
    folder = RunFolder.create(str(tmp_path / "run"), {"settings": {"tree": tree, "origins": {}}})
    group = a_group(0)
    group = replace(group, prompt=replace(group.prompt, facts={"variable": "CUDA_VISIBLE_DEVICES"}))
    folder.groups.publish(0, group_to_arrow(group))
    with Supervisor(folder.url, tmp_path / "logs") as supervisor:
        supervisor.start("scorer")
        until(lambda: folder.scored.numbers() == [0], seconds=60)
    assert scored_from_arrow(folder.scored.demand(0)).rewards == [1.0, 1.0]


def test_the_share_of_a_scorer_that_is_gone_is_scored_by_its_neighbour(
    tmp_path: Path, notes: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(scorer, "SILENT_SECONDS", 0.5)
    folder = run_of_groups(tmp_path, a_group(0), a_group(1))
    folder.beat("scorer", None)
    score_all(folder, "scorer-2", number=2)
    assert judged_tickets(notes) == [[0, 1]]


def test_of_two_scorers_of_one_group_the_first_one_counts(tmp_path: Path, notes: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(scorer, "SILENT_SECONDS", -1.0)  # each thinks the other one gone
    folder = run_of_groups(tmp_path, *(a_group(ticket) for ticket in range(4)))
    score_all(folder, "scorer", "scorer-2", number=4)
    assert folder.scored.numbers() == [0, 1, 2, 3]
    assert {ticket for tickets in judged_tickets(notes) for ticket in tickets} == {0, 1, 2, 3}
