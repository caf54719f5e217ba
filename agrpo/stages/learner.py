"""The learner: plans a step, writes the plan, moves the weights, writes what came out, publishes.

The order of its writes is the run's safety (docs/architecture.md, durability): a plan is written before the weights are
touched, a done record before the version it publishes, and an attempt before anything an older learner might contest.
"""

from __future__ import annotations

import logging
import math
import time
from collections import Counter
from dataclasses import replace

from agrpo.config import RunConfig, load_settings
from agrpo.errors import ReplayMismatch, RewardError
from agrpo.metrics.line import progress_line
from agrpo.policy.determinism import make_deterministic
from agrpo.policy.model import load_policy
from agrpo.policy.optimizer import build_optimizer, rate_schedule
from agrpo.queue.run_folder import EventStream, RunFolder, StepKey
from agrpo.records.arrow import scored_from_arrow
from agrpo.records.group import RolloutGroup
from agrpo.records.progress import CheckpointState, Done, Plan
from agrpo.records.score import ScoredGroup
from agrpo.records.trained_tokens import tokens_to_arrow
from agrpo.stages.clock import StepClock
from agrpo.stages.context import StageContext
from agrpo.stages.execution import StepMaterial, Trainee, carry_out
from agrpo.stages.keeping import Keeper
from agrpo.stages.planning import Chooser, Chosen, StepNumbers, make_plan, read_groups
from agrpo.stages.run_ahead import RunAhead
from agrpo.stages.shelf import ConsumedTickets, Shelf
from agrpo.stages.succession import Inheritance, accede, begin_attempt, check_fence, done_of, plan_of

logger = logging.getLogger(__name__)

BEAT_SECONDS = 1.0


def run(context: StageContext) -> None:
    """Train until the last step, or until the run is asked to stop."""
    folder = RunFolder.open(context.run_url)
    document = folder.document()
    config = RunConfig.build(load_settings(document))
    make_deterministic(document["threads"])
    _Learner(context, folder, config, document["prompts_per_epoch"], document["config_digest"]).learn()


class _Learner:
    """One attempt."""

    def __init__(
        self, context: StageContext, folder: RunFolder, config: RunConfig, prompts_per_epoch: int, config_digest: str
    ) -> None:
        self.context = context
        self.folder = folder
        self.config = config
        self.prompts_per_epoch = prompts_per_epoch
        self.config_digest = config_digest
        self.events = EventStream(folder, context.incarnation)
        self.consumed = ConsumedTickets()
        self.rate = rate_schedule(config.optimizer, self._horizon())
        self.clock = StepClock()
        self.step = 0
        self.version = -1
        self.replaced = 0
        """Consumed groups that took no place of a step."""
        self.num_updates = 0
        self.untrained_in_a_row = 0
        self.waited = False
        """The last word was that something is waited for."""
        self.told_at = -math.inf

    def learn(self) -> None:
        inheritance = begin_attempt(self.folder)
        self.attempt = inheritance.attempt
        logger.info("attempt %d begins, after step %d", self.attempt, inheritance.last_step)
        model = load_policy(self.config.model)
        self.trainee = Trainee(model=model, optimizer=build_optimizer(model, self.config.optimizer))
        self.keeper = Keeper(
            self.folder, self.config, self.trainee, attempt=self.attempt, events=self.events, clock=self.clock
        )
        adopted = self._inherit(inheritance) if inheritance.segments else self._begin()
        shelf = Shelf(self.folder, self.consumed)
        self.run_ahead = RunAhead(self.folder, self.config, shelf, dropped=self.replaced)
        self.chooser = Chooser(
            self.config,
            shelf,
            self.clock,
            num_prompts=self._num_prompts(),
            prompts_per_epoch=self.prompts_per_epoch,
            stop=self.context.stop,
            tell=self.run_ahead.tell,
            beat=self._beat,
        )
        for plan in adopted:
            self._finish(plan, self._material(plan))
        self.chooser.untrained_in_a_row = self.untrained_in_a_row
        while not self._is_last() and not self.chooser.spent:
            if not self._train_step():
                break
        self._end()

    # ---- beginning and inheriting

    def _begin(self) -> list[Plan]:
        """First start: what step 0 is, before any ticket may be claimed."""
        self.keeper.write_checkpoint(self._state())
        accede(self.folder, Inheritance(attempt=self.attempt, segments=[], last_step=0, half_done=[]))
        self.version = 0
        self.keeper.publish(self.version, self.step)
        self.clock.lap()
        return []

    def _inherit(self, inheritance: Inheritance) -> list[Plan]:
        """Load the newest checkpoint that verifies and replay the steps after it, to the very weights published."""
        segments, last = inheritance.segments, inheritance.last_step
        damaged = self.keeper.damaged_version()
        state = self.keeper.load_checkpoint(last if damaged is None else min(last, damaged.step))
        if state is not None:
            self.consumed = ConsumedTickets(state.floor, set(state.consumed))
            self.trainee.num_tokens, self.trainee.num_prompts = state.num_tokens, state.num_prompts
            self.step, self.version, self.replaced = state.step, state.version, state.num_replaced
            if state.step > 0:
                self._recall(plan_of(self.folder, segments, state.step))
        else:
            self.version = 0
        logger.info("continuing from the checkpoint of step %d, replaying steps to %d", self.step, last)
        for step in range(self.step, last + 1):
            if step > self.step:
                self._replay(plan_of(self.folder, segments, step), done_of(self.folder, segments, step))
            if damaged is not None and damaged.step == step:
                self.keeper.mend(damaged)
        adopted = accede(self.folder, inheritance)
        if not self.keeper.is_published(self.version):
            self.keeper.publish(self.version, self.step)
        self.clock.lap()
        return adopted

    def _replay(self, plan: Plan, recorded: Done) -> None:
        done = carry_out(self.config, self.trainee, self._material(plan)).done
        if done.digest != recorded.digest:
            differing = [name for name, digest in recorded.digests.items() if done.digests.get(name) != digest]
            raise ReplayMismatch(
                f"step {plan.step} replayed differently in {len(differing)} of {len(recorded.digests)} tensors, first "
                f"{differing[0]}: loss {done.loss!r}, recorded {recorded.loss!r}; gradient norm {done.grad_norm!r}, recorded "
                f"{recorded.grad_norm!r}. The same machine, packages and threads replay a run exactly; resume it there"
            )
        self._count(plan)
        self._keep_others_waiting()
        logger.info("step %d replayed: digest %s", plan.step, done.digest[:12])
        self.events.write("replayed", attempt=self.attempt, step=plan.step, digest=done.digest)

    def _recall(self, plan: Plan) -> None:
        """Take over what a done plan says of the history up to it."""
        self.num_updates, self.untrained_in_a_row = plan.num_updates, plan.untrained_in_a_row

    def _keep_others_waiting(self) -> None:
        """Write the old hint once more, so that those who wait for it see that somebody is at work."""
        hint = self.folder.hint()
        if hint is not None:
            self.folder.write_hint(replace(hint, written_at=time.time()))

    def _material(self, plan: Plan, chosen: Chosen | None = None) -> StepMaterial:
        consumed = chosen.consumed if chosen else [self._scored(ticket) for ticket in plan.consumed]
        groups = read_groups(self.folder, plan.tickets)
        return StepMaterial(plan=plan, groups=groups, consumed=consumed, clock=self.clock)

    def _scored(self, ticket: int) -> ScoredGroup:
        data = self.folder.scored.read(ticket)
        assert data is not None, f"group {ticket} is in a plan and its scores are gone"
        return scored_from_arrow(data)

    # ---- one step

    def _train_step(self) -> bool:
        """Choose, plan, train, publish. False: there is nothing left to train."""
        with self.clock.part("read"):
            chosen = self.chooser.choose(self.version)
            self._beat(None)
        if chosen.spent:
            self._say_spent(chosen)
        if not chosen.consumed:
            return False
        with self.clock.part("read"):
            groups = read_groups(self.folder, [scored.ticket for scored in chosen.groups])
        with self.clock.part("plan"):
            plan = self._plan(chosen, groups)
        self._finish(plan, StepMaterial(plan=plan, groups=groups, consumed=chosen.consumed, clock=self.clock))
        return not (chosen.exhausted or chosen.spent)

    def _plan(self, chosen: Chosen, groups: dict[int, RolloutGroup]) -> Plan:
        """The next step's plan, written."""
        step = self.step + 1
        numbers = StepNumbers(
            attempt=self.attempt,
            step=step,
            version=self.version,
            num_updates=self.num_updates,
            learning_rate=self.rate(self.num_updates + 1),
            publish=self.version + 1 if step % self.config.asynchronous.weight_sync_steps == 0 else None,
            config_digest=self.config_digest,
        )
        plan = make_plan(self.config, chosen, groups, numbers)
        if not self.folder.write_plan(plan):
            check_fence(self.folder, self.attempt)
            raise AssertionError(f"step {step} of attempt {self.attempt} was planned by nobody known")
        return plan

    def _say_spent(self, chosen: Chosen) -> None:
        """Nothing is left to train: the end of a run that has learned all, a failure of one that never did."""
        reasons = Counter(drop.reason.value for drop in chosen.drops)
        why = ", ".join(f"{count} {reason}" for reason, count in reasons.most_common())
        if self.num_updates == 0:
            raise RewardError(
                f"no group could be trained in two passes over {self.prompts_per_epoch} prompts: {why}; read some rollouts "
                f'with `agrpo sql {self.folder.url} "SELECT * FROM rollouts_with_rewards LIMIT 10"` and check the rewards'
            )
        logger.warning("the run ends: two passes over the prompts gave no group to train (%s)", why)
        self.events.write("spent", attempt=self.attempt, step=self.step, reasons=dict(reasons))

    def _finish(self, plan: Plan, material: StepMaterial) -> None:
        """From the plan to the published version."""
        result = carry_out(self.config, self.trainee, material)
        done = result.done
        with self.clock.part("record"):
            if result.tokens:
                self.folder.write_tokens(StepKey(done.attempt, done.step), tokens_to_arrow(result.tokens))
            self.folder.write_done(done)
            check_fence(self.folder, self.attempt)
        self._count(plan)
        if plan.publish is not None:
            self.keeper.publish(plan.publish, plan.step)
        self.run_ahead.step_consumed(material.consumed, plan.num_replaced)
        self.run_ahead.tell(set())
        self._beat(None)
        logger.info(progress_line(done.step, done.metrics, self.config.stop.max_steps))
        if self.keeper.checkpoint_is_due():
            self.keeper.write_checkpoint(self._state())

    def _beat(self, waiting_for: str | None, waited_seconds: float = 0.0) -> None:
        """Say what is waited for; that nothing is, at once after a wait and then once a second."""
        now = time.monotonic()
        if waiting_for is not None or self.waited or now - self.told_at >= BEAT_SECONDS:
            self.waited, self.told_at = waiting_for is not None, now
            self.folder.beat("learner", waiting_for, waited_seconds)

    def _count(self, plan: Plan) -> None:
        """Take a done plan into the run's counters."""
        for ticket in plan.consumed:
            self.consumed.add(ticket)
        self.replaced += plan.num_replaced
        self._recall(plan)
        self.step = plan.step
        if plan.publish is not None:
            self.version = plan.publish

    def _state(self) -> CheckpointState:
        return CheckpointState(
            attempt=self.attempt,
            step=self.step,
            digest=self.keeper.digest(),
            floor=self.consumed.floor,
            consumed=sorted(self.consumed.above),
            num_replaced=self.replaced,
            num_tokens=self.trainee.num_tokens,
            num_prompts=self.trainee.num_prompts,
            version=max(self.version, 0),
            written_at=time.time(),
        )

    # ---- the end

    def _num_prompts(self) -> int | None:
        """Prompts of the whole run, where epochs bound it."""
        if self.config.stop.max_steps is not None or self.config.stop.epochs is None:
            return None
        return self.config.stop.epochs * self.prompts_per_epoch

    def _horizon(self) -> int | None:
        """Optimizer steps that a decaying schedule ends at; None where they cannot be counted."""
        prompts = self._num_prompts()
        if prompts is None:
            return self.config.stop.max_steps
        return None if self.config.zero_variance == "refill" else -(-prompts // self.config.step.groups)

    def _is_last(self) -> bool:
        return self.config.stop.max_steps is not None and self.step >= self.config.stop.max_steps

    def _end(self) -> None:
        """The last checkpoint and the model as users load it; then everyone may go."""
        self.keeper.write_checkpoint(self._state())
        self.keeper.export()
        self.events.write("finished", attempt=self.attempt, step=self.step, digest=self.keeper.digest())
        self.run_ahead.tell(set(), finished=True)
        logger.info("finished after step %d: digest %s", self.step, self.keeper.digest())
