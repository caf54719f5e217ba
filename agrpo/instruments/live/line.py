"""One finished step in one line, as the learner's log tells it."""

from __future__ import annotations

from agrpo.instruments.history import StepPoint

_SHOWN = (
    ("reward", "reward", ".3f"),
    ("completions/mean_length", "length", ".1f"),
    ("entropy", "entropy", ".3f"),
    ("loss", "loss", "+.4f"),
    ("grad_norm", "grad norm", ".2f"),
    ("frac_zero_std_groups", "equal", ".2f"),
    ("sample/staleness_mean", "staleness", ".1f"),
    ("perf/step_s", "seconds", ".2f"),
)


def step_line(point: StepPoint, max_steps: int | None) -> str:
    """The step and the measures it has. A step without a loss had nothing to train."""
    shown = [f"step {point.step}/{max_steps}" if max_steps else f"step {point.step}"]
    shown += [f"{label} {point.metrics[name]:{form}}" for name, label, form in _SHOWN if name in point.metrics]
    return "  ".join(shown if "loss" in point.metrics else [*shown, "nothing to train"])
