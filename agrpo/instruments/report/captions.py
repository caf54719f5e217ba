"""What is said under the charts: the numbers that they end with, and what a reader would otherwise have to look for."""

from __future__ import annotations

from collections.abc import Sequence

from agrpo.instruments.report.drawing import Line
from agrpo.instruments.report.facts import RewardFigures, RunFacts
from agrpo.instruments.report.wording import amount, letter, number, percent

LONGEST_ERROR = 200
"""Characters of a reward's error."""


def of_rewards(runs: Sequence[RunFacts]) -> str:
    """What each run's reward did. Runs without one are left out."""
    said = [
        (f"{letter(run)}: " if len(runs) > 1 else "") + _course(facts.summary.reward)
        for run, facts in enumerate(runs)
        if facts.summary.reward.num_steps
    ]
    return ". ".join(said) + "."


def of_failed_rewards(runs: Sequence[RunFacts]) -> tuple[str, ...]:
    """Values that are missing because a reward failed, with the commonest error."""
    return tuple(
        (f"{letter(run)}: " if len(runs) > 1 else "")
        + f"{failed.name}: {failed.num_failed:,} of {failed.num_asked:,} values "
        f"({percent(failed.num_failed / failed.num_asked)}) are missing because the reward failed, "
        + ("every time" if failed.num_errors == failed.num_failed else f"most often ({failed.num_errors:,} times)")
        + f" with {_shortened(failed.error)}"
        for run, facts in enumerate(runs)
        for failed in facts.failed_rewards
    )


def of_work(facts: RunFacts) -> str:
    """How long generating and scoring take, where the run says it."""
    work = facts.work
    said: list[str] = []
    if work.rollout_seconds is not None:
        said.append(f"a rollout takes {amount(work.rollout_seconds, 's')}")
    if work.score_seconds is not None:
        said.append(
            f"a group waits {amount(work.score_wait_seconds, 's')} for the scorer, which takes {amount(work.score_seconds, 's')}"
        )
    return f"On average {'; '.join(said)}." if said else ""


def at_the_end(lines: Sequence[Line], suffix: str, *, share: bool = False) -> str:
    """The last value of each line, and its step where newer ones have none."""
    return f"At the end: {'; '.join(_last(line, suffix, share=share) for line in lines)}."


def by_run(runs: Sequence[RunFacts], words: Sequence[str]) -> str:
    """Each run's word, after its letter where there are several."""
    return words[0] if len(runs) == 1 else ", ".join(f"{letter(run)}: {word}" for run, word in enumerate(words))


def _course(reward: RewardFigures) -> str:
    if reward.num_steps == 1:
        return f"{number(reward.best)} at step {reward.best_step}, the only one with a reward"
    if reward.constant:
        return f"{number(reward.best)} at each of {reward.num_steps:,} steps"
    return (
        f"{number(reward.first)} at first, {number(reward.last)} at last; best {number(reward.best)} at step "
        f"{reward.best_step}"
    )


def _shortened(error: str) -> str:
    """The first line of an error, cut where it is long."""
    line = error.strip().partition("\n")[0]
    return line if len(line) <= LONGEST_ERROR else f"{line[:LONGEST_ERROR]} …"


def _last(line: Line, suffix: str, *, share: bool) -> str:
    place = max(place for place, value in enumerate(line.values) if value is not None)
    when = "" if place == len(line.windows) - 1 else f" (step {line.windows[place].step:,})"
    return f"{line.label} {amount(line.values[place], suffix, share=share)}{when}"
