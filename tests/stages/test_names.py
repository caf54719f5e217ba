"""Names of a run's processes, and which worker an incarnation belonged to."""

from __future__ import annotations

import pytest

from agrpo.config.sections import WorkersSection
from agrpo.stages import kind_of, name_of, new_incarnation, number_of, stages_of


def test_every_process_of_a_run_has_a_name_of_its_own() -> None:
    assert stages_of(WorkersSection()) == ["generator", "scorer", "learner", "recorder"]
    assert stages_of(WorkersSection(generators=3, scorers=2)) == [
        *("generator", "generator-2", "generator-3", "scorer", "scorer-2", "learner", "recorder")
    ]


def test_a_run_with_servers_of_its_own_has_a_process_for_each() -> None:
    assert stages_of(WorkersSection(), 2) == ["server", "server-2", "generator", "scorer", "learner", "recorder"]


@pytest.mark.parametrize(
    ("name", "kind", "number"),
    [
        ("generator", "generator", 1),
        ("scorer-12", "scorer", 12),
        ("server-2", "server", 2),
        ("my.stage", "my.stage", 1),
        ("a-2", "a-2", 1),
    ],
)
def test_a_name_tells_the_stage_and_which_of_its_workers(name: str, kind: str, number: int) -> None:
    assert (kind_of(name), number_of(name)) == (kind, number)


def test_an_incarnation_of_the_second_worker_is_none_of_the_first() -> None:
    assert [name_of(new_incarnation(name)) for name in ("generator", "generator-2")] == ["generator", "generator-2"]
