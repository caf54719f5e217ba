from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from transformers import PreTrainedModel

from agrpo.policy.probe import make_probe
from agrpo.policy.verifying import verify_packing

MakeModel = Callable[..., PreTrainedModel]


def test_probe_holds_the_models_own_most_likely_next_tokens(make_model: MakeModel):
    model = make_model("gemma2")
    verify_packing(model)
    probe = make_probe(model, seed=3)
    assert (len(probe.token_ids), len(probe.top_ids), len(probe.top_logprobs)) == (32, 8, 8)
    model.set_attn_implementation("eager")
    logits = model(input_ids=torch.tensor([probe.token_ids]), use_cache=False).logits[0, -1]
    expected = logits.log_softmax(-1)[torch.tensor(probe.top_ids)].tolist()
    assert probe.top_logprobs == pytest.approx(expected, abs=1e-5)
    assert probe.top_logprobs == sorted(probe.top_logprobs, reverse=True)


def test_probe_is_a_function_of_seed_and_weights(make_model: MakeModel):
    model = make_model("llama")
    verify_packing(model)
    assert make_probe(model, 1) == make_probe(model, 1)
    assert make_probe(model, 1).token_ids != make_probe(model, 2).token_ids
    before = make_probe(model, 1)
    with torch.no_grad():
        model.lm_head.weight[before.top_ids[0]] += 0.05
    assert make_probe(model, 1).top_logprobs != before.top_logprobs


def test_vocabulary_of_four_is_told_whole(make_model: MakeModel):
    model = make_model("llama", vocab_size=4)
    verify_packing(model)
    assert sorted(make_probe(model, 0).top_ids) == [0, 1, 2, 3]
