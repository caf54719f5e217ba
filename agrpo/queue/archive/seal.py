"""The seal of an archive file: the xxh3_128 of the whole file, in its footer, so that any damaged byte is found.

The digits are taken over the file with zeros in their place. Parquet's own checksums are of pages: none is of the footer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import xxhash

from agrpo.errors import RecordError

if TYPE_CHECKING:
    import pyarrow as pa

KEY = "agrpo.seal"
"""Of the file's metadata."""
_MARK, _DIGITS = b"xxh3_128 ", 32
UNSEALED_FILE = (_MARK + b"0" * _DIGITS).decode()
"""Value of `KEY` in a file that is still to be sealed."""


def sealed(data: pa.Buffer) -> pa.Buffer:
    """The file with its digits in place of `UNSEALED_FILE`."""
    import pyarrow as pa

    filled = bytearray(data)
    place = _place(memoryview(data))
    assert place is not None, f"a file without {KEY} in its metadata cannot be sealed"
    filled[place : place + _DIGITS] = _digits(memoryview(data), place)
    return pa.py_buffer(filled)


def check_seal(data: pa.Buffer, where: str) -> None:
    """Raise `RecordError`, naming `where`, unless the file's digits are those of its bytes."""
    view = memoryview(data)
    place = _place(view)
    if place is None or bytes(view[place : place + _DIGITS]) != _digits(view, place):
        what = "it has no seal" if place is None else f"its bytes have xxh3_128 {_digits(view, place).decode()}"
        raise RecordError(
            f"{where} is damaged or no archive of agrpo's: {what}. Bring the file back from a copy: its tickets cannot be "
            "read without it"
        )


def _place(view: memoryview) -> int | None:
    """Where the digits begin; the file ends with its footer, that one's length in four bytes, and four letters."""
    begin = max(len(view) - 8 - int.from_bytes(view[-8:-4], "little"), 0)
    # What the footer says of columns may hold the mark as well, and comes before.
    found = bytes(view[begin:]).rfind(_MARK)
    return None if found < 0 else begin + found + len(_MARK)


def _digits(view: memoryview, place: int) -> bytes:
    digest = xxhash.xxh3_128(view[:place])
    digest.update(b"0" * _DIGITS)
    digest.update(view[place + _DIGITS :])
    return digest.hexdigest().encode()
