"""The head of a rollout's page: which one it is, how it was made, and what became of it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import datetime

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from agrpo.instruments.rollout_page.completion import counted, number
from agrpo.instruments.rollout_page.facts import Consumption, GroupFacts, RolloutFacts, RolloutPage, SampleFacts
from agrpo.records.prompt import Message
from agrpo.visible import harmless, visible

LONGEST_FACT = 200
"""Characters of a fact of the prompt's row; JSON has all of them."""


def header(page: RolloutPage) -> Iterator[RenderableType]:
    """One fact a line, the most asked first."""
    group, rollout = page.group, page.rollout
    name = f"{group.ticket}/{rollout.rollout_index}" if rollout else f"{group.ticket}"
    yield Text.assemble((f"rollout {name}" if rollout else f"group {name}", "bold"), f" of {page.run}: {became(page)}")
    lines = Table.grid(padding=(0, 2))
    lines.add_column(style="dim", no_wrap=True)
    lines.add_column(overflow="fold")
    for title, text in _lines(page, group, rollout):
        if text:
            lines.add_row(title, Text(text))
    yield lines


def became(page: RolloutPage) -> str:
    """What became of the group, in a few words."""
    group = page.group
    if group.status == "pending":
        return f"not consumed yet ({group.reason})"
    steps = ", ".join(str(one.step) for one in page.consumed)
    plural = "s" if len(page.consumed) > 1 else ""
    if group.status == "trained":
        if page.consumed[0].finished_at is None:
            return f"in step {steps}, which is not done or not recorded yet"
        without = "" if page.samples or page.rollout is None else ", without this rollout"
        return f"trained in step{plural} {steps}{without}"
    by = page.consumed[0].left_out_by if page.consumed else None
    return f"dropped in step{plural} {steps}: {group.reason}" + (f" by {harmless(by)}" if by else "")


def messages(prompt: list[Message]) -> Iterator[RenderableType]:
    """The prompt's messages, role by role."""
    for message in prompt:
        content = message.get("content")
        text = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
        others = {name: value for name, value in message.items() if name not in ("role", "content")}
        more = f"\n{json.dumps(others, ensure_ascii=False)}" if others else ""
        yield Text.assemble((f"{harmless(str(message.get('role')))}  ", "dim"), harmless(text + more))


def facts(columns: Mapping[str, object]) -> Iterator[RenderableType]:
    """The other columns of the prompt's row, or those that a `rollout_func` returned, shortened."""
    for name, value in columns.items():
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
        cut = f"{text[:LONGEST_FACT]}… ({len(text)} characters)" if len(text) > LONGEST_FACT else text
        yield Text.assemble((f"{visible(name)}  ", "dim"), harmless(cut))


def _lines(page: RolloutPage, group: GroupFacts, rollout: RolloutFacts | None) -> Iterator[tuple[str, str]]:
    if rollout is not None:
        yield "id", rollout.rollout_id
    epoch = f"row {group.row_index}, epoch {group.epoch}"
    yield "prompt", f"{group.prompt_id} · {epoch}" + (f" · {group.environment}" if group.environment else "")
    if group.refusal is not None:
        yield "refused", harmless(group.refusal)
    if rollout is not None:
        yield "reward", _reward(rollout)
        yield "length", _length(page, rollout)
        yield "environment", _environment(rollout)
        yield "error", harmless(rollout.error or "")
    yield "policy", _policy(page)
    yield "step", "; ".join(_attempt(one) for one in page.consumed)
    for sample in page.samples:
        yield "learner", _learner(sample)
    yield "by", _generator(group, rollout)
    yield "times", _times(page)
    yield "took", _took(group, rollout)


def _reward(rollout: RolloutFacts) -> str:
    if rollout.reward is None:
        return "none"
    group = f"group mean {number(rollout.group_reward_mean)}"
    if rollout.group_reward_std is not None:
        group += f", sample std {number(rollout.group_reward_std)}"
    advantage = "none: not trained" if rollout.advantage is None else f"{rollout.advantage:+.4g}"
    return f"{number(rollout.reward)} · {group} · advantage {advantage}" + (
        " · duplicate of an earlier rollout of the group" if rollout.duplicate else ""
    )


def _length(page: RolloutPage, rollout: RolloutFacts) -> str:
    tokens = f"{rollout.num_prompt_tokens} prompt + {counted(rollout.num_completion_tokens, 'generated token')}"
    between = sum(len(turn.context) for turn in page.turns if not turn.forked)
    tokens += f" + {between} between turns" if between else ""
    turns = counted(rollout.num_turns, "turn")
    sequences = len({turn.sequence_index for turn in page.turns})
    turns += f" in {sequences} training sequences" if sequences > 1 else ""
    end = f"ended by itself ({rollout.stop_reason})" if rollout.terminated else f"stopped: {rollout.stop_reason}"
    tools = f" · {counted(rollout.tool_call_count, 'tool call')}, {rollout.tool_failure_count} failed"
    return f"{tokens}, {turns} · {end}" + (tools if rollout.tool_call_count else "")


def _environment(rollout: RolloutFacts) -> str:
    if rollout.environment_class is None:
        return ""
    paid = rollout.get_reward_seconds
    told = f"{harmless(rollout.environment_class)} · {rollout.reset_seconds or 0.0:.3f} s to reset"
    return told if paid is None else f"{told}, {paid:.3f} s for its reward"


def _policy(page: RolloutPage) -> str:
    sampled = {token.version for turn in page.turns for token in turn.tokens if token.version is not None}
    versions = sorted(sampled) or [page.group.model_version]
    text = f"version {versions[0]}" + (f" to {versions[-1]}" if len(versions) > 1 else "")
    stale = page.consumed[0].staleness if page.consumed else None
    return text if stale is None else f"{text} · staleness {counted(stale, 'weight update')}"


def _attempt(one: Consumption) -> str:
    done = "" if one.finished_at else ", not done yet"
    return f"{one.step} of attempt {one.attempt}, at version {one.version}{done}"


def _learner(sample: SampleFacts) -> str:
    where = f"step {sample.step}" + (f", sequence {sample.sequence_index}" if sample.sequence_index else "")
    ratios = " / ".join(number(value) for value in (sample.ratio_min, sample.ratio_mean, sample.ratio_max))
    shares = [
        f"{share:.1%} {name}"
        for name, share in (
            ("masked", sample.masked_share),
            ("clipped low", sample.clipped_low_share),
            ("clipped high", sample.clipped_high_share),
        )
        if share
    ]
    return (
        f"{where}: {counted(sample.num_trained_tokens, 'trained token')}, ratio {ratios} (least / mean / most), entropy "
        f"{number(sample.entropy_mean)} nats" + (f", {', '.join(shares)}" if shares else ", none masked or clipped")
    )


def _generator(group: GroupFacts, rollout: RolloutFacts | None) -> str:
    seed = f" · seed {rollout.seed}" if rollout else ""
    retry = f" · claim try {group.claim_try}" if group.claim_try else ""
    return f"{group.generator} under attempt {group.base}{seed}{retry}"


def _times(page: RolloutPage) -> str:
    group = page.group
    start = group.claimed_at
    parts = [f"claimed {start:%Y-%m-%d %H:%M:%S} UTC", f"generated {_since(start, group.generated_at)}"]
    if group.scored_at:
        parts.append(f"scored {_since(start, group.scored_at)}")
    for one in page.consumed:
        parts.append(f"planned {_since(start, one.planned_at)}")
        if one.finished_at:
            parts.append(f"step {one.step} done {_since(start, one.finished_at)}")
    return " · ".join(parts)


def _since(start: datetime, end: datetime) -> str:
    return f"{(end - start).total_seconds():+.2f} s"


def _took(group: GroupFacts, rollout: RolloutFacts | None) -> str:
    parts = [f"{rollout.duration_seconds:.2f} s to generate"] if rollout else []
    waits = (
        ("waited for run-ahead", group.backpressure_seconds),
        ("waited for the load cap", group.load_wait_seconds),
        ("waited for the hard ceiling", group.ceiling_wait_seconds),
        ("waited for the scoring queue", group.score_block_seconds),
        ("waited for scores", group.score_wait_seconds),
        ("to score its group", group.score_seconds),
    )
    parts += [f"{seconds:.2f} s {what}" for what, seconds in waits if seconds is not None]
    if group.concurrency is not None:
        parts.append(f"{group.concurrency} rollouts in flight when the group began")
    return " · ".join(parts)
