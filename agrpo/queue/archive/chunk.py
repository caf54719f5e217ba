"""One archive file: objects of a queue folder as Parquet, one row each, from which their very bytes can be had again.

ticket    number of the group
name      of the object in its folder
metadata  of an Arrow slot: the group's facts, the schema's version and the checksum
rows      of an Arrow slot; all that are kept here have the columns of the first
bytes     of any other object, as it was: a claim, a damaged slot, one written by another version of agrpo

Numbers that need every bit are split by byte and compressed without a dictionary. The file is sealed.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from agrpo.errors import RecordError
from agrpo.queue.archive.seal import KEY, UNSEALED_FILE, check_seal, sealed
from agrpo.records.checksum import ARROW_KEY, UNSEALED, check_arrow, sealed_arrow

logger = logging.getLogger(__name__)

_ROW_GROUP_BYTES = 8 * 2**20
"""What is decoded to read one object."""
_METADATA = pa.map_(pa.string(), pa.string())


class StoredObject(NamedTuple):
    """One object of a queue folder."""

    name: str
    data: pa.Buffer

    @property
    def ticket(self) -> int:
        return int(self.name[:12])


def encode(objects: Sequence[StoredObject]) -> pa.Buffer:
    """The file that holds these objects. It was read back: every object comes out of it with the bytes it had."""
    slots = _alike([_opened(stored) for stored in objects])
    while True:
        data = _write(objects, slots)
        chunk = Chunk(data, "a new archive file")
        odd = [place for place, stored in enumerate(objects) if not stored.data.equals(chunk.get(stored.name))]
        if not odd:
            return data
        assert all(slots[place] is not None for place in odd), "bytes that were kept as they are came out as others"
        slots = [None if place in odd else slot for place, slot in enumerate(slots)]


class Chunk:
    """An archive file, open; `where` is what errors call it.

    Raises `RecordError` where it is damaged. To know its names only they are read; the seal is checked before an object is.
    """

    def __init__(self, data: pa.Buffer, where: str) -> None:
        self._data = data
        self._where = where
        self._is_checked = False
        self._group: tuple[int, pa.Table] | None = None
        try:
            self._file = pq.ParquetFile(pa.BufferReader(data))
            names = self._file.read(columns=["name"], use_threads=False).column("name").to_pylist()
        except (pa.ArrowException, OSError, KeyError) as error:
            check_seal(data, where)
            raise RecordError(f"{where} is whole, and this pyarrow cannot read it ({error})") from error
        self.names: list[str] = names
        """Of the objects it holds, ascending."""
        self._places = {name: place for place, name in enumerate(self.names)}
        sizes = [self._file.metadata.row_group(group).num_rows for group in range(self._file.num_row_groups)]
        self._ends = list(accumulate(sizes))

    def get(self, name: str) -> pa.Buffer | None:
        """An object's bytes; None where it is not held."""
        place = self._places.get(name)
        if place is None:
            return None
        if not self._is_checked:
            check_seal(self._data, self._where)
            self._is_checked = True
        group = next(number for number, end in enumerate(self._ends) if place < end)
        table = self._table(group)
        row = place - (self._ends[group] - len(table))
        kept = table.column("bytes")[row]
        return kept.as_buffer() if kept.is_valid else self._restored(table, row)

    def _table(self, group: int) -> pa.Table:
        if self._group is None or self._group[0] != group:
            self._group = (group, self._file.read_row_group(group, use_threads=False).combine_chunks())
        return self._group[1]

    def _restored(self, table: pa.Table, row: int) -> pa.Buffer:
        """The slot's file, written again; sealed again where another Arrow than its writer's lays the same rows out."""
        rows, metadata = table.column("rows")[row].values, dict(table.column("metadata")[row].as_py())
        data = _slot(rows, metadata)
        try:
            check_arrow(data, self._where)
        except RecordError:
            return sealed_arrow(_slot(rows, {**metadata, ARROW_KEY: UNSEALED}))
        return data


def _opened(stored: StoredObject) -> pa.RecordBatch | None:
    """The slot's rows with its metadata; None where the object is not a whole Arrow slot."""
    if not stored.name.endswith(".arrow"):
        return None
    try:
        check_arrow(stored.data, stored.name)
        file = pa.ipc.open_file(stored.data)
        batch = file.get_batch(0)
        batch.validate(full=True)
        _text(batch.schema)
    except (RecordError, pa.ArrowException, OSError, ValueError) as error:
        logger.warning("%s is archived as it is and cannot be read: %s", stored.name, error)
        return None
    return batch if file.num_record_batches == 1 else None


def _alike(slots: list[pa.RecordBatch | None]) -> list[pa.RecordBatch | None]:
    """Those that have the columns of the first."""
    layout = _layout(slots)
    return [slot if slot is not None and slot.schema.equals(layout) else None for slot in slots]


def _layout(slots: Sequence[pa.RecordBatch | None]) -> pa.Schema | None:
    return next((slot.schema.remove_metadata() for slot in slots if slot is not None), None)


def _write(objects: Sequence[StoredObject], slots: Sequence[pa.RecordBatch | None]) -> pa.Buffer:
    schema, sink = _schema(_layout(slots)), pa.BufferOutputStream()
    leaves = _leaves(schema)
    floats = [path for path, kind in leaves.items() if kind in ("FLOAT", "DOUBLE")]
    encodings: dict[str, Any] = {
        "compression": "zstd",
        "use_dictionary": [path for path in leaves if path != "bytes" and path not in floats],
        "use_byte_stream_split": floats,
    }
    # Items of lists keep their name.
    with pq.ParquetWriter(sink, schema, use_compliant_nested_type=False, **encodings) as writer:
        writer.add_key_value_metadata({KEY: UNSEALED_FILE})
        for places in _row_groups(objects):
            table = _rows([objects[place] for place in places], [slots[place] for place in places], schema)
            writer.write_table(table, row_group_size=len(table))
    return sealed(sink.getvalue())


def _schema(layout: pa.Schema | None) -> pa.Schema:
    fields: list[Any] = [("ticket", pa.int64()), ("name", pa.string())]
    if layout is not None:
        fields += [("metadata", _METADATA), ("rows", pa.list_(pa.struct(list(layout))))]
    return pa.schema([*fields, ("bytes", pa.binary())])


def _leaves(schema: pa.Schema) -> dict[str, str]:
    """Parquet's physical type by the path of each leaf."""
    sink = pa.BufferOutputStream()
    pq.write_table(schema.empty_table(), sink, use_compliant_nested_type=False)
    found = pq.ParquetFile(pa.BufferReader(sink.getvalue())).schema
    columns = [found.column(number) for number in range(len(found))]
    return {column.path: column.physical_type for column in columns}


def _row_groups(objects: Sequence[StoredObject]) -> Iterator[list[int]]:
    """Places in `objects`, split so that none holds much more than `_ROW_GROUP_BYTES`."""
    places, size = [], 0
    for place, stored in enumerate(objects):
        places.append(place)
        size += stored.data.size
        if size >= _ROW_GROUP_BYTES:
            yield places
            places, size = [], 0
    if places:
        yield places


def _rows(objects: list[StoredObject], slots: list[pa.RecordBatch | None], schema: pa.Schema) -> pa.Table:
    columns: dict[str, Any] = {
        "ticket": [stored.ticket for stored in objects],
        "name": [stored.name for stored in objects],
        "bytes": pa.array(
            [stored.data.to_pybytes() if slot is None else None for stored, slot in zip(objects, slots, strict=True)],
            pa.binary(),
        ),
    }
    if "rows" in schema.names:
        texts = [None if slot is None else list(_text(slot.schema).items()) for slot in slots]
        columns["metadata"] = pa.array(texts, _METADATA)
        columns["rows"] = _lists(slots, schema.field("rows").type)
    return pa.table({name: columns[name] for name in schema.names}, schema=schema)


def _lists(slots: Sequence[pa.RecordBatch | None], kind: pa.ListType) -> pa.ListArray:
    """The rows of each slot; null where it is none of those."""
    rows = [slot.to_struct_array() for slot in slots if slot is not None]
    ends = list(accumulate((0 if slot is None else len(slot) for slot in slots), initial=0))
    starts = [None if slot is None else end for slot, end in zip(slots, ends, strict=False)]
    flat = pa.concat_arrays(rows) if rows else pa.array([], kind.value_type)
    return pa.ListArray.from_arrays(pa.array([*starts, ends[-1]], pa.int32()), flat.cast(kind.value_type), type=kind)


def _slot(rows: pa.StructArray, metadata: dict[str, str]) -> pa.Buffer:
    """The rows as an IPC file."""
    schema = pa.schema(list(rows.type)).with_metadata(metadata)
    # Taken anew, the buffers are laid out as in the file that the writer made from nothing.
    columns = [column.take(pa.array(range(len(rows)), pa.int64())) for column in rows.flatten()]
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, schema) as writer:
        writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=schema))
    return sink.getvalue()


def _text(schema: pa.Schema) -> dict[str, str]:
    return {key.decode(): value.decode() for key, value in (schema.metadata or {}).items()}
