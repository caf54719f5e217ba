"""What was chosen as one JSON document for programs: every field of the page, numbers that are none as null."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Any

from agrpo.instruments.rollout_page.facts import RolloutPage

if TYPE_CHECKING:
    from agrpo.instruments.rollout_page.choosing import ChosenRollout, PromptGroup
    from agrpo.instruments.rollout_page.logs import GroupLog


def page_document(page: RolloutPage, log: GroupLog | None = None) -> str:
    """The whole page; log lines where they were asked for."""
    return as_json({**asdict(page), **({"log": asdict(log)} if log else {})})


def list_document(name: str, records: Sequence[ChosenRollout | PromptGroup], num_matching: int, **more: object) -> str:
    """A list of records under `name`, and how many there are in the run."""
    return as_json({**more, "num_matching": num_matching, name: [asdict(record) for record in records]})


def as_json(document: Mapping[str, object]) -> str:
    """Strict JSON: numbers that JSON does not have are null, times are ISO 8601."""
    return json.dumps(_plain(document), ensure_ascii=False, indent=1, default=_text, allow_nan=False)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(name): _plain(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_plain(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _text(value: object) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)
