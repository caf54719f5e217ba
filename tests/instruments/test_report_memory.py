"""The plan of memory in a report."""

from __future__ import annotations

from pathlib import Path

from agrpo.database.writer import Database
from agrpo.instruments.report.facts import read_facts
from agrpo.instruments.report.page import report_page
from agrpo.queue.run_folder import RunFolder
from agrpo.stages.recorder import record_once
from tests.database.synthetic import add_attempt, add_group, add_scores, add_step

PARTS = [
    {"process": "learner", "what": "weights <all>", "likely": 3 * 2**30, "least": 2**30},
    {"process": "scorer", "what": "imports", "likely": 2**29, "least": 0},
]
PLACE = {"name": "this machine", "total": 8 * 2**30, "free": 6 * 2**30, "parts": PARTS}


def test_a_report_shows_what_was_planned_place_by_place(tmp_path: Path):
    document = {
        "settings": {"tree": {"run": {"name": "small"}, "step": {"micro_tokens": 10}}, "origins": {}},
        "config_digest": "c0ffee",
        "memory": {"unknown": None, "places": [PLACE]},
    }
    folder = RunFolder.create(str(tmp_path / "run"), document)
    add_attempt(folder, 0)
    add_group(folder, 0)
    add_scores(folder, 0)
    add_step(folder, 0, 1, [0])
    record_once(folder, Database(folder.database))
    page = report_page([read_facts(tmp_path / "run")])
    assert "3.5 GiB of this machine at the fullest, where 6.0 GiB of 8.0 GiB were free" in page
    assert '<tr><th scope="row">learner</th><td>weights &lt;all&gt;</td><td>3.0 GiB</td></tr>' in page
    assert "<td>512 MiB</td>" in page
