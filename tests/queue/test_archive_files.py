"""Archive files: every bit of what they hold comes back, and damage is named."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from agrpo.errors import RecordError
from agrpo.queue.archive import chunk as chunk_page
from agrpo.queue.archive.chunk import Chunk, StoredObject, encode
from agrpo.records.arrow import MAJOR, group_from_arrow, group_to_arrow
from agrpo.records.checksum import check_arrow
from agrpo.records.rollout import Rollout, TurnRecord
from tests.stages.groups import a_group


def stored(*slots: bytes) -> list[StoredObject]:
    return [StoredObject(f"{ticket:012d}.arrow", pa.py_buffer(slot)) for ticket, slot in enumerate(slots)]


def slot_of(*rollouts: Rollout, **knobs: object) -> bytes:
    return bytes(group_to_arrow(replace(a_group(0, **knobs), rollouts=list(rollouts))))


def an_odd_turn() -> TurnRecord:
    """Values that a careless copy changes: what is absent, empty, not a number, and every bit of a float."""
    third = float.fromhex("0x1.5555560000000p-2")  # fp32
    return TurnRecord(
        prompt_ids=[],
        output_ids=[2**31 - 1, 0, 7],
        output_log_probs=[-0.0, math.nan, third],
        output_mask=[1, 0, 1],
        output_versions=[0, 0, 1],
        output_sampler_logprobs=[{1: -third, 2: -math.inf}, {}, {3: -1e-45}],
        output_sampling_mask=[[1, 2], None, []],
    )


def kept_as_bytes(data: pa.Buffer) -> list[bool]:
    return [kept is not None for kept in pq.read_table(pa.BufferReader(data)).column("bytes").to_pylist()]


def test_slots_come_back_with_the_bytes_they_had():
    rollout = Rollout(
        completion=[{"role": "assistant", "content": "é\u0000"}], completion_ids=[1], turns=[], reward=math.nan
    )
    slots = [
        slot_of(replace(rollout, turns=[an_odd_turn(), an_odd_turn()])),
        slot_of(rollout, replace(rollout, turns=[an_odd_turn()], reward=-0.0, error="broke")),
        bytes(group_to_arrow(a_group(2, lengths=(3, 0, 4)))),
        slot_of(refusal="too long"),
    ]
    data = encode(stored(*slots))
    assert kept_as_bytes(data) == [False] * 4
    chunk = Chunk(data, "here")
    assert [bytes(chunk.get(name)) for name in chunk.names] == slots
    assert repr(group_from_arrow(chunk.get("000000000001.arrow"))) == repr(group_from_arrow(slots[1]))
    assert chunk.get("000000000004.arrow") is None


def test_what_cannot_be_kept_as_rows_is_kept_as_bytes():
    whole, torn = bytes(group_to_arrow(a_group(0))), bytes(group_to_arrow(a_group(1)))[:-40]
    newer = pa.ipc.open_file(whole).read_all().append_column("colour", [["red", "blue"]])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, newer.schema) as writer:
        writer.write_table(newer)
    slots = [whole, torn, bytes(sink.getvalue()), b""]
    data = encode(stored(*slots))
    assert kept_as_bytes(data) == [False, True, True, True]
    assert [bytes(Chunk(data, "here").get(name)) for name in Chunk(data, "here").names] == slots


def test_a_slot_whose_byte_was_damaged_is_told_of_and_stays_damaged(caplog):
    slot = bytearray(group_to_arrow(a_group(0)))
    slot[slot.index(b"answer 0")] ^= 1
    data = encode(stored(bytes(slot)))
    assert "000000000000.arrow is archived as it is and cannot be read: 000000000000.arrow is damaged" in caplog.text
    with pytest.raises(RecordError, match="slot is damaged or was changed"):
        group_from_arrow(Chunk(data, "here").get("000000000000.arrow"), "slot")


def test_a_slot_of_a_later_agrpo_is_refused_from_the_archive_as_from_the_queue():
    table = pa.ipc.open_file(group_to_arrow(a_group(0))).read_all()
    metadata = {**table.schema.metadata, b"agrpo.schema_version": f"{MAJOR + 1}.0".encode()}
    del metadata[b"agrpo.checksum"]
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema.with_metadata(metadata)) as writer:
        writer.write_table(table)
    restored = Chunk(encode(stored(bytes(sink.getvalue()))), "here").get("000000000000.arrow")
    with pytest.raises(RecordError, match=f"schema version {MAJOR + 1}.0"):
        group_from_arrow(restored)


def test_floats_are_split_by_byte_without_a_dictionary_and_all_is_zstd():
    metadata = pq.ParquetFile(pa.BufferReader(encode(stored(bytes(group_to_arrow(a_group(0))))))).metadata.row_group(0)
    columns = [metadata.column(number) for number in range(metadata.num_columns)]
    floats = [column for column in columns if column.physical_type in ("FLOAT", "DOUBLE")]
    assert {column.path_in_schema.rpartition(".")[2] for column in floats} >= {"reward", "duration_seconds", "item"}
    assert all(column.encodings == ("RLE", "BYTE_STREAM_SPLIT") and not column.has_dictionary_page for column in floats)
    assert {column.compression for column in columns} == {"ZSTD"}


def test_a_large_file_is_decoded_a_part_at_a_time(monkeypatch):
    slots = [bytes(group_to_arrow(a_group(ticket))) for ticket in range(5)]
    monkeypatch.setattr(chunk_page, "_ROW_GROUP_BYTES", 2 * len(slots[0]) - 1)
    data = encode(stored(*slots))
    assert pq.ParquetFile(pa.BufferReader(data)).num_row_groups == 3
    chunk = Chunk(data, "here")
    assert [bytes(chunk.get(f"{ticket:012d}.arrow")) for ticket in (4, 0, 3, 1, 2)] == [
        slots[ticket] for ticket in (4, 0, 3, 1, 2)
    ]


def test_rows_laid_out_otherwise_than_their_writer_did_are_sealed_anew(monkeypatch):
    slot = bytes(group_to_arrow(a_group(0)))
    chunk = Chunk(encode(stored(slot)), "here")
    as_written = chunk_page._slot

    def laid_out_otherwise(rows: pa.StructArray, metadata: dict[str, str]) -> pa.Buffer:
        return as_written(rows, {**metadata, "writer": "of another version"})

    monkeypatch.setattr(chunk_page, "_slot", laid_out_otherwise)
    restored = chunk.get("000000000000.arrow")
    assert bytes(restored) != slot
    check_arrow(restored, "here")
    assert group_from_arrow(restored) == group_from_arrow(slot)


def test_a_damaged_archive_is_named_wherever_the_damage_is():
    data = bytes(encode(stored(*(bytes(group_to_arrow(a_group(ticket))) for ticket in range(3)))))
    for place in range(5, len(data), 97):
        damaged = bytearray(data)
        damaged[place] ^= 0x10
        with pytest.raises(RecordError, match=re.escape("archive/groups/x.parquet is damaged")):
            Chunk(pa.py_buffer(bytes(damaged)), "archive/groups/x.parquet").get("000000000001.arrow")
