"""Following a run from a terminal while its stages work."""

from __future__ import annotations

from agrpo.cli.printing import say


def ensure_prefect() -> None:
    """Have Prefect's API at hand before a run is begun."""
    from flows.server import ensure_api

    ensure_api()


def follow(run_url: str) -> None:
    """Run or resume the run's stages to their end."""
    from flows.train import follow as follow_flow

    follow_flow(run_url, _show_line)


def say_done(run_url: str) -> None:
    """Where to look next."""
    say(f"done; ask it with: agrpo sql {run_url} \"SELECT step, value FROM live_metrics WHERE name = 'reward'\"")


def _show_line(stage: str, line: str) -> None:
    """One plain line per step, and whatever asks for attention."""
    level, _, rest = line[9:].partition(" ")
    speaker, _, message = rest.partition(" ")
    if level == "INFO" and speaker == "agrpo.stages.learner":
        say(message)
    elif level in ("WARNING", "ERROR", "CRITICAL"):
        say(f"{level.lower()}: {stage}: {message}")
