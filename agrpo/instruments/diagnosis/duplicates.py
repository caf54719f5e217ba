"""Duplicates: rollouts that repeat another of their group, token by token (A-362 to A-364)."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from agrpo.instruments.diagnosis.evidence import Evidence, percent
from agrpo.instruments.diagnosis.finding import NOTHING, Finding, Severity

NEAR_ZERO = 0.05
"""Up to this share of duplicates sampling looks independent."""
NEAR_ALL = 0.9
"""Of (G - 1)/G, the share when all rollouts of a group of G are the same."""
JUMP = 0.3
"""Rise between the medians of the steps on both sides of a step that counts as a jump."""
SIDE = 5
"""Steps on each side."""
COLD = 0.05
"""A temperature up to here takes the likeliest token nearly always: sampling is not random, whatever the policy knows."""
OPEN_ANSWER = 2.0
"""Nats per answer: two answers of a policy this undecided are the same one time in seven at least, but seldom always."""
LEAST_RISE = 0.1
"""Smallest rise of the share that counts."""
LEAST_FALL = 0.2
"""Smallest fall of entropy that counts, in parts of what it was."""


def findings(evidence: Evidence) -> Iterator[Finding]:
    """One reading at most."""
    share = evidence.mean("completions/duplicate_frac")
    rollouts = evidence.setting("engine.num_generations")
    if share is None:
        return
    if share <= NEAR_ZERO:
        yield _healthy(evidence, share)
    elif rollouts and share >= NEAR_ALL * (rollouts - 1) / rollouts and _suddenly(evidence) and not _decided(evidence):
        accused = _is_cold(evidence) or evidence.mean("entropy") is not None
        yield (_not_random if accused else _one_answer)(evidence, share, rollouts)
    else:
        yield from _collapse(evidence)


def _healthy(evidence: Evidence, share: float) -> Finding:
    return Finding(
        rule="A-362",
        severity=Severity.GOOD,
        title="Rollouts are sampled independently",
        reading=f"{percent(share)} of the rollouts repeat another of their group.",
        change=NOTHING,
    )


def _not_random(evidence: Evidence, share: float, rollouts: int) -> Finding:
    nats = _answer_nats(evidence)
    knows_more = nats is not None and nats >= OPEN_ANSWER
    undecided = f" Yet the policy leaves {nats:.1f} nats open per answer: it knows more than one." if knows_more else ""
    sampling = (
        f"Check {evidence.named('engine.temperature')}, {evidence.named('engine.top_k')} and "
        f"{evidence.named('engine.top_p')}, and that the engine draws every request with its own seed."
    )
    warmer = (
        f"Raise {evidence.named('engine.temperature')}: near 0 the likeliest token is always taken; 1 samples from the "
        "policy itself."
    )
    return Finding(
        rule="A-363",
        severity=Severity.WARNING,
        title="Sampling is no longer random",
        reading=f"{_repeated(share, rollouts)}{undecided}",
        change=warmer if _is_cold(evidence) else sampling,
    )


def _one_answer(evidence: Evidence, share: float, rollouts: int) -> Finding:
    """As A-363, where entropy cannot say whether the sampler or the policy is the cause."""
    return Finding(
        rule="agrpo/one-answer",
        severity=Severity.NOTE,
        title="Every prompt gets one answer",
        reading=f"{_repeated(share, rollouts)} Entropy was measured in too few of these steps to say whether the policy knows "
        "no other answer or sampling is not random.",
        change="Read rollouts. Where they are broken, an update broke the policy: lower "
        f"{evidence.named('optimizer.learning_rate')}. Where they are sound, check {evidence.named('engine.temperature')}, "
        f"{evidence.named('engine.top_k')} and {evidence.named('engine.top_p')}.",
    )


def _repeated(share: float, rollouts: int) -> str:
    return (
        f"{percent(share)} of the rollouts repeat another of their group; at {rollouts} rollouts per prompt "
        f"{percent((rollouts - 1) / rollouts)} would be all of them."
    )


def _collapse(evidence: Evidence) -> Iterator[Finding]:
    shares = evidence.trend("completions/duplicate_frac", LEAST_RISE)
    entropies = evidence.trend("entropy", 0.0)
    if shares is None or entropies is None or not shares.rising or not entropies.falling:
        return
    if entropies.last > (1 - LEAST_FALL) * entropies.first:
        return
    reward = evidence.trend("reward", 0.0)
    told = (
        f"Rollouts that repeat another of their group rose from {percent(shares.first)} to {percent(shares.last)} while entropy "
        f"fell from {entropies.first:.3f} to {entropies.last:.3f} nats per token."
    )
    cure = f"aise {_keep_apart(evidence)}, or lower {evidence.named('optimizer.learning_rate')}."
    if reward is not None and reward.rising:
        yield Finding(
            rule="A-364",
            severity=Severity.NOTE,
            title="The answers to a prompt grow alike, and the reward still rises",
            reading=f"{told} The reward rose from {reward.first:.2f} to {reward.last:.2f}: the policy grows surer of what is right.",
            change=f"Nothing while the reward rises. Should it stop short of where it could be: r{cure}",
        )
    else:
        yield Finding(
            rule="A-364",
            severity=Severity.WARNING,
            title="Collapsing onto one answer per prompt",
            reading=told if reward is None else f"{told} The reward does not rise.",
            change=f"R{cure}",
        )


def _keep_apart(evidence: Evidence) -> str:
    """The settings that keep a policy's answers apart."""
    keys = [key for key in ("engine.temperature", "loss.epsilon_high") if evidence.has(key)]
    if evidence.setting("loss.name") == "score_centering":
        keys.remove("loss.epsilon_high")  # it clips nothing there
    return " or ".join(evidence.named(key) for key in keys)


def _suddenly(evidence: Evidence) -> bool:
    """Whether the share has ever jumped, or was as high from the run's first step on."""
    values = evidence.values("completions/duplicate_frac", evidence.history)
    sides = range(SIDE, len(values) - SIDE + 1)
    rises = [median(values[at : at + SIDE]) - median(values[at - SIDE : at]) for at in sides]
    return max(rises, default=0.0) >= JUMP or median(values[:SIDE]) >= median(values[-SIDE:]) - NEAR_ZERO


def _decided(evidence: Evidence) -> bool:
    """Whether the policy itself explains the duplicates: it leaves little of an answer open."""
    nats = _answer_nats(evidence)
    return nats is not None and nats < OPEN_ANSWER and not _is_cold(evidence)


def _is_cold(evidence: Evidence) -> bool:
    temperature = evidence.setting("engine.temperature")
    return temperature is not None and temperature <= COLD


def _answer_nats(evidence: Evidence) -> float | None:
    """Entropy of a token times tokens of a completion; where the window has too few, of the last step that trained."""
    entropy, length = evidence.mean("entropy"), evidence.mean("completions/mean_length")
    if entropy is None:
        entropy = next(reversed(evidence.values("entropy", evidence.history)), None)
    return None if entropy is None or length is None else entropy * length
