"""The examples with tools: what their demonstrations say is true, and their runs train from a start made from nothing."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest

from agrpo.config import resolve
from agrpo.database.queries import query
from agrpo.database.writer import Database
from agrpo.queue.run_folder import RunFolder
from agrpo.quickstart.question import Demonstration, Part
from agrpo.records.prompt import Message
from agrpo.runs import prepare as prepare_run
from agrpo.stages.recorder import record_once
from agrpo.tools.formats import tagged
from examples.calculator import prepare as calculator
from examples.calculator.calculator import add, right_answer, sub
from examples.guess.game import GuessNumber
from examples.smollm2 import sums
from examples.smollm2.tool import calculate
from examples.start import Start, command
from examples.two_environments import prepare as two_environments
from examples.two_environments.cards import TwentyOne
from tests.stages.walk import dones, walk

ROOT = Path(__file__).parents[1]
CALLED = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "add", "arguments": {}}}]}


def calls_and_results(shown: Demonstration) -> list[tuple[str, dict[str, int], str]]:
    """What a demonstration calls, with what it says came back."""
    calls = [message["tool_calls"][0]["function"] for message in shown.before[::2]]
    return [
        (call["name"], call["arguments"], told["content"]) for call, told in zip(calls, shown.before[1::2], strict=True)
    ]


def started_run(start: Start, file: Path, folder: Path, steps: int) -> RunFolder:
    """A run of a few steps from a start that was hardly warmed up, walked to its end."""
    made = replace(start, steps=2).make(folder / "start", seed=1)
    changes = {
        "model.path": f"'{made / 'model'}'",
        "prompts.path": f"'{made / 'prompts.jsonl'}'",
        "run.dir": f"'{folder}'",
        "step.groups": "2",
        "step.zero_variance": "'keep'",
        "stop.max_steps": str(steps),
    }
    run = prepare_run(resolve(file, sets=[f"{name}={value}" for name, value in changes.items()]))
    walk(run)
    assert len(dones(run)) == steps
    record_once(run, Database(run.database))
    return run


def test_only_the_policys_own_last_word_is_paid():
    def said(text: str) -> Message:
        return {"role": "assistant", "content": text}

    told = {"role": "tool", "content": "503"}
    completions = [[CALLED, told, said("503")], [said(" 503 ")], [said("502")], [CALLED, told], [CALLED]]
    assert right_answer(completions, ["503"] * 5) == [1, 1, 0, 0, 0]


def test_what_the_calculator_is_shown_is_right_and_not_asked_in_the_run():
    shown = list(islice(calculator.demonstrations(1), 500))
    for one in shown:
        for name, arguments, told in calls_and_results(one):
            assert {"add": add, "sub": sub}[name](**arguments) == int(told) == int(one.completion)
    assert {one.question.part for one in shown} == {Part.WARM_START}
    asked = {row["prompt"][0]["content"] for row in calculator.rows(1)}
    assert not asked & {one.question.text for one in shown}


def test_the_calculator_is_shown_calling_far_more_often_than_it_learns_to_begin_with_a_call():
    shown = list(islice(calculator.demonstrations(1), 2000))
    calling = [one.first_token_weight for one in shown if one.before]
    assert len(calling) / len(shown) == pytest.approx(0.7, abs=0.05)
    # The odds of a first token are those of the weights: 0.2 to 0.8.
    assert sum(calling) / (sum(calling) + len(shown) - len(calling)) == pytest.approx(0.2, abs=0.02)


def test_a_start_that_is_there_is_left_alone(tmp_path, capsys):
    (tmp_path / "prompts.jsonl").write_text("made before")
    (tmp_path / "seed").write_text("1\n")
    assert calculator.START.make(tmp_path, seed=1) == tmp_path
    assert capsys.readouterr().out == f"{tmp_path}: there already, made from seed 1\n"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["prompts.jsonl", "seed"]


def test_a_start_of_another_seed_is_not_taken_for_this_one(tmp_path):
    (tmp_path / "prompts.jsonl").write_text("made before")
    for told, said in ((None, "a seed that it does not tell"), ("1", "a seed 1")):
        if told is not None:
            (tmp_path / "seed").write_text(told)
        with pytest.raises(FileExistsError, match=f"{said}, and --seed is 2; remove it"):
            calculator.START.make(tmp_path, seed=2)


def test_a_place_that_is_taken_is_refused_before_the_warm_start(tmp_path, monkeypatch, capsys):
    (tmp_path / "mine.txt").write_text("mine")
    monkeypatch.chdir(tmp_path)
    for place in (".", str(tmp_path), "mine.txt"):
        monkeypatch.setattr("sys.argv", ["prepare", "--to", place])
        with pytest.raises(SystemExit):
            command(replace(calculator.START, steps=1, rows=lambda seed: pytest.fail("it was begun")), None)
        assert f"error: {Path(place).resolve()} is there and is no start" in capsys.readouterr().err


def test_a_start_says_its_seed_and_may_be_the_folder_one_stands_in(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    start = replace(calculator.START, steps=1)
    assert start.make(Path("."), seed=3) == tmp_path
    assert (tmp_path / "seed").read_text() == "3\n"
    assert start.make(tmp_path, seed=3) == tmp_path


def test_a_start_appears_whole_or_not_at_all(tmp_path):
    def broken(seed: int):
        raise ValueError("no rows")

    with pytest.raises(ValueError, match="no rows"):
        replace(calculator.START, steps=1, rows=broken).make(tmp_path / "start", seed=1)
    assert list(tmp_path.iterdir()) == []


def test_a_hand_is_paid_by_how_near_it_comes_and_begins_anew():
    hand = TwentyOne()
    for _ in range(2):
        hand.reset(number=3)
        told = [hand.draw() for _ in range(3)]
        assert told == ["A 4. You have 4.", "A 10. You have 14.", "A 9. You have 23, too many."]
        assert hand.get_reward() == 0.0
        hand.reset(number=3)
        assert hand.get_reward() == 0.0
        told = [hand.draw() for _ in range(2)]
        assert hand.get_reward() == 14 / 21


def test_what_the_games_are_shown_was_played_in_the_environments_of_the_run():
    shown = list(islice(two_environments.demonstrations(1), 300))
    asked = {"guess": GuessNumber().reset(0), "cards": TwentyOne().reset(0)}
    assert {one.question.text for one in shown} == set(asked.values())
    for one in shown:
        game = GuessNumber() if one.question.text == asked["guess"] else TwentyOne()
        game.reset(int(one.question.content))
        assert one.before or one.completion == "Stop."
        for name, arguments, told in calls_and_results(one):
            assert getattr(game, name)(**arguments) == told
    numbers = {row["number"] for row in two_environments.rows(1)}
    assert not numbers & {int(one.question.content) for one in shown}


def test_smollm2s_tool_calculates_and_takes_nothing_else():
    assert [calculate(text) for text in ("12 + 34", "507-238", " -5 + 5 - 007 ")] == [46, 269, -7]
    for text in ("__import__('os')", "1 ** 9", "2 * 3", "", "1 +", "9999999999"):
        with pytest.raises(ValueError, match="expected whole numbers"):
            calculate(text)


def test_smollm2_is_shown_three_calls_as_agrpo_reads_them_and_asked_another_sum():
    for row in sums.rows()[:50]:
        *shown, asked = row["prompt"]
        assert asked["content"] not in [message["content"] for message in shown]
        for _, called, told, said in zip(*[iter(shown)] * 4, strict=True):
            (call,) = tagged.read(called["content"]).calls
            assert str(calculate(**call.arguments)) == told["content"] == said["content"]
        expression = asked["content"].removeprefix("What is ").removesuffix("?")
        assert row["answer"] == str(calculate(expression))


@pytest.mark.slow
def test_each_environment_pays_under_its_own_name_in_one_run(tmp_path):
    file = ROOT / "examples" / "two_environments" / "two_environments.toml"
    run = started_run(two_environments.START, file, tmp_path, steps=4)
    paid = query(
        run.database,
        "SELECT environment, environment_class, name, count(*) AS num FROM rewards JOIN rollouts USING (ticket, rollout_index) "
        "JOIN groups USING (ticket) GROUP BY ALL ORDER BY 1",
    ).to_pylist()
    assert [(row["environment"], row["environment_class"], row["name"]) for row in paid] == [
        ("cards", "TwentyOne", "TwentyOne"),
        ("guess", "GuessNumber", "GuessNumber"),
    ]
    assert all(row["num"] % 8 == 0 for row in paid)


@pytest.mark.slow
def test_the_calculator_trains_from_a_start_made_from_nothing(tmp_path):
    run = started_run(calculator.START, ROOT / "examples" / "calculator" / "calculator.toml", tmp_path, steps=2)
    (asked,) = query(run.database, "SELECT prompt FROM groups WHERE ticket = 0").to_pydict()["prompt"]
    assert json.loads(asked)[0]["content"].startswith("What is ")
    (shown,) = query(run.database, "SELECT prompt_ids FROM turns LIMIT 1").to_pydict()["prompt_ids"]
    assert "add(a, b)\nsub(a, b)" in calculator_text(tmp_path, shown)


def calculator_text(folder: Path, ids: list[int]) -> str:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder / "start" / "model").decode(ids)
