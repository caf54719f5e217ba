"""What the live view shows, as text, in terminals of several sizes."""

from __future__ import annotations

import io
from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest
from rich.console import Console

from agrpo.instruments.diagnosis import Finding, Severity
from agrpo.instruments.live.drawing import Drawing
from agrpo.instruments.live.looking import Look, StageWord, State
from agrpo.instruments.live.notices import FoldedNotices, Notice
from agrpo.records.pace import Limit, Standing
from tests.instruments.watched import NOW, document, looked, point

POINTS = [
    point(1, reward=0.2),
    point(2, reward=0.4, perf__wall_clock_forwarded_tokens_per_s=900.0),
    point(
        3,
        reward=0.9,
        completions__mean_length=15.84,
        completions__clipped_ratio=0.125,
        entropy=0.0367,
        frac_zero_std_groups=0.66,
        sample__staleness_mean=1.5,
        sample__staleness_max=2.0,
        perf__step_s=4.1,
        perf__rollout_wait_s=3.9,
        rollout__generated_tokens_per_s=3456.7,
        perf__wall_clock_forwarded_tokens_per_s=2122.4,
    ),
]
NOTICES = [
    Notice(
        at=datetime(2026, 11, 29, 16, 9, 40 + second).astimezone(),
        level="warning",
        stage="scorer",
        text=f"odd {second}",
    )
    for second in range(9)
]


def shown(look: Look, width: int = 80, height: int = 24, encoding: str = "utf-8") -> list[str]:
    """The lines of the terminal."""
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    console = Console(file=file, width=width, height=height)
    console.print(Drawing(look))
    file.seek(0)
    return [line.rstrip() for line in file.read().splitlines()]


def line_of(label: str, look: Look, width: int = 80) -> str:
    (line,) = [line for line in shown(look, width) if line.lstrip("●○! ").startswith(label)]
    return line


def test_the_head_tells_name_state_step_share_and_time_left():
    name, progress, *_ = shown(looked(POINTS), width=60)
    assert name == f"small{'':47}training"
    assert progress == f"step 3/4  {'━' * 20}{'─' * 6}   75 %  about 10 s left"


def test_time_that_has_passed_since_the_newest_step_is_taken_off():
    assert shown(looked([point(1), point(2)]))[1].endswith("50 %  about 10 s left")


def test_in_epochs_the_share_is_of_prompts_and_no_last_step_is_told():
    look = looked(POINTS[:2], told=document(max_steps=None, epochs=2))
    assert shown(look, width=60)[1].startswith("step 2  ━━")
    assert " 40 %  about 20 s left" in shown(look, width=60)[1]


def test_a_resumed_run_tells_its_attempt():
    assert shown(looked([point(1, attempt=2)]))[0].endswith("training, attempt 2")


def test_a_late_step_is_told_instead_of_a_time_that_nobody_knows():
    look = looked(POINTS, at=NOW + 34.0)
    assert shown(look, width=60)[1].endswith("75 %  no step for 34 s")
    assert shown(looked(POINTS[:2], at=NOW + 8.0), width=60)[1].endswith("50 %  about 10 s left")
    assert shown(looked(at=NOW + 34.0))[1] == "no step is done yet, after 34 s"


def test_every_measure_has_its_unit_and_one_that_was_not_logged_is_left_out():
    look = looked(POINTS)
    assert line_of("tokens/s", look, 60) == "tokens/s       3,457 generated, 2,122 forwarded"
    assert line_of("step time", look, 60) == "step time      4.1 s, of it 3.9 s waiting for groups"
    assert line_of("completions", look, 60) == "completions    15.8 tokens, 12 % cut off"
    assert line_of("entropy", look, 60) == "entropy        0.037 nats"
    assert line_of("equal rewards", look, 60) == "equal rewards  66 % of the groups"
    assert line_of("staleness", look, 60) == "staleness      mean 1.5, max 2 of 2 versions"
    assert line_of("run-ahead", look) == "run-ahead      15 of 69 groups: 3 generating, 1 unscored, 11 scored"
    assert not [line for line in shown(looked(POINTS[:1])) if line.startswith(("entropy", "tokens/s", "staleness"))]


def test_more_groups_than_are_allowed_now_are_not_a_part_of_them():
    look = looked(POINTS)
    pipeline = replace(look.pipeline, most=12)
    told = line_of("run-ahead", replace(look, pipeline=pipeline))
    assert told == "run-ahead      15 groups, 12 allowed: 3 generating, 1 unscored, 11 scored"


def test_a_value_that_the_newest_step_lacks_is_told_with_its_step():
    look = looked([point(1, entropy=0.5, frac_zero_std_groups=0.9), point(2), point(3, frac_zero_std_groups=1.0)])
    assert line_of("entropy", look, 60) == "entropy        0.500 nats (step 1)"
    assert line_of("equal rewards", look, 60) == "equal rewards  100 % of the groups"


def test_a_measure_has_its_own_curve_where_the_terminal_is_wide_enough():
    look = looked([point(step, entropy=0.25 * step) for step in (1, 2, 3)])
    assert line_of("entropy", look, 80) == f"{'entropy        0.750 nats':<55}▁▅█"
    assert line_of("entropy", look, 78) == "entropy        0.750 nats"


def test_the_curves_of_all_measures_have_a_step_in_the_same_column():
    steps = [
        point(1, entropy=0.2, perf__step_s=1.0),
        point(2, perf__step_s=2.0),
        point(3, entropy=0.4, perf__step_s=3.0),
    ]
    assert line_of("entropy", looked(steps))[55:] == "▁ █"
    assert line_of("step time", looked(steps))[55:] == "▁▅█"


def test_a_reward_that_never_changes_is_a_low_line_with_one_number():
    rows = shown(looked([point(step, reward=0.0) for step in (1, 2, 3, 4)]), width=36, height=19)[3:7]
    assert rows == [
        "        │",
        " reward │",
        "  0.000 │▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁",
        "         step 4: reward 0.000",
    ]


def test_the_reward_curve_has_its_extremes_at_the_axis_and_the_newest_below():
    look = looked([point(step, reward=0.1 * step) for step in (1, 2, 3, 4)])
    assert shown(look, width=36, height=19)[3:7] == [
        "  0.400 │                  ██████",
        " reward │      ▁▁▁▁▁▁████████████",
        "  0.100 │▁▁▁▁▁▁██████████████████",
        "         step 4: reward 0.400",
    ]
    assert shown(look, width=64, height=18)[6] == f"{'':9}step 1{'':26}step 4: reward 0.400"


def test_stages_say_what_they_do_what_they_wait_for_and_since_when():
    stages = [
        StageWord(name="generator", spoken=True, waiting_for="leave to start ticket 8", waited_seconds=16.2),
        StageWord(name="scorer", spoken=True, quiet_seconds=20.4, silent=True),
        StageWord(name="learner", spoken=True),
        StageWord(name="recorder", spoken=False),
    ]
    look = looked(POINTS, stages=stages)
    assert line_of("generator", look) == "○ generator    waits 16 s for leave to start ticket 8"
    assert line_of("scorer", look) == "! scorer       silent for 20 s; it worked"
    assert line_of("learner", look) == "● learner      works"
    assert line_of("recorder", look) == "○ recorder     has not spoken yet"


def test_a_run_without_a_step_says_so():
    lines = shown(looked(state=State.STARTING))
    assert lines[0].endswith("starting")
    assert lines[1] == "no step is done yet"
    assert not any(line.startswith("reward") for line in lines)
    assert "reward   no step has one yet" in shown(looked([point(1)]))


def test_a_finished_run_shows_neither_stages_nor_queue_nor_time_left():
    text = "\n".join(shown(looked([*POINTS, point(4, reward=1.0)], state=State.FINISHED, ended=True)))
    assert "finished" in text
    assert " 100 %\n" in text
    assert not any(word in text for word in ("generator", "queue", "run-ahead", "left"))


def test_findings_say_what_to_change_and_warnings_when_they_came():
    finding = Finding(rule="A-1", severity=Severity.WARNING, title="Answers repeat", reading="r", change="Raise it.")
    well = Finding(rule="A-2", severity=Severity.GOOD, title="Rewards differ", reading="r", change="Nothing.")
    lines = shown(looked(POINTS, notices=NOTICES, findings=[finding, well]), height=40)
    assert lines[-9:-7] == ["warning        Answers repeat. Raise it.", "good           Rewards differ"]
    assert lines[-1] == "16:09:48 warning scorer: odd 8"


def test_a_taller_terminal_shows_more_of_the_newest_warnings():
    told = {
        height: [line[-5:] for line in shown(looked(notices=NOTICES), height=height) if "odd" in line]
        for height in (24, 40)
    }
    assert told[24] == ["odd 6", "odd 7", "odd 8"]
    assert told[40] == ["odd 3", "odd 4", "odd 5", "odd 6", "odd 7", "odd 8"]


def test_long_texts_are_wrapped_into_free_rows():
    change = "Raise the number of generations, or lower the temperature, and look at it again later."
    finding = Finding(rule="A-1", severity=Severity.NOTE, title="Answers repeat", reading="r", change=change)
    waits = "scored groups: 3 of 32 places filled, 507 set aside because all their rewards are equal"
    learner = StageWord(name="learner", spoken=True, waiting_for=waits, waited_seconds=12.9)
    lines = shown(looked(POINTS, stages=[learner], findings=[finding]))
    assert lines[-5:] == [
        "○ learner      waits 12 s for scored groups: 3 of 32 places filled, 507 set",
        "               aside because all their rewards are equal",
        "",
        "note           Answers repeat. Raise the number of generations, or lower the",
        "               temperature, and look at it again later.",
    ]


def test_where_no_row_is_free_a_long_text_is_cut_off_and_its_end_said():
    finding = Finding(rule="A-1", severity=Severity.NOTE, title="Answers repeat " * 9, reading="r", change="Nothing.")
    lines = shown(looked(POINTS, findings=[finding], notices=NOTICES), height=21)
    assert lines[-2].endswith("Answ…")
    assert lines[-1] == "16:09:48 warning scorer: odd 8"


def test_warnings_of_one_kind_are_one_line_with_their_number():
    folded = FoldedNotices()
    folded.add(replace(notice, text=f"ticket {number}: odd") for number, notice in enumerate([*NOTICES] * 150))
    folded.add([replace(NOTICES[0], text="even")])
    lines = shown(looked(POINTS, notices=folded.newest()))
    assert lines[-2:] == ["16:09:48 warning scorer ×1,350: ticket 1349: odd", "16:09:40 warning scorer: even"]


@pytest.mark.parametrize("height", [1, 3, 8, 16, 24, 40])
@pytest.mark.parametrize("width", [1, 10, 24, 80, 200])
def test_no_terminal_is_too_small(width: int, height: int):
    lines = shown(looked(POINTS, notices=NOTICES), width, height)
    assert len(lines) <= max(1, height - 3)
    assert max(map(len, lines)) <= width


def test_a_terminal_without_blocks_gets_plain_characters():
    lines = shown(looked(POINTS, notices=NOTICES), encoding="ascii")
    assert "\n".join(lines).isascii()
    assert "###" in lines[1]
    assert "* learner      works" in lines


def generator(**standing: Any) -> StageWord:
    told = {"in_flight": 40, "cap": 64, "ceiling": 64, "unscored": 3, "queue": 16, **standing}
    return StageWord(name="generator", spoken=True, quiet_seconds=0.5, standing=Standing(**told))


@pytest.mark.spec("A-090")
def test_the_rollouts_in_flight_are_told_with_the_limit_that_holds_the_next_group():
    def told(*stages: StageWord) -> str:
        return line_of("in flight", replace(looked(POINTS), stages=stages), width=120)

    assert told(generator()) == "in flight      40 of 64 rollouts (hard ceiling)"
    held = generator(cap=52, held_by=Limit.LOAD, held_seconds=2.5)
    assert told(held) == "in flight      40 of 52 rollouts (load cap; hard ceiling 64); next group held: load cap 3 s"
    other = replace(generator(held_by=Limit.SCORING, held_seconds=100.0), name="generator-2")
    assert told(held, other) == (
        "in flight      80 of 116 rollouts (load cap; hard ceiling 128); next group held: load cap 3 s, scoring queue 2 min"
    )


def test_the_groups_that_wait_for_scores_are_told_with_their_most():
    stages = (generator(), replace(generator(unscored=14), name="generator-2"))
    shown_line = line_of("scoring queue", replace(looked(POINTS), stages=stages), width=120)
    assert shown_line == "scoring queue  17 of 32 groups wait for scores"


@pytest.mark.parametrize(("state", "silent"), [(State.FINISHED, False), (State.TRAINING, True)])
def test_who_is_silent_or_has_finished_has_nothing_in_flight(state: State, silent: bool):
    look = replace(looked(POINTS, state=state), stages=[replace(generator(), silent=silent)])
    assert not [line for line in shown(look) if line.startswith("in flight")]


@pytest.mark.spec("A-090")
def test_the_wait_of_each_limit_and_the_servers_load_are_told():
    waits = {"rollout__backpressure_frac": 0.127, "rollout__load_wait_frac": 0.01, "rollout__ceiling_wait_frac": 0.6}
    servers = {"vllm_kv_cache_usage_frac": 0.456, "vllm_running_requests": 31.25, "vllm_queued_requests": 2.0}
    last = point(
        4,
        perf__step_s=20.0,
        rollout__score_block_frac=0.0,
        **waits,
        **{f"rollout__{name}": value for name, value in servers.items()},
    )
    look = looked([*POINTS, last])
    held = "groups held    run-ahead 2.5 s, load cap 0.2 s, hard ceiling 12 s"
    assert line_of("groups held", look, 90) == held
    assert line_of("servers", look) == "servers        KV cache 46 % full, 31.2 requests running, 2 queued"
    assert not [line for line in shown(looked(POINTS)) if line.startswith(("groups held", "servers"))]
