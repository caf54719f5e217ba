"""Runs whose policy says what it is told to, by the scripted engine, with the first version published and nobody at work."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agrpo.config import ModelSection, resolve
from agrpo.queue.run_folder import RunFolder
from agrpo.records.progress import Hint
from agrpo.runs import prepare
from agrpo.stages.rendering import Renderer
from tests.stages.test_two_generators import publish_uniform
from tests.stages.walk import settings


def begin_calling(model: Path, place: Path, lines: Sequence[str], **tables: Any) -> RunFolder:
    """A run each of whose turns says one of these lines, as its seed picks it. Nothing holds its generator back.

    `rewards`, among the tables, stand in the place of the small run's; `columns`: further ones of its only row.
    """
    prompts = place / "prompts.jsonl"
    prompts.write_text(json.dumps({"prompt": [{"role": "user", "content": "Count."}], **tables.pop("columns", {})}))
    encode = Renderer(ModelSection(path=str(model))).encode
    free = {"max_staleness": 1000, "scoring_queue": 1000, **tables.pop("asynchronous", {})}
    stop = {"max_steps": 1000, **tables.pop("stop", {})}
    rewards = tables.pop("rewards", None)
    tree = settings(model, prompts, place, loss={"name": "clip"}, asynchronous=free, stop=stop, **tables)
    tree["engine"] = {
        "name": "scripted",
        "num_generations": 4,
        "max_completion_length": 200,
        "completions": [encode(line) for line in lines],
    }
    tree["rewards"] = rewards or tree["rewards"]
    folder = prepare(resolve(values=tree), folder=str(place / "run"))
    publish_uniform(folder)
    return folder


def allow(folder: RunFolder, groups: int, *, finished: bool = False) -> None:
    """Let the generator make so many groups in all; `finished`: tell it that none is needed any more."""
    hint = Hint(limit_ticket=groups, dropped=0, floor=0, finished=finished, attempt=0, written_at=time.time())
    folder.write_hint(hint)
