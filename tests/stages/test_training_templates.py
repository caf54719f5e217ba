"""`model.chat_template`: who is advised to set it, what it changes in a rollout, and that exports carry it."""

from __future__ import annotations

import json
import shutil
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from agrpo.config import ModelSection, RunConfig, resolve
from agrpo.errors import ConfigError, ModelError
from agrpo.policy.model import load_policy
from agrpo.records.sample import sequences_of
from agrpo.runs import check_unchanged, checks, prepare
from agrpo.runs.beginning import with_whole_paths
from agrpo.runs.checks import check
from agrpo.stages import generator
from agrpo.stages.chosen_template import unfit_template
from agrpo.stages.context import StageContext
from agrpo.stages.exporting import write_model
from agrpo.stages.rendering import Renderer
from agrpo.templates import TEMPLATES, template
from tests.stages.families import ASKS, CHATML, FAMILIES, QWEN_CALL, Family
from tests.stages.playing import QUESTION, Stage, call_of, script, tokenizer_with
from tests.stages.walk import settings

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

HERE = "tests.tools.functions:add"
SMOLLM2 = (
    "{%- if messages[0].role != 'system' %}"
    "{{ '<|im_start|>system\\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\\n' }}"
    "{% endif -%}{%- for m in messages -%}" + CHATML + "{%- endfor -%}" + ASKS
)
FORGETS = SMOLLM2.replace("m.content", "(m.content if loop.last else m.content.split('</think>')[-1])")


def a_model(tokenizer: PreTrainedTokenizerFast, folder: Path, text: str, family: Family) -> Path:
    return tokenizer_with(tokenizer, folder, text, *family.tokens, end=family.end)


def problems_of(model: Path | str, place: Path, chat_template: str | None = None, **tables: Any) -> list[str]:
    (place / "prompts.jsonl").write_text('{"prompt": [{"role": "user", "content": "1+1 ="}]}')
    tree = settings(Path("model"), place / "prompts.jsonl", place, **tables)
    tree["model"] = {**tree["model"], "path": str(model)}
    if chat_template is not None:
        tree["model"]["chat_template"] = chat_template
    return check(RunConfig.build(resolve(values=tree)))


def test_a_known_family_that_forgets_is_told_which_template_costs_less(
    tiny_tokenizer: PreTrainedTokenizerFast, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    model = a_model(tiny_tokenizer, tmp_path, FORGETS, FAMILIES["smollm2"])
    assert not Stage(model, "add").talk.appends
    (warning,) = caplog.messages
    assert "n turns cost the tokens of n conversations" in warning
    assert 'Set model.chat_template = "smollm2_training", which keeps' in warning
    caplog.clear()
    kept = Stage(model, "add", chat_template="smollm2_training")
    assert kept.talk.appends and caplog.messages == []
    (end,) = kept.renderer.encode("<|im_end|>")
    line = f"<think>a sum</think>So: {call_of('add', a=4, b=5)}"
    lines = [[*kept.renderer.encode(text), end] for text in (line, "9")]
    (rollout,) = kept.play(script(*lines))
    assert len(sequences_of(rollout)) == 1
    assert "a sum" in kept.renderer.tokenizer.decode(rollout.turns[1].prompt_ids)


@pytest.mark.parametrize("name", ["smollm2", "gemma3"])
def test_the_first_prompt_is_the_same_with_either_template(
    tiny_tokenizer: PreTrainedTokenizerFast, tmp_path: Path, name: str
):
    text = SMOLLM2 if name == "smollm2" else FAMILIES[name].template
    model = a_model(tiny_tokenizer, tmp_path, text, FAMILIES[name])
    own, ours = Stage(model), Stage(model, chat_template=f"{name}_training")
    for messages in (QUESTION, [{"role": "system", "content": "Be brief."}, *QUESTION]):
        assert own.talk.prompt(messages) == ours.talk.prompt(messages)
    assert ours.talk.shown_by_template and not own.talk.shown_by_template


def family_of(name: str) -> Family:
    kinds = {"deepseek": "deepseek-v3", "gemma3": "gemma3", "llama3": "llama3", "smollm2": "smollm2"}
    return FAMILIES[next((kind for begin, kind in kinds.items() if name.startswith(begin)), "qwen3")]


@pytest.mark.spec("A-243")
@pytest.mark.parametrize("name", TEMPLATES)
def test_a_rollout_with_a_template_for_training_is_one_sequence(
    tiny_tokenizer: PreTrainedTokenizerFast, tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str
):
    family = family_of(name)
    stage = Stage(a_model(tiny_tokenizer, tmp_path, template(name), family), call_format="tagged")
    assert stage.talk.appends and caplog.messages == []
    (end,) = stage.renderer.encode(family.end)
    texts = [f"Hm.</think>{call_of('add', a=turn, b=5)}" for turn in range(2)]
    (rollout,) = stage.play(script(*([*stage.renderer.encode(text), end] for text in [*texts, "It is 9."])))
    assert (len(rollout.turns), rollout.tool_failure_count, len(sequences_of(rollout))) == (3, 0, 1)


@pytest.mark.parametrize(
    ("name", "thought"),
    [
        ("qwen3_training", "<think>\nHm.\n</think>\n\n"),
        ("qwen3_thinking_training", "Hm.\n</think>\n\n"),
        ("smollm2_training", ""),
        ("gemma3_training", ""),
        ("deepseek_r1_training", "Hm.\n</think>\n\n"),
        ("deepseek_r1_distill_training", "Hm.\n</think>\n\n"),
        ("deepseek_v3_1_training", ""),
    ],
)
def test_what_was_sampled_is_what_its_messages_are_written_as_again(
    tiny_tokenizer: PreTrainedTokenizerFast, tmp_path: Path, name: str, thought: str
):
    family = family_of(name)
    stage = Stage(a_model(tiny_tokenizer, tmp_path, template(name), family))
    (end,) = stage.renderer.encode(family.end)
    texts = [f"{thought}{QWEN_CALL}", f"{thought}{QWEN_CALL}\n{QWEN_CALL}", f"{thought}It is 9."]
    (rollout,) = stage.play(script(*([*stage.renderer.encode(text), end] for text in texts)))
    last, talk = rollout.turns[-1], stage.talk
    kept = stage.renderer.tokenizer.decode(last.prompt_ids + last.output_ids)
    again = stage.renderer.tokenizer.decode(talk.prompt([*QUESTION, *rollout.completion]))
    assert len(rollout.turns) == 3 and again.startswith(kept)


def test_a_template_that_is_not_there_or_of_another_family_is_refused(
    tiny_tokenizer: PreTrainedTokenizerFast, tiny_model: Path, tmp_path: Path
):
    (problem,) = problems_of(tiny_model, tmp_path, "gemma3_trainin")
    assert 'no template of agrpo; did you mean "gemma3_training"?' in problem
    (tmp_path / "odd.jinja").write_text("{{ raise_exception('no') }}")
    (problem,) = problems_of(tiny_model, tmp_path, str(tmp_path / "odd.jinja"))
    assert problem.startswith(f"model.chat_template: {tmp_path}/odd.jinja: ") and problem.endswith(": no")
    model = tmp_path / "model"
    model.mkdir()
    for file in tiny_model.iterdir():
        (model / file.name).write_bytes(file.read_bytes())
    a_model(tiny_tokenizer, model, FAMILIES["gemma3"].template, FAMILIES["gemma3"])
    (problem,) = problems_of(model, tmp_path, "llama3_training")
    assert 'belongs to "gemma3_training"; set that one' in problem
    assert problems_of(model, tmp_path, "gemma3_training", tools={"functions": [HERE]}) == []


@pytest.mark.parametrize(
    ("text", "made"),
    [("", "nothing"), ("hello", "'hello'"), ("{% for m in messages %}{{ m.role }}{% endfor %}", "'user'")],
)
def test_a_template_that_leaves_messages_out_is_refused_with_what_it_made(
    tiny_model: Path, tmp_path: Path, text: str, made: str
):
    (tmp_path / "mine.jinja").write_text(text)
    (problem,) = problems_of(tiny_model, tmp_path, str(tmp_path / "mine.jinja"))
    assert f'mine.jinja" leaves messages out: of the question "Aqueduct?" it made {made}, so that every' in problem


def test_a_template_whose_turns_end_with_no_mark_of_the_model_is_refused(
    tiny_tokenizer: PreTrainedTokenizerFast, tiny_model: Path, tmp_path: Path
):
    model = tmp_path / "model"
    shutil.copytree(tiny_model, model)
    a_model(tiny_tokenizer, model, FAMILIES["qwen2.5"].template, FAMILIES["qwen2.5"])
    (problem,) = problems_of(model, tmp_path, "gemma3_training")
    assert (
        'model.chat_template: "gemma3_training" ends a turn with <end_of_turn>, at which the model does not' in problem
    )
    assert problems_of(model, tmp_path, "qwen3_training") == []
    section = ModelSection(path=str(model), chat_template="gemma3_training")
    assert unfit_template("gemma3_training", Renderer(section)) == problem


def test_a_generator_refuses_what_nobody_could_look_at_before(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "prompts.jsonl").write_text('{"prompt": [{"role": "user", "content": "1+1 ="}]}')
    tree = settings(tiny_model, tmp_path / "prompts.jsonl", tmp_path)
    tree["model"]["chat_template"] = "llama3_training"
    monkeypatch.setattr(checks, "_with_tokenizer", lambda model: None)  # as of a hub id
    folder = prepare(resolve(values=tree))
    context = StageContext(run_url=folder.url, stage="generator-0", incarnation="one", stop=threading.Event())
    with pytest.raises(ModelError, match=r"ends a turn with <\|eot_id\|>.*; it stops at <\|end\|>"):
        generator.run(context)


def test_a_model_without_a_template_may_be_given_one(tiny_model: Path, tmp_path: Path):
    model = tmp_path / "model"
    model.mkdir()
    for file in tiny_model.iterdir():
        if file.name != "chat_template.jinja":
            (model / file.name).write_bytes(file.read_bytes())
    (problem,) = problems_of(model, tmp_path)
    assert problem.endswith("or set model.chat_template")
    (tmp_path / "mine.jinja").write_text("{% for m in messages %}{{ m.content }}{% endfor %}")
    assert problems_of(model, tmp_path, str(tmp_path / "mine.jinja")) == []


def test_a_model_of_the_hub_whose_tokenizer_is_here_is_checked_with_its_tools(
    tiny_model: Path, tiny_tokenizer: PreTrainedTokenizerFast, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    cache = tmp_path / "models--someone--small"
    snapshot = cache / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    (cache / "refs").mkdir()
    (cache / "refs" / "main").write_text("0" * 40)
    (snapshot / "config.json").write_bytes((tiny_model / "config.json").read_bytes())
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    tools: dict[str, Any] = {"tools": {"functions": [HERE]}}
    assert problems_of("someone/small", tmp_path, **tools) == []
    refuses = "{{ raise_exception('no tools') if tools else '' }}{% for m in messages %}{{ m.content }}{% endfor %}"
    tokenizer_with(tiny_tokenizer, snapshot, refuses)
    (problem,) = problems_of("someone/small", tmp_path, **tools)
    assert "take a model whose template can be given tools" in problem
    (snapshot / "tokenizer.json").unlink()
    assert problems_of("someone/small", tmp_path, **tools) == []


def test_an_export_carries_the_template_that_the_model_was_trained_with(tiny_model: Path, tmp_path: Path):
    from transformers import AutoTokenizer

    own: Any = AutoTokenizer.from_pretrained(tiny_model)
    for chat_template, expected in ((None, own.chat_template), ("qwen3_training", template("qwen3_training"))):
        section = ModelSection(path=str(tiny_model), chat_template=chat_template)
        write_model(tmp_path / str(chat_template), load_policy(section, "cpu"), section)
        exported: Any = AutoTokenizer.from_pretrained(tmp_path / str(chat_template))
        assert exported.chat_template == expected


def test_a_run_does_not_go_on_with_another_template(tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "prompts.jsonl").write_text(json.dumps({"prompt": [{"role": "user", "content": "1+1 ="}]}))
    mine = tmp_path / "mine.jinja"
    mine.write_text("{% for m in messages %}{{ m.content }}{% endfor %}")
    tree = settings(tiny_model, tmp_path / "prompts.jsonl", tmp_path)
    tree["model"]["chat_template"] = "mine.jinja"
    assert with_whole_paths(resolve(values=tree)).tree["model"]["chat_template"] == str(mine)
    folder = prepare(resolve(values=tree))
    check_unchanged(folder)
    mine.write_text("{% for m in messages %}{{ m.content }} {% endfor %}")
    with pytest.raises(ConfigError, match=r"changed: model\.chat_template"):
        check_unchanged(folder)
