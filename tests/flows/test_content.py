"""What the artifacts say of steps made by hand."""

from __future__ import annotations

import re

from agrpo.instruments.diagnosis import Finding, Severity
from flows.content import findings_text, percent_done, plots, progress_text, table_rows
from tests.flows.points import document, point

WHOLE = {
    "reward": 0.53449,
    "completions__mean_length": 12.35,
    "entropy": 0.1,
    "sample__staleness_mean": 1.75,
    "frac_zero_std_groups": 0.25,
    "batch__forwarded_tokens_per_step": 3000.0,
    "perf__step_s": 1.5,
    "rollout__backpressure_frac": 0.25,
    "rollout__load_wait_frac": 0.5,
}


def test_progress_names_step_reward_and_the_time_that_is_left() -> None:
    points = [point(11), point(12, reward=0.53449)]
    # 48 steps of 20 s are left.
    assert progress_text(document(), points) == "step 12 of 60 · reward 0.534\n\nabout 16 min left"
    assert percent_done(document(), points) == 20.0


def test_progress_of_epochs_counts_prompts_and_names_no_last_step() -> None:
    assert progress_text(document(max_steps=None, epochs=2), [point(3)]) == "step 3"
    assert percent_done(document(max_steps=None, epochs=2), [point(3)]) == 48.0


def test_progress_says_where_nothing_is_done_yet_and_promises_no_time_at_the_end() -> None:
    assert (progress_text(document(), []), percent_done(document(), [])) == ("no step is done yet", 0.0)
    assert progress_text(document(), [point(59), point(60)]) == "step 60 of 60"


def test_the_table_has_the_newest_twenty_steps_newest_first() -> None:
    rows = table_rows([point(step, **WHOLE) for step in range(1, 31)])
    assert [row["step"] for row in rows] == list(range(30, 10, -1))
    assert rows[0] == {
        "step": 30,
        "reward": "0.534",
        "length": "12.3",
        "entropy": "0.100",
        "staleness": "1.8",
        "equal": "25%",
        "tokens/s": "2000",
        "s/step": "1.50",
        "held by": "load cap 0.8 s",
    }


def test_a_measure_that_says_nothing_is_a_dash() -> None:
    [row] = table_rows([point(1, perf__step_s=0.0, batch__forwarded_tokens_per_step=10.0)])
    assert [row[name] for name in ("reward", "tokens/s", "s/step", "held by")] == ["–", "–", "0.00", "–"]


def test_plots_tell_their_numbers_in_words_and_leave_out_what_was_not_measured() -> None:
    text = plots([point(1, reward=0.25), point(2, reward=0.75), point(3), point(4, reward=0.5)])
    words = "Reward: 0.25 at step 1, 0.5 at step 4; highest 0.75 at step 2."
    assert re.sub(r"data:image/svg\+xml;base64,[\w+/=]+", "DATA", text) == f"![{words}](DATA)\n\n{words}"


def test_findings_are_told_with_what_to_change() -> None:
    finding = Finding(rule="A-110", severity=Severity.WARNING, title="Slow", reading="It waits 9 s.", change="Do.")
    assert findings_text([finding]) == "### warning: Slow\n\nIt waits 9 s.\n\n**Change:** Do."
    assert findings_text([]) == "Nothing to warn of any more."
