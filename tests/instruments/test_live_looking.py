"""What one look at a run's folder finds."""

from __future__ import annotations

from pathlib import Path

from agrpo import stages
from agrpo.config import WorkersSection
from agrpo.instruments.live import looking
from agrpo.instruments.live.looking import ENDED_SECONDS, STOPPED_SECONDS, Onlooker, State
from agrpo.instruments.live.waiting import FollowedWaiting
from agrpo.queue.run_folder import RunFolder, StepKey
from agrpo.records.pace import Limit, Standing
from agrpo.records.progress import Attempt, Hint
from agrpo.records.timings import StepTimings
from tests.database.synthetic import add_attempt, add_done, add_group, add_plan, add_scores, add_step
from tests.instruments.watched import document, going_on


def beat_at(folder: RunFolder, stage: str) -> float:
    """When the stage spoke last."""
    return next(beat["at"] for beat in folder.beats() if beat["stage"] == stage)


def test_groups_are_counted_where_they_are_by_listing_alone(tmp_path: Path):
    pipeline = Onlooker(going_on(tmp_path / "run")).look(0.0).pipeline
    assert (pipeline.generating, pipeline.unscored, pipeline.scored) == (1, 1, 2)
    assert (pipeline.ahead, pipeline.most) == (4, 7)


def test_a_stage_that_waits_has_waited_since_before_it_last_said_so(tmp_path: Path):
    folder = going_on(tmp_path / "run")
    folder.beat("learner", "a scored group", 3.0)
    said = beat_at(folder, "learner")
    look = Onlooker(folder).look(said + 2.0)
    learner = next(stage for stage in look.stages if stage.name == "learner")
    assert (learner.waiting_for, learner.waited_seconds, learner.silent) == ("a scored group", 5.0, False)
    assert [stage.name for stage in look.stages if not stage.spoken] == ["generator", "scorer", "recorder"]


def test_a_generator_says_how_it_stands_to_its_limits_and_other_stages_say_nothing(tmp_path: Path):
    folder = going_on(tmp_path / "run")
    standing = Standing(in_flight=8, cap=8, ceiling=64, unscored=1, queue=16, held_by=Limit.LOAD, held_seconds=1.5)
    folder.beat("generator", None, 0.0, standing)
    folder.beat("scorer", None)
    look = Onlooker(folder).look(beat_at(folder, "generator"))
    assert {stage.name: stage.standing for stage in look.stages if stage.standing} == {"generator": standing}


def test_a_run_with_servers_of_its_own_is_looked_at_with_them(tmp_path: Path):
    told = document()
    told["settings"]["tree"]["engine"] = {"name": "vllm", "serve": True, "replicas": 2}
    folder = RunFolder.create(str(tmp_path / "run"), told)
    folder.beat("server-2", "vLLM to start", 3.0)
    look = Onlooker(folder).look(beat_at(folder, "server-2"))
    assert [(stage.name, stage.waiting_for) for stage in look.stages] == [
        *(("server", None), ("server-2", "vLLM to start")),
        *(("generator", None), ("scorer", None), ("learner", None), ("recorder", None)),
    ]
    assert looking.servers_of(told["settings"]["tree"]) == stages.stages_of(WorkersSection(), 2)[:2]
    assert looking.servers_of({"engine": {"name": "transformers"}}) == []


def silent_after(folder: RunFolder, stage: str, seconds: float) -> bool:
    """Whether the stage is said to be silent so long after its last word."""
    look = Onlooker(folder).look(beat_at(folder, stage) + seconds)
    return next(word.silent for word in look.stages if word.name == stage)


def test_a_stage_is_silent_after_ten_seconds_and_the_recorder_which_may_rest_after_45(tmp_path: Path):
    folder = going_on(tmp_path / "run")
    folder.beat("scorer", None)
    folder.beat("recorder", None)
    assert [silent_after(folder, "scorer", seconds) for seconds in (9.0, 11.0)] == [False, True]
    assert [silent_after(folder, "recorder", seconds) for seconds in (44.0, 46.0)] == [False, True]


def test_the_learner_is_silent_after_three_of_its_longest_steps(tmp_path: Path):
    folder = RunFolder.create(str(tmp_path / "run"), document())
    add_attempt(folder, 0)
    folder.beat("learner", None)
    assert [silent_after(folder, "learner", seconds) for seconds in (119.0, 121.0)] == [False, True]
    add_group(folder, 0)
    add_scores(folder, 0)
    add_done(folder, add_plan(folder, StepKey(0, 1), [0]), timings=StepTimings(step_seconds=12.0, wait_seconds=4.0))
    assert [silent_after(folder, "learner", seconds) for seconds in (23.0, 25.0)] == [False, True]
    add_attempt(folder, 1)
    assert [silent_after(folder, "learner", seconds) for seconds in (119.0, 121.0)] == [False, True]


def test_a_step_is_awaited_since_the_newest_one_or_the_beginning_of_the_attempt(tmp_path: Path):
    folder = going_on(tmp_path / "run")
    done = folder.done(StepKey(0, 1))
    assert done is not None
    assert Onlooker(folder).look(done.finished_at + 7.0).idle_seconds == 7.0
    resumed = Attempt(attempt=1, host="here", pid=1, started_at=done.finished_at + 900.0)
    folder.write_attempt(resumed)
    look = Onlooker(folder).look(done.finished_at + 907.0)
    assert (look.attempt, look.idle_seconds, look.late) == (1, 7.0, False)


def test_a_resume_is_given_the_time_of_a_first_step(tmp_path: Path):
    folder = going_on(tmp_path / "run")
    done = folder.done(StepKey(0, 1))
    assert done is not None
    resumed_at = done.finished_at + 900.0
    onlooker = Onlooker(folder, since=resumed_at)
    assert [onlooker.look(resumed_at + passed).late for passed in (29.0, 31.0)] == [False, True]
    assert onlooker.look(resumed_at).attempt is None


def test_the_stages_are_those_of_a_run():
    assert looking.STAGES == stages.STAGES


def test_the_state_follows_what_the_stages_say(tmp_path: Path):
    folder = RunFolder.create(str(tmp_path / "begun"), document())
    assert Onlooker(folder).look(0.0).state is State.STARTING
    folder = going_on(tmp_path / "run")
    folder.beat("learner", None)
    said = beat_at(folder, "learner")
    assert Onlooker(folder).look(said).state is State.TRAINING
    assert Onlooker(folder).look(said + 11.0).state is State.SILENT
    folder.write_hint(Hint(limit_ticket=9, dropped=0, floor=1, finished=True))
    assert Onlooker(folder).look(said + 11.0).state is State.FINISHED


def test_a_finished_run_has_ended_once_no_stage_speaks_and_an_unfinished_one_a_minute_later(tmp_path: Path):
    folder = going_on(tmp_path / "run")
    folder.beat("learner", None)
    onlooker, said = Onlooker(folder), beat_at(folder, "learner")
    assert not onlooker.look(said).ended
    assert not onlooker.look(said + STOPPED_SECONDS - 1).ended
    assert onlooker.look(said + STOPPED_SECONDS + 1).ended
    folder.write_hint(Hint(limit_ticket=9, dropped=0, floor=1, finished=True))
    assert not onlooker.look(said + ENDED_SECONDS - 1).ended
    assert onlooker.look(said + ENDED_SECONDS + 1).ended


def test_a_run_of_which_no_stage_ever_spoke_is_given_a_minute(tmp_path: Path):
    onlooker = Onlooker(going_on(tmp_path / "run"))
    assert [onlooker.look(at).ended for at in (100.0, 159.0, 161.0)] == [False, False, True]


def test_what_stages_said_before_a_resume_does_not_count(tmp_path: Path):
    folder = going_on(tmp_path / "run")
    folder.beat("learner", None)
    said = beat_at(folder, "learner")
    look = Onlooker(folder, since=said + 1).look(said + 30)
    assert (look.state, any(stage.spoken for stage in look.stages)) == (State.TRAINING, False)


def test_each_step_is_new_in_one_look_only_and_the_diagnosis_is_of_all(tmp_path: Path):
    folder = going_on(tmp_path / "run")
    onlooker = Onlooker(folder)
    assert [point.step for point in onlooker.look(0.0).new_points] == [1]
    add_step(folder, 0, 2, [2])
    look = onlooker.look(0.0)
    assert [point.step for point in look.new_points] == [2]
    assert [point.step for point in look.points] == [1, 2]
    assert [finding.title for finding in look.findings] == ["Too early to tell"]


def test_a_run_without_a_step_says_what_the_groups_lack_that_wait(tmp_path: Path):
    folder = RunFolder.create(str(tmp_path / "run"), document())
    for ticket in range(3):
        add_group(folder, ticket)
        add_scores(folder, ticket, {"correct": [1.0, 1.0]})
    (finding,) = Onlooker(folder).look(0.0).findings
    assert finding.reading.startswith("3 groups are scored and fill 0 of the step's 1 places.")


def test_groups_whose_prompt_was_not_asked_wait_for_nothing(tmp_path: Path):
    folder = RunFolder.create(str(tmp_path / "run"), document())
    for ticket, filtered in enumerate((True, False)):
        add_group(folder, ticket, [], refusal="not asked", filtered=filtered)
        add_scores(folder, ticket)
    followed = FollowedWaiting(folder, document()["settings"]["tree"])
    assert followed.update(0).num_groups == 0
    add_group(folder, 2)
    add_scores(folder, 2)
    assert followed.update(0).num_groups == 1


def test_waiting_groups_are_read_once_and_only_above_the_floor(tmp_path: Path):
    folder = going_on(tmp_path / "run")
    followed = FollowedWaiting(folder, document()["settings"]["tree"])
    assert followed.update(2).num_groups == 2
    folder.filesystem.put(folder.scored.key(3), b"torn", exclusive=False)
    assert followed.update(3).num_groups == 1


def test_a_run_that_is_quiet_when_watching_begins_is_given_time_to_be_resumed(tmp_path: Path):
    folder = going_on(tmp_path / "run")
    folder.beat("learner", None)
    late = beat_at(folder, "learner") + 1000.0
    onlooker = Onlooker(folder)
    assert [onlooker.look(late + seconds).ended for seconds in (0.0, 44.0, 46.0)] == [False, False, True]
