"""The page of a report: whole by itself, safe whatever a policy wrote, and readable in a browser."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from agrpo.database.writer import Database
from agrpo.instruments.report import write_report
from agrpo.queue.run_folder import RunFolder, StepKey
from agrpo.stages.recorder import record_once
from tests.database.synthetic import a_rollout, add_attempt, add_done, add_group, add_plan, add_scores, new_run

ATTACK = "</script><script>document.body.dataset.ran = 1</script><img src=x onerror=alert(1)></pre></details>"


class Page(HTMLParser):
    """What a browser would find in a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []
        self.headings: list[int] = []
        self.scripts: list[str] = []
        self.words = ""
        self._script = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("src", "href", "action", "data", "poster")]
        self._script = tag == "script"
        if re.fullmatch(r"h\d", tag):
            self.headings.append(int(tag[1]))

    def handle_data(self, data: str) -> None:
        if self._script:
            self.scripts.append(data)
        else:
            self.words += data

    def handle_endtag(self, tag: str) -> None:
        self._script = False


def a_run(place: Path, *, steps: int, text: str = "fine", sources: tuple[str, ...] = ("correct",)) -> RunFolder:
    """One group a step, of two rollouts that earn 1 and 0."""
    folder = new_run(place)
    add_attempt(folder, 0)
    total = 0
    for ticket in range(steps):
        rollouts = [a_rollout(0, [5, 6, 1]), a_rollout(1, [4, 1])]
        rollouts[0].completion[0]["content"] = text
        add_group(folder, ticket, rollouts)
        add_scores(folder, ticket, {source: [1.0, 0.0] for source in sources})
        total = add_done(folder, add_plan(folder, StepKey(0, ticket + 1), [ticket]), total).num_tokens
    record_once(folder, Database(folder.database))
    return folder


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of a run whose completions, and one reward's name, try to run a script."""
    place = tmp_path_factory.mktemp("attacked")
    folder = a_run(place / "run", steps=3, text=ATTACK, sources=("correct", f"evil{ATTACK}"))
    write_report([folder], place / "report.html")
    return place / "report.html"


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The comparison of runs of three steps and of one, which have other rewards."""
    place = tmp_path_factory.mktemp("compared")
    runs = [a_run(place / "a", steps=3), a_run(place / "b", steps=1, sources=("correct", "brief"))]
    write_report(runs, place / "report.html")
    return place / "report.html"


@pytest.mark.parametrize("name", ["attacked", "compared"])
def test_a_page_is_small_and_fetches_nothing(name: str, request: pytest.FixtureRequest):
    file: Path = request.getfixturevalue(name)
    page = Page(file.read_text("utf-8"))
    assert file.stat().st_size < 5e6
    assert [link for link in page.links if not link.startswith(("#", "data:"))] == []
    assert "url(" not in file.read_text("utf-8").partition("</style>")[0]


def test_what_a_policy_wrote_is_text_and_never_markup(attacked: Path):
    page = Page(attacked.read_text("utf-8"))
    assert page.words.count(ATTACK) >= 2
    assert page.tags.count("script") == 3
    assert "img" not in page.tags
    assert len(json.loads(page.scripts[0])) > 5


@pytest.mark.parametrize("name", ["attacked", "compared"])
def test_headings_go_down_one_level_at_a_time_and_every_chart_is_told_in_words(
    name: str, request: pytest.FixtureRequest
):
    file: Path = request.getfixturevalue(name)
    page = Page(file.read_text("utf-8"))
    assert page.headings[:2] == [1, 2]
    assert all(after <= before + 1 for before, after in zip(page.headings, page.headings[1:], strict=False))
    assert page.tags.count("figure") == page.tags.count("figcaption") == len(json.loads(page.scripts[0]))
    assert re.search(r"\S+ at first, \S+ at last; best \S+ at step 1", page.words)


def test_a_comparison_has_each_measure_of_all_runs_in_one_chart(compared: Path):
    page = Page(compared.read_text("utf-8"))
    named = {item["target_id"]: json.dumps(item) for item in json.loads(page.scripts[0])}
    assert {"chart-reward", "chart-entropy-0", "chart-sources-0"} <= named.keys()
    assert '"run0"' in named["chart-reward"]
    assert '"run1"' in named["chart-reward"]
    assert '"run0"' not in named["chart-sources-0"]
    assert "None: the runs have the same settings and packages." in page.words
    assert "2 runs compared" in page.words


def test_a_run_that_has_done_nothing_says_so_section_by_section(tmp_path: Path):
    write_report([a_run(tmp_path / "run", steps=0)], tmp_path / "report.html")
    page = Page((tmp_path / "report.html").read_text("utf-8"))
    assert "figure" not in page.tags
    for said in (
        "No step has a reward yet.",
        "No group was dropped.",
        "No prompt was judged yet.",
        "Too early to tell",
    ):
        assert said in page.words


CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

WATCH = """<script>
window.problems = [];
addEventListener("error", (event) => problems.push(event.message));
addEventListener("unhandledrejection", (event) => problems.push(String(event.reason)));
const wrong = console.error;
console.error = (...told) => { problems.push(told.join(" ")); wrong(...told); };
addEventListener("load", () => setTimeout(() => {
  document.querySelector("input[value=tokens]").click();
  document.querySelector("input[data-tag]").click();
  parent.postMessage(JSON.stringify({
    problems, drawn: document.querySelectorAll(".chart > *").length, width: innerWidth,
    overflow: document.documentElement.scrollWidth - document.documentElement.clientWidth,
    ran: document.body.dataset.ran ?? null, axis: Bokeh.documents[0].roots()[0].below[0].axis_label,
    hidden: Bokeh.documents[0].roots()[0].renderers.filter((renderer) => !renderer.visible).length,
  }), "*");
}, 8000));
</script>"""

# A window cannot be as narrow as a phone in every browser; a frame can.
FRAME = """<!doctype html><body style="margin: 0">
<script>addEventListener("message", (event) => { document.body.dataset.seen = event.data; });</script>
<iframe src="report.html" style="width: WIDTHpx; height: 2000px; border: 0"></iframe>"""


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no chromium is installed")
@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("name", ["attacked", "compared"])
def test_a_browser_without_a_network_draws_every_chart_and_scrolls_only_down(
    name: str, width: int, tmp_path: Path, request: pytest.FixtureRequest
):
    report = request.getfixturevalue(name).read_text("utf-8")
    (tmp_path / "report.html").write_text(report.replace("<head>", f"<head>{WATCH}"), "utf-8")
    (tmp_path / "frame.html").write_text(FRAME.replace("WIDTH", str(width)), "utf-8")
    seen = _look(tmp_path / "frame.html", tmp_path / "profile")
    assert seen["problems"] in ([], ["ResizeObserver loop completed with undelivered notifications."])
    assert (seen["width"], seen["overflow"], seen["ran"]) == (width, 0, None)
    assert seen["drawn"] == len(json.loads(Page(report).scripts[0]))
    assert seen["axis"] == "forwarded tokens"
    assert seen["hidden"] > 0


def _look(file: Path, profile: Path) -> dict[str, Any]:
    """What the page says of itself after it was drawn."""
    assert CHROMIUM is not None
    quiet = ["--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"]
    place = ["--hide-scrollbars", "--window-size=1400,2000", f"--user-data-dir={profile}"]
    command = [
        CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", *quiet, *place,
        "--host-resolver-rules=MAP * ~NOTFOUND", "--virtual-time-budget=30000", "--dump-dom", file.as_uri(),
    ]  # fmt: skip
    dumped = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    found = re.search(r'data-seen="([^"]*)"', dumped)
    assert found is not None, "the page never came to say what it saw"
    return json.loads(found[1].replace("&quot;", '"').replace("&amp;", "&"))
