"""What the transformers engine returns, against one plain forward of the same model."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
import transformers
from transformers import AutoModelForCausalLM

from agrpo.config import ModelSection
from agrpo.engines import Engine
from agrpo.engines.decoding.model import load_model
from agrpo.records.rollout import StopReason
from agrpo.records.sampling import Sampling
from tests.engines.asking import forced_distributions, group, prompt_of
from tests.policy.conftest import FAMILIES

SETTINGS = [
    {},
    {"temperature": 0.7},
    {"top_k": 20},
    {"top_k": 200, "top_p": 0.9},
    {"top_k": 200, "min_p": 0.05},
    {"top_k": 50, "top_p": 0.95, "min_p": 0.02, "temperature": 1.3},
]


@pytest.mark.spec("A-166")
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_tokens_and_their_log_probs_are_those_of_teacher_forcing(serve, tiny_model: Path, settings: dict[str, float]):
    requests = [request for length in (3, 9, 17, 30) for request in group(prompt_of(length), range(3), **settings)]
    turns = serve(lambda engine: engine.complete(requests))
    for request, turn in zip(requests, turns, strict=True):
        uniforms, logprobs = random.Random(request.seed), forced_distributions(tiny_model, turn, request.sampling)
        cdf = logprobs.exp().cumsum(-1)
        expected = [int((row > uniforms.random() * row[-1]).nonzero()[0]) for row in cdf]
        assert turn.output_ids == expected
        chosen = logprobs.gather(1, torch.tensor(turn.output_ids).unsqueeze(1)).squeeze(1)
        assert torch.tensor(turn.output_log_probs).double().sub(chosen).abs().max() < 1e-5


def test_the_most_likely_tokens_are_those_of_teacher_forcing(serve, tiny_model: Path):
    [turn] = serve(lambda engine: engine.complete(group(prompt_of(12), [3], num_sampler_logprobs=5, temperature=0.8)))
    for top, row in zip(
        turn.output_sampler_logprobs, forced_distributions(tiny_model, turn, Sampling(temperature=0.8)), strict=True
    ):
        values, ids = row.topk(5)
        assert list(top) == ids.tolist()
        assert list(top.values()) == pytest.approx(values.tolist(), abs=1e-5)


@pytest.mark.spec("A-166")
def test_log_probs_renormalised_over_the_candidates_are_the_samplers(serve, tiny_model: Path):
    requests = group(prompt_of(12), range(4), top_k=30, top_p=0.9)
    for turn in serve(lambda engine: engine.complete(requests)):
        whole = forced_distributions(tiny_model, turn, Sampling())
        for place, (token, candidates) in enumerate(zip(turn.output_ids, turn.output_sampling_mask, strict=True)):
            assert token in candidates
            renormalised = whole[place, token] - whole[place, candidates].logsumexp(0)
            assert turn.output_log_probs[place] == pytest.approx(float(renormalised), abs=1e-5)


def test_without_truncation_and_wishes_nothing_extra_is_kept(serve):
    [turn] = serve(lambda engine: engine.complete(group(prompt_of(5), [0])))
    assert turn.output_sampling_mask is None
    assert turn.output_sampler_logprobs is None


def test_a_stop_token_ends_the_turn_and_is_part_of_it(serve):
    stop = range(0, 400, 4)
    turns = serve(lambda engine: engine.complete(group(prompt_of(5), range(20), stop=stop, max_completion_length=6)))
    assert {turn.stop_reason for turn in turns} == {StopReason.STOP, StopReason.LENGTH}
    for turn in turns:
        stopped = turn.output_ids[-1] in stop
        assert (turn.stop_reason is StopReason.STOP) == stopped
        assert stopped or len(turn.output_ids) == 6
        assert not any(token in stop for token in turn.output_ids[:-1])


def test_a_stop_token_in_the_last_place_is_a_stop(serve):
    [turn] = serve(lambda engine: engine.complete(group(prompt_of(5), [0], stop=range(400), max_completion_length=1)))
    assert turn.stop_reason is StopReason.STOP


@pytest.mark.spec("A-171")
def test_a_turn_ends_where_the_models_positions_end(serve):
    [turn] = serve(lambda engine: engine.complete(group(prompt_of(1020), [0], stop=())))
    assert len(turn.output_ids) == 4
    assert turn.stop_reason is StopReason.LENGTH


def test_a_request_gives_the_same_tokens_alone_and_in_a_batch_of_other_lengths(serve):
    wanted = group(prompt_of(9), range(4))
    others = [request for length in (2, 40) for request in group(prompt_of(length), range(4), max_completion_length=30)]

    async def body(engine: Engine):
        return await engine.complete(wanted), await engine.complete([*others, *wanted])

    alone, together = serve(body)
    assert [turn.output_ids for turn in alone] == [turn.output_ids for turn in together[-4:]]


def test_a_call_larger_than_a_batch_is_answered_in_order(serve):
    requests = [request for length in (4, 6, 8) for request in group(prompt_of(length), range(5))]
    small = serve(lambda engine: engine.complete(requests), batch_rollouts=4)
    large = serve(lambda engine: engine.complete(requests))
    assert [(turn.prompt_ids, turn.output_ids) for turn in small] == [
        (turn.prompt_ids, turn.output_ids) for turn in large
    ]


def test_log_probs_of_the_next_token_are_those_of_a_plain_forward(serve, tiny_model: Path):
    from transformers import AutoModelForCausalLM

    ids = prompt_of(32)
    [given] = serve(lambda engine: engine.next_token_logprobs(ids, [0, 7, 200]))
    with torch.no_grad():
        logits = AutoModelForCausalLM.from_pretrained(tiny_model)(input_ids=torch.tensor([ids])).logits[0, -1]
    assert given == pytest.approx(logits.log_softmax(0)[[0, 7, 200]].tolist(), abs=1e-5)


def test_a_family_without_sdpa_decodes_as_its_own_forward(tmp_path: Path):
    """Gemma 2: capped scores, and windows of six tokens."""
    config = transformers.Gemma2Config(**FAMILIES["gemma2_capped"][1])
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    model = load_model(ModelSection(path=str(tmp_path)))
    ids = torch.randint(0, 64, (3, 15))
    mask, cache = torch.ones_like(ids), model.new_cache()
    read = [model.next_logits(ids[:, :9], mask[:, :9], torch.arange(9).expand(3, -1), cache)]
    for place in range(9, 15):
        position = torch.full((3, 1), place)
        read.append(model.next_logits(ids[:, place : place + 1], mask[:, : place + 1], position, cache))
    with torch.no_grad():
        whole = AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="eager")(ids, use_cache=False).logits
    assert torch.allclose(torch.stack(read, 1), whole[:, 8:], rtol=0, atol=1e-5)
