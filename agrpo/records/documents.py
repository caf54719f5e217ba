"""Documents: records of progress as JSON that names its schema and vouches for itself, each written once."""

from __future__ import annotations

import json
from functools import cache
from typing import Any, TypeVar

import pydantic

from agrpo.errors import RecordError, RecordTooNew
from agrpo.records.checksum import check_document, sealed_document
from agrpo.records.text import writable_throughout

T = TypeVar("T")

SCHEMA_MAJOR = 1
"""A reader refuses documents of a higher major version; fields it does not know are ignored."""


def dump(record: Any) -> bytes:
    """The record as a JSON document that names its schema and ends with its checksum. Floats survive exactly.

    Half a surrogate pair becomes a question mark.
    """
    body = _adapter(type(record)).dump_python(record, mode="json")
    document = {"schema": type(record).__name__, "schema_version": f"{SCHEMA_MAJOR}.0", **body}
    text = json.dumps(document)
    if "\\ud" in text:  # a pair, or half of one
        text = json.dumps(writable_throughout(document))
    return sealed_document(text.encode())


def load(cls: type[T], data: bytes | memoryview, where: str | None = None) -> T:
    """The record in a document. `where`: what errors call it.

    Raises `RecordError` for another schema, a higher major version, or bytes that are not those written.
    """
    where = where or f"a {cls.__name__} document"
    try:
        document = json.loads(data := bytes(data))
        schema, version = document["schema"], document["schema_version"]
    except (ValueError, KeyError, TypeError) as error:
        raise RecordError(
            f"{where} cannot be read, or is not a {cls.__name__} document: {error!r}; the file is damaged or not agrpo's. "
            "Bring it back from a copy"
        ) from None
    check_document(data, document, where)
    if schema != cls.__name__:
        raise RecordError(f"{where}: expected a {cls.__name__} document, found {schema}")
    if int(str(version).partition(".")[0]) > SCHEMA_MAJOR:
        raise RecordTooNew(
            f"{where} is a {schema} document of schema version {version}; this agrpo reads up to {SCHEMA_MAJOR}.x: "
            "upgrade agrpo"
        )
    try:
        return _adapter(cls).validate_python(
            {key: value for key, value in document.items() if not key.startswith("schema")}
        )
    except pydantic.ValidationError as error:
        raise RecordError(
            f"{where} is a damaged {schema} document: {error.errors()[0]['loc']} {error.errors()[0]['msg']}"
        ) from None


@cache
def _adapter(cls: type[Any]) -> pydantic.TypeAdapter[Any]:
    return pydantic.TypeAdapter(cls)
