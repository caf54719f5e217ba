"""Exporting: the model as users load it with `from_pretrained`, at the end of a run and every so many steps."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agrpo.checkpoints.manifest import MANIFEST, write_manifest
from agrpo.checkpoints.single import Keepsakes, write_masters, write_training_state
from agrpo.config import RunConfig
from agrpo.errors import RecordError
from agrpo.policy.digest import digest_of, tensor_digests
from agrpo.queue.checkpoints import identity_of
from agrpo.queue.history import newest_done
from agrpo.queue.run_folder import EventStream, RunFolder
from agrpo.records.documents import load
from agrpo.records.manifest import CheckpointManifest
from agrpo.stages.execution import Trainee
from agrpo.stages.succession import check_fence
from agrpo.stages.whole_folder import written_whole
from agrpo.templates import template_at
from agrpo.tensors import exported_state, has_adapter, outside_text, served_in
from agrpo.tensors.whole import shards_of
from agrpo.weights.filesystem import WEIGHTS, digest_in
from agrpo.weights.lora import write_adapter

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from agrpo.config import ModelSection

FOLDER = "exports"
LAST = "model"
"""Folder of the model at the end of the run."""
PROCESSOR_FILES = ("preprocessor_config.json", "video_preprocessor_config.json", "processor_config.json")
ADAPTER = "adapter"
"""Folder within an export that holds the adapter alone, as PEFT loads it beside its base."""


class Exports:
    """The exports of a run. They are for users: no resume needs one, and none is taken for a checkpoint."""

    def __init__(
        self,
        folder: RunFolder,
        config: RunConfig,
        trainee: Trainee,
        *,
        attempt: int,
        events: EventStream,
        keepsakes: Keepsakes,
    ) -> None:
        self._folder = folder
        self._config = config
        self._trainee = trainee
        self._attempt = attempt
        self._events = events
        self._keepsakes = keepsakes
        self._run = identity_of(folder)

    def export_last(self) -> None:
        """The model at the end of the run."""
        digest, done = digest_of(tensor_digests(self._trainee.model)), newest_done(self._folder)
        with written_whole(self._folder.filesystem, LAST) as scratch:
            write_model(scratch, self._trainee.model, self._config.model)
            step, file_digest = done.step if done else 0, _file_digest(scratch, digest)
            write_manifest(scratch, run=self._run, step=step, digest=digest, file_digest=file_digest)
            check_fence(self._folder, self._attempt)
            self._folder.filesystem.delete(LAST)

    def export_if_due(self, step: int) -> None:
        """The model after `step`, every `save_steps`, unless it is there already; then remove what is too many.

        What stands there from a history that was left is written anew.
        """
        every = self._config.checkpoint.save_steps
        if every is None or step == 0 or step % every != 0:
            return
        digest = digest_of(tensor_digests(self._trainee.model))
        if self._exported_digest(step) != digest:
            self._export(step, digest)
        self._remove_old(step)

    def _export(self, step: int, digest: str) -> None:
        trainee, key = self._trainee, _key(step)
        with written_whole(self._folder.filesystem, key) as scratch:
            write_model(scratch, trainee.model, self._config.model)
            if not self._config.checkpoint.save_only_model:
                write_training_state(scratch, trainee.model, trainee.optimizer, self._keepsakes)
                write_masters(scratch, trainee.model)
            write_manifest(scratch, run=self._run, step=step, digest=digest, file_digest=_file_digest(scratch, digest))
            check_fence(self._folder, self._attempt)
            self._folder.filesystem.delete(key)
        self._events.write("exported", attempt=self._attempt, step=step, folder=key, digest=digest)

    def _exported_digest(self, step: int) -> str | None:
        """Of the weights that were exported at a step; None where none were, or their manifest is damaged."""
        data = self._folder.filesystem.get(f"{_key(step)}/{MANIFEST}")
        try:
            return None if data is None else load(CheckpointManifest, memoryview(data)).digest
        except RecordError:
            return None

    def _remove_old(self, step: int) -> None:
        """Keep the newest `save_total_limit` up to `step`; later ones are of a history that was left."""
        limit = self._config.checkpoint.save_total_limit
        if limit is None:
            return
        check_fence(self._folder, self._attempt)
        steps = sorted(int(name.partition("-")[2]) for name in self._folder.filesystem.list(FOLDER))
        kept = [other for other in steps if other <= step][-limit:]
        for other in steps:
            if other not in kept:
                self._folder.filesystem.delete(_key(other))


def _key(step: int) -> str:
    return f"{FOLDER}/step-{step}"


def write_model(folder: Path, model: PreTrainedModel, source: ModelSection) -> None:
    """The model and its tokenizer, as `from_pretrained` reads them. An adapter is merged, and also stands apart.

    The tokenizer has the chat template that the model was trained with. Raises `ModelError` where that is gone.
    """
    from transformers import AutoTokenizer

    dtype = served_in(model)
    if has_adapter(model):
        write_adapter(folder / ADAPTER, model)
    if has_adapter(model) or dtype is not None or shards_of(model) is not None:
        model.save_pretrained(folder, state_dict=exported_state(model))
    else:
        model.save_pretrained(folder)
    if dtype is not None:
        _say_dtype(folder / "config.json", str(dtype).removeprefix("torch."))
    tokenizer: Any = AutoTokenizer.from_pretrained(
        source.path, revision=source.revision, trust_remote_code=source.trust_remote_code
    )
    if source.chat_template is not None:
        tokenizer.chat_template = template_at(source.chat_template)
    tokenizer.save_pretrained(folder)
    if outside_text(model):
        _copy_processor(folder, source)


def _file_digest(folder: Path, digest: str) -> str | None:
    """Of the model's file, where it is another than what was trained has; None for one, or for several files.

    transformers writes some families under other names than they have in memory.
    """
    file = folder / WEIGHTS
    if (folder / ADAPTER).is_dir() or not file.is_file():
        return None
    found = digest_in(file)
    return None if found == digest else found


def _say_dtype(file: Path, dtype: str) -> None:
    """The configuration names the type that the tensors beside it have, not the one that training held them in."""
    document = json.loads(file.read_text("utf-8"))
    for config in (document, document.get("text_config", {}), document.get("vision_config", {})):
        if "dtype" in config:
            config["dtype"] = dtype
    file.write_text(json.dumps(document, indent=2, sort_keys=True) + "\n", "utf-8")


def _copy_processor(folder: Path, source: ModelSection) -> None:
    """What says how a vision-language model is shown images, where its checkpoint has it."""
    from transformers.utils.hub import cached_file

    for name in PROCESSOR_FILES:
        found = cached_file(
            source.path,
            name,
            revision=source.revision,
            _raise_exceptions_for_missing_entries=False,
            _raise_exceptions_for_connection_errors=False,
        )
        if found is not None:
            shutil.copyfile(found, folder / name)
