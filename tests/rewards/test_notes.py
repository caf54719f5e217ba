"""What a reward may note beside its values, and how far the run is that it is told of."""

from __future__ import annotations

import asyncio
import json
import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from aiohttp import web

from agrpo.config import RewardSection
from agrpo.errors import NoteRefused, RewardError
from agrpo.records.group import RolloutGroup
from agrpo.records.score import Score
from agrpo.records.trainer_state import TrainerState
from agrpo.rewards import check_reward
from agrpo.rewards.calling import LONGEST_TEXT, MOST_COLUMNS, Call
from agrpo.rewards.sandbox import RewardRunner
from tests.rewards.test_http_judge import QUICK, Handler, served
from tests.rewards.worlds import group_of, run, score, section_of

BEGUN = TrainerState(max_steps=8, num_train_epochs=4)


def scored_by(section: RewardSection, group: RolloutGroup) -> Score:
    """What a runner of a run of 8 steps and 4 epochs says."""

    async def work() -> Score:
        runner = RewardRunner(section, begun=BEGUN)
        try:
            return await runner.score(group)
        finally:
            await runner.close()

    return run(work())


def late(*answers: str) -> RolloutGroup:
    """A group of the weights of step 6, of the second pass."""
    group = group_of(*answers)
    return replace(group, model_step=6, prompt=replace(group.prompt, epoch=1))


@pytest.mark.spec("G-184", "A-206")
@pytest.mark.parametrize("judge", ["knows_progress", "async_knows_progress"])
def test_a_reward_is_told_the_step_of_the_weights_that_wrote_the_group(judge: str) -> None:
    assert scored_by(section_of(judge), late("a", "b")).values == [6 / 8, 1 / 4]


def test_what_a_reward_cannot_know_of_the_learner_is_said() -> None:
    assert pickle.loads(pickle.dumps(BEGUN)) == BEGUN
    with pytest.raises(
        AttributeError, match='has no "log_history"; it has global_step, max_steps, epoch and num_train'
    ):
        _ = BEGUN.log_history  # pyright: ignore[reportUnknownMemberType, reportAttributeAccessIssue]


@pytest.mark.spec("A-206")
@pytest.mark.parametrize("judge", ["notes", "async_notes"])
def test_notes_come_with_the_values(judge: str) -> None:
    scored = scored_by(section_of(judge), group_of("a", "bbb"))
    assert scored.values == [1.0, 3.0]
    assert scored.extras == {"text": ["a", "bbb"], "length": [1, 3]}
    assert scored.metrics == {"longest": 3.0}


def test_a_reward_that_notes_nothing_has_no_notes() -> None:
    (scored,) = score(section_of("length"), group_of("a"))
    assert (scored.extras, scored.metrics) == ({}, {})


@pytest.mark.parametrize("way", ["fail", "end_at_once"])
def test_of_a_call_that_failed_only_what_each_completion_alone_noted_counts(way: str) -> None:
    (scored,) = score(section_of("notes_and_misbehaves"), group_of("a", "bad", "ccccc", way=way))
    assert scored.values == [1.0, None, 5.0]
    assert scored.extras == {"asked": [1, None, 1]}
    # By the rule of each name: the largest, the sum, the mean.
    assert scored.metrics == {"asked_max": 1.0, "asked_count": 2.0, "length": 3.0}


def test_notes_of_a_wrong_length_cost_the_group_its_values_since_alone_they_would_look_right() -> None:
    group = group_of("a", "b", "c", note="log_extra('answer', ['4'])")
    (scored,) = score(section_of("notes_what_it_is_told"), group)
    reason = 'it noted 1 values in "answer" for 3 completions; expected one per completion'
    assert (scored.values, scored.errors, scored.extras) == ([None] * 3, [reason] * 3, {})


@pytest.mark.parametrize(
    ("note", "reason"),
    [
        (
            "log_extra('a', [float('nan')])",
            'log_extra("a"), value 0: nan; expected a text, a finite number of 64 bits,',
        ),
        ("log_extra('a', [{}])", 'log_extra("a"), value 0: dict; expected a text'),
        ("log_extra('a', [10**30])", 'log_extra("a"), value 0: int; expected a text'),
        ("log_extra('a', ['x' * 9000])", f"a text of 9000 characters; expected at most {LONGEST_TEXT}: note a part"),
        ("log_extra('a', 'x')", 'log_extra("a") got str; expected a list, one entry per completion'),
        ("log_extra('', ['x'])", "log_extra: the name ''; expected a text of 1 to 100 characters, in one line"),
        ("log_extra('a\\n', ['x'])", "log_extra: the name 'a\\n'; expected a text of 1 to 100"),
        ("log_extra(3, ['x'])", "log_extra: the name int; expected a text"),
        ("[log_extra('a', ['x']) for _ in 'ab']", 'log_extra("a") was called twice in one call'),
        ("[log_metric('a', 1) for _ in 'ab']", 'log_metric("a") was called twice in one call'),
        ("log_metric('a', float('inf'))", 'log_metric("a") got inf; expected a finite number'),
        ("log_metric('a', 10**400)", 'log_metric("a") got int; expected a finite number'),
        ("log_metric('a', '1')", "log_metric(\"a\") got '1'; expected a finite number"),
        ("log_metric('loss', 1)", 'log_metric("loss"): agrpo has a measure loss itself; give yours another name'),
        ("log_metric('rewards/a/mean', 1)", "agrpo has a measure rewards/{name}/mean itself"),
        ("[log_extra(str(i), ['x']) for i in range(99)]", f"is name {MOST_COLUMNS + 1} of one call; expected at most"),
    ],
)
def test_a_note_that_cannot_be_recorded_says_why(note: str, reason: str) -> None:
    call = Call(1)
    with pytest.raises(NoteRefused) as caught:
        eval(note, {"log_extra": call.log_extra, "log_metric": call.log_metric})
    assert reason in str(caught.value)


def test_a_refused_note_is_the_reason_of_a_missing_value() -> None:
    (scored,) = score(section_of("notes_what_it_is_told"), group_of("a", note="log_metric('loss', 1)"))
    assert scored.values == [None]
    assert scored.errors == ['log_metric("loss"): agrpo has a measure loss itself; give yours another name']
    with pytest.raises(RewardError, match=r"failed on group 0: .*agrpo has a measure loss itself"):
        score(section_of("notes_what_it_is_told", on_error="stop"), group_of("a", note="log_metric('loss', 1)"))


@pytest.mark.spec("G-185")
def test_a_column_holds_texts_numbers_booleans_and_none() -> None:
    call = Call(6)
    call.log_extra("mixed", ["é\nx", True, 3, 2.5, None, np.float32(0.5)])
    call.log_extra("array", np.array([1, 2, 3, 4, 5, 6]))
    call.log_extra("broken", (f"{i}\ud83d" for i in range(6)))
    assert call.notes.extras["mixed"] == ["é\nx", True, 3, 2.5, None, 0.5]
    assert [type(value) for value in call.notes.extras["mixed"]] == [str, bool, int, float, type(None), float]
    assert call.notes.extras["array"] == [1, 2, 3, 4, 5, 6]
    assert call.notes.extras["broken"][0] == "0?"


@pytest.mark.parametrize(
    "notes",
    [{"extras": {"a": [1, 2, 3]}}, {"extras": {"a": [[1]]}}, {"extras": [1]}, {"metrics": {"loss": 1.0}}, {"other": 1}],
)
def test_a_judge_that_forges_its_answer_notes_nothing_that_could_not_be_noted(notes: dict[str, Any]) -> None:
    answer = json.dumps({"values": [9.0], "errors": [None], **notes})
    (scored,) = score(section_of("forges_its_answer"), group_of("bad", answer=answer))
    assert scored.values == [None] and scored.errors[0]
    assert (scored.extras, scored.metrics) == ({}, {})


def asked_of(handler: Handler, group: RolloutGroup, **knobs: Any) -> Score:
    async def work() -> Score:
        async with served(handler) as url:
            runner = RewardRunner(
                RewardSection(name="http_judge", settings={"url": url, **QUICK, **knobs}), begun=BEGUN
            )
            try:
                return await runner.score(group)
            finally:
                await runner.close()

    return run(work())


@pytest.mark.spec("A-206")
def test_a_service_is_told_how_far_the_run_is_and_may_note_too() -> None:
    async def judge(request: web.Request) -> web.Response:
        body = await request.json()
        rewards = [
            body["trainer_state"]["global_step"] / body["trainer_state"]["max_steps"] for _ in body["completions"]
        ]
        noted = {"log_extra": {"why": ["short" for _ in rewards]}, "log_metric": {"confidence": 0.5}}
        return web.json_response({"rewards": rewards, **(noted if rewards else {})})

    scored = asked_of(judge, late("a", "b"), send_trainer_state=True)
    assert scored.values == [0.75, 0.75]
    assert (scored.extras, scored.metrics) == ({"why": ["short", "short"]}, {"confidence": 0.5})


@pytest.mark.parametrize(
    ("noted", "reason"),
    [
        ({"log_extra": [1]}, "answered log_extra = [1]; expected an object of names and what is noted"),
        ({"log_extra": {"why": ["short"]}}, 'it noted 1 values in "why" for 2 completions'),
        ({"log_metric": {"reward": 1}}, "agrpo has a measure reward itself"),
    ],
)
def test_a_service_that_notes_wrongly_is_told_so(noted: dict[str, Any], reason: str) -> None:
    async def judge(request: web.Request) -> web.Response:
        rewards = [1.0 for _ in (await request.json())["completions"]]
        return web.json_response({"rewards": rewards, **(noted if rewards else {})})

    scored = asked_of(judge, group_of("a", "b"))
    assert scored.values == [None, None]
    assert all(reason in (error or "") for error in scored.errors)


def test_a_service_that_notes_wrongly_of_nothing_is_refused_before_the_run() -> None:
    async def judge(_: web.Request) -> web.Response:
        return web.json_response({"rewards": [], "log_metric": {"reward": 1}})

    async def work() -> list[str]:
        async with served(judge) as url:
            section = RewardSection(name="http_judge", settings={"url": url, **QUICK})
            return await asyncio.to_thread(check_reward, section)

    (problem,) = run(work())
    assert "agrpo has a measure reward itself" in problem
