"""Cohorts and the calls they answer, step by step."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from agrpo.config import ModelSection
from agrpo.engines.decoding.calls import Call
from agrpo.engines.decoding.cohort import Cohort
from agrpo.engines.decoding.model import Model, load_model
from agrpo.errors import EngineError
from agrpo.records.sampling import CompletionRequest
from tests.engines.asking import group, prompt_of


@pytest.fixture
def model(tiny_model: Path) -> Model:
    loaded = load_model(ModelSection(path=str(tiny_model)))
    loaded.load(tiny_model, 0)
    return loaded


def call_of(requests: list[CompletionRequest]) -> Call:
    return Call(requests, [request.sampling.max_completion_length for request in requests])


def step(cohort: Cohort, times: int = 1) -> None:
    for _ in range(times):
        cohort.step()
        cohort.settle()


def test_a_call_is_answered_at_the_step_its_last_row_ends(model: Model):
    short, long = (call_of(group(prompt_of(5), [0], stop=(), max_completion_length=most)) for most in (2, 4))
    cohort = Cohort(model, [*short.rows, *long.rows])
    step(cohort, 2)
    assert short.future.done()
    assert not long.future.done()
    step(cohort, 2)
    assert [len(turn.output_ids) for turn in long.future.result()] == [4]
    assert cohort.num_running == 0
    assert cohort.calls == []


def test_ended_rows_leave_the_batch_once_fewer_than_four_fifths_run(model: Model):
    limits = [1, 2, 9, 9, 9, 9, 9, 9, 9, 9]
    rows = call_of([group(prompt_of(5), [0], stop=(), max_completion_length=most)[0] for most in limits]).rows
    cohort = Cohort(model, rows)
    sizes = []
    for _ in range(4):
        cohort.step()
        sizes.append(len(cohort._rows))
    assert sizes == [10, 10, 10, 10]
    rows[2].ended = True
    cohort.step()
    assert len(cohort._rows) == 7


def test_rows_left_out_do_not_disturb_the_others(model: Model):
    requests = [
        *group(prompt_of(3), range(6), stop=(), max_completion_length=2),
        *group(prompt_of(9), range(3), stop=()),
    ]
    mixed, alone = call_of(requests), call_of(requests[6:])
    for call in (mixed, alone):
        cohort = Cohort(model, call.rows)
        while cohort.num_running:
            step(cohort)
    assert [turn.output_ids for turn in mixed.future.result()[6:]] == [
        turn.output_ids for turn in alone.future.result()
    ]


def test_a_cancelled_calls_rows_end_at_the_next_step(model: Model):
    kept, cancelled = (call_of(group(prompt_of(5), range(2), stop=())) for _ in range(2))
    cohort = Cohort(model, [*kept.rows, *cancelled.rows])
    step(cohort)
    assert cancelled.future.cancel()
    step(cohort)
    assert cohort.num_running == 2
    assert cohort.calls == [kept]


def test_a_failed_call_is_over_and_a_second_failure_changes_nothing():
    call = call_of(group(prompt_of(5), range(2)))
    call.fail(EngineError("first"))
    call.fail(EngineError("second"))
    assert call.settle()
    assert str(call.future.exception()) == "first"


def test_each_distinct_prompt_is_forwarded_once(model: Model):
    forwarded = []
    plain = model.next_logits
    model.next_logits = lambda ids, *rest: forwarded.append(tuple(ids.shape)) or plain(ids, *rest)
    step(Cohort(model, call_of([*group(prompt_of(4), range(3)), *group(prompt_of(6), range(3))]).rows), 2)
    assert forwarded == [(2, 6), (6, 1)]


def test_an_ended_row_keeps_its_position(model: Model):
    rows = call_of([group(prompt_of(5), [0], stop=(), max_completion_length=most)[0] for most in [1] + [6] * 9]).rows
    cohort = Cohort(model, rows)
    step(cohort, 3)
    assert torch.equal(cohort._positions.squeeze(1), torch.tensor([4] + [6] * 9))
