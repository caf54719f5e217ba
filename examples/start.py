"""Where an example with a tiny model begins: the command that makes the model and the prompts from nothing."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agrpo.quickstart.policy import make_policy
from agrpo.quickstart.progress import progress_bar
from agrpo.quickstart.question import Demonstration
from agrpo.quickstart.tokenizer import CALL

ROOT = Path(__file__).parents[1]
PROMPTS = "prompts.jsonl"
SEED = "seed"


@dataclass(frozen=True, kw_only=True)
class Start:
    """What an example begins with."""

    name: str
    """Of its folder below `runs/start`, where its run file looks."""
    demonstrations: Callable[[int], Iterator[Demonstration]]
    """Of the warm start: endless, drawn from a seed."""
    rows: Callable[[int], Iterable[dict[str, Any]]]
    """Of the dataset, drawn from a seed."""
    steps: int
    """Of the warm start."""

    @property
    def place(self) -> Path:
        return ROOT / "runs" / "start" / self.name

    def make(self, place: Path, seed: int) -> Path:
        """The folder with `model` and `prompts.jsonl`; it appears whole or not at all. What is there is not made again.

        Raises `FileExistsError` where the place has something else, or what was made from another seed.
        """
        if (place / PROMPTS).is_file():
            check_seed(place, seed)
            print(f"{place}: there already, made from seed {seed}")
            return place
        place = place.resolve()  # "." has no name beside which it could be made
        if place.exists() and (not place.is_dir() or any(place.iterdir())):
            raise FileExistsError(f"{place} is there and is no start of an example; give --to another folder")
        began = time.monotonic()
        made = place.with_name(f".{place.name}-{os.getpid()}")
        made.mkdir(parents=True)
        try:
            self.write_rows(made / PROMPTS, seed)
            (made / SEED).write_text(f"{seed}\n")
            with progress_bar("warm start", self.steps) as on_step:
                make_policy(
                    made / "model",
                    self.demonstrations,
                    seed=seed,
                    steps=self.steps,
                    words=CALL,
                    num_threads=1,
                    on_step=on_step,
                )
            made.rename(place)
        finally:
            shutil.rmtree(made, ignore_errors=True)
        print(f"{place}: ready after {time.monotonic() - began:.0f} s")
        return place

    def write_rows(self, file: Path, seed: int) -> None:
        """The dataset, as the prompt source `files` reads it."""
        file.write_text("".join(f"{json.dumps(row)}\n" for row in self.rows(seed)))


def check_seed(place: Path, seed: int) -> None:
    """Raise `FileExistsError` where this start was not made from this seed."""
    told = (place / SEED).read_text().strip() if (place / SEED).is_file() else "that it does not tell"
    if told != str(seed):
        raise FileExistsError(
            f"{place} was made from a seed {told}, and --seed is {seed}; remove it, or give --to another folder"
        )


def command(start: Start, about: str | None) -> None:
    """The command line. `about`: what its help says."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--to", type=Path, default=start.place, help=f"folder to make (runs/start/{start.name})")
    parser.add_argument("--seed", type=int, default=1, help="of weights, demonstrations and prompts (1)")
    given = parser.parse_args()
    try:
        start.make(given.to, given.seed)
    except FileExistsError as error:
        parser.error(str(error))
