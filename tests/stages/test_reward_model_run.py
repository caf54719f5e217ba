"""Whole runs that are rewarded by a classifier, whose process is killed in the middle."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from agrpo.config import Settings, resolve
from agrpo.errors import ConfigError
from agrpo.queue.run_folder import RunFolder
from agrpo.records.arrow import scored_from_arrow
from agrpo.runs import check_unchanged, prepare
from agrpo.runs.beginning import with_whole_paths
from agrpo.whatif.asking import answer, answered
from agrpo.whatif.question import ask_reward, begin
from tests.rewards.worlds import descendants, lives
from tests.stages.walk import LOCKSTEP, Walk, dones, settings

STAGES = ("generator", "scorer", "learner")
NUM_GROUPS = 8


def begun(place: Path, model: Path, prompts: Path, classifier: Path, **knobs: Any) -> RunFolder:
    """A lockstep run of four steps and two rewards."""
    tree: dict[str, Any] = settings(model, prompts, place, **LOCKSTEP)
    tree["stop"]["stall_seconds"] = 100
    knobs = {"path": str(classifier), "batch_size": 2, **knobs}
    tree["rewards"].append({"name": "reward_model", "weight": 0.1, "timeout_seconds": 60, "settings": knobs})
    return prepare(resolve(values=tree), folder=str(place / "run"))


def judges() -> set[int]:
    """Processes of reward models that this one has started and that live."""
    command = b"agrpo.rewards.sandbox.resident"
    return {pid for pid in descendants(os.getpid()) if command in Path(f"/proc/{pid}/cmdline").read_bytes()}


def scores(folder: RunFolder) -> list[tuple[list[float | None], list[str | None]]]:
    """What the reward model said of each group, and why where it said nothing."""
    found = [scored_from_arrow(folder.scored.demand(n), folder.scored.key(n)) for n in folder.scored.numbers()]
    (*said,) = [next(each for each in group.scores if each.reward == "reward_model") for group in found]
    return [(each.values, each.errors) for each in said]


def test_the_files_of_a_reward_model_are_the_same_from_any_folder_and_at_every_resume(
    tiny_model: Path, prompts: Path, tiny_classifier: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    shutil.copytree(tiny_classifier, tmp_path / "judge")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    folder = begun(tmp_path, tiny_model, prompts, Path("judge"), tokenizer="~/judge")
    knobs = folder.document()["settings"]["tree"]["rewards"][1]["settings"]
    assert (knobs["path"], knobs["tokenizer"]) == (str(tmp_path / "judge"),) * 2
    monkeypatch.chdir("/")
    check_unchanged(folder)
    for name in ("model.safetensors", "tokenizer.json"):
        file = tmp_path / "judge" / name
        was = file.read_bytes()
        file.write_bytes(was[:-1] + b" ")
        with pytest.raises(ConfigError, match=rf"changed: .*reward_model\.path/{name}"):
            check_unchanged(folder)
        file.write_bytes(was)
    check_unchanged(folder)


def test_a_hub_id_of_a_reward_model_stays_one():
    rewards = [{"name": "reward_model", "path": "someone/judge"}, {"name": "a:b", "path": "."}]
    assert with_whole_paths(Settings(tree={"rewards": rewards}, origins={})).tree["rewards"] == rewards


@pytest.fixture(scope="module")
def runs(
    tiny_model: Path, prompts: Path, tiny_classifier: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[RunFolder, RunFolder]:
    """The same run twice: left alone, and with its reward model killed when half of its groups were scored."""
    place = tmp_path_factory.mktemp("judged")
    left_alone, killed = (begun(place / name, tiny_model, prompts, tiny_classifier) for name in ("one", "other"))
    Walk(left_alone).start(*STAGES).join()
    run = Walk(killed).start(*STAGES)
    run.until(lambda: len(killed.scored.numbers()) >= NUM_GROUPS // 2)
    (first,) = judges()
    os.kill(first, signal.SIGSTOP)  # the next groups wait in it
    scored = len(killed.scored.numbers())
    run.until(lambda: len(killed.groups.numbers()) > scored)
    os.kill(first, signal.SIGKILL)
    run.join()
    assert not lives(first) and judges() == set()
    return left_alone, killed


@pytest.mark.slow
def test_a_run_whose_reward_model_is_killed_ends_with_the_weights_of_one_that_was_not(
    runs: tuple[RunFolder, RunFolder],
):
    left_alone, killed = runs
    assert len(scores(killed)) == NUM_GROUPS and scores(killed) == scores(left_alone)
    assert all(error is None for _, errors in scores(killed) for error in errors)
    assert [done.digest for done in dones(killed)] == [done.digest for done in dones(left_alone)]


@pytest.mark.slow
def test_a_what_if_of_the_same_reward_model_gives_the_recorded_values(
    runs: tuple[RunFolder, RunFolder], tiny_classifier: Path
):
    folder = runs[0]
    question = begin(folder, ask_reward(folder, "reward_model", [f"path={tiny_classifier}", "batch_size=2"]))
    answer(folder, question)
    asked = [[rollout.reward for rollout in group.rollouts] for group in answered(folder, question.whatif.name)]
    assert asked == [pytest.approx(values) for values, _ in scores(folder)]
