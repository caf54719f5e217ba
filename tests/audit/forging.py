"""Forging a run: records changed behind a valid checksum, as no bit that flips could."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

from agrpo.checkpoints.manifest import MANIFEST
from agrpo.queue.run_folder import RunFolder, StepKey
from agrpo.records.arrow import scored_from_arrow, scored_to_arrow
from agrpo.records.documents import dump, load
from agrpo.records.manifest import CheckpointManifest
from agrpo.records.progress import Base, Done, Drop, DropReason, Plan
from agrpo.records.score import ScoredGroup
from agrpo.records.trained_tokens import tokens_table
from tests.audit.finished import replan


class Forger:
    """Changes a copy of a run of five steps that went back to the third: attempt 1 did the last two."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder

    @property
    def base(self) -> Base:
        return self.folder.bases()[1]

    def plan(self, step: int) -> Plan:
        found = self.folder.plan(self.key(step))
        assert found is not None
        return found

    def done(self, step: int) -> Done:
        found = self.folder.done(self.key(step))
        assert found is not None
        return found

    def key(self, step: int) -> StepKey:
        return StepKey(0 if step <= 3 else 1, step)

    def put(self, key: str, record: Any) -> None:
        self.folder.filesystem.put(key, dump(record), exclusive=False)

    def replan(self, step: int, **changes: Any) -> None:
        replan(self.folder, self.plan(step), **changes)

    def redo(self, step: int, **changes: Any) -> None:
        key = self.key(step)
        self.put(f"steps/{key.attempt:06d}/{step:08d}.done.json", replace(self.done(step), **changes))

    def rebase(self, **changes: Any) -> None:
        self.put("bases/000001.json", replace(self.base, **changes))

    def version(self, at: int, **changes: Any) -> None:
        """Change the record of the version that a step published, and bring weights under its new name."""
        attempt, number = self.key(at).attempt, self.plan(at).publish
        assert number is not None
        ready = self.folder.version(attempt, number)
        assert ready is not None
        forged = replace(ready, **changes)
        forged = replace(forged, folder=f"weights/{number:08d}-{forged.digest[:16]}")
        if forged.folder != ready.folder and Path(self.folder.url, forged.folder).exists() is False:
            source = next(path for path in Path(self.folder.url, "weights").glob(f"*-{forged.digest[:16]}"))
            shutil.copytree(source, Path(self.folder.url, forged.folder))
        self.put(f"versions/{attempt:06d}/{number:08d}.json", forged)

    def scored(self, ticket: int) -> ScoredGroup:
        return scored_from_arrow(self.folder.scored.demand(ticket))

    def rescore(self, ticket: int, **changes: Any) -> None:
        data = scored_to_arrow(replace(self.scored(ticket), **changes))
        self.folder.filesystem.put(self.folder.scored.key(ticket), data, exclusive=False)

    def swap(self, step: int, ticket: int) -> int:
        """Train another ticket in the place of the step's first; the one that is left out. No checkpoint is there."""
        plan, done, old = self.plan(step), self.done(step), self.plan(step).tickets[0]
        staleness = step - 1 - self.scored(ticket).ordinal
        for other in (4, 5):
            self.replan(other, drops=[drop for drop in self.plan(other).drops if drop.ticket != ticket])
        swapped = [
            [replace(one, ticket=ticket, staleness=staleness) if one.ticket == old else one for one in samples]
            for samples in (plan.samples, done.samples)
        ]
        self.replan(step, tickets=[ticket, *plan.tickets[1:]], samples=swapped[0])
        self.redo(step, samples=swapped[1])
        self.forget_checkpoints()
        return old

    def drop_last(self, step: int, reason: DropReason) -> int:
        """Drop the step's last group for a reason, with its samples."""
        plan, ticket = self.plan(step), self.plan(step).tickets[-1]
        self._keep(step, [place for place, sample in enumerate(plan.samples) if sample.ticket != ticket])
        self.replan(step, tickets=plan.tickets[:-1], drops=[*plan.drops, Drop(ticket=ticket, reason=reason)])
        return ticket

    def lose_sample(self, step: int) -> int:
        """Leave the step's last sample out, everywhere."""
        last = self.plan(step).samples[-1]
        self._keep(step, list(range(len(self.plan(step).samples) - 1)))
        return last.ticket

    def _keep(self, step: int, places: list[int]) -> None:
        plan, done = self.plan(step), self.done(step)
        number = {place: new for new, place in enumerate(places)}
        rows = [[number[place] for place in row if place in number] for row in plan.rows]
        facts = [replace(fact, num_samples=len(row)) for fact, row in zip(done.rows, rows, strict=True)]
        samples = [done.samples[place] for place in places]
        tokens = sum(sample.num_trained_tokens for sample in samples)
        self.replan(step, samples=[plan.samples[place] for place in places], rows=rows, num_trained_tokens=tokens)
        self.redo(step, samples=samples, rows=facts)
        self._keep_tokens(step, places)

    def _keep_tokens(self, step: int, places: list[int]) -> None:
        from agrpo.records.trained_tokens import TrainedTokens, tokens_to_arrow

        table = tokens_table(self.folder.tokens(self.key(step)) or b"").take(places)
        data = tokens_to_arrow([TrainedTokens(**row) for row in table.to_pylist()])
        self.folder.filesystem.put(self.tokens(step), data, exclusive=False)

    def tokens(self, step: int) -> str:
        key = self.key(step)
        return f"steps/{key.attempt:06d}/{step:08d}.tokens.arrow"

    def forget_checkpoints(self) -> None:
        for name in self.folder.filesystem.list("checkpoints"):
            self.folder.filesystem.delete(f"checkpoints/{name}")

    def restate(self, **changes: Any) -> str:
        """Change what the newest checkpoint says of where the run stood; its name."""
        key = f"checkpoints/{self.folder.filesystem.list('checkpoints')[-1]}"
        manifest = load(CheckpointManifest, Path(self.folder.url, key, MANIFEST).read_bytes())
        assert manifest.state is not None
        forged = replace(manifest, state=replace(manifest.state, **changes))
        Path(self.folder.url, key, MANIFEST).write_bytes(dump(forged))
        return key
