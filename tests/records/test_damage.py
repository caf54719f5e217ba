"""Every byte of a record is vouched for: one that is flipped is found and named, or changes nothing of what is read."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from agrpo.errors import RecordError
from agrpo.records.arrow import group_from_arrow, group_to_arrow, scored_from_arrow, scored_to_arrow
from agrpo.records.checksum import ARROW_KEY
from agrpo.records.documents import dump, load
from agrpo.records.group import RolloutGroup
from agrpo.records.outcome import SampleOutcome
from agrpo.records.progress import Base, Done, Plan, Probe, WeightsReady
from agrpo.records.prompt import Prompt
from agrpo.records.rollout import Rollout, TurnRecord
from agrpo.records.score import Score, ScoredGroup
from agrpo.records.trained_tokens import TrainedTokens, tokens_table, tokens_to_arrow
from tests.records.test_progress import PLAN

WHERE = "runs/r/some/object"

GROUP = RolloutGroup(
    ticket=3,
    prompt=Prompt(id="a", messages=[{"role": "user", "content": "é? \x1fxxh3_128 " + "0" * 32}], facts={"answer": 4}),
    rollouts=[
        Rollout(
            completion=[{"role": "assistant", "content": "\x1fxxh3_128 " + "0" * 32}],
            completion_ids=[5, 31, 1],
            turns=[
                TurnRecord(
                    prompt_ids=[3, 4],
                    output_ids=[5, 31, 1],
                    output_log_probs=[-0.5, -0.25, -0.125],
                    output_mask=[1, 1, 0],
                    output_versions=[2, 2, 3],
                )
            ],
            seed=2**62,
            index=index,
            error=f"\x1fxxh3_128 {'f' * 32}" if index else None,
        )
        for index in range(2)
    ],
    model_version=2,
)
SCORED = ScoredGroup(
    ticket=3,
    prompt_id="a",
    model_version=2,
    rewards=[1.5, 0.5],
    scores=[Score(reward="r", weight=0.5, values=[3.0, 1.0], errors=[None, "late"], duration_seconds=0.25)],
    marks=frozenset(),
    num_prompt_tokens=[2, 2],
    num_completion_tokens=[3, 3],
    num_forwarded_tokens=[5, 5],
    terminated=[True, False],
    duplicates=[False, False],
    num_turns=[1, 1],
    num_sequences=[1, 1],
    duration_seconds=[0.5, 0.25],
    scored_at=2.5,
)
SAMPLE = {name: 0.5 for name in SampleOutcome.__dataclass_fields__} | {
    name: 1 for name in ("ticket", "rollout_index", "sequence_index", "micro_batch", "staleness")
}
DONE = Done(
    attempt=0,
    step=1,
    digest="a" * 32,
    digests={"embed.weight": "b" * 32},
    loss=0.1,
    grad_norm=1e-3 / 3,
    metrics={"reward": 0.5},
    samples=[SampleOutcome(**SAMPLE | {"num_tokens": 5, "num_trained_tokens": 3})],
    num_tokens=5,
    num_prompts=1,
    publish=1,
    empty=False,
    started_at=1.25,
    finished_at=2.5,
)
READY = WeightsReady(
    version=1,
    attempt=0,
    step=1,
    digest="a" * 32,
    folder="weights/00000001-aa",
    probe=Probe(token_ids=[1, 2], top_ids=[3, 4], top_logprobs=[-0.1, -2.5]),
    published_at=1.5,
)
TOKENS = [
    TrainedTokens(
        ticket=1,
        rollout_index=index,
        sequence_index=0,
        log_probs=np.array([-0.5, -0.25], np.float32),
        entropies=np.array([0.5, 1.5], np.float32),
    )
    for index in range(2)
]


def bits(table: pa.Table) -> list[dict[str, Any]]:
    return table.to_pylist()


RECORDS: dict[str, tuple[bytes, Callable[[bytes], Any]]] = {
    "group": (bytes(group_to_arrow(GROUP)), lambda data: group_from_arrow(data, WHERE)),
    "scored": (bytes(scored_to_arrow(SCORED)), lambda data: scored_from_arrow(data, WHERE)),
    "tokens": (bytes(tokens_to_arrow(TOKENS)), lambda data: bits(tokens_table(data, WHERE))),
    "plan": (dump(PLAN), lambda data: load(Plan, data, WHERE)),
    "done": (dump(DONE), lambda data: load(Done, data, WHERE)),
    "version": (dump(READY), lambda data: load(WeightsReady, data, WHERE)),
    "base": (dump(Base(attempt=1, parent=0, base_step=3)), lambda data: load(Base, data, WHERE)),
}


@pytest.mark.parametrize("kind", RECORDS)
def test_a_flipped_byte_is_named_or_changes_nothing(kind: str):
    data, read = RECORDS[kind]
    whole, found = read(data), 0
    for place in range(len(data)):
        flipped = bytearray(data)
        flipped[place] ^= 1 << place % 8
        try:
            assert read(bytes(flipped)) == whole, f"byte {place} changed what is read"
        except RecordError as error:
            assert str(error).startswith(WHERE)
            found += 1
    assert found >= len(data) - len('"checksum')


@pytest.mark.parametrize("kind", ["group", "scored", "tokens"])
def test_an_arrow_file_that_lost_its_end_or_a_block_is_refused(kind: str):
    data, read = RECORDS[kind]
    blank = data[: len(data) // 2] + bytes(64) + data[len(data) // 2 + 64 :]
    for harmed in (data[:-1], data[: len(data) // 2], data + b"\0", blank):
        with pytest.raises(RecordError, match=f"{WHERE} is (torn or )?damaged"):
            read(harmed)


def test_an_arrow_file_with_a_checksum_is_read_by_arrow_itself():
    file = pa.ipc.open_file(group_to_arrow(GROUP))
    assert file.schema.metadata[ARROW_KEY.encode()].startswith(b"\x1fxxh3_128 ")
    assert file.read_all().num_rows == 2


@pytest.mark.parametrize("kind", ["plan", "done", "version"])
def test_a_document_written_before_checksums_is_read(kind: str):
    data, read = RECORDS[kind]
    document = json.loads(data)
    del document["checksum"]
    assert read(json.dumps(document).encode()) == read(data)


def test_a_slot_written_before_checksums_is_read():
    table = pa.ipc.open_file(group_to_arrow(GROUP)).read_all()
    metadata = {key: value for key, value in table.schema.metadata.items() if key != ARROW_KEY.encode()}
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema.with_metadata(metadata)) as writer:
        writer.write_table(table.replace_schema_metadata(metadata))
    assert group_from_arrow(sink.getvalue()) == GROUP


def test_a_document_that_was_laid_out_anew_is_refused():
    with pytest.raises(RecordError, match="a Plan document is damaged or was changed"):
        load(Plan, json.dumps(json.loads(dump(PLAN)), indent=1).encode())


@pytest.mark.parametrize("letter", range(len("checksum")))
def test_a_document_whose_checksum_has_lost_its_name_is_refused(letter: int):
    data = bytearray(dump(PLAN))
    data[data.rindex(b"checksum") + letter] ^= 1
    with pytest.raises(RecordError, match="a Plan document is damaged"):
        load(Plan, bytes(data))
