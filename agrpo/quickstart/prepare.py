"""Everything a quickstart run needs, written once into one folder: model, prompts, held-out questions, run file."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any

from agrpo.errors import RunExists
from agrpo.quickstart.policy import make_policy
from agrpo.quickstart.question import Question, Task
from agrpo.quickstart.run_file import run_file, run_settings
from agrpo.quickstart.warm_start import OnStep

MANIFEST = "manifest.json"
PACKAGES = ("reasoning-gym", "tokenizers", "torch", "transformers")


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A folder that holds a task ready to be trained."""

    task: Task
    seed: int
    folder: Path

    @property
    def model(self) -> Path:
        """The warm-started policy and its tokenizer, as `save_pretrained` writes them."""
        return self.folder / "model"

    @property
    def prompts(self) -> Path:
        """Parquet that the prompt source `files` reads."""
        return self.folder / "prompts.parquet"

    @property
    def held_out(self) -> Path:
        """Parquet of the same columns."""
        return self.folder / "held_out.parquet"

    @property
    def run_file(self) -> Path:
        """TOML that `agrpo train` takes."""
        return self.folder / "run.toml"

    @property
    def settings(self) -> dict[str, Any]:
        """What the run file was written from."""
        return run_settings(self.task, model=self.model, prompts=self.prompts, seed=self.seed)


def prepare(
    task: Task, folder: Path, seed: int, *, num_threads: int | None = None, on_step: OnStep | None = None
) -> Prepared:
    """Prepare `task` in `folder`, or find it prepared there by an earlier call with the same task, seed and code.

    The folder appears whole or not at all. Raises `RunExists` where it holds anything else.
    """
    prepared = Prepared(task=task, seed=seed, folder=folder.resolve())
    if _is_done(prepared):
        return prepared
    partial = prepared.folder.with_name(f".{prepared.folder.name}.{os.getpid()}")
    partial.mkdir(parents=True)
    try:
        _write(prepared, partial, num_threads, on_step)
        partial.rename(prepared.folder)
    except OSError:
        # Another process may have finished the same folder meanwhile.
        if not _is_done(prepared):
            raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return prepared


def _write(prepared: Prepared, partial: Path, num_threads: int | None, on_step: OnStep | None) -> None:
    task, seed = prepared.task, prepared.seed
    make_policy(
        partial / prepared.model.name,
        task.demonstrations,
        seed=seed,
        steps=task.warm_start_steps,
        has_positions=task.has_positions,
        num_threads=num_threads,
        on_step=on_step,
    )
    _write_questions(partial / prepared.prompts.name, task.training(seed), task.dataset)
    _write_questions(partial / prepared.held_out.name, task.held_out(), task.dataset)
    about = f"Quickstart, seed {seed}: {task.about}."
    (partial / prepared.run_file.name).write_text(run_file(prepared.settings, about))
    (partial / MANIFEST).write_text(json.dumps(_manifest(prepared), indent=2))


def _write_questions(file: Path, questions: Iterable[Question], dataset: str) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    message = pa.struct({"role": pa.string(), "content": pa.string()})
    schema = pa.schema(
        {
            "prompt": pa.list_(message),
            "reasoning_gym_dataset": pa.string(),
            "reasoning_gym_entry": pa.string(),
            "difficulty": pa.int64(),
        }
    )
    pq.write_table(pa.Table.from_pylist([question.row(dataset) for question in questions], schema), file)


def _is_done(prepared: Prepared) -> bool:
    folder = prepared.folder
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return False
    try:
        found = json.loads((folder / MANIFEST).read_text())
    except (OSError, ValueError):
        raise RunExists(
            f"{folder} is in use and holds no prepared quickstart; give a folder that does not exist yet"
        ) from None
    expected = _manifest(prepared)
    if found != expected:
        different = ", ".join(key for key in expected if found.get(key) != expected[key])
        raise RunExists(
            f"{folder} holds another quickstart than task {prepared.task.name} with seed {prepared.seed} (different: "
            f"{different}); give another folder, or delete this one if no run that began from it is still needed"
        )
    return True


def _manifest(prepared: Prepared) -> dict[str, Any]:
    """What decides the folder's contents."""
    values = {name: value for name, value in asdict(prepared.task).items() if not callable(value)}
    return {
        "task": json.loads(json.dumps(values)),
        "seed": prepared.seed,
        "code": _digest_of_code(),
        "packages": {package: version(package) for package in PACKAGES},
    }


def _digest_of_code() -> str:
    room = files("agrpo.quickstart")
    pages = [
        room / name for name in ("model.py", "policy.py", "question.py", "run_file.py", "tokenizer.py", "warm_start.py")
    ]
    pages += sorted(
        (page for page in (room / "tasks").iterdir() if page.name.endswith(".py")), key=lambda page: page.name
    )
    return hashlib.blake2b(b"".join(page.read_bytes() for page in pages), digest_size=8).hexdigest()
