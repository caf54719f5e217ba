"""Log lines about one group: by its ticket, by their level, and by when they were written."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from agrpo.instruments.rollout_page.logs import MOST_LINES, read_group_log


def at(hour: int, minute: int = 0, day: int = 29) -> datetime:
    return datetime(2026, 11, day, hour, minute, tzinfo=UTC)


def log(folder: Path, stage: str, *lines: str, start: str = "20261129T100000Z", kept: str = "") -> None:
    (folder / f"{stage}-{start}-00aa11.log{kept}").write_text("".join(f"{line}\n" for line in lines))


def told(folder: Path, ticket: int, begin: datetime, end: datetime | None) -> list[str]:
    return [f"{line.stage}: {line.line}" for line in read_group_log(folder, ticket, begin, end).lines]


def test_lines_that_name_the_group_and_warnings_are_told_and_others_are_not(tmp_path):
    log(
        tmp_path,
        "generator",
        "Loading: 0%\rLoading: 100%",
        "2026-11-29T10:00:05Z INFO agrpo.stages.generator ticket 12 was published by another worker first",
        "2026-11-29T10:00:06Z INFO agrpo.stages.generator ticket 121 was published by another worker first",
        "2026-11-29T10:00:08Z INFO agrpo.stages.generator serving version 3",
    )
    log(
        tmp_path,
        "scorer",
        "2026-11-29T10:00:07Z WARNING agrpo.stages.scorer slow",
        "2026-11-29T10:01:00Z WARNING agrpo.stages.scorer later",
    )
    assert told(tmp_path, 12, at(10), at(10, 0).replace(second=30)) == [
        "generator: 2026-11-29T10:00:05Z INFO agrpo.stages.generator ticket 12 was published by another worker first",
        "scorer: 2026-11-29T10:00:07Z WARNING agrpo.stages.scorer slow",
    ]


def test_a_traceback_goes_with_its_error_and_the_last_word_of_a_stage_is_an_error(tmp_path):
    log(
        tmp_path,
        "learner",
        "2026-11-29T10:00:01Z ERROR agrpo x",
        "Traceback (most recent call last):",
        "  line",
        "error: Boom: y",
    )
    assert told(tmp_path, 1, at(10), None) == [
        "learner: 2026-11-29T10:00:01Z ERROR agrpo x",
        "learner: Traceback (most recent call last):",
        "learner:   line",
        "learner: error: Boom: y",
    ]


def test_a_log_that_passes_midnight_goes_on_on_the_next_day(tmp_path):
    lines = ["2026-11-29T23:59:00Z WARNING a before", "2026-11-30T00:01:00Z WARNING a after"]
    log(tmp_path, "learner", *lines, start="20261129T235800Z")
    assert told(tmp_path, 1, at(0, day=30), None) == ["learner: 2026-11-30T00:01:00Z WARNING a after"]


def test_a_full_log_is_read_before_the_one_that_follows_it(tmp_path):
    log(tmp_path, "learner", "2026-11-29T12:00:00Z WARNING a third")
    log(tmp_path, "learner", "2026-11-29T11:00:00Z WARNING a second", kept=".1")
    log(tmp_path, "learner", "2026-11-29T10:00:00Z WARNING a first", kept=".2")
    assert [line[-6:].strip() for line in told(tmp_path, 1, at(10), None)] == ["first", "second", "third"]


def test_what_is_too_much_is_counted(tmp_path):
    log(
        tmp_path,
        "learner",
        *(f"2026-11-29T10:00:{place // 60:02d}Z WARNING a {place}" for place in range(MOST_LINES + 5)),
    )
    found = read_group_log(tmp_path, 1, at(10), None)
    assert (len(found.lines), found.num_left_out) == (MOST_LINES, 5)


def test_a_run_without_logs_here_has_no_lines(tmp_path):
    assert told(tmp_path / "nowhere", 1, at(10), None) == []
