"""Small runs from nothing: the quickstart's model without its warm start, its prompts, its settings."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

from agrpo.config import resolve
from agrpo.queue.run_folder import RunFolder
from agrpo.quickstart.run_file import run_settings
from agrpo.quickstart.tasks.thinking import THINKING
from agrpo.runs import prepare
from agrpo.stages.process import StageProcess, Supervisor

NUM_PROMPTS = 2000
JUDGE = {"name": "stand.judge:distinct_tokens"}
SEED = 1


def quickstart_settings(folder: Path, changes: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of the quickstart's run, with the reward of `judge` and these tables laid over them."""
    tree = run_settings(THINKING, model=make_model(folder), prompts=make_prompts(folder), seed=SEED)
    tree |= {"rewards": [JUDGE]}
    for table, values in changes.items():
        tree[table] = {**tree.get(table, {}), **values} if isinstance(values, dict) else values
    return tree


def begin(folder: Path, changes: Mapping[str, Any], name: str = "run") -> RunFolder:
    """A run in `folder/name`, begun and with no stage started."""
    return prepare(resolve(values=quickstart_settings(folder, changes)), folder=str(folder / name))


def make_model(folder: Path) -> Path:
    """The quickstart's model with random weights, and its tokenizer, as `save_pretrained` writes them. Made once."""
    place = folder / "model"
    if not place.exists():
        from transformers.utils import logging

        from agrpo.quickstart.model import make_model
        from agrpo.quickstart.tokenizer import train_tokenizer

        logging.disable_progress_bar()
        corpus = islice(THINKING.demonstrations(0), 500)
        tokenizer = train_tokenizer(text for shown in corpus for text in (shown.question.text, shown.completion))
        make_model(tokenizer, seed=SEED, has_positions=THINKING.has_positions).save_pretrained(place)
        tokenizer.save_pretrained(place)
    return place


def make_prompts(folder: Path) -> Path:
    """The quickstart's questions, with what its own reward needs."""
    place = folder / "prompts.jsonl"
    if not place.exists():
        rows = [question.row(THINKING.dataset) for question in THINKING.training(SEED)[:NUM_PROMPTS]]
        place.write_text("\n".join(json.dumps(row) for row in rows))
    return place


@contextmanager
def stages(folder: RunFolder, names: Sequence[str]) -> Iterator[tuple[Supervisor, dict[str, StageProcess]]]:
    """The stages of a run, started as a flow starts them, by name. They are ended with the block."""
    env = {"OMP_NUM_THREADS": str(folder.document()["threads"]), "OMP_WAIT_POLICY": "PASSIVE"}
    with Supervisor(folder.url, folder.local / "logs") as supervisor:
        yield supervisor, {name: supervisor.start(name, env) for name in names}


def until_ended(
    supervisor: Supervisor,
    stage: StageProcess,
    look: Callable[[], None],
    *,
    seconds: float = 0.1,
    finish: bool = False,
) -> None:
    """Look every so many seconds until the stage has ended; `finish`: ask it to. Raises `StageFailed`."""
    asked, ended = threading.Event(), threading.Event()
    failures: list[BaseException] = []
    if finish:
        asked.set()

    def wait() -> None:
        try:
            supervisor.wait(stage, finish=asked)
        except BaseException as failure:
            failures.append(failure)
        ended.set()

    threading.Thread(target=wait, daemon=True).start()
    while not ended.wait(seconds):
        look()
    if failures:
        raise failures[0]


def load_average() -> str:
    """How busy the machine is: a figure measured under load is a ratio or it is nothing."""
    return f"load average {os.getloadavg()[0]:.1f} on {len(os.sched_getaffinity(0))} cores"


def newest_step(folder: RunFolder) -> int:
    """The last step done by the first attempt."""
    return max(folder.done_steps(0), default=0)
