"""A record's values as SQL has them."""

from __future__ import annotations

import json


def timestamp(seconds: float) -> int | None:
    """Unix seconds as the microseconds of a TIMESTAMPTZ; None for 0, which is how a record says that it does not know."""
    return round(seconds * 1e6) if seconds else None


def as_json(value: object) -> str:
    """JSON that DuckDB reads: half a surrogate pair, which only an escape can hold, becomes a question mark."""
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "replace").decode("utf-8")
