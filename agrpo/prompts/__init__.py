"""Prompt sources, and the order in which a run asks them: prompt number n is a pure function of (data seed, n).

A source gives rows by index; this page turns them into prompts. So a generator keeps no cursor, and a resumed run asks
what the uninterrupted one would have asked.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Protocol, cast

from agrpo.errors import PromptError
from agrpo.records.prompt import Message, Prompt, prompt_id
from agrpo.records.text import writable_throughout
from agrpo.registry import Registry

DatasetRow = Mapping[str, Any]
IMAGES = ("image", "images")
"""Columns that hold what a prompt shows, by convention."""


class Source(Protocol):
    """A prompt source. Its fields are its knobs."""

    def __call__(self) -> Sequence[DatasetRow]:
        """The rows, each with a `prompt` column (messages) unless an environment asks. Raises `PromptError`."""
        ...


sources: Registry[Source] = Registry("agrpo.prompts")


class PromptOrder:
    """The prompts of a run by number: every epoch is a permutation of the rows drawn from the data seed."""

    def __init__(self, rows: Sequence[DatasetRow], *, seed: int, shuffle: bool) -> None:
        if len(rows) == 0:
            raise PromptError("the prompt source has no rows; a run needs at least one prompt")
        self._rows = rows
        self._seed = seed
        self._shuffle = shuffle

    def __len__(self) -> int:
        """Prompts per epoch."""
        return len(self._rows)

    def prompt(self, number: int) -> Prompt:
        """Prompt number 0, 1, 2, … of the run. Raises `PromptError` for a row whose prompt is no conversation."""
        index, epoch = self._place_of(number)
        return prompt_of(self._rows[index], row_index=index, epoch=epoch)

    def row(self, number: int) -> DatasetRow:
        """The row that prompt number 0, 1, 2, … of the run is made of, with all its columns, its texts as in the prompt."""
        return writable_throughout(self._rows[self._place_of(number)[0]])

    def _place_of(self, number: int) -> tuple[int, int]:
        """Index of the row, and the epoch."""
        epoch, place = divmod(number, len(self._rows))
        return _permutation(self._seed, epoch, len(self._rows))[place] if self._shuffle else place, epoch


@lru_cache(maxsize=4)
def _permutation(seed: int, epoch: int, count: int) -> list[int]:
    order = list(range(count))
    random.Random(f"agrpo/{seed}/{epoch}").shuffle(order)
    return order


def prompt_of(row: DatasetRow, *, row_index: int, epoch: int = 0) -> Prompt:
    """A dataset row as a prompt. Every column but `prompt` and `environment` is a fact for the rewards.

    A row without a prompt has no messages: its environment says what is asked. Half a surrogate pair in a text or in a name
    is a question mark: policy, rewards and record have the same.
    """
    messages = [] if lacks_prompt(row) else messages_of(row, row_index)
    environment = writable_throughout(row.get("environment"))
    facts = writable_throughout({name: row[name] for name in row if name not in ("prompt", "environment")})
    return Prompt(
        id=prompt_id(messages, facts, environment),
        messages=messages,
        facts=facts,
        environment=environment,
        row_index=row_index,
        epoch=epoch,
    )


def lacks_prompt(row: DatasetRow) -> bool:
    """Whether the row leaves it to an environment to say what is asked."""
    return row.get("prompt") is None


def messages_of(row: DatasetRow, row_index: int) -> list[Message]:
    """The row's conversation, in `writable` text. Raises `PromptError` that says what the column holds instead."""
    if "prompt" not in row:
        raise PromptError(
            f'row {row_index} has no "prompt" column; its columns are: {", ".join(row)}. Rename the one that holds the '
            "conversation, a list of messages"
        )
    messages = row["prompt"]
    if not isinstance(messages, Sequence) or isinstance(messages, str | bytes) or not messages:
        raise PromptError(
            f'row {row_index}: "prompt" is {type(messages).__name__} {str(messages)[:60]!r}; expected a list of messages, '
            'such as [{"role": "user", "content": "…"}]'
        )
    for message in messages:
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str) or "content" not in message:
            raise PromptError(
                f'row {row_index}: message {str(message)[:60]!r} lacks "role" or "content"; expected such as '
                '{"role": "user", "content": "…"}'
            )
        if not isinstance(message["content"], str) and message["content"] is not None:
            raise PromptError(
                f"row {row_index}: a message's content is {type(message['content']).__name__}; only text is supported"
            )
    images = next((name for name in IMAGES if _holds_something(row.get(name))), None)
    if images is not None:
        raise PromptError(
            f'row {row_index} has something in "{images}"; only text is supported: leave out rows with images, or give the column '
            "another name where it is a fact for rewards"
        )
    return [cast("Message", writable_throughout(message)) for message in messages]


def _holds_something(value: Any) -> bool:
    return value is not None and not (isinstance(value, Sequence) and len(cast("Sequence[Any]", value)) == 0)


__all__ = ["DatasetRow", "PromptOrder", "Source", "lacks_prompt", "messages_of", "prompt_of", "sources"]
