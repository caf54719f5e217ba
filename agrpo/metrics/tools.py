"""Tools: how often the rollouts of a step called them, how long that took and how it failed (A-287, A-288, A-325 to A-329)."""

from __future__ import annotations

import math
from collections import defaultdict

from agrpo.metrics import StepFacts, mean, ratio
from agrpo.records.rollout import CallFailure, ToolCall


def measure(facts: StepFacts) -> dict[str, float | None]:
    """Over the rollouts of all consumed groups; nothing in a run without tools.

    The share of failed calls is NaN where there are none (A-288): 0 would say that all went well.
    """
    if not facts.has_tools:
        return {}
    rollouts = [calls for group in facts.consumed for calls in group.tool_calls]
    calls = [call for own in rollouts for call in own]
    calling_turns = sum(len({call.turn_index for call in own}) for own in rollouts)
    return {
        "tools/call_frequency": mean(len(own) for own in rollouts),
        "tools/failure_frequency": mean(call.failure is not None for call in calls) if calls else math.nan,
        "tools/latency_s": mean(call.duration_seconds for call in calls if call.ran),
        "tools/unknown_name_count": sum(call.failure is CallFailure.UNKNOWN_NAME for call in calls),
        "tools/parallel_calls_mean": ratio(len(calls), calling_turns),
        "tools/loop_exhausted_frac": mean(cut for group in facts.consumed for cut in group.loop_exhausted),
        **_by_name(calls),
    }


def _by_name(calls: list[ToolCall]) -> dict[str, float | None]:
    by_name: defaultdict[str, list[ToolCall]] = defaultdict(list)
    for call in calls:
        if call.is_known:
            by_name[call.name].append(call)
    measures: dict[str, float | None] = {}
    for name, own in by_name.items():
        measures[f"tools/{name}/latency_s"] = mean(call.duration_seconds for call in own if call.ran)
        measures[f"tools/{name}/call_count"] = len(own)
        measures[f"tools/{name}/failure_count"] = sum(call.failure is not None for call in own)
    return measures
