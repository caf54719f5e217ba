"""Progress documents: floats survive exactly, foreign and future documents are refused."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from agrpo.errors import RecordError
from agrpo.records.checksum import sealed_document
from agrpo.records.documents import dump, load
from agrpo.records.progress import Base, Drop, DropReason, Event, Plan, PlannedSample

PLAN = Plan(
    attempt=0,
    step=1,
    tickets=[1],
    drops=[Drop(ticket=2, reason=DropReason.STALE)],
    samples=[PlannedSample(ticket=1, rollout_index=0, sequence_index=0, advantage=float(np.float32(0.1)), staleness=0)],
    rows=[[0]],
    num_trained_tokens=3,
    version=0,
    learning_rate=1e-3 / 3,
    seed=2**62 + 1,
    publish=1,
    config_digest="",
    planned_at=1.25,
)


def rewritten(record: Any, **fields: Any) -> bytes:
    """The record as another version of agrpo would have written it."""
    document = json.loads(dump(record))
    del document["checksum"]
    return sealed_document(json.dumps(document | fields).encode())


def test_a_plan_comes_back_exactly():
    found = load(Plan, dump(PLAN))
    assert found == PLAN
    assert np.float32(found.samples[0].advantage) == np.float32(0.1)


def test_half_a_surrogate_pair_is_a_question_mark_in_a_document_and_a_whole_one_is_kept():
    told = {"reason": "a\ud800", "columns": ["\udfffb", "\U0001f600"]}
    event = Event(stream="learner", number=0, kind="failed", at=1.0, payload=told)
    assert load(Event, dump(event)).payload == {"reason": "a?", "columns": ["?b", "\U0001f600"]}


def test_a_plan_consumes_what_it_trains_and_what_it_drops():
    assert PLAN.consumed == [1, 2]


def test_a_field_of_a_later_minor_version_is_ignored():
    assert load(Plan, rewritten(PLAN, schema_version="1.9", mood="good")) == PLAN


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"{", "not a Plan document"),
        (dump(Base(attempt=0)), "expected a Plan document, found Base"),
        (rewritten(PLAN, schema_version="2.0"), "upgrade agrpo"),
        (rewritten(PLAN, step="one"), "damaged Plan"),
    ],
)
def test_what_is_no_readable_plan_is_refused(data: bytes, message: str):
    with pytest.raises(RecordError, match=message):
        load(Plan, data)
