"""Going on with a run: which one is meant, what may have changed, and who else may be at work on it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agrpo.config import Settings, resolve
from agrpo.config.amendments import AMENDABLE, OF_FACTORIES, amended, changes
from agrpo.errors import ConfigError, RecordError, RecordTooNew, RunBusy
from agrpo.queue import at_work
from agrpo.queue.amendments import amendments
from agrpo.queue.run_folder import RunFolder
from agrpo.records.progress import Attempt, Hint
from agrpo.resuming import newest_run, take_up
from agrpo.runs import prepare
from tests.stages.standing_in import SERVING, environment
from tests.stages.walk import settings

ROOT = Path(__file__).parent.parent


@pytest.fixture
def tree(tiny_model: Path, tmp_path: Path) -> dict[str, Any]:
    """Settings of a small run in `tmp_path`."""
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(json.dumps({"prompt": [{"role": "user", "content": "1+1"}], "answer": "2"}))
    return settings(tiny_model, prompts, tmp_path / "runs")


def asked(tree: dict[str, Any], *sets: str) -> Settings:
    return resolve(values=tree, sets=sets)


def begun(tree: dict[str, Any], *sets: str) -> RunFolder:
    name = str(time.monotonic_ns())
    return prepare(asked(tree, *sets), folder=f"{tree['run']['dir']}/{name}")


def refused(folder: RunFolder, settings: Settings) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        take_up(folder, settings)
    return caught.value.problems


def test_a_run_goes_on_under_the_settings_it_has_and_nothing_is_written(tree: dict[str, Any]) -> None:
    folder = begun(tree)
    take_up(folder, asked(tree))
    assert amendments(folder.filesystem) == []
    assert folder.document() == folder.run_json()


def test_what_decides_no_value_may_change_and_is_written_once(tree: dict[str, Any]) -> None:
    folder = begun(tree)
    sets = (
        "stop.max_steps=9",
        "checkpoint.every_seconds=5",
        "supervision.restarts=1",
        "async.max_concurrent_rollouts=8",
    )
    for _ in range(2):
        take_up(folder, asked(tree, *sets, "engine.request_timeout_seconds=7", "recorder.topk=true"))
    [amendment] = amendments(folder.filesystem)
    assert amendment.number == 0
    assert amendment.values == {
        "stop.max_steps": 9,
        "checkpoint.every_seconds": 5.0,
        "supervision.restarts": 1,
        "async.max_concurrent_rollouts": 8,
        "engine.request_timeout_seconds": 7.0,
        "recorder.topk": True,
    }
    assert amendment.origins["stop.max_steps"] == "--set"


def test_what_messages_of_servers_advise_may_be_set_when_the_run_goes_on(tree: dict[str, Any], tmp_path: Path) -> None:
    engine = {"name": "vllm", "num_generations": 4, "max_completion_length": 6}
    elsewhere = {**tree, "engine": engine}
    folder = begun(elsewhere)
    advised = {"engine.weights": "filesystem", "engine.served_model": "policy"}
    take_up(folder, asked(elsewhere, *(f"{key}={value}" for key, value in advised.items())))
    assert [amendment.values for amendment in amendments(folder.filesystem)] == [advised]

    own = {**tree, "engine": {**engine, "serve": True, "environment": str(environment(tmp_path / "env", SERVING))}}
    folder = begun(own)
    take_up(folder, asked(own, "engine.max_model_len=64"))
    assert folder.document()["settings"]["tree"]["engine"]["max_model_len"] == 64


def test_what_other_messages_advise_may_be_set_too_and_one_reward_by_itself(tree: dict[str, Any]) -> None:
    judges = [{"name": f"tests.stages.judges:{name}"} for name in ("distinct_tokens", "always_one")]
    folder = begun({**tree, "rewards": judges})
    patient = [judges[0], {**judges[1], "timeout_seconds": 90.0, "memory_bytes": 2**32}]
    sets = ("model.activation_checkpointing=true", "model.trust_remote_code=true")
    take_up(folder, asked({**tree, "rewards": patient}, *sets))
    rewards = folder.document()["settings"]["tree"]["rewards"]
    assert [reward["timeout_seconds"] for reward in rewards] == [30.0, 90.0]
    assert [reward["memory_bytes"] for reward in rewards] == [2**31, 2**32]
    model = folder.document()["settings"]["tree"]["model"]
    assert (model["activation_checkpointing"], model["trust_remote_code"]) == (True, True)
    assert [reward["timeout_seconds"] for reward in folder.run_json()["settings"]["tree"]["rewards"]] == [30.0, 30.0]


def test_a_function_may_be_given_longer(tree: dict[str, Any]) -> None:
    hasty = {**tree, "rollout_loop": {"rollout_func": "tests.stages.functions:passing", "timeout_seconds": 5.0}}
    folder = begun(hasty)
    take_up(folder, asked(hasty, "rollout_loop.timeout_seconds=50"))
    assert folder.document()["settings"]["tree"]["rollout_loop"]["timeout_seconds"] == 50.0


def test_a_server_of_environments_may_have_moved_and_another_factory_keeps_its_settings() -> None:
    server = {"url": "http://a:1", "connect_seconds": 3.0, "show": "board"}
    has = {"environments": {"factories": {"one": {"factory": "openenv", "settings": server}}}}
    moved = amended(has, {"environments.factories.one.settings.url": "http://b:2"})
    moved = amended(moved, {"environments.factories.one.settings.connect_seconds": None})
    assert moved["environments"]["factories"]["one"]["settings"] == {"url": "http://b:2", "show": "board"}
    assert has["environments"]["factories"]["one"]["settings"] == server
    found = changes(has, moved)
    assert [(change.key.rpartition(".")[2], change.allowed) for change in found] == [
        ("connect_seconds", True),
        ("url", True),
    ]
    assert amended(has, {change.key: change.asked for change in found}) == moved
    for factory, setting in (("openenv", "show"), ("openenv", "reward"), ("a:B", "url")):
        before = {"environments": {"factory": factory, "settings": {}}}
        (change,) = changes(before, amended(before, {f"environments.settings.{setting}": "x"}))
        assert not change.allowed
    (change,) = changes(has, amended(has, {"environments.factories.one.factory": "a:B"}))
    assert not change.allowed


def test_the_page_names_every_setting_that_a_resume_may_change() -> None:
    page = (ROOT / "docs" / "supervision.md").read_text("utf-8")
    assert [key for key in AMENDABLE if f"`{key}`" not in page and f"`{key.partition('.')[2]}`" not in page] == []
    assert [name for names in OF_FACTORIES.values() for name in names if f"`{name}`" not in page] == []


def test_amendments_lie_one_over_another_and_the_run_keeps_its_own_document(tree: dict[str, Any]) -> None:
    folder = begun(tree)
    before = folder.document()
    take_up(folder, asked(tree, "stop.max_steps=9", "stop.grace_seconds=7"))
    take_up(folder, asked(tree, "stop.max_steps=8", "stop.grace_seconds=7"))
    now = folder.document()
    assert [amendment.values for amendment in amendments(folder.filesystem)][1] == {"stop.max_steps": 8}
    assert (now["settings"]["tree"]["stop"]["max_steps"], now["settings"]["tree"]["stop"]["grace_seconds"]) == (8, 7.0)
    assert now["settings"]["origins"]["stop.max_steps"] == "--set"
    assert {**now, "settings": 0} == {**before, "settings": 0}
    assert folder.run_json() == before


def test_what_decides_values_is_refused_by_name_with_both_values_and_what_is_allowed(tree: dict[str, Any]) -> None:
    folder = begun(tree)
    problems = refused(folder, asked(tree, "optimizer.learning_rate=5e-4", "stop.max_steps=9", "run.seed=2"))
    assert problems[:2] == [
        "optimizer.learning_rate: the run has 0.001, 0.0005 is asked for",
        "run.seed: the run has 1, 2 is asked for",
    ]
    assert problems[2].endswith(
        f"a resume may change {', '.join(AMENDABLE)} (stop.max_steps and stop.epochs only while the schedule of learning "
        'rates does not decay), and of an environment: with factory = "openenv" its url, connect_seconds, token_variable'
    )
    assert amendments(folder.filesystem) == []


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (
            {"rewards": [{"name": "tests.stages.judges:distinct_tokens", "weight": 2.0}]},
            "rewards.0.weight: the run has 1.0, 2.0",
        ),
        ({"loss": {"name": "clip", "epsilon": 0.1}}, "loss.epsilon: the run has 0.2, 0.1"),
        (
            {"engine": {"name": "transformers", "num_generations": 6, "max_completion_length": 6}},
            "engine.num_generations",
        ),
    ],
)
def test_another_part_or_reward_is_refused(tree: dict[str, Any], change: dict[str, Any], told: str) -> None:
    folder = begun(tree)
    assert any(problem.startswith(told) for problem in refused(folder, asked({**tree, **change})))


def test_a_decaying_schedule_keeps_its_end_and_not_its_grace(tree: dict[str, Any]) -> None:
    folder = begun(tree, "optimizer.scheduler=linear")
    problems = refused(folder, asked(tree, "optimizer.scheduler=linear", "stop.max_steps=9"))
    assert problems[0] == (
        'stop.max_steps: the run has 4, 9 is asked for; its schedule "linear" decays to the last step'
    )
    take_up(folder, asked(tree, "optimizer.scheduler=linear", "stop.grace_seconds=9"))
    assert [amendment.values for amendment in amendments(folder.filesystem)] == [{"stop.grace_seconds": 9.0}]


def test_a_finished_run_that_is_to_go_further_is_open_again(tree: dict[str, Any]) -> None:
    folder = begun(tree)
    folder.write_hint(Hint(limit_ticket=None, dropped=0, floor=8, finished=True))
    take_up(folder, asked(tree))
    assert folder.hint().finished
    take_up(folder, asked(tree, "stop.max_steps=9"))
    assert (folder.hint().finished, folder.hint().floor) == (False, 8)


def test_other_prompts_are_refused(tree: dict[str, Any]) -> None:
    folder = begun(tree)
    Path(tree["prompts"]["path"]).write_text(json.dumps({"prompt": [{"role": "user", "content": "2+2"}]}))
    with pytest.raises(ConfigError, match="changed: prompts"):
        take_up(folder)


def test_a_torn_attempt_is_named(tree: dict[str, Any]) -> None:
    folder = begun(tree)
    folder.filesystem.put("attempts/000002.json", b'{"sch')
    with pytest.raises(RecordError, match=rf"{folder.url}/attempts/000002\.json cannot be read, or is not a Attempt"):
        take_up(folder)


def test_a_run_of_a_newer_schema_is_refused(tree: dict[str, Any]) -> None:
    folder = begun(tree)
    file = Path(folder.url, "run.json")
    file.chmod(0o644)
    file.write_text(json.dumps({**folder.document(), "schema_version": "2.0", "agrpo_version": "9.1"}))
    with pytest.raises(RecordTooNew, match=r"by agrpo 9.1 under schema 2.0 of run.json; this agrpo reads 1.x"):
        take_up(folder)


def test_the_newest_run_of_a_name_is_meant_and_no_other_names(tree: dict[str, Any]) -> None:
    assert newest_run(asked(tree)) is None
    prepare(asked(tree, "run.name=run-other"))
    first = prepare(asked(tree))
    assert newest_run(asked(tree)).url == first.url
    time.sleep(1.1)  # names have seconds
    second = prepare(asked(tree))
    assert newest_run(asked(tree)).url == second.url
    assert newest_run(asked(tree), first.url).url == first.url
    assert newest_run(asked(tree), f"{first.url}-none") is None


def test_a_run_in_the_home_of_who_began_it_is_found_there_again(
    tree: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    begun_there = prepare(asked(tree, "run.dir=~/runs"))
    assert begun_there.url.startswith(f"{tmp_path}/runs/run-")
    assert newest_run(asked(tree, "run.dir=~/runs")).url == begun_there.url


@pytest.fixture
def learner(tree: dict[str, Any]) -> Iterator[tuple[RunFolder, subprocess.Popen[bytes]]]:
    """A run and a process that looks like its learner."""
    folder = begun(tree)
    code = "import time; time.sleep(60)"
    process = subprocess.Popen([sys.executable, "-S", "-c", code, "agrpo.stages", "learner", folder.url])
    folder.write_attempt(Attempt(attempt=0, host=socket.gethostname(), pid=process.pid, started_at=time.time()))
    yield folder, process
    process.kill()
    process.wait()


def test_a_run_whose_learner_lives_on_this_machine_is_refused_with_its_process(
    learner: tuple[RunFolder, subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, process = learner
    monkeypatch.setattr(at_work, "LEAVE_SECONDS", 0.2)
    with pytest.raises(RunBusy, match=f"is being trained by process {process.pid} on this machine .*, attempt 0"):
        take_up(folder)
    take_up(folder, trains=False)


def test_a_learner_that_is_ending_is_waited_for(learner: tuple[RunFolder, subprocess.Popen[bytes]]) -> None:
    folder, process = learner
    timer = threading.Timer(0.3, lambda: (os.kill(process.pid, signal.SIGKILL), process.wait()))
    timer.start()
    take_up(folder)
    timer.join()


def test_a_process_that_took_the_learners_number_is_not_the_learner(tree: dict[str, Any]) -> None:
    folder = begun(tree)
    folder.write_attempt(Attempt(attempt=0, host=socket.gethostname(), pid=os.getpid(), started_at=time.time()))
    folder.beat("learner", None)
    take_up(folder)


@pytest.mark.parametrize("moving", [True, False])
def test_a_learner_elsewhere_is_at_work_where_its_beats_move(tree: dict[str, Any], moving: bool) -> None:
    folder = begun(tree)
    folder.write_attempt(Attempt(attempt=0, host="elsewhere", pid=1, started_at=time.time()))
    folder.beat("learner", None)
    timer = threading.Timer(0.5, lambda: folder.beat("learner", None))
    if moving:
        timer.start()
    told = at_work.learner_at_work(folder)
    assert told == ("a process on elsewhere, attempt 0, whose beats move" if moving else None)


def test_train_with_resume_refuses_other_settings_before_anything_starts(tree: dict[str, Any], tmp_path: Path) -> None:
    prepare(asked(tree))
    lines: list[str] = []
    for table, values in tree.items():
        entries = values if isinstance(values, list) else [values]
        header = f"[[{table}]]" if isinstance(values, list) else f"[{table}]"
        for entry in entries:
            lines += [header, *(f"{key} = {json.dumps(value)}" for key, value in entry.items())]
    (tmp_path / "run.toml").write_text("\n".join(lines))
    command = [sys.executable, "-m", "agrpo", "train", str(tmp_path / "run.toml"), "--resume", "--set", "step.groups=3"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 2 and "resumed" not in done.stdout
    assert "  - step.groups: the run has 2, 3 is asked for\n" in done.stderr
    assert len(list((tmp_path / "runs").iterdir())) == 1
