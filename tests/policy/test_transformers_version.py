"""The oldest transformers that a policy can be trained with."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from agrpo.errors import MissingPackage
from agrpo.policy import refuse_old_transformers


@pytest.mark.spec("A-012")
def test_the_policy_cannot_be_imported_beside_an_old_transformers(tmp_path: Path):
    said = tmp_path / "transformers-5.1.9.dist-info"
    said.mkdir()
    (said / "METADATA").write_text("Metadata-Version: 2.1\nName: transformers\nVersion: 5.1.9\n")
    program = "try:\n import agrpo.policy.digest\nexcept ImportError as error:\n print(error)"
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    told = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert told.stdout.startswith("transformers 5.1.9 is installed; the policy needs 5.2.0 or newer: pip install")


@pytest.mark.parametrize("version", ["4.57.1", "5.1", "5.0.0rc2"])
def test_older_versions_are_refused(version: str):
    with pytest.raises(MissingPackage, match=version):
        refuse_old_transformers(version)


@pytest.mark.parametrize("version", ["5.2", "5.2.0", "5.2.0.dev0", "5.10", "6.0.0"])
def test_the_oldest_and_newer_ones_are_taken(version: str):
    refuse_old_transformers(version)
