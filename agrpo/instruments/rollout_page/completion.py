"""The completion of a rollout for a terminal: turn by turn, every token coloured or marked, or one row per token."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from agrpo.instruments.rollout_page.colours import Band, Scale
from agrpo.instruments.rollout_page.facts import (
    Alternative,
    CallFacts,
    RolloutFacts,
    RolloutPage,
    TokenFacts,
    TurnFacts,
)
from agrpo.visible import visible

CONTEXT_STYLE = "dim"
NAMED_ALTERNATIVES = 3
LONGEST_TOKEN = 20
"""Characters of a token in a table; its quotes included."""
SHORTEST = 5
"""Characters that a narrow terminal leaves of a token, and of its alternatives."""
SAID_ONCE = ("version", "trained")
ALTERNATIVES = "alternatives (nats)"
LONGEST_RESULT = 200
"""Characters of what a tool answered, beside its call; all of it is in the context of the next turn."""
SEVERAL = 2
SHORTEST_SECONDS, LONG_SECONDS = 0.001, 100.0


def tokens_of(page: RolloutPage) -> list[TokenFacts]:
    """Every sampled token."""
    return [token for turn in page.turns for token in turn.tokens]


def completion(page: RolloutPage, scale: Scale, *, coloured: bool) -> Iterator[RenderableType]:
    """Turns with their tokens, then the legend. Without a tokenizer: the text as it was recorded."""
    assert page.rollout is not None, "a refused prompt has no completion"
    if not page.turns:
        yield Text(page.rollout.error or "no turn was sampled")
        yield from _called_in_vain(page)
        return
    for before, turn in pairwise([None, *page.turns]):
        assert turn is not None, "only the first turn has none before it"
        yield from _turn(page, before, turn, scale, coloured=coloured)
        yield from _called(page, turn)
    if any(token.text is None for token in tokens_of(page)):
        yield from _as_recorded(page.rollout)
        return
    yield Text()
    yield from legend(tokens_of(page), scale, coloured=coloured)


def token_table(page: RolloutPage, scale: Scale, *, coloured: bool) -> Iterator[RenderableType]:
    """Turn by turn, one row per sampled token."""
    if not page.turns:
        yield from completion(page, scale, coloured=coloured)
        return
    for before, turn in pairwise([None, *page.turns]):
        assert turn is not None, "only the first turn has none before it"
        yield from _head(page, before, turn)
        yield from _turn_table(turn, scale, coloured=coloured)
        yield from _called(page, turn)
    if coloured and page.turns:
        yield Text()
        yield from legend(tokens_of(page), scale, coloured=True)


def _turn_table(turn: TurnFacts, scale: Scale, *, coloured: bool) -> Iterator[RenderableType]:
    """Columns that nothing fills are left out; what is the same for all tokens is said once."""
    columns = _columns(turn.tokens, scale, coloured=coloured)
    same = {
        name: cells[0].plain for name, cells in columns.items() if name in SAID_ONCE and len(set(map(str, cells))) == 1
    }
    if same:
        yield Text("all tokens: " + ", ".join(f"{name} {value}" for name, value in same.items()), style="dim")
    shown = {name: cells for name, cells in columns.items() if name not in same and any(cell.plain for cell in cells)}
    table = Table(box=None, header_style="dim", pad_edge=False, padding=(0, 1))
    for name, cells in shown.items():
        widest = max(cell.cell_len for cell in [*cells, *map(Text, name.split("\n"))])
        table.add_column(
            name,
            justify="left" if name in ("token", ALTERNATIVES) else "right",
            no_wrap=name != ALTERNATIVES,
            min_width=SHORTEST if name in ("token", ALTERNATIVES) else widest,
        )
    for row in zip(*shown.values(), strict=True):
        table.add_row(*row)
    yield table


def _columns(tokens: Sequence[TokenFacts], scale: Scale, *, coloured: bool) -> dict[str, list[Text]]:
    """Cells by column, one per token."""
    plain: dict[str, list[str]] = {
        "#": [str(place) for place, _ in enumerate(tokens)],
        "id": [str(token.token_id) for token in tokens],
        "token": [_cut(_quoted(token.text)) for token in tokens],
        "sampler\nnats": [fixed(token.sampler_logprob) for token in tokens],
        "learner\nnats": [fixed(token.learner_logprob) for token in tokens],
        "ratio": [fixed(token.ratio) for token in tokens],
        "entropy\nnats": [fixed(token.entropy) for token in tokens],
        "version": ["" if token.version is None else str(token.version) for token in tokens],
        "trained": [_trained(token) for token in tokens],
        ALTERNATIVES: [_listed(token.alternatives) for token in tokens],
    }
    columns = {name: [Text(cell) for cell in cells] for name, cells in plain.items()}
    if coloured:
        columns["token"] = [
            Text.assemble((cell.plain, _style(token, scale.band(token))))
            for cell, token in zip(columns["token"], tokens, strict=True)
        ]
    return columns


def legend(tokens: Sequence[TokenFacts], scale: Scale, *, coloured: bool) -> Iterator[RenderableType]:
    """What the colours or marks on the page mean, how many tokens have them, and between which values they lie."""
    counted = [token for token in tokens if token.trained]
    values = [value for token in counted if (value := scale.value(token)) is not None]
    if not values:
        yield Text(f"{scale.title}: none is known here", style="dim")
        return
    found = Counter(band for token in counted if (band := scale.band(token)))
    title = f"{'colour' if coloured else 'marks'}: {scale.title}"
    yield Text(f"{title}; {_range(values)}" if scale.measured else title)
    line = Text("tokens:")
    for band in scale.bands:
        if found[band] and (coloured or band.marks[0]):
            line.append("  ").append_text(_swatch(band, coloured=coloured)).append(f" {found[band]}")
    if not coloured:
        line.append(f"  unmarked {sum(count for band, count in found.items() if not band.marks[0])}")
    if any(not token.trained for token in tokens):
        line.append("  dim: context" if coloured else "  in {braces}: context")
    yield line


def number(value: float | None, digits: int = 4) -> str:
    """A number for people, empty where there is none."""
    if value is None:
        return ""
    return f"{value:.{digits}g}" if abs(value) >= 1e-3 or value == 0 else f"{value:.1e}"


def counted(count: int, noun: str) -> str:
    """Such as "1 token", "2 tokens"."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def seconds(value: float) -> str:
    """A duration for people: three digits, and whole seconds where it is long."""
    if 0 < value < SHORTEST_SECONDS:
        return f"<{SHORTEST_SECONDS:g} s"
    return f"{value:.3g} s" if value < LONG_SECONDS else f"{value:.0f} s"


def fixed(value: float | None) -> str:
    """A number with four decimals, such that a column of them can be compared."""
    return "" if value is None else f"{value:.4f}"


def _turn(
    page: RolloutPage, before: TurnFacts | None, turn: TurnFacts, scale: Scale, *, coloured: bool
) -> Iterator[RenderableType]:
    yield from _head(page, before, turn)
    if all(token.text is not None for token in turn.tokens):
        yield coloured_text(turn.tokens, scale, coloured=coloured)


def _called(page: RolloutPage, turn: TurnFacts) -> Iterator[RenderableType]:
    """The calls that the turn made, each with what came back."""
    for call in page.calls:
        if call.turn_index == turn.turn_index:
            yield _call_line(call)


def _called_in_vain(page: RolloutPage) -> Iterator[RenderableType]:
    """The calls of a rollout that failed: they were made, and their turns are not kept."""
    if page.calls:
        yield Text("calls that were made before; their arguments and results are not kept with a failed rollout:")
    for call in page.calls:
        yield Text(f"turn {call.turn_index} ", style="dim").append_text(_call_line(call))


def _call_line(call: CallFacts) -> Text:
    """What was called, how long it took and why it failed, and what the model was told."""
    name = f"{call.name}({call.arguments})" if call.arguments is not None else call.name or "a call"
    told = call.result or call.reason or ""
    parts = [name, _call_end(call), *([_shortened(told)] if told else [])]
    return Text(visible(f"→ {' · '.join(parts)}"), style="yellow" if call.failure else "cyan")


def _call_end(call: CallFacts) -> str:
    """Of one that failed the time only where it ran."""
    took = seconds(call.duration_seconds)
    if call.failure is None:
        return took
    return f"{call.failure} after {took}" if call.duration_seconds else call.failure


def _as_recorded(rollout: RolloutFacts) -> Iterator[RenderableType]:
    """Without a tokenizer: the text, and of a conversation who said what."""
    if len(rollout.completion) < SEVERAL:
        yield Text(visible(rollout.completion_text))
        return
    for message in rollout.completion:
        yield Text.assemble((f"{message.get('role')}  ", "dim"), visible(str(message.get("content") or "")))


def _shortened(text: str) -> str:
    return text if len(text) <= LONGEST_RESULT else f"{text[:LONGEST_RESULT]}… ({len(text)} characters)"


def _head(page: RolloutPage, before: TurnFacts | None, turn: TurnFacts) -> Iterator[RenderableType]:
    """What came between the turns, and which turn this is; nothing where there is only one, without a call."""
    if before is not None:
        yield Text(_joint(before, turn), style="dim")
        context = [token.text for token in turn.context if token.text is not None]
        if context:
            yield Text(visible("".join(context)), style=CONTEXT_STYLE)
    if len(page.turns) > 1 or page.calls:
        tokens = f"{turn.num_prompt_tokens} prompt + {counted(len(turn.tokens), 'token')}"
        parts = [f"turn {turn.turn_index}", tokens, *_turn_times(turn), turn.stop_reason]
        yield Text(" · ".join([*parts, f"training sequence {turn.sequence_index}"]))


def _turn_times(turn: TurnFacts) -> Iterator[str]:
    """How long it took to sample, and how long after the rollout's begin it was asked for."""
    if turn.duration_seconds is not None:
        after = "" if turn.begun_seconds is None else f" at {turn.begun_seconds:+.2f} s"
        yield f"{seconds(turn.duration_seconds)}{after}"


def _joint(before: TurnFacts, turn: TurnFacts) -> str:
    """How a turn's prompt follows from the turn before."""
    if not turn.forked:
        return f"context: {counted(len(turn.context), 'token')} after turn {before.turn_index}, not trained"
    whole = before.num_prompt_tokens + len(before.tokens)
    return (
        f"fork: turn {turn.turn_index} begins training sequence {turn.sequence_index}, for its prompt keeps only "
        f"{turn.kept_tokens} of the {counted(whole, 'token')} before it; then {counted(len(turn.context), 'token')} of context:"
    )


def coloured_text(tokens: Sequence[TokenFacts], scale: Scale, *, coloured: bool) -> Text:
    """The tokens one after the other. Where the policy's version changes, it is named."""
    shown = Text()
    versions = {token.version for token in tokens}
    version: int | None = None
    for token in tokens:
        if len(versions) > 1 and token.version != version:
            shown.append(f"[v{token.version}]", style="dim" if coloured else "")
        version = token.version
        band = scale.band(token)
        text = visible(token.text or "")
        body = text.rstrip("\n")
        if coloured:
            shown.append(body, style=_style(token, band))
        else:
            opened, closed = ("{", "}") if not token.trained else band.marks if band else ("", "")
            shown.append(f"{opened}{body}{closed}")
        shown.append(text[len(body) :])
    return shown


def _style(token: TokenFacts, band: Band | None) -> str:
    if not token.trained:
        return CONTEXT_STYLE
    return band.style if band else ""


def _swatch(band: Band, *, coloured: bool) -> Text:
    if coloured:
        return Text(f" {band.label} ", style=band.style)
    return Text(f"{band.label} {''.join(band.marks)}")


def _range(values: Sequence[float]) -> str:
    low, high = min(values), max(values)
    if low == high:
        return f"all {number(low)}"
    return f"{fixed(low)} to {fixed(high)}, mean {fixed(math.fsum(values) / len(values))}"


def _trained(token: TokenFacts) -> str:
    if not token.trained:
        return "context"
    return "no" if token.advantage is None else "yes"


def _listed(alternatives: list[Alternative] | None) -> str:
    """The most likely ones."""
    named = (alternatives or [])[:NAMED_ALTERNATIVES]
    return "  ".join(f"{_quoted(one.text) or one.token_id} {one.logprob:.2f}" for one in named)


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST_TOKEN else text[: LONGEST_TOKEN - 1] + "…"


def _quoted(text: str | None) -> str:
    return "" if text is None else visible(json.dumps(text, ensure_ascii=False))
