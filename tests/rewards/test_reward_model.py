"""A reward that is a sequence classifier: what it is worth, what it refuses, and its process."""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer

from agrpo.config import RewardSection
from agrpo.errors import ConfigError, RewardError
from agrpo.records.score import Unjudged
from agrpo.records.trainer_state import TrainerState
from agrpo.rewards import check_reward, load_reward, resident_of, rewards
from agrpo.rewards.sandbox import RewardRunner
from agrpo.rewards.sandbox.calls import housing_of
from agrpo.rewards.sandbox.limits import Limits
from agrpo.rewards.sandbox.process import Housing, RewardProcess
from tests.rewards.worlds import all_ended, descendants, group_of, run, score, section_of
from tests.rewards.worlds import with_runner as during

ANSWERS = ("4", "the answer is 4, or so I think", "", "<think>2+2=4</think>4" * 3, "five", "9;9-2=7", "no", "4 4")

STARTS_SECONDS = 300.0
SCORER = """
import asyncio, sys, time
from agrpo.config import RewardSection
from agrpo.rewards.sandbox import RewardRunner

async def wait():
    await RewardRunner(RewardSection(name="reward_model", settings={"path": sys.argv[1]})).start()
    print("loaded", flush=True)
    await asyncio.sleep(600)

asyncio.run(wait())
"""


def section(model: Path, *, weight: float = 1.0, timeout_seconds: float = 60.0, **settings: Any) -> RewardSection:
    return RewardSection(
        name="reward_model",
        weight=weight,
        timeout_seconds=timeout_seconds,
        settings={"path": str(model), **settings},
    )


def judged(model: Path, *answers: str, **settings: Any) -> list[Any]:
    """In this very process."""
    reward: Any = load_reward(section(model, **settings))
    return reward(group_of(*answers))


def changed(model: Path, folder: Path, file: str, change: Callable[[dict[str, Any]], Any]) -> Path:
    """A copy of the model whose JSON file is changed."""
    shutil.copytree(model, folder)
    document = json.loads((folder / file).read_text("utf-8"))
    change(document)
    (folder / file).write_text(json.dumps(document))
    return folder


def test_a_value_is_the_logit_of_the_whole_conversation_in_the_models_own_template(tiny_classifier: Path):
    tokenizer: Any = AutoTokenizer.from_pretrained(tiny_classifier)
    model: Any = AutoModelForSequenceClassification.from_pretrained(tiny_classifier)
    expected: list[float] = []
    for answer in ANSWERS:
        text = f"<|user|>2 + 2 =<|end|><|assistant|>{answer}<|end|>"
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        with torch.inference_mode():
            expected.append(model(input_ids=torch.tensor([ids])).logits[0, 0].item())
    values = judged(tiny_classifier, *ANSWERS, batch_size=1)
    assert values == pytest.approx(expected, abs=1e-5)
    assert max(values) - min(values) > 0.1


@pytest.mark.parametrize("batch_size", [2, 3, 8, 64])
def test_a_value_does_not_depend_on_what_it_is_batched_with(tiny_classifier: Path, batch_size: int):
    alone = judged(tiny_classifier, *ANSWERS, batch_size=1)
    together = judged(tiny_classifier, *ANSWERS, batch_size=batch_size)
    assert together == pytest.approx(alone, abs=1e-5)
    assert judged(tiny_classifier, *ANSWERS, batch_size=batch_size) == together


def an_encoder(kind: str, tokenizer: Any, folder: Path, **settings: Any) -> None:
    """A random one of a single layer, and the tokenizer."""
    widths: dict[str, Any] = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1}
    widths |= {"num_attention_heads": 2, "num_labels": 1, "initializer_range": 0.5}
    config: Any = AutoConfig
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        made = config.for_model(kind, vocab_size=len(tokenizer), **widths, **settings)
        AutoModelForSequenceClassification.from_config(made).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


@pytest.mark.parametrize("pad", [0, 5])
def test_positions_that_begin_behind_the_pad_are_fewer(tiny_tokenizer: Any, tmp_path: Path, pad: int):
    an_encoder("roberta", tiny_tokenizer, tmp_path, max_position_embeddings=20 + pad + 1, pad_token_id=pad)
    fits, long = judged(tmp_path, "7" * 11, "7" * 12)
    assert isinstance(fits, float)
    assert isinstance(long, Unjudged) and "has 21 tokens, the reward model takes 20" in long.reason
    (told,) = check_reward(section(tmp_path, max_length=21))
    assert "the model has positions for 20 tokens" in told


def test_an_encoder_judges_like_a_decoder(tiny_tokenizer: Any, tmp_path: Path):
    an_encoder("bert", tiny_tokenizer, tmp_path)
    alone = judged(tmp_path, *ANSWERS, batch_size=1)
    assert judged(tmp_path, *ANSWERS) == pytest.approx(alone, abs=1e-5)
    assert max(alone) - min(alone) > 0.01


def test_in_bfloat16_values_are_those_of_float32_but_for_its_rounding(tiny_classifier: Path):
    exact, rounded = (judged(tiny_classifier, *ANSWERS, dtype=dtype) for dtype in ("float32", "bfloat16"))
    assert rounded != exact
    assert rounded == pytest.approx(exact, rel=0.1, abs=0.1)


@pytest.mark.parametrize("own", [None, -1, 0, 1])
@pytest.mark.parametrize("pad_token", [None, "<|end|>", "<|pad|>"])
def test_a_text_that_ends_with_eos_is_worth_what_the_plain_model_gives_it(
    tiny_classifier: Path, tmp_path: Path, own: int | None, pad_token: str | None
):
    """`own`: the pad of the model's configuration, of which 1 is the EOS too."""
    folder = changed(tiny_classifier, tmp_path / "one", "config.json", lambda told: told.update(pad_token_id=own))
    folder = changed(folder, tmp_path / "two", "tokenizer_config.json", lambda told: told.update(pad_token=pad_token))
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    model: Any = AutoModelForSequenceClassification.from_pretrained(folder)
    expected: list[float] = []
    for answer in ANSWERS:
        text = f"<|user|>2 + 2 =<|end|><|assistant|>{answer}<|end|>"
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        with torch.inference_mode():
            expected.append(model(input_ids=torch.tensor([ids])).logits[0, 0].item())
    assert judged(folder, *ANSWERS) == pytest.approx(expected, abs=1e-5)


def test_messages_are_put_one_behind_the_other_where_that_is_asked_for(tiny_classifier: Path):
    tokenizer: Any = AutoTokenizer.from_pretrained(tiny_classifier)
    model: Any = AutoModelForSequenceClassification.from_pretrained(tiny_classifier)
    with torch.inference_mode():
        logit = model(input_ids=torch.tensor([tokenizer("2 + 2 =four")["input_ids"]])).logits[0, 0].item()
    assert judged(tiny_classifier, "four", conversation="concatenate") == pytest.approx([logit], abs=1e-5)


def test_a_text_that_is_too_long_has_no_value_and_the_others_have_theirs(tiny_classifier: Path):
    first, long, last = judged(tiny_classifier, "4", "7" * 300, "no")
    assert [first, last] == judged(tiny_classifier, "4", "no")
    assert isinstance(long, Unjudged)
    assert long.reason == ("its text has 309 tokens, the reward model takes 256 (max_length), and none is cut")


def test_a_conversation_that_the_template_cannot_write_has_no_value(tiny_classifier: Path, tmp_path: Path):
    folder = tmp_path / "model"
    shutil.copytree(tiny_classifier, folder)
    refusing = "{{ raise_exception('no four') if messages[-1]['content'] == '4' else messages[-1]['content'] }}"
    (folder / "chat_template.jinja").write_text(refusing)
    refused, value = judged(folder, "4", "5")
    assert isinstance(refused, Unjudged) and "chat template" in refused.reason and "no four" in refused.reason
    assert isinstance(value, float)


def test_a_template_that_cannot_write_a_question_and_its_answer_is_refused(tiny_classifier: Path, tmp_path: Path):
    folder = tmp_path / "model"
    shutil.copytree(tiny_classifier, folder)
    (folder / "chat_template.jinja").write_text("{{ raise_exception('no judge named') if not judge else judge }}")
    (told,) = check_reward(section(folder))
    assert "its chat template cannot write a question and its answer" in told and "no judge named" in told
    assert check_reward(section(folder, chat_template_kwargs={"judge": "me"})) == []
    assert check_reward(section(folder, conversation="concatenate")) == []


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        (
            "config.json",
            {"architectures": ["Qwen3ForCausalLM"]},
            r"is Qwen3ForCausalLM; expected a sequence classifier \(…ForSequenceClassification\)",
        ),
        ("config.json", {"id2label": {"0": "a", "1": "b"}}, "has num_labels = 2; expected 1"),
        ("config.json", {"architectures": None}, "a model that names no architecture"),
        (
            "config.json",
            {"architectures": ["Own"], "auto_map": {"AutoModelForSequenceClassification": "own.Own"}},
            "set trust_remote_code = true",
        ),
        ("tokenizer_config.json", {"pad_token": None, "eos_token": None}, "has no pad token and no EOS"),
    ],
)
def test_a_model_that_is_no_reward_model_is_refused(
    tiny_classifier: Path, tmp_path: Path, file: str, change: dict[str, Any], message: str
):
    folder = changed(tiny_classifier, tmp_path / "model", file, lambda document: document.update(change))
    (told,) = check_reward(section(folder))
    assert told.startswith('reward "reward_model": ')
    with pytest.raises(RewardError, match=message):
        raise RewardError(told)


def test_what_is_not_there_is_refused(tiny_classifier: Path, tmp_path: Path):
    nowhere, bare, headless = tmp_path / "nowhere", tmp_path / "bare", tmp_path / "headless"
    assert f"path: no folder {nowhere}; give" in check_reward(section(nowhere))[0]
    assert f"tokenizer: no folder {nowhere}; give" in check_reward(section(tiny_classifier, tokenizer=str(nowhere)))[0]
    bare.mkdir()
    assert f"{bare} has no config.json" in check_reward(section(bare))[0]
    shutil.copy(tiny_classifier / "config.json", bare)
    assert f"{bare} has no weights" in check_reward(section(bare))[0]
    shutil.copy(tiny_classifier / "model.safetensors", bare)
    assert f"tokenizer: {bare} has no vocabulary" in check_reward(section(bare))[0]
    assert "no model of that id can be had from the hub" in check_reward(section(Path("nobody/nothing")))[0]
    shutil.copytree(tiny_classifier, headless)
    (headless / "chat_template.jinja").unlink()
    assert "has no chat template" in check_reward(section(headless))[0]
    assert check_reward(section(headless, conversation="concatenate")) == []


def test_a_length_beyond_the_models_positions_is_refused(tiny_classifier: Path):
    assert check_reward(section(tiny_classifier, max_length=256)) == []
    (told,) = check_reward(section(tiny_classifier, max_length=257))
    assert "max_length = 257: the model has positions for 256 tokens; set 256 or less" in told


@pytest.mark.parametrize(
    "settings",
    [{"device": "gpu"}, {"batch_size": 0}, {"dtype": "int8"}, {"threads": 0}, {"load_seconds": 0}, {"path": ""}],
)
def test_a_knob_out_of_its_range_is_refused(tiny_classifier: Path, settings: dict[str, Any]):
    with pytest.raises(ConfigError, match=f"^{next(iter(settings))} = "):
        rewards.build("reward_model", {"path": str(tiny_classifier), **settings})


def test_a_head_that_is_not_in_the_files_is_refused_and_not_drawn_at_random(tiny_classifier: Path, tmp_path: Path):
    from safetensors.torch import load_file, save_file

    folder = tmp_path / "model"
    shutil.copytree(tiny_classifier, folder)
    weights = load_file(folder / "model.safetensors")
    weights.pop("score.weight")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(RewardError, match=r"has no score\.weight, which would be drawn at random"):
        judged(folder, "4")


async def values_of(runner: RewardRunner) -> list[float | None]:
    return (await runner.score(group_of(*ANSWERS))).values


def process_of(others: set[int]) -> int:
    """The only one that was not there before."""
    (found,) = descendants(os.getpid()) - others
    return found


def during_calls(model: Path, work: Callable[[RewardRunner], Any], **limits: Any) -> None:
    """Each start of torch takes seconds, on a machine with other work a good many."""
    asyncio.run(asyncio.wait_for(during(section(model, **limits), work), STARTS_SECONDS))


def test_its_process_loads_once_and_is_started_again_when_it_was_killed(tiny_classifier: Path):
    others, expected = descendants(os.getpid()), judged(tiny_classifier, *ANSWERS)

    async def work(runner: RewardRunner) -> None:
        assert await values_of(runner) == expected
        first = process_of(others)
        assert await values_of(runner) == expected and process_of(others) == first
        os.kill(first, signal.SIGKILL)
        assert await values_of(runner) == expected and process_of(others) != first

    during_calls(tiny_classifier, work)
    assert descendants(os.getpid()) <= others


@pytest.mark.slow
def test_a_group_whose_process_is_killed_in_the_middle_is_judged_by_the_next(tiny_classifier: Path):
    others, expected = descendants(os.getpid()), judged(tiny_classifier, *ANSWERS)

    async def work(runner: RewardRunner) -> None:
        await runner.start()
        first = process_of(others)
        os.kill(first, signal.SIGSTOP)  # so that it is in the middle of the call for as long as is needed
        asked = asyncio.create_task(values_of(runner))
        await asyncio.sleep(0.1)
        assert not asked.done()
        os.kill(first, signal.SIGKILL)
        assert await asked == expected

    during_calls(tiny_classifier, work)


@pytest.mark.slow
def test_a_call_that_hangs_ends_with_its_time_and_the_next_has_a_new_process(tiny_classifier: Path):
    others, expected = descendants(os.getpid()), judged(tiny_classifier, *ANSWERS)

    async def work(runner: RewardRunner) -> None:
        await runner.start()
        first = process_of(others)
        os.kill(first, signal.SIGSTOP)
        scored = await runner.score(group_of("4"))
        assert scored.values == [None] and all_ended({first})
        assert scored.errors == ["it gave no answer within 3 s (rewards.timeout_seconds)"]
        assert await values_of(runner) == expected

    during_calls(tiny_classifier, work, timeout_seconds=3.0)


@pytest.mark.slow
def test_a_scorer_that_is_killed_takes_the_process_with_it(tiny_classifier: Path):
    scorer = subprocess.Popen(
        [sys.executable, "-c", SCORER, str(tiny_classifier)],
        env={**os.environ, "PYTHONPATH": os.getcwd()},
        stdout=subprocess.PIPE,
    )
    with scorer:
        assert scorer.stdout is not None and scorer.stdout.readline() == b"loaded\n"
        started = descendants(scorer.pid)
        assert len(started) == 1
        os.kill(min(started), signal.SIGSTOP)  # it watches nothing
        scorer.kill()
    assert all_ended(started)


@pytest.mark.slow
def test_what_nobody_foresaw_costs_its_group_the_process_and_others_nothing(tiny_classifier: Path, tmp_path: Path):
    folder = changed(tiny_classifier, tmp_path / "model", "config.json", lambda document: document)
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_tokens(["<unknown to the model>"])
    tokenizer.save_pretrained(folder)
    others, expected = descendants(os.getpid()), judged(folder, "4")

    async def work(runner: RewardRunner) -> None:
        scored = await runner.score(group_of("<unknown to the model>"))
        assert scored.values == [None] and "IndexError" in str(scored.errors[0])
        first = process_of(others) if descendants(os.getpid()) - others else None
        assert (await runner.score(group_of("4"))).values == expected and process_of(others) != first

    during_calls(folder, work)


def test_a_model_that_does_not_load_in_its_time_is_given_up(tiny_classifier: Path):
    others = descendants(os.getpid())
    with pytest.raises(RewardError, match=r"its process did not answer within 0\.3 s \(load_seconds\)"):
        score(section(tiny_classifier, load_seconds=0.3), group_of("4"))
    assert all_ended(descendants(os.getpid()) - others)


@pytest.mark.parametrize(("device", "gpus"), [("cpu", ""), ("cuda", "2,3"), ("cuda:1", "2,3")])
def test_its_process_sees_the_gpus_of_the_run_only_where_it_asks_for_one(tiny_classifier: Path, device: str, gpus: str):
    resident = resident_of(section(tiny_classifier, device=device))
    assert resident is not None
    assert housing_of(resident, "2,3").gpus == gpus


@pytest.mark.parametrize(("gpus", "is_empty"), [("", 1.0), ("2,3", 0.0), (None, 0.0)])
def test_a_process_sees_the_gpus_that_its_housing_says(
    monkeypatch: pytest.MonkeyPatch, gpus: str | None, is_empty: float
):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # as in the scorer
    judge = section_of("environment")
    limits = Limits.of(judge, reproducible=False)
    group = group_of("a", variable="CUDA_VISIBLE_DEVICES")

    async def ask() -> list[float | None]:
        process = await RewardProcess(judge, limits, Housing(gpus=gpus)).start()
        try:
            return (await process.ask(pickle.dumps((group, TrainerState())))).values
        finally:
            await process.close()

    assert run(ask()) == [is_empty]


def test_a_check_of_another_reward_cannot_be_a_reward_model(tiny_classifier: Path):
    settings = {"check": "reward_model", "check_settings": {"path": str(tiny_classifier)}}
    (told,) = check_reward(RewardSection(name="cosine_scaled", settings=settings))
    assert "expected a reward that judges each answer by itself" in told
