"""A module that a user names: what is said where it is not there, or does not import."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from agrpo.errors import HookError, RewardError
from agrpo.loading import module_named


@pytest.fixture(autouse=True)
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package whose modules each fail in their own way, in the path."""
    folder = tmp_path / "named_by_a_user"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "needs_another.py").write_text("import no_such_package_at_all")
    (folder / "raises.py").write_text("raise ValueError('no weights')")
    (folder / "leaves.py").write_text("raise SystemExit(3)")
    (folder / "wordless.py").write_text(
        "class Wordless(Exception):\n    def __str__(self):\n        raise KeyError\nraise Wordless"
    )
    monkeypatch.syspath_prepend(tmp_path)
    return folder


def test_a_module_that_is_there_is_given():
    assert module_named("named_by_a_user", "named_by_a_user:x", HookError).__name__ == "named_by_a_user"


@pytest.mark.parametrize(
    ("module", "told"),
    [
        (
            "named_by_a_user.nowhere",
            f'there is no module "named_by_a_user.nowhere"; modules are looked for in {os.getcwd()}, in PYTHONPATH and among the '
            "installed packages",
        ),
        (
            "named_by_a_user.needs_another",
            "importing named_by_a_user.needs_another failed: No module named 'no_such_package_at_all'; install what it needs",
        ),
        ("named_by_a_user.raises", "importing named_by_a_user.raises failed: ValueError: no weights"),
        ("named_by_a_user.leaves", "importing named_by_a_user.leaves failed: SystemExit: 3"),
        ("named_by_a_user.wordless", "importing named_by_a_user.wordless failed: Wordless: it has no words"),
    ],
)
def test_one_that_cannot_be_imported_is_refused_by_the_error_that_is_asked_for(module: str, told: str):
    with pytest.raises(HookError) as refused:
        module_named(module, f"{module}:x", HookError)
    assert str(refused.value) == f'"{module}:x": {told}'
    with pytest.raises(RewardError) as refused:
        module_named(module, f"{module}:x", RewardError, "reward ")
    assert str(refused.value) == f'reward "{module}:x": {told}'
