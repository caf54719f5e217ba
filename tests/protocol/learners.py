"""Real learners over groups made beforehand, one attempt after the other, and what a run of them has come to."""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass, replace

from agrpo.queue.history import done_steps
from agrpo.queue.run_folder import RunFolder
from agrpo.queue.versions import newest_version
from agrpo.records.arrow import scored_from_arrow
from agrpo.records.progress import Plan
from agrpo.records.rollout import TurnRecord
from agrpo.stages import learner, new_incarnation
from agrpo.stages.context import StageContext
from tests.protocol.stopping import DEADLINE_SECONDS, Place, Stores, Writer
from tests.stages.groups import a_group, publish
from tests.stages.walk import LOCKSTEP

UNIFORM = -math.log(320)
STEPS, GROUPS = 3, 2
TABLES = {**LOCKSTEP, "stop": {"max_steps": STEPS, "stall_seconds": 15}}
"""Three steps of two groups, each published and each with a checkpoint."""


def fill(
    folder: RunFolder, groups: int = STEPS * GROUPS, per_version: int = GROUPS, attempt: int | None = None
) -> RunFolder:
    """The groups of every step, as a generator in lockstep would have left them.

    `attempt`: whose versions have sampled them; None: whoever publishes the version of that number.
    """
    for ticket in range(groups):
        version = ticket // per_version
        claim(folder, ticket)
        write_group(folder, ticket, version=version, attempt=attempt, step=None if attempt is None else version)
    return folder


def claim(folder: RunFolder, ticket: int, *, base: int = 0) -> None:
    assert folder.claims.take(ticket, owner="generator-20260101T000000Z-000000", base=base)


def write_group(
    folder: RunFolder,
    ticket: int,
    *,
    version: int,
    ordinal: int | None = None,
    attempt: int | None = None,
    step: int | None = None,
    base: int = 0,
    rewards: tuple[float, float] = (1.0, 0.0),
) -> None:
    """A scored group that moves the weights: its log-probs are about those of the policy, which is nearly uniform."""
    group = a_group(ticket, version=version)
    rollouts = [replace(rollout, turns=[_as_sampled(turn) for turn in rollout.turns]) for rollout in group.rollouts]
    group = replace(
        group,
        rollouts=rollouts,
        model_attempt=attempt or 0,
        model_step=step,
        model_ordinal=version if ordinal is None else ordinal,
        base=base,
    )
    publish(folder, group, rewards)


def _as_sampled(turn: TurnRecord) -> TurnRecord:
    top = [{token: UNIFORM} for token in turn.output_ids]
    return replace(turn, output_log_probs=[UNIFORM] * len(turn.output_ids), output_sampler_logprobs=top)


def learn(folder: RunFolder, stores: Stores, writer: Writer | None = None) -> Writer:
    """One attempt, from its beginning to its end."""
    writer = writer or Writer()
    context = StageContext(
        run_url=folder.url, stage="learner", incarnation=new_incarnation("learner"), stop=threading.Event()
    )
    with stores.writing_as(writer):
        learner.run(context)
    return writer


class Zombie:
    """A learner that stands still at a place until it is let go."""

    def __init__(self, folder: RunFolder, stores: Stores, place: Place) -> None:
        self.writer = Writer(held_at=place)
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(folder, stores))
        self._thread.start()
        assert self.writer.held.wait(DEADLINE_SECONDS), f"the learner never came to {place}: {self.error!r}"

    def _run(self, folder: RunFolder, stores: Stores) -> None:
        try:
            learn(folder, stores, self.writer)
        except BaseException as error:
            self.error = error

    def let_go(self) -> BaseException | None:
        """Let it go on to its end. Returns how it failed."""
        self.writer.let_go.set()
        self._thread.join(DEADLINE_SECONDS)
        assert not self._thread.is_alive()
        return self.error


@dataclass(frozen=True)
class Outcome:
    """What of a run must not depend on who was killed."""

    digests: list[str]
    """Weights after every step."""
    trained: list[list[int]]
    prompts: list[list[str]]
    versions: list[tuple[int, int, str]]
    """Number, step and digest of what the history has published."""
    newest: tuple[int, str]
    model: bytes


def outcome(folder: RunFolder) -> Outcome:
    keys = done_steps(folder)
    dones = [folder.done(key) for key in keys]
    plans = [plan for key in keys if (plan := folder.plan(key)) is not None]
    newest = newest_version(folder)
    model = folder.filesystem.local_folder("model")
    assert newest is not None and model is not None
    return Outcome(
        digests=[done.digest for done in dones if done is not None],
        trained=[plan.tickets for plan in plans],
        prompts=[_prompts(folder, plan) for plan in plans],
        versions=_versions(folder),
        newest=(newest.version, newest.digest),
        model=(model / "model.safetensors").read_bytes(),
    )


def consumed(folder: RunFolder) -> list[int]:
    """Every ticket that the history consumes, in its order."""
    plans = [folder.plan(key) for key in done_steps(folder)]
    return [ticket for plan in plans if plan is not None for ticket in plan.consumed]


def events(folder: RunFolder, attempt: int) -> list[tuple[str, int | None]]:
    """Kind and step of what an attempt told, in order."""
    found = [
        folder.event(stream, number) for stream in folder.event_streams() for number in folder.event_numbers(stream)
    ]
    told = sorted((event for event in found if event and event.attempt == attempt), key=lambda event: event.number)
    return [(event.kind, event.payload.get("step")) for event in told]


def _prompts(folder: RunFolder, plan: Plan) -> list[str]:
    return [scored_from_arrow(folder.scored.demand(ticket)).prompt_id for ticket in plan.tickets]


def _versions(folder: RunFolder) -> list[tuple[int, int, str]]:
    """One entry a content: an attempt that publishes again what another has published adds nothing."""
    found = {
        (ready.version, ready.step, ready.digest)
        for attempt in folder.attempts()
        for number in folder.versions(attempt)
        if (ready := folder.version(attempt, number)) is not None
    }
    return sorted(found)
