"""Replaying: the policy of a step made again from history alone, and held against the recorded digests.

It begins at the newest whole checkpoint, or at the first weights, and carries recorded plans out as the learner does, on
groups from slots or the archive. Nothing is written into the run.
"""

from __future__ import annotations

import hashlib
import logging
import shutil
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agrpo.audit.look import Tell
from agrpo.config import ModelSection, RunConfig, Settings, load_settings
from agrpo.errors import CheckpointError, CheckpointMismatch, ConfigError, ReplayMismatch, StoreLostWrites
from agrpo.queue.checkpoints import identity_of, lineage_checkpoints
from agrpo.queue.history import newest_done
from agrpo.queue.lineage import Segment, lineage
from agrpo.queue.run_folder import RunFolder
from agrpo.queue.versions import newest_version
from agrpo.records.progress import Done

if TYPE_CHECKING:
    from agrpo.policy.trainee import Trainee
    from agrpo.stages.ranks import Recruiter
    from agrpo.stages.standing import Standing

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayedStep:
    """A step that gave the recorded weights once more."""

    step: int
    digest: str
    seconds: float
    """Reading its groups, the step itself, and its digests."""
    recorded_seconds: float
    """Of the learner for the same: reading, forward, backward, optimizer, digests."""


@dataclass(kw_only=True)
class Replay:
    """What came of replaying a run to a step."""

    to_step: int
    begun_at: int = 0
    """Step whose weights were loaded; 0: the first weights."""
    steps: list[ReplayedStep] = field(default_factory=list[ReplayedStep])
    digest: str = ""
    """Of the weights after the last step that agreed."""
    difference: str | None = None
    """Where the replay differs first, and in what; None: every digest is the recorded one."""
    passed_over: list[str] = field(default_factory=list[str])
    """Checkpoints that are damaged, and why."""
    machine: list[str] = field(default_factory=list[str])
    """What is other here than where the run began."""

    @property
    def identical(self) -> bool:
        return self.difference is None


def replay(
    folder: RunFolder,
    *,
    to_step: int | None = None,
    out: Path | None = None,
    from_start: bool = False,
    model: str | None = None,
    tell: Tell = lambda *_: None,
) -> Replay:
    """Make the policy of a done step again; None: of the last one.

    `out`: a new folder for the model, as `from_pretrained` reads it; written only if every digest agrees. `from_start`:
    pass over the checkpoints. `model`: where the run's first model lies here. Raises `ConfigError` for a step that is not
    done, a folder that is not empty, or a model that is another.
    """
    last = newest_done(folder)
    if last is None:
        raise ConfigError(f"{folder.url} has done no step yet: there is nothing to replay")
    target = last.step if to_step is None else to_step
    if not 0 <= target <= last.step:
        raise ConfigError(
            f"--to-step {target}: {folder.url} has done steps 1 to {last.step}; choose one of 0 to {last.step}"
        )
    if out is not None and out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"--out {out}: it is there and not empty; name a new folder")
    config, began = _config(folder, model), folder.attempt(0)
    with _recruiter(
        config, on_cpu=began is not None and bool(began.machine) and "gpu" not in began.machine
    ) as recruiter:
        replayer = _Replayer(folder, config, Replay(to_step=target), tell, recruiter)
        replayer.replay(from_start=from_start)
        if out is not None and replayer.outcome.identical:
            _write_model(out, replayer.trainee, replayer.config.model)
    return replayer.outcome


def _recruiter(config: RunConfig, *, on_cpu: bool) -> Recruiter:
    """Brings the processes that steps of a sharded learner are replayed with."""
    from agrpo.stages.ranks import recruiter_of

    return recruiter_of(config, threading.Event(), on_cpu=on_cpu)


class _Replayer:
    """One replay."""

    def __init__(self, folder: RunFolder, config: RunConfig, outcome: Replay, tell: Tell, recruiter: Recruiter) -> None:
        from agrpo.policy.determinism import machine_facts, threads_of
        from agrpo.policy.trainee import Origin, begin

        self.folder = folder
        self.config = config
        self.outcome = outcome
        self.tell = tell
        first = folder.attempt(0)
        began, here = {} if first is None else first.machine, machine_facts()
        outcome.machine = [
            f"{name}: {began[name]}, here {here.get(name)}" for name in began if began[name] != here.get(name)
        ]
        origin = Origin.of(config, threads_of(folder.document()))
        self.trainee: Trainee = begin(origin, recruiter.form(1), recruiter)
        self.segments: list[Segment] = lineage(folder.bases())

    def replay(self, *, from_start: bool) -> None:
        from agrpo.stages.replaying import replay_to

        standing = self._first() if from_start else self._newest_checkpoint() or self._first()
        self.outcome.begun_at = standing.step
        self.began = time.perf_counter()
        try:
            if not self.outcome.difference:
                replay_to(
                    self.outcome.to_step,
                    folder=self.folder,
                    config=self.config,
                    segments=self.segments,
                    trainee=self.trainee,
                    standing=standing,
                    on_step=self._replayed,
                )
                self._compare_published(standing)
        except ReplayMismatch as mismatch:
            self.outcome.difference = str(mismatch).partition(". The same machine")[0]
        self.outcome.digest = standing.digest

    def _first(self) -> Standing:
        """At the first weights, which are the model's."""
        from agrpo.policy.digest import digest_of, tensor_digests
        from agrpo.stages.standing import Standing

        digest, published = digest_of(tensor_digests(self.trainee.model)), newest_version(self.folder, 0)
        if published is not None and published.trained_digest != digest:
            raise ConfigError(
                f"{self.config.model.path} holds weights {digest}, {self.folder.url} began with {published.trained_digest}: name a "
                "folder with the model that the run began with by --model"
            )
        return Standing(digest=digest)

    def _newest_checkpoint(self) -> Standing | None:
        """At the newest checkpoint that is whole, up to the step."""
        from agrpo.checkpoints.single import Keepsakes, read_checkpoint
        from agrpo.stages.standing import Standing
        from agrpo.stages.succession import plan_of

        trainee, run = self.trainee, identity_of(self.folder)
        for name in lineage_checkpoints(self.folder, self.outcome.to_step):
            try:
                source = self.folder.filesystem.local_folder(name.key)
                if source is None:  # removed meanwhile, or not written whole
                    continue
                state = read_checkpoint(
                    source,
                    trainee.model,
                    trainee.optimizer,
                    run=run,
                    keepsakes=Keepsakes(),
                    reference=trainee.reference_state,
                )
            except CheckpointMismatch:
                raise
            except (CheckpointError, StoreLostWrites) as error:
                self.outcome.passed_over.append(str(error))
                continue
            plan = plan_of(self.folder, self.segments, state.step) if state.step > 0 else None
            trainee.num_tokens, trainee.num_prompts = state.num_tokens, state.num_prompts
            standing = Standing.at_checkpoint(state, plan)
            self._compare_loaded(standing)
            return standing
        return None

    def _compare_loaded(self, standing: Standing) -> None:
        """What was loaded is what the step had recorded."""
        from agrpo.policy.digest import digest_of, tensor_digests
        from agrpo.stages.succession import done_of

        found = digest_of(tensor_digests(self.trainee.model))
        recorded = done_of(self.folder, self.segments, standing.step).digest if standing.step else standing.digest
        if found != recorded:
            self.outcome.difference = (
                f"the checkpoint of step {standing.step} holds weights {found}, the step recorded {recorded}"
            )

    def _compare_published(self, standing: Standing) -> None:
        """The version of the last step holds what its adapter gives: a step's digest says nothing of a merge."""
        from agrpo.weights.published import to_publish

        ready = newest_version(self.folder, standing.step)
        if ready is None or ready.step != standing.step or ready.step_digest is None:
            return
        digest = to_publish(self.trainee.model, ready.form, with_head=False).digest
        if digest != ready.digest:
            told = f"version {ready.version} of step {ready.step} holds weights {ready.digest}"
            self.outcome.difference = f"{told}, the step's adapter gives {digest}"

    def _replayed(self, done: Done) -> None:
        from agrpo.stages.succession import done_of

        now = time.perf_counter()
        timings = done_of(self.folder, self.segments, done.step).timings
        computed = timings.forward_seconds + timings.backward_seconds + timings.optimizer_seconds
        self.outcome.steps.append(
            ReplayedStep(
                step=done.step,
                digest=done.digest,
                seconds=now - self.began,
                recorded_seconds=timings.read_seconds + computed + timings.digest_seconds,
            )
        )
        self.began = now
        first = self.outcome.begun_at
        self.tell("steps", done.step - first, self.outcome.to_step - first)


def _config(folder: RunFolder, model: str | None) -> RunConfig:
    """The run's settings, with its first model where it lies here."""
    document = folder.document()
    settings = load_settings(document)
    if model is not None:
        tree: dict[str, Any] = {**settings.tree, "model": {**settings.tree["model"], "path": model}}
        settings = Settings(tree=tree, origins=settings.origins)
    config = RunConfig.build(settings)
    _refuse_other_files(config.model, document.get("model_digests", {}))
    return config


def _refuse_other_files(model: ModelSection, digests: dict[str, str]) -> None:
    """Raise `ConfigError` unless the model's files are those that the run began with."""
    place = Path(model.path)
    if not place.is_dir():
        if digests:
            raise ConfigError(
                f"model.path = {model.path}: no such folder here; name one with the same files by --model"
            )
        return
    found = {
        name: hashlib.blake2b((place / name).read_bytes(), digest_size=16).hexdigest()
        if (place / name).is_file()
        else None
        for name in digests
    }
    changed = sorted(name for name, digest in digests.items() if found[name] != digest)
    if changed:
        raise ConfigError(
            f"{place}: other files than the run began with: {', '.join(changed)}; name a folder with the same ones by --model"
        )


def _write_model(out: Path, trainee: Trainee, source: ModelSection) -> None:
    """The model and its tokenizer, as `from_pretrained` reads them; the folder appears whole."""
    from agrpo.stages.exporting import write_model

    draft = out.with_name(f".{out.name}.unfinished")
    shutil.rmtree(draft, ignore_errors=True)
    write_model(draft, trainee.model, source)
    draft.replace(out)
