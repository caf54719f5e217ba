from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from agrpo.config import RunConfig, resolve
from agrpo.errors import RunExists
from agrpo.prompts import PromptOrder
from agrpo.quickstart.prepare import Prepared, prepare
from agrpo.quickstart.run_file import run_file, run_settings
from agrpo.quickstart.tasks import TASKS


def test_a_second_call_finds_the_folder_prepared(prepared: Prepared):
    steps: list[int] = []
    again = prepare(prepared.task, prepared.folder, 1, num_threads=1, on_step=lambda step, _: steps.append(step))
    assert again == prepared
    assert steps == []


def test_the_same_seed_prepares_the_same_bytes_elsewhere(prepared: Prepared, tmp_path: Path):
    steps: list[int] = []
    other = prepare(prepared.task, tmp_path / "other", 1, num_threads=1, on_step=lambda step, _: steps.append(step))
    assert steps == [1, 2]
    for mine, theirs in ((prepared.prompts, other.prompts), (prepared.held_out, other.held_out)):
        assert mine.read_bytes() == theirs.read_bytes()
    weights = [folder / "model.safetensors" for folder in (prepared.model, other.model)]
    assert weights[0].read_bytes() == weights[1].read_bytes()


def test_another_seed_task_or_length_is_refused_where_one_is_prepared(prepared: Prepared):
    longer = replace(prepared.task, warm_start_steps=3)
    for task, seed, different in ((prepared.task, 2, "seed"), (longer, 1, "task"), (TASKS["sorting"], 1, "task")):
        with pytest.raises(RunExists, match=rf"different: {different}\)"):
            prepare(task, prepared.folder, seed)


def test_a_folder_in_other_use_is_refused_and_left_alone(prepared: Prepared, tmp_path: Path):
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(RunExists, match="holds no prepared quickstart"):
        prepare(prepared.task, tmp_path, 1)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_preparation_that_fails_leaves_nothing_and_can_be_repeated(prepared: Prepared, tmp_path: Path):
    with pytest.raises(KeyboardInterrupt):
        prepare(prepared.task, tmp_path / "start", 1, num_threads=1, on_step=_interrupt)
    assert list(tmp_path.iterdir()) == []
    assert prepare(prepared.task, tmp_path / "start", 1, num_threads=1).run_file.is_file()


def test_the_run_file_builds_the_run_and_its_prompts_carry_the_facts(prepared: Prepared):
    config = RunConfig.build(resolve(prepared.run_file))
    assert (config.step.groups, config.sampling.num_generations, config.stop.max_steps) == (32, 8, 60)
    assert (config.optimizer.learning_rate, config.optimizer.betas) == (5e-4, (0.9, 0.99))
    assert config.model.path == str(prepared.model)
    prompt = PromptOrder(config.prompts.source(), seed=1, shuffle=True).prompt(0)
    assert prompt.messages[0]["content"].startswith("State the final answer")
    assert set(prompt.facts) == {"reasoning_gym_dataset", "reasoning_gym_entry", "difficulty"}


@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
def test_the_run_file_says_what_its_settings_say(task):
    odd = Path('/mnt/zoë/a "quoted" \\ folder/run')
    settings = run_settings(task, model=odd, prompts=odd, seed=7)
    assert tomllib.loads(run_file(settings, "about")) == settings


def _interrupt(step: int, loss: float) -> None:
    raise KeyboardInterrupt
