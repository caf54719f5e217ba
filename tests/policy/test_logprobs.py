from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from agrpo.errors import ModelError
from agrpo.losses.clip import Clip
from agrpo.packing.sequence import Sequence
from agrpo.policy.logprobs import next_token_logprobs, row_logprobs
from agrpo.policy.verifying import verify_packing
from agrpo.records.batch import Row
from agrpo.records.sample import Sample
from agrpo.records.tokens import TokenInputs

MakeModel = Callable[..., PreTrainedModel]
MakeSamples = Callable[..., list[Sample]]
LENGTHS = [9, 9, 4, 12, 12, 12, 7]


def alone(model: PreTrainedModel, sample: Sample, temperature: float) -> torch.Tensor:
    """Log-probs of a sample's trained tokens by the model's own forward of that sample."""
    tokens = torch.tensor([sample.sequence.tokens])
    logits = model(input_ids=tokens, use_cache=False).logits[0, :-1] / temperature
    return logits.log_softmax(-1).gather(1, tokens[0, 1:, None])[torch.tensor(sample.sequence.trained[1:]), 0]


@pytest.mark.spec("A-147", "A-130")
@pytest.mark.parametrize("family", ["qwen3", "llama", "gpt2", "mistral", "gemma2"])
def test_packed_logprobs_and_gradients_are_those_of_each_sample_alone(
    family: str, make_model: MakeModel, make_samples: MakeSamples
):
    model, samples = make_model(family), make_samples(LENGTHS)
    model.set_attn_implementation("eager")
    expected = torch.cat([alone(model, sample, 0.7) for sample in samples])
    weights = torch.linspace(-1, 1, len(expected))
    expected_gradients = torch.autograd.grad((expected * weights).sum(), list(model.parameters()))
    verify_packing(model)
    found = row_logprobs(model, Sequence().lay_out(samples), temperature=0.7, chunk=5).logprobs
    gradients = torch.autograd.grad((found * weights).sum(), list(model.parameters()))
    assert found.dtype == torch.float32 and torch.allclose(found, expected, rtol=0, atol=1e-5)
    for gradient, wanted in zip(gradients, expected_gradients, strict=True):
        assert (gradient - wanted).norm() <= 1e-5 * wanted.norm() + 1e-7


def test_entropy_is_that_of_the_next_token_and_carries_no_gradient(make_model: MakeModel, make_samples: MakeSamples):
    model, [sample] = make_model("llama"), make_samples([6], trained=2)
    verify_packing(model)
    read = row_logprobs(model, Sequence().lay_out([sample]), temperature=1.0)
    probs = next_token_logprobs(model, sample.sequence.tokens[:5]).exp()
    assert read.entropy[1].item() == pytest.approx(-(probs * probs.log()).sum().item(), rel=1e-5)
    assert not read.entropy.requires_grad


def test_tiles_change_neither_logprobs_nor_entropy(make_model: MakeModel, make_samples: MakeSamples):
    model, row = make_model("qwen3"), Sequence().lay_out(make_samples(LENGTHS))
    verify_packing(model)
    one, many = (row_logprobs(model, row, temperature=1.0, chunk=chunk) for chunk in (1024, 4))
    assert torch.allclose(one.logprobs, many.logprobs, atol=1e-6)
    assert torch.allclose(one.entropy, many.entropy, atol=1e-6)


def test_confident_prediction_keeps_its_digits_in_value_and_gradient(make_model: MakeModel):
    row = ascending_row(32)
    results: dict[torch.dtype, tuple[torch.Tensor, torch.Tensor]] = {}
    for kind in (torch.float64, torch.float32):
        model = make_model("phi", tie_word_embeddings=False).to(kind)
        verify_packing(model)
        with torch.no_grad():
            model.lm_head.weight.zero_()
            model.lm_head.bias.copy_(torch.where(torch.arange(64) == 9, 20.0, 0.0))
        logprobs = row_logprobs(model, replace(row, targets=np.full(31, 9)), temperature=1.0).logprobs
        logprobs.sum().backward()
        results[kind] = logprobs.detach().double(), model.lm_head.bias.grad.double()
    exact = 63 * math.exp(-20)
    assert results[torch.float32][0][0].item() == pytest.approx(-math.log1p(exact), rel=1e-5)
    assert torch.allclose(results[torch.float32][1], results[torch.float64][1], rtol=1e-5, atol=0)


def ascending_row(length: int) -> Row:
    """One sample of the tokens 0, 1, 2, …; all but the first are trained."""
    places = np.arange(length)
    zeros = np.zeros(length - 1, np.float32)
    return Row(
        tokens=places,
        positions=places,
        parents=places - 1,
        index=places[:-1],
        targets=places[1:],
        sample=np.zeros(length - 1, np.int64),
        sampler_logprobs=zeros,
        advantages=zeros,
        num_samples=1,
    )


def four_words(make_model: MakeModel) -> PreTrainedModel:
    """A vocabulary of 4 whose next-token probabilities are always .5, .3, .15, .05."""
    model = make_model("phi", vocab_size=4)
    verify_packing(model)
    with torch.no_grad():
        model.lm_head.weight.zero_()
        model.lm_head.bias.copy_(torch.tensor([0.5, 0.3, 0.15, 0.05]).log())
    return model


@pytest.mark.spec("K27", "A-166")
@pytest.mark.parametrize(("temperature", "sampled"), [(1.0, [0.5 / 0.8, 0.3 / 0.8]), (0.5, [0.25 / 0.34, 0.09 / 0.34])])
def test_unchanged_policy_has_ratio_one_over_the_candidate_set(
    temperature: float, sampled: list[float], make_model: MakeModel
):
    row = replace(ascending_row(3), targets=np.array([0, 1]), candidates=[[0, 1], [1, 0]])
    logprobs = row_logprobs(four_words(make_model), row, temperature=temperature).logprobs
    tokens = TokenInputs(
        logprobs=logprobs,
        sampler_logprobs=torch.tensor(sampled).log(),
        advantages=torch.ones(2),
        sample=torch.zeros(2, dtype=torch.long),
        num_samples=1,
    )
    assert Clip()(tokens).measures["importance_ratio"].tolist() == pytest.approx([1.0, 1.0], abs=1e-6)


@pytest.mark.spec("K27")
def test_without_a_candidate_set_logprobs_are_over_the_vocabulary(make_model: MakeModel):
    row = replace(ascending_row(3), targets=np.array([0, 1]), candidates=[[], [0, 1]])
    logprobs = row_logprobs(four_words(make_model), row, temperature=1.0).logprobs
    assert logprobs.tolist() == pytest.approx([math.log(0.5), math.log(0.375)], rel=1e-5)


def test_token_that_was_the_only_candidate_has_logprob_zero_and_no_gradient(make_model: MakeModel):
    model = make_model("gemma2", vocab_size=4)
    verify_packing(model)
    row = replace(ascending_row(2), targets=np.array([2]), candidates=[[2]])
    read = row_logprobs(model, row, temperature=1.0)
    read.logprobs.sum().backward()
    assert (read.logprobs.item(), read.entropy.item()) == (0.0, 0.0)
    assert all(weight.grad is None or not weight.grad.any() for weight in model.parameters())


def test_candidates_change_no_gradient_but_that_of_candidates(make_model: MakeModel):
    model = make_model("gemma2", vocab_size=8).double()
    verify_packing(model)
    row = replace(ascending_row(4), targets=np.array([1, 2, 3]), candidates=[[1, 5], [2, 0, 7], []])
    model.zero_grad()
    row_logprobs(model, row, temperature=0.7).logprobs.sum().backward()
    found = {name: weight.grad.clone() for name, weight in model.named_parameters()}
    model.zero_grad()
    model.set_attn_implementation("eager")
    logits = model(input_ids=torch.arange(4)[None], use_cache=False).logits[0, :3] / 0.7
    kept = torch.ones(3, 8, dtype=torch.bool)
    kept[0], kept[1] = False, False
    kept[0, [1, 5]], kept[1, [2, 0, 7]] = True, True
    logits.masked_fill(~kept, -torch.inf).log_softmax(-1)[range(3), [1, 2, 3]].sum().backward()
    for name, weight in model.named_parameters():
        assert (found[name] - weight.grad).norm() <= 1e-6 * weight.grad.norm(), name


def test_token_outside_its_own_candidate_set_is_refused(make_model: MakeModel):
    row = replace(ascending_row(2), targets=np.array([2]), candidates=[[0, 1]])
    with pytest.raises(ModelError, match="not in its own candidate set"):
        row_logprobs(four_words(make_model), row, temperature=1.0)


def test_model_under_another_attention_is_never_read_as_a_row(make_model: MakeModel):
    with pytest.raises(AssertionError, match="attention is eager"):
        model = make_model("llama")
        model.set_attn_implementation("eager")
        row_logprobs(model, ascending_row(3), temperature=1.0)
