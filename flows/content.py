"""What the artifacts of a run say: text, rows and plots, each a function of the steps that are done."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from agrpo.instruments.limits import binding, waits_of
from agrpo.instruments.progress import max_steps, seconds_left, share_done
from agrpo.instruments.wording import duration
from flows.drawing import Curve, image

if TYPE_CHECKING:
    from agrpo.instruments.diagnosis import Finding
    from agrpo.instruments.history import StepPoint

NUM_ROWS = 20
"""Newest steps in the table."""
UNITS = (
    "length in tokens per completion, entropy in nats, staleness in versions, equal: groups whose rewards are all equal, "
    "held by: the limit that kept generation waiting longest"
)
"""Said above the table, since Prefect's page has no room for them in its columns."""
ABSENT = "–"


def percent_done(document: Mapping[str, Any], points: Sequence[StepPoint]) -> float:
    """0 to 100."""
    return 100.0 * share_done(document, points[-1]) if points else 0.0


def progress_text(document: Mapping[str, Any], points: Sequence[StepPoint]) -> str:
    """`step 12 of 60 · reward 0.534`, and below it `about 3 min left`, as far as it is known."""
    if not points:
        return "no step is done yet"
    point, last = points[-1], max_steps(document)
    said = f"step {point.step}" if last is None else f"step {point.step} of {last}"
    if "reward" in point.metrics:
        said += f" · reward {point.metrics['reward']:.3f}"
    left = seconds_left(document, points)
    return f"{said}\n\nabout {duration(left)} left" if left else said


def table_rows(points: Sequence[StepPoint]) -> list[dict[str, str | int]]:
    """The newest steps, newest first, in `UNITS`."""
    rows: list[dict[str, str | int]] = []
    for point in reversed(points[-NUM_ROWS:]):
        told = {column: _told(read(point.metrics), form) for column, (read, form) in _COLUMNS.items()}
        rows.append({"step": point.step, **told, "held by": _binding(point.metrics)})
    return rows


def plots(points: Sequence[StepPoint]) -> str:
    """Reward and length as images, with their numbers in words, as markdown."""
    curves = [
        _curve(points, "reward", "Reward", "mean over rollouts"),
        _curve(points, "completions/mean_length", "Length", "mean tokens per completion"),
    ]
    return "\n\n".join(_plot(curve) for curve in curves if curve.values)


def findings_text(findings: Sequence[Finding]) -> str:
    """The findings as markdown, in their order."""
    if not findings:
        return "Nothing to warn of any more."
    return "\n\n".join(
        f"### {finding.severity.value}: {finding.title}\n\n{finding.reading}\n\n**Change:** {finding.change}"
        for finding in findings
    )


def _measure(name: str) -> Callable[[Mapping[str, float]], float | None]:
    return lambda metrics: metrics.get(name)


def _tokens_per_second(metrics: Mapping[str, float]) -> float | None:
    tokens, seconds = metrics.get("batch/forwarded_tokens_per_step"), metrics.get("perf/step_s")
    return tokens / seconds if tokens is not None and seconds else None


_COLUMNS: dict[str, tuple[Callable[[Mapping[str, float]], float | None], str]] = {
    "reward": (_measure("reward"), ".3f"),
    "length": (_measure("completions/mean_length"), ".1f"),
    "entropy": (_measure("entropy"), ".3f"),
    "staleness": (_measure("sample/staleness_mean"), ".1f"),
    "equal": (_measure("frac_zero_std_groups"), ".0%"),
    "tokens/s": (_tokens_per_second, ".0f"),
    "s/step": (_measure("perf/step_s"), ".2f"),
}


def _binding(metrics: Mapping[str, float]) -> str:
    limit = binding(metrics)
    return ABSENT if limit is None else f"{limit} {duration(waits_of(metrics)[limit])}"


def _told(value: float | None, form: str) -> str:
    return ABSENT if value is None else format(value, form)


def _curve(points: Sequence[StepPoint], name: str, title: str, unit: str) -> Curve:
    seen = [point for point in points if name in point.metrics]
    return Curve(
        title=title,
        unit=unit,
        steps=[point.step for point in seen],
        values=[point.metrics[name] for point in seen],
    )


def _plot(curve: Curve) -> str:
    first, last = f"{curve.values[0]:.3g} at step {curve.steps[0]}", f"{curve.values[-1]:.3g} at step {curve.steps[-1]}"
    highest = max(range(len(curve.values)), key=curve.values.__getitem__)
    words = f"{curve.title}: {first}, {last}; highest {curve.values[highest]:.3g} at step {curve.steps[highest]}."
    return f"![{words}]({image(curve)})\n\n{words}"
