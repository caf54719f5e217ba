"""One finished step in one line: what the learner's log and the live view tell of it."""

from __future__ import annotations

from collections.abc import Mapping

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


def progress_line(step: int, metrics: Mapping[str, float], max_steps: int | None) -> str:
    """The step, of how many, and the measures it has. A step without a loss had nothing to train."""
    shown = [f"step {step}/{max_steps}" if max_steps else f"step {step}"]
    shown += [f"{label} {metrics[name]:{form}}" for name, label, form in _SHOWN if name in metrics]
    return "  ".join(shown if "loss" in metrics else [*shown, "nothing to train"])
