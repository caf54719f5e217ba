"""A stage's log line, written and read."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime, timedelta

from agrpo.log_line import LogLine, read_line


def test_what_a_logger_writes_is_read_with_its_day_level_speaker_and_message():
    program = (
        "import logging, sys\n"
        "from agrpo.log_line import write_logs_to\n"
        "write_logs_to(sys.stdout)\n"
        "logging.getLogger('agrpo.stages.learner').warning('step %d  is odd', 3)\n"
    )
    # Fourteen hours from UTC: local time would be another day.
    done = subprocess.run(
        [sys.executable, "-c", program], env={"TZ": "UTC-14"}, capture_output=True, text=True, check=True, timeout=60
    )
    line = read_line(done.stdout.rstrip("\n"))
    assert line is not None
    assert (line.level, line.speaker, line.message, line.alarming) == (
        "WARNING",
        "agrpo.stages.learner",
        "step 3  is odd",
        True,
    )
    assert abs(datetime.now(UTC) - line.at) < timedelta(hours=1)


def test_a_line_is_read_whole():
    assert read_line("2026-11-29T18:52:17Z INFO agrpo.stages.learner step 1/4  reward 0.5") == LogLine(
        at=datetime(2026, 11, 29, 18, 52, 17, tzinfo=UTC),
        level="INFO",
        speaker="agrpo.stages.learner",
        message="step 1/4  reward 0.5",
    )


def test_what_no_logger_wrote_is_no_log_line():
    for text in ("Traceback (most recent call last):", "error: Boom: y", "", "18:52:17 INFO agrpo x"):
        assert read_line(text) is None
