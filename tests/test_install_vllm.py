"""The installer of vLLM: what it asks for, and how it says that it cannot."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from deployments.vllm import install

ROOT = Path(__file__).parent.parent


def test_a_package_that_cannot_be_had_is_told_in_one_line_without_an_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(install.CannotInstall) as caught:
        install.run([sys.executable, "-c", "print('ERROR: nothing at http' + '://index.example/simple fits'); exit(1)"])
    assert str(caught.value) == "ERROR: nothing at the package index fits"


def test_an_installer_that_fails_ends_with_its_reason(tmp_path: Path) -> None:
    folder = tmp_path / "env"
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "python").write_text("#!/bin/sh\necho ERROR: no space left >&2\nexit 1\n")
    (folder / "bin" / "python").chmod(0o755)
    script = ROOT / "deployments" / "vllm" / "install.py"
    ended = subprocess.run([sys.executable, script, folder], capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stderr) == (1, "vLLM cannot be installed: ERROR: no space left\n")


@pytest.mark.parametrize(("arguments", "code"), [([], 2), (["--help"], 0)])
def test_an_installer_without_a_folder_says_how_it_is_called(arguments: list[str], code: int) -> None:
    script = ROOT / "deployments" / "vllm" / "install.py"
    ended = subprocess.run(
        [sys.executable, script, *arguments], capture_output=True, text=True, timeout=60, check=False
    )
    assert (ended.returncode, "usage: install.py [-h] folder" in ended.stdout + ended.stderr) == (code, True)


def test_the_package_of_a_requirement_is_its_first_word() -> None:
    asked = ["torch==2.13.0", "torchvision>=0.2; python_version < '3'", "mistral_common[image]>=1", "Triton (==3.0)"]
    assert [install.name_of(one) for one in asked] == ["torch", "torchvision", "mistral_common", "triton"]


def test_uv_is_told_what_pip_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.delenv("PIP_CERT", raising=False)
    monkeypatch.setenv("PIP_INDEX_URL", "https://index.example/simple")
    monkeypatch.setenv("PIP_FIND_LINKS", "wheels")
    told = {"UV_DEFAULT_INDEX": "https://index.example/simple", "UV_FIND_LINKS": "wheels"}
    assert install.places_for_uv(sys.executable) == told
    monkeypatch.setenv("PIP_CERT", "bundle.crt")
    assert install.places_for_uv(sys.executable) == {**told, "SSL_CERT_FILE": "bundle.crt"}
