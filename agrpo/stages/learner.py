"""The learner: plans a step, writes the plan, moves the weights, writes what came out, publishes.

The order of its writes is the run's safety (docs/durability.md): a plan is written before the weights are
touched, a done record before the version it publishes, and an attempt before anything an older learner might contest.
"""

from __future__ import annotations

import logging
import math
import time
from dataclasses import replace

from agrpo.config import RunConfig, load_settings
from agrpo.errors import ReplayMismatch, RewardError, Stopped
from agrpo.metrics.line import progress_line
from agrpo.policy.determinism import make_deterministic, threads_of
from agrpo.policy.optimizer import rate_schedule
from agrpo.policy.trainee import Origin, begin
from agrpo.queue.rewinds import Rewinds
from agrpo.queue.run_folder import EventStream, RunFolder, StepKey
from agrpo.queue.versions import newest_version
from agrpo.records.group import RolloutGroup
from agrpo.records.progress import Base, CheckpointState, Done, Plan
from agrpo.records.trained_tokens import tokens_to_arrow
from agrpo.stages.advantage_hook import AdvantageHook
from agrpo.stages.choosing import Chooser, Chosen
from agrpo.stages.clock import StepClock
from agrpo.stages.context import StageContext
from agrpo.stages.execution import StepMaterial, carry_out
from agrpo.stages.extent import Extent
from agrpo.stages.going_back import rewound_base
from agrpo.stages.keeping import Keeper
from agrpo.stages.names import OWN_REPLAY
from agrpo.stages.planning import StepNumbers, make_plan, read_groups
from agrpo.stages.ranks import Recruiter, ranks_asked, recruiter_of
from agrpo.stages.replaying import material_of, replay_to
from agrpo.stages.run_ahead import RunAhead
from agrpo.stages.same_machine import check_machine
from agrpo.stages.shelf import Shelf
from agrpo.stages.standing import Standing
from agrpo.stages.succession import (
    Inheritance,
    accede,
    begin_attempt,
    carried_out_again,
    check_fence,
    done_of,
    highest_publish,
    next_version,
    plan_of,
)

logger = logging.getLogger(__name__)

BEAT_SECONDS = 1.0


def run(context: StageContext) -> None:
    """Train until the last step, or until the run is asked to stop."""
    folder = RunFolder.open(context.run_url)
    document = folder.document()
    config = RunConfig.build(load_settings(document))
    threads = threads_of(document)
    make_deterministic(threads)
    with recruiter_of(config, context.stop) as recruiter:
        learner = _Learner(context, folder, config, document["prompts_per_epoch"], document["config_digest"])
        learner.learn(Origin.of(config, threads), recruiter)


class _Learner:
    """One attempt."""

    def __init__(
        self, context: StageContext, folder: RunFolder, config: RunConfig, prompts_per_epoch: int, config_digest: str
    ) -> None:
        self.context = context
        self.folder = folder
        self.config = config
        self.prompts_per_epoch = prompts_per_epoch
        self.extent = Extent(config, prompts_per_epoch)
        self.config_digest = config_digest
        self.events = EventStream(folder, context.incarnation)
        self.advantages = AdvantageHook.of(config)
        self.standing = Standing()
        self.rate = rate_schedule(config.optimizer, self.extent.horizon)
        self.clock = StepClock()
        self.waited = False
        """The last word was that something is waited for."""
        self.told_at = -math.inf
        self.began_at = time.monotonic()

    def learn(self, origin: Origin, recruiter: Recruiter) -> None:
        inheritance = begin_attempt(self.folder, check_machine(self.folder, self.config))
        self.attempt = inheritance.attempt
        logger.info("attempt %d begins, after step %d", self.attempt, inheritance.last_step)
        self.ranks = ranks_asked(self.config)
        group = recruiter.form(self.ranks)
        self.trainee = begin(origin, group, recruiter, scratch=self.folder.filesystem.scratch)
        self.trainee.find_peak()
        self.keeper = Keeper(
            self.folder,
            self.config,
            self.trainee,
            attempt=self.attempt,
            events=self.events,
            clock=self.clock,
            stop=self.context.stop,
        )
        adopted = self._inherit(inheritance) if inheritance.segments else self._begin()
        self._get_ready()
        for plan in adopted:
            self._leave_if_asked()
            self._finish(plan, material_of(self.folder, plan, self.clock, self._beat_at_work))
        self.chooser.untrained_in_a_row = self.standing.untrained_in_a_row
        while not self.extent.is_last(self.standing.step) and not self.chooser.spent:
            self._leave_if_asked()
            if not self._train_step():
                break
        self._end()

    def _get_ready(self) -> None:
        """What choosing groups needs, once the attempt has its base."""
        rewinds = Rewinds(self.folder.bases(), self.folder.claims.base_of)
        shelf = Shelf(self.folder, self.standing.consumed, rewinds)
        self.run_ahead = RunAhead(
            self.folder, self.config, shelf, dropped=self.standing.num_replaced, attempt=self.attempt
        )
        self.chooser = Chooser(
            self.config,
            shelf,
            self.clock,
            num_prompts=self.extent.num_prompts,
            num_void=self.standing.num_void,
            prompts_per_epoch=self.prompts_per_epoch,
            stop=self.context.stop,
            tell=self.run_ahead.tell,
            beat=self._beat,
        )

    # ---- beginning and inheriting

    def _begin(self) -> list[Plan]:
        """First start: what step 0 is, before any ticket may be claimed."""
        self.standing.digest = self.keeper.digest()
        self.keeper.write_checkpoint(self._state())
        accede(self.folder, Base(attempt=self.attempt), [])
        self.keeper.publish(0, 0, ordinal=0)
        self.clock.lap()
        return []

    def _inherit(self, inheritance: Inheritance) -> list[Plan]:
        """Replay to the last step done, or to the one that the run goes back to, and take the history over from there.

        Returns the plans to be carried out before any other.
        """
        last = inheritance.last_step
        known_tickets = self._replay_as_far_as_it_agrees(inheritance)
        standing = self.standing
        standing.next_version = next_version(self.folder, inheritance.bases, standing.version)
        base = Base(
            attempt=self.attempt,
            parent=inheritance.parent,
            base_step=standing.step,
            adopted_through=inheritance.adopted_through,
        )
        plans = inheritance.half_done
        if inheritance.rewind is not None:
            base = rewound_base(self.folder, inheritance, standing, known_tickets)
            standing.next_version = 1 + highest_publish(self.folder, standing.version)
        elif standing.step < last:
            steps = range(standing.step + 1, last + 1)
            unconfirmed = [plan_of(self.folder, inheritance.segments, step) for step in steps]
            plans = carried_out_again(unconfirmed, plans, 1 + highest_publish(self.folder, standing.version))
        adopted = accede(self.folder, base, plans)
        self._publish_what_is_owed(inheritance, adopted)
        self.keeper.export_if_due(standing.step)
        self._tell_taken_over(base)
        self.clock.lap()
        return adopted

    def _publish_what_is_owed(self, inheritance: Inheritance, adopted: list[Plan]) -> None:
        """What done K owed; and the weights gone back to, where the version that counts is of others.

        That is so among steps that were carried out again: the groups of the version they replace count, and its weights
        are not the history's. The number is one that no plan names.
        """
        standing = self.standing
        if not self.keeper.is_published(standing.version):
            self.keeper.publish(standing.version, standing.step, ordinal=standing.ordinal)
            return
        newest = newest_version(self.folder)
        assert newest is not None, f"version {standing.version} is published"
        if newest.step <= standing.step and (
            newest.step == 0 or newest.trained_digest == done_of(self.folder, inheritance.segments, newest.step).digest
        ):
            standing.version = max(standing.version, newest.version)
        elif all(plan.publish is None for plan in adopted):
            self.keeper.publish(standing.next_version, standing.step, ordinal=standing.ordinal)
            standing.version, standing.next_version = standing.next_version, standing.next_version + 1

    def _tell_taken_over(self, base: Base) -> None:
        if base.rewind is None:
            return
        logger.info("the run goes back to step %d and asks %d prompts again", base.base_step, len(base.reissue))
        self.events.write("went_back", attempt=self.attempt, step=base.base_step, reissued=len(base.reissue))

    def _replay_as_far_as_it_agrees(self, inheritance: Inheritance) -> int:
        """Replay to the last step, or to the one before the first that differs, where the settings accept that.

        Returns the next ticket of the checkpoint it began from.
        """
        last = inheritance.last_step
        while True:
            known_tickets = self._load(inheritance, last)
            try:
                self._replay(inheritance, last)
                return known_tickets
            except ReplayMismatch as mismatch:
                if self.config.resume.stops(self.trainee.device) or inheritance.rewind is not None:
                    raise
                last = self.standing.step
                logger.warning("going on from step %d with weights of this machine's: %s", last, mismatch)
                self.events.write("replay_differs", attempt=self.attempt, step=last + 1, reason=str(mismatch))

    def _load(self, inheritance: Inheritance, last: int) -> int:
        """Stand at the newest checkpoint that verifies, early enough to write a damaged newest version again."""
        self.damaged = self.keeper.damaged_version(last)
        state = self.keeper.load_checkpoint(last if self.damaged is None else min(last, self.damaged.step))
        if state is None:
            self.trainee.begin_again()  # one that was passed over may have been read in part
            self.standing = Standing(digest=self.keeper.digest())
            return 0
        plan = plan_of(self.folder, inheritance.segments, state.step) if state.step > 0 else None
        self.standing = Standing.at_checkpoint(state, plan)
        self.trainee.num_tokens, self.trainee.num_prompts = state.num_tokens, state.num_prompts
        return state.next_ticket or 0

    def _replay(self, inheritance: Inheritance, last: int) -> None:
        begins = self.standing.step
        logger.info(
            "continuing from the checkpoint of step %d%s",
            *(begins, f", replaying steps {begins + 1} to {last}" if last > begins else ""),
        )
        self._mend_if_reached()
        replay_to(
            last,
            folder=self.folder,
            config=self.config,
            segments=inheritance.segments,
            trainee=self.trainee,
            standing=self.standing,
            on_step=self._replayed,
            on_row=self._beat_replaying,
        )

    def _replayed(self, done: Done) -> None:
        self._mend_if_reached()
        self._keep_others_waiting()
        if self.context.stop.is_set():
            raise Stopped(f"asked to stop after replaying step {done.step}")
        self.events.write("replayed", attempt=self.attempt, step=done.step, digest=done.digest)

    def _mend_if_reached(self) -> None:
        damaged = self.damaged
        if damaged is not None and (damaged.step, damaged.trained_digest) == (self.standing.step, self.standing.digest):
            self.keeper.mend(damaged)

    def _keep_others_waiting(self) -> None:
        """Write the old hint once more, so that those who wait for it see that somebody is at work."""
        hint = self.folder.hint()
        if hint is not None:
            self.folder.write_hint(replace(hint, written_at=time.time()))

    # ---- one step

    def _train_step(self) -> bool:
        """Choose, plan, train, publish. False: there is nothing left to train."""
        with self.clock.part("read"):
            chosen = self.chooser.choose(self.standing.ordinal)
            self._beat(None)
        if chosen.spent:
            self._say_spent(chosen)
        if not chosen.consumed:
            return False
        needed = chosen.groups if self.advantages is None else [one for one in chosen.consumed if one.rewards]
        with self.clock.part("read"):
            groups = read_groups(self.folder, [scored.ticket for scored in needed])
        with self.clock.part("plan"):
            plan = self._plan(chosen, groups)
        material = StepMaterial(
            plan=plan, groups=groups, consumed=chosen.consumed, clock=self.clock, on_row=self._beat_at_work
        )
        self._finish(plan, material)
        return not (chosen.exhausted or chosen.spent)

    def _plan(self, chosen: Chosen, groups: dict[int, RolloutGroup]) -> Plan:
        """The next step's plan, written."""
        standing, step = self.standing, self.standing.step + 1
        numbers = StepNumbers(
            attempt=self.attempt,
            step=step,
            version=standing.version,
            ordinal=standing.ordinal,
            digest=standing.digest,
            num_updates=standing.num_updates,
            learning_rate=self.rate(standing.num_updates + 1),
            entropy_coefficient=self.config.entropy.before(standing.entropy_coefficient),
            ranks=self.ranks,
            publish=standing.next_version if step % self.config.asynchronous.weight_sync_steps == 0 else None,
            config_digest=self.config_digest,
        )
        advantages = None if self.advantages is None else self.advantages(chosen.consumed, groups)
        plan = make_plan(self.config, chosen, groups, numbers, advantages)
        if not self.folder.write_plan(plan):
            check_fence(self.folder, self.attempt)
            raise AssertionError(f"step {step} of attempt {self.attempt} was planned by nobody known")
        return plan

    def _say_spent(self, chosen: Chosen) -> None:
        """Nothing is left to train: the end of a run that has learned all, a failure of one that never did."""
        why = ", ".join(f"{count} {reason}" for reason, count in chosen.reasons.most_common())
        if self.standing.num_updates == 0:
            raise RewardError(
                f"no group could be trained in two passes over {self.prompts_per_epoch} prompts: {why}; read some rollouts "
                f'with `agrpo sql {self.folder.url} "SELECT * FROM rollouts_with_rewards LIMIT 10"` and check the rewards'
            )
        logger.warning("the run ends: two passes over the prompts gave no group to train (%s)", why)
        self.events.write("spent", attempt=self.attempt, step=self.standing.step, reasons=dict(chosen.reasons))

    def _finish(self, plan: Plan, material: StepMaterial) -> None:
        """From the plan to the published version."""
        result = carry_out(self.config, self.trainee, material)
        done = result.done
        with self.clock.part("record"):
            if result.tokens:
                self.folder.write_tokens(StepKey(done.attempt, done.step), tokens_to_arrow(result.tokens))
            self.folder.write_done(done)
            check_fence(self.folder, self.attempt)
        self.standing.count(plan, done)
        if plan.publish is not None:
            self.keeper.publish(plan.publish, plan.step, ordinal=self.standing.ordinal)
        self.run_ahead.step_consumed(material.consumed, plan.num_replaced)
        self.run_ahead.tell(set())
        self._beat(None)
        logger.info(progress_line(done.step, done.metrics, self.config.stop.max_steps))
        self.keeper.export_if_due(plan.step)
        if self.keeper.checkpoint_is_due():
            self.keeper.write_checkpoint(self._state())

    def _beat_replaying(self) -> None:
        """A replay gets no further than the run was: it is no work that makes earlier deaths forgotten."""
        now = time.monotonic()
        if now - self.told_at >= BEAT_SECONDS:
            self._beat(OWN_REPLAY, now - self.began_at)

    def _beat_at_work(self) -> None:
        self._beat(None)

    def _beat(self, waiting_for: str | None, waited_seconds: float = 0.0) -> None:
        """Say what is waited for; that nothing is, at once after a wait and then once a second."""
        now = time.monotonic()
        if waiting_for is not None or self.waited or now - self.told_at >= BEAT_SECONDS:
            self.trainee.check()
            self.waited, self.told_at = waiting_for is not None, now
            self.folder.beat("learner", waiting_for, waited_seconds)

    def _leave_if_asked(self) -> None:
        """Between two steps nothing is lost; a checkpoint spares the next attempt their replay, where there is time."""
        if self.context.stop.is_set():
            if self.keeper.checkpoint_fits(self.config.stop.grace_seconds):
                self.keeper.write_checkpoint(self._state())
            raise Stopped(f"asked to stop after step {self.standing.step}")

    def _state(self) -> CheckpointState:
        trainee = self.trainee
        return self.standing.state(
            self.attempt, trainee.num_tokens, trainee.num_prompts, next_ticket=self.folder.claims.next_free()
        )

    # ---- the end

    def _end(self) -> None:
        """The last checkpoint and the model as users load it; then everyone may go, unless a newer learner goes on."""
        self.keeper.write_checkpoint(self._state())
        self.keeper.export()
        check_fence(self.folder, self.attempt)
        self.events.write("finished", attempt=self.attempt, step=self.standing.step, digest=self.standing.digest)
        self.run_ahead.tell(set(), finished=True)
        logger.info("finished after step %d: digest %s", self.standing.step, self.standing.digest)
