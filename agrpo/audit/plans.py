"""Plans one after another: what each says of the history before it, and the numbers under which weights are published."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace

from agrpo.audit.ancestry import Ancestry, Versions
from agrpo.audit.look import Look
from agrpo.audit.terms import Terms
from agrpo.queue.run_folder import StepKey
from agrpo.records.progress import Done, Plan
from agrpo.records.seeds import derive_seed


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """What a learner counts, after a step of the history."""

    num_replaced: int = 0
    num_void: int = 0
    num_prompts: int = 0
    num_tokens: int = 0
    ordinal: int = 0
    publish: int = 0
    """The last version that a plan publishes."""
    versions: frozenset[int] = frozenset({0})
    """One of which the learner holds for the newest."""


class Chain:
    """Follows the plans of the history, in order, once those of what was left behind are known."""

    def __init__(self, look: Look, terms: Terms, ancestry: Ancestry, versions: Versions) -> None:
        self._look = look
        self._terms = terms
        self._ancestry = ancestry
        self._versions = versions
        self._attempt: int | None = None
        """Of the step before, on the history."""
        self._highest: defaultdict[int, int] = defaultdict(int)
        """Publish that any plan of an attempt names."""
        self._silent: list[Plan] = []
        """That do not say which weights they begin from, and were not adopted."""
        self._speaks = False
        self.totals: dict[int, Totals] = {0: Totals()}
        """By step of the history, as far as every plan and done record up to it is there."""

    def see(self, plan: Plan) -> None:
        """A plan, on the history or not."""
        about = f"step {plan.step} (attempt {plan.attempt})"
        terms = self._terms
        seed = derive_seed(terms.run.seed, "step", plan.step)
        if plan.seed != seed:
            self._look.find(about, f"expected seed {seed}, which the run's seed gives it; its plan says {plan.seed}")
        if terms.config_digest not in (None, plan.config_digest):
            self._look.find(
                about,
                f"expected settings {terms.config_digest}, which the run began with; its plan says {plan.config_digest}",
            )
        if plan.parent_digest:
            self._speaks = True
        elif plan.adopted_from is None:
            self._silent.append(plan)
        if plan.adopted_from is not None:
            self._adopted(about, plan, plan.adopted_from)
        self._highest[plan.attempt] = max(self._highest[plan.attempt], plan.publish or 0)

    def follow(self, plan: Plan, done: Done | None) -> None:
        """The plan of the history's next step."""
        before = self.totals.get(plan.step - 1)
        if before is None:
            return
        about = f"step {plan.step} (attempt {plan.attempt})"
        inherited = self._ancestry.inherited_version(plan.attempt, self._versions)
        versions = before.versions if plan.attempt == self._attempt else before.versions | {inherited}
        self._attempt = plan.attempt
        if plan.adopted_from is None:
            if plan.version not in versions:
                newest = " or ".join(map(str, sorted(versions)))
                self._look.find(about, f"expected version {newest}, the newest before it; its plan says {plan.version}")
            self._due(about, plan)
        if plan.publish is not None:
            self._number(about, plan, before.publish, inherited)
        num_prompts = before.num_prompts + len(plan.scored)
        if done is None:
            return
        if done.num_prompts != num_prompts:
            self._look.find(
                about, f"expected {num_prompts} prompts consumed up to it, its done record says {done.num_prompts}"
            )
        self.totals[plan.step] = Totals(
            num_replaced=before.num_replaced + plan.num_replaced,
            num_void=before.num_void + plan.num_void,
            num_prompts=done.num_prompts,
            num_tokens=done.num_tokens,
            ordinal=self._terms.ordinal_before(plan.step + 1),
            publish=before.publish if plan.publish is None else plan.publish,
            versions=versions if plan.publish is None else frozenset({plan.publish}),
        )

    def end(self) -> None:
        """Every plan was seen."""
        for plan in self._silent if self._speaks else ():
            self._look.find(
                f"step {plan.step} (attempt {plan.attempt})",
                "its plan does not say which weights it begins from; expected their digest",
            )

    def _due(self, about: str, plan: Plan) -> None:
        due = plan.step % self._terms.sync_steps == 0
        if due != (plan.publish is not None):
            every = f"every {self._terms.sync_steps} steps are published"
            self._look.find(
                about, f"its plan publishes {plan.publish}; expected {'a' if due else 'no'} version: {every}"
            )

    def _number(self, about: str, plan: Plan, before: int, inherited: int) -> None:
        """Numbers rise, and skip only those that an older attempt may have used."""
        older = [number for attempt, number in self._highest.items() if attempt < plan.attempt]
        older += [
            number for number, found in self._versions.items() if any(one.attempt < plan.attempt for one in found)
        ]
        last = 1 + (before if self._ancestry.is_straight else max([before, inherited, *older]))
        number = plan.publish
        assert number is not None
        if not before < number <= last:
            told = f"{last}" if last == before + 1 else f"one of {before + 1} to {last}"
            self._look.find(about, f"its plan publishes version {number}; expected {told}, after version {before}")

    def _adopted(self, about: str, plan: Plan, planner: int) -> None:
        """A plan that was taken over is the one that was written, but for what carrying it out again changes."""
        key = StepKey(planner, plan.step)
        name = f"steps/{planner:06d}/{plan.step:08d}.plan.json"
        first = self._look.read(name, lambda: self._look.folder.plan(key))
        if first is None:
            return
        again = plan.parent_digest == "" or first.parent_digest == ""
        told = {"publish": plan.publish, "parent_digest": plan.parent_digest} if again else {}
        if replace(first, attempt=plan.attempt, adopted_from=planner, **told) != plan:
            self._look.find(about, f"its plan is not the one of attempt {planner} that it was taken over from")
