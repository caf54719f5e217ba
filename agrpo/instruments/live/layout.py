"""Laying out what is to be shown in the rows that a terminal has: everything in a row each, long texts in free rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.text import Text

LEAST_CURVE, USUAL_CURVE, MOST_CURVE = 2, 3, 9
"""Rows of the curve: where other things need the room, before long texts are wrapped, and where rows are free."""


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class Block:
    """A text of one row, or of more where there is room."""

    text: Text
    indent: int
    """Characters before the rows after the first one."""

    def wrapped(self, width: int, most: int) -> list[Text]:
        """The text in at most `most` rows, broken between words; the last row may be too long."""
        indent = min(self.indent, width // 3)
        rows, rest = list[Text](), self.text
        while len(rest) > width and len(rows) < most - 1:
            cut = rest.plain.rfind(" ", indent + 1, width + 1)
            row, rest = rest.divide([cut if cut > 0 else width])
            rows.append(row)
            rest = Text(" " * indent).append_text(rest[len(rest) - len(rest.plain.lstrip()) :])
        return [*rows, rest]


def laid_out(
    *,
    head: Sequence[Text],
    curve: Callable[[int], Sequence[Text]],
    measures: Sequence[Block],
    stages: Sequence[Block],
    findings: Sequence[Block],
    notices: Sequence[Block],
    width: int,
    height: int,
) -> list[Text]:
    """At most `height` lines.

    `curve` draws itself in so many rows and one for its foot. Where there is no room for all, the curve is made smaller,
    the last findings and the oldest notices are left out, and then what would stand at the bottom.
    """
    fixed = len(head) + len(measures) + len(stages)
    spare = height - fixed - len(findings) - len(notices) - 1
    curve_rows = max(LEAST_CURVE, min(USUAL_CURVE, spare))
    drawn = curve(curve_rows)
    room = max(0, height - fixed - len(drawn))
    num_findings = min(len(findings), max(room - len(notices), (room + 1) // 2))
    num_notices = min(len(notices), room - num_findings)
    findings, notices = findings[:num_findings], notices[len(notices) - num_notices :]
    room -= num_findings + num_notices
    rows = _rows([*stages, *findings, *reversed(notices), *measures], width, room)
    room -= sum(rows.values()) - len(rows)
    texts = [
        [text for block in blocks for text in block.wrapped(width, rows[block])]
        for blocks in (measures, stages, findings, notices)
    ]
    gaps = sum(1 for part in (drawn, *texts) if part)
    spaced = room >= gaps
    if len(drawn) > 1:
        drawn = curve(min(MOST_CURVE, curve_rows + (room - gaps if spaced else 0)))
    lines: list[Text] = []
    for part in (head, drawn, *texts):
        lines += [Text()] if lines and part and spaced else []
        lines += part
    return lines[:height]


def _rows(blocks: Sequence[Block], width: int, room: int) -> dict[Block, int]:
    """How many rows each takes: one, and of the free ones by turns what it needs."""
    needed = {block: len(block.wrapped(width, 1 + room)) for block in blocks}
    rows = dict.fromkeys(blocks, 1)
    while room > 0 and rows != needed:
        for block in blocks:
            if room > 0 and rows[block] < needed[block]:
                rows[block] += 1
                room -= 1
    return rows
