"""Whatever a model samples over whatever template: each token is trained once, with its own log-prob, and no other token is."""

from __future__ import annotations

import json
import random
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agrpo.records.rollout import Rollout
from agrpo.records.sample import sequences_of
from agrpo.templates import TEMPLATES, template
from tests.stages.families import FAMILIES, Family
from tests.stages.playing import Line, Stage, tokenizer_with
from tests.stages.returned import assert_trained_once
from tests.stages.test_conversation import FORGETFUL
from tests.stages.test_training_templates import family_of

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

WORDS = ["hello there", "4+5=9", "é\n", " ", "<think>", "</think>", "\u2060", "State the final answer", "|> "]
ARGUMENTS = [{"a": 4, "b": 5}, {"a": -1, "b": "x"}, {}]
OWN = [*FAMILIES, "forgetful"]


@cache
def stage_of(folder: Path, tokenizer: PreTrainedTokenizerFast, name: str) -> tuple[Stage, Family]:
    """The tools of the tests told to a model of this template."""
    family = FAMILIES[name] if name in FAMILIES else family_of(name)
    text = FORGETFUL if name == "forgetful" else template(name) if name in TEMPLATES else family.template
    end = "<|end|>" if name == "forgetful" else family.end
    model = tokenizer_with(tokenizer, folder / name, text, *family.tokens, end=end)
    return Stage(model, call_format="tagged" if name in TEMPLATES else None), family


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("families")


def sampled(draw: random.Random, stage: Stage, text: str) -> list[int]:
    """Tokens of the text, cut anywhere, as a model may sample them: seldom those that the tokenizer would make of it."""
    pieces: list[str] = []
    while text:
        length = draw.choice([1, 1, 2, 5, 9, 40])
        pieces.append(text[:length])
        text = text[length:]
    return [token for piece in pieces for token in stage.renderer.encode(piece)]


def a_turn(draw: random.Random, stage: Stage, family: Family, *, last: bool) -> Line:
    """Thoughts, words, calls, half calls and tokens at random, in any order; the last turn calls nothing."""
    ends = sorted(stage.renderer.stop_ids)
    calls = [
        family.call,
        f"<tool_call>{json.dumps({'name': draw.choice(['add', 'ad']), 'arguments': draw.choice(ARGUMENTS)})}</tool_call>",
        family.call[: draw.randrange(len(family.call))],
    ]
    parts = [draw.choice(WORDS), f"<think>{draw.choice(WORDS)}</think>", draw.choice(WORDS)]
    texts = ["9"] if last else [*parts[: draw.randrange(4)], *draw.choices(calls, k=draw.randrange(1, 3))]
    ids = [token for text in texts for token in sampled(draw, stage, text)]
    odd = [token for token in range(2, len(stage.renderer.tokenizer)) if token not in ends]
    if draw.random() < 0.3:
        ids = [*draw.choices(odd, k=draw.randrange(1, 6)), *ids]
    return [*ids, draw.choice(ends)] if draw.random() < 0.95 else [*ids, draw.choice(odd)]


def played(stage: Stage, family: Family, seed: int, num_turns: int) -> list[Rollout]:
    draws = [random.Random(f"{seed}/{index}") for index in range(2)]
    lines = [[a_turn(draw, stage, family, last=turn == num_turns) for turn in range(num_turns + 1)] for draw in draws]
    return stage.play(lambda index, turn: lines[index][turn], rollouts=2, most=1000)


@pytest.mark.spec("A-247")
@pytest.mark.parametrize("name", [*OWN, *TEMPLATES])
def test_every_token_is_trained_once_and_the_context_never(
    tiny_tokenizer: PreTrainedTokenizerFast, folder: Path, name: str
):
    stage, family = stage_of(folder, tiny_tokenizer, name)

    @settings(max_examples=12, deadline=None, derandomize=True, database=None)
    @given(seed=st.integers(0, 2**32), num_turns=st.integers(0, 4))
    def hold(seed: int, num_turns: int) -> None:
        for rollout in played(stage, family, seed, num_turns):
            assert stage.engine is not None
            returned = stage.engine.returned[rollout.index]
            assert_trained_once(rollout, returned)
            if stage.talk.appends:
                assert len(sequences_of(rollout)) == 1

    hold()


def test_what_is_played_calls_fails_and_is_written_in_other_tokens_than_the_tokenizers(
    tiny_tokenizer: PreTrainedTokenizerFast, folder: Path
):
    stage, family = stage_of(folder, tiny_tokenizer, "qwen3_training")
    rollouts = [rollout for seed in range(20) for rollout in played(stage, family, seed, 4)]
    turns = [turn for rollout in rollouts for turn in rollout.turns]
    again = [stage.renderer.encode(stage.renderer.tokenizer.decode(turn.output_ids)) for turn in turns]
    assert sum(ids != turn.output_ids for ids, turn in zip(again, turns, strict=True)) > len(turns) / 2
    assert len({len(rollout.turns) for rollout in rollouts}) > 2
    failures: set[Any] = {call.failure for rollout in rollouts for call in rollout.tool_calls}
    assert len(failures) >= 4 and None in failures
