"""Checksums: the xxh3_128 of a whole file, carried inside it, so that whoever reads it finds a damaged byte.

An Arrow file stays one: the digits stand in its schema's metadata, which Arrow writes twice, at the start and in the
footer. They are taken over the file with zeros in both places. A JSON document's digits stand at its end, over the
document without them. Either is checked before the bytes are given to a parser. A file without digits was written
before there were any, and is read as it is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import xxhash

from agrpo.errors import RecordError

if TYPE_CHECKING:
    import pyarrow as pa

ARROW_KEY = "agrpo.checksum"
"""Of the schema's metadata."""
DOCUMENT_KEY = "checksum"

_DIGITS = 32
_ZEROS = b"0" * _DIGITS
# What begins with a bare control character is in no JSON text, so no fact of a group can be taken for the mark.
_MARK = re.compile(rb"\x1fxxh3_128 ([0-9a-f]{32})")
UNSEALED = f"\x1fxxh3_128 {'0' * _DIGITS}"
"""Value of `ARROW_KEY` in a file that is still to be sealed."""
_SCHEMA_BEGIN, _FOOTER_END = 16, 10
"""Bytes before an Arrow file's schema, whose last four tell its length, and after its footer, whose first four do."""
_SEAL = re.compile(rb', "checksum": "([0-9a-f]{32})"}')
_SEAL_BYTES = len(', "checksum": ""}') + _DIGITS


def sealed_arrow(data: pa.Buffer) -> pa.Buffer:
    """The IPC file with its digits in place of `UNSEALED`."""
    import pyarrow as pa

    view = memoryview(data)
    first, last = _MARK.search(view, 0, _schema_end(view)), _MARK.search(view, _footer(view))
    assert first and last, f"an IPC file whose schema has no {ARROW_KEY} cannot be sealed"
    digits = _arrow_digits(view, first.start(1), last.start(1))
    filled = bytearray(view)
    for place in (first.start(1), last.start(1)):
        filled[place : place + _DIGITS] = digits
    return pa.py_buffer(filled)


def check_arrow(data: pa.Buffer | bytes, where: str) -> None:
    """Raise `RecordError`, naming `where`, unless an IPC file's digits are those of its bytes."""
    view = memoryview(data)
    first, last = _MARK.search(view, 0, _schema_end(view)), _MARK.search(view, _footer(view))
    if first is None and last is None:
        return
    if first is None or last is None:
        raise RecordError(f"{where} is torn or damaged: its checksum stands in one of two places. {_ADVICE}")
    found = _arrow_digits(view, first.start(1), last.start(1))
    if not found == first[1] == last[1]:
        raise RecordError(_damage(where, found, first[1]))


def sealed_document(text: bytes) -> bytes:
    """The JSON object with its digits as the last entry."""
    return b'%b, "%b": "%b"}' % (text[:-1], DOCUMENT_KEY.encode(), xxhash.xxh3_128_hexdigest(text).encode())


def check_document(data: bytes, document: Mapping[str, Any], where: str) -> None:
    """Raise `RecordError`, naming `where`, unless a parsed document's digits are those of its bytes."""
    if DOCUMENT_KEY not in document:
        if _LIKE_A_SEAL.fullmatch(data, max(len(data) - _SEAL_BYTES, 0)):
            raise RecordError(f"{where} is damaged: it ends with a checksum under another name. {_ADVICE}")
        return
    seal = _SEAL.fullmatch(data, max(len(data) - _SEAL_BYTES, 0))
    if seal is None:
        raise RecordError(f"{where} is damaged or was changed: it does not end with its checksum. {_ADVICE}")
    found = xxhash.xxh3_128_hexdigest(data[: seal.start()] + b"}").encode()
    if found != seal[1]:
        raise RecordError(_damage(where, found, seal[1]))


_LIKE_A_SEAL = re.compile(rb', "[^"]{8}": "[0-9a-f]{32}"\}')
"""No document from before there were checksums ends like this."""
_ADVICE = "Bring the file back from a copy; nothing of it was used"


def _damage(where: str, found: bytes, expected: bytes) -> str:
    return (
        f"{where} is damaged or was changed: its bytes have xxh3_128 {found.decode()}, written with {expected.decode()}. "
        f"{_ADVICE}"
    )


def _schema_end(view: memoryview) -> int:
    """Where an IPC file's first schema ends, as the file says itself."""
    return _SCHEMA_BEGIN + int.from_bytes(view[_SCHEMA_BEGIN - 4 : _SCHEMA_BEGIN], "little")


def _footer(view: memoryview) -> int:
    """Where an IPC file's footer begins, as the file says itself; 0 where that lies outside."""
    length = int.from_bytes(view[-_FOOTER_END : -_FOOTER_END + 4], "little")
    return max(len(view) - _FOOTER_END - length, 0)


def _arrow_digits(view: memoryview, first: int, last: int) -> bytes:
    digest = xxhash.xxh3_128(view[:first])
    digest.update(_ZEROS)
    digest.update(view[first + _DIGITS : last])
    digest.update(_ZEROS)
    digest.update(view[last + _DIGITS :])
    return digest.hexdigest().encode()
