"""The page of a report: whole by itself, safe whatever a policy wrote, and readable in a browser."""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from agrpo.database.writer import Database
from agrpo.instruments.report import write_report
from agrpo.instruments.report.charts import chart_sections, reward_section
from agrpo.instruments.report.curves import Window
from agrpo.instruments.report.drawing import Drawing, Line, draw_lines
from agrpo.instruments.report.facts import read_facts
from agrpo.instruments.report.wording import duration, number, percent
from agrpo.queue.run_folder import RunFolder, StepKey
from agrpo.records.pace import Pace
from agrpo.records.progress import DropReason
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


def a_judged_run(place: Path, rewards: dict[str, list[list[float | None]]]) -> RunFolder:
    """One group a step, judged by each reward as told."""
    folder = new_run(place)
    add_attempt(folder, 0)
    for ticket, values in enumerate(zip(*rewards.values(), strict=True)):
        add_group(folder, ticket)
        add_scores(folder, ticket, dict(zip(rewards, values, strict=True)))
        add_done(folder, add_plan(folder, StepKey(0, ticket + 1), [ticket]))
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
    assert re.search(r"\S+ at each of 3 steps", page.words)


def test_a_comparison_has_each_measure_of_all_runs_in_one_chart(compared: Path):
    page = Page(compared.read_text("utf-8"))
    named = {item["target_id"]: json.dumps(item) for item in json.loads(page.scripts[0])}
    assert {"chart-reward", "chart-entropy-0", "chart-sources-0"} <= named.keys()
    assert '"run0"' in named["chart-reward"]
    assert '"run1"' in named["chart-reward"]
    assert '"run0"' not in named["chart-sources-0"]
    assert "None: the runs have the same settings and packages." in page.words
    assert "2 runs compared" in page.words


def test_runs_side_by_side_are_headed_by_their_letters_under_a_key_of_names(compared: Path):
    text = compared.read_text("utf-8")
    heads = re.findall(r'<thead><tr><th scope="col">[^<]+</th>(.*?)</tr>', text)
    letters = "".join(f'<th scope="col"><abbr title="small">{letter}</abbr></th>' for letter in "AB")
    assert heads.count(letters) == text.count('<p class="key">') == 3


def test_a_reward_is_told_as_what_it_did(tmp_path: Path):
    courses = {
        "0.25 at first, 0.5 at last; best 1 at step 2.": [[0.5, 0.0], [1.0, 1.0], [1.0, 0.0]],
        "0.5 at each of 2 steps.": [[1.0, 0.0], [0.5, 0.5]],
        "0.5 at step 1, the only one with a reward.": [[1.0, 0.0]],
    }
    for place, (said, rewards) in enumerate(courses.items()):
        facts = read_facts(a_judged_run(tmp_path / str(place), {"correct": rewards}))
        (drawing,) = reward_section([facts]).drawings
        assert drawing.caption == said


def test_a_run_that_trained_nothing_reads_sensibly(tmp_path: Path):
    folder = new_run(tmp_path / "run")
    add_attempt(folder, 0)
    add_group(folder, 0)
    add_scores(folder, 0, {"correct": [0.0, 0.0]})
    add_done(folder, add_plan(folder, StepKey(0, 1), [], {0: DropReason.EQUAL_REWARDS}))
    record_once(folder, Database(folder.database))
    trained = a_run(tmp_path / "other", steps=2)
    write_report([folder], tmp_path / "one.html")
    write_report([folder, trained], tmp_path / "two.html")
    words = Page((tmp_path / "one.html").read_text("utf-8")).words
    assert "0 at step 1, the only one with a reward." in words
    assert words.count("No token was trained yet.") == 2
    assert "No sample was trained yet." in words
    assert "A: –, B: 0 % of trained samples" in Page((tmp_path / "two.html").read_text("utf-8")).words


def test_an_old_value_is_told_with_its_step(tmp_path: Path):
    folder = a_run(tmp_path / "run", steps=3)
    add_done(folder, add_plan(folder, StepKey(0, 4), []), 33)
    record_once(folder, Database(folder.database))
    captions = {drawing.key: drawing.caption for drawing in _drawings(folder, section="entropy")}
    assert captions["chart-entropy"] == "At the end: entropy 1.06 nats (step 3)."
    paces = {drawing.key: drawing.caption for drawing in _drawings(folder, section="time")}
    assert paces["chart-pace"].endswith("; forwarded 0 tokens/s; trained 0 tokens/s.")


def test_the_waits_of_the_four_limits_and_the_servers_load_are_drawn(tmp_path: Path):
    folder = new_run(tmp_path / "run")
    add_attempt(folder, 0)
    told = {"kv_cache_usage": 0.25, "running_requests": 3.0, "queued_requests": 1.0, "preemptions": 2, "retries": 0}
    waits = {
        "backpressure_seconds": 1.5,
        "load_wait_seconds": 0.5,
        "ceiling_wait_seconds": 0.25,
        "score_block_seconds": 4.0,
    }
    for ticket in range(2):
        add_group(folder, ticket, pace=Pace(concurrency=4, concurrency_cap=8, num_polls=1, **told, **waits))
        add_scores(folder, ticket)
        add_done(folder, add_plan(folder, StepKey(0, ticket + 1), [ticket]), 11 * (ticket + 1))
    record_once(folder, Database(folder.database))
    captions = {drawing.key: drawing.caption for drawing in _drawings(folder, section="queues")}
    assert captions["chart-limits"] == (
        "At the end: run-ahead 1.5 s; load cap 0.5 s; hard ceiling 0.25 s; scoring queue 4 s."
    )
    assert captions["chart-kv-cache"] == "At the end: in use 25 %."
    assert captions["chart-requests"] == (
        "At the end: running 3 requests; queued 1 requests; preempted 2 requests; asked again 0 requests."
    )


def test_every_step_of_every_run_is_drawn_behind_its_mean_and_a_shade_is_named_where_there_is_one(tmp_path: Path):
    runs = [read_facts(a_run(tmp_path / "run", steps=3))] * 3
    for some in (runs[:1], runs[:2], runs):
        section = reward_section(some)
        (drawing,) = section.drawings
        drawn = json.dumps(drawing.item)
        assert drawn.count('"line_alpha": 0.45') == len(some)
        assert ("band" in drawn) == ("The shade" in section.reading) == (len(some) < 3)


def test_shares_that_are_all_small_are_drawn_on_an_axis_to_five_per_cent():
    windows = [Window(step=step, num_steps=1, num_tokens=step, minutes=1.0) for step in (1, 2)]
    for values, top in (((0.004, None), 0.05), ((0.004, 0.06), None)):
        line = Line(label="cut", windows=windows, values=values, run=0, style=0)
        item = json.dumps(draw_lines("cut", "Cut", "share", "", [line], share=True).item)
        assert ('"end": 0.05' in item) == (top is not None)


def test_values_that_a_failed_reward_did_not_give_are_named(tmp_path: Path):
    folder = a_judged_run(tmp_path / "run", {"correct": [[1.0, 0.0]] * 2, "judge": [[None, None], [None, 1.0]]})
    write_report([folder], tmp_path / "report.html")
    words = Page((tmp_path / "report.html").read_text("utf-8")).words
    assert "judge: 3 of 4 values (75 %) are missing because the reward failed, every time with no value" in words


def test_what_rewards_noted_has_a_chart_under_its_name(tmp_path: Path):
    folder = new_run(tmp_path / "run")
    add_attempt(folder, 0)
    for ticket in range(2):
        add_group(folder, ticket)
        noted = {"share_right": 0.5 * ticket, ATTACK[:90]: 1.0}
        add_scores(folder, ticket, {"correct": [1.0, 0.0]}, metrics={"correct": noted})
        add_done(folder, add_plan(folder, StepKey(0, ticket + 1), [ticket]))
    record_once(folder, Database(folder.database))
    drawings = {drawing.title: drawing.caption for drawing in _drawings(folder, section="noted")}
    assert drawings == {ATTACK[:90]: f"At the end: {ATTACK[:90]} 1.", "share_right": "At the end: share_right 0.5."}
    write_report([folder], tmp_path / "report.html")
    page = Page((tmp_path / "report.html").read_text("utf-8"))
    assert "Noted by rewards" in page.words and "img" not in page.tags


def test_a_run_of_which_rewards_noted_nothing_has_no_section_of_notes(tmp_path: Path):
    sections = chart_sections([read_facts(a_run(tmp_path / "run", steps=1))])
    assert "noted" not in {section.key for section in sections}


def test_waiting_is_told_beside_what_a_rollout_and_its_scores_take(tmp_path: Path):
    (parts, *_) = _drawings(a_run(tmp_path / "run", steps=1), section="time")
    assert parts.caption.endswith(
        "On average a rollout takes 0.25 s; a group waits 0.5 s for the scorer, which takes 0.125 s."
    )


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, None])
def test_what_is_no_number_has_words_too(value: float | None):
    words = {math.inf: "∞", -math.inf: "-∞"}.get(value, "–") if value is not None else "–"
    assert number(value) == words
    assert duration(value) == (words if words == "–" else f"{words} s")
    assert percent(value) == (words if words == "–" else f"{words} %")


def test_a_small_share_keeps_a_digit():
    shares = (0.0, 0.0004, 0.004, 0.0512, 0.0999, 0.26, 1.0)
    assert [percent(share) for share in shares] == ["0 %", "0.04 %", "0.4 %", "5.1 %", "10 %", "26 %", "100 %"]


def _drawings(folder: RunFolder, section: str) -> tuple[Drawing, ...]:
    return next(own.drawings for own in chart_sections([read_facts(folder)]) if own.key == section)


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
