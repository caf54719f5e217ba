"""Samples in a row that shares their prefixes, held against each sample read alone by the model's own forward."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, PreTrainedModel

from agrpo.packing.sequence import Sequence
from agrpo.packing.tree import Tree
from agrpo.policy.logprobs import row_logprobs
from agrpo.policy.verifying import verify_packing
from agrpo.records.sample import Sample, TokenSequence

MakeModel = Callable[..., PreTrainedModel]
ATTENTION = ["llama", "qwen3", "qwen3_moe", "gemma2_capped", "gemma3", "mistral", "deepseek_v3"]
HYBRIDS = ["qwen3_5", "qwen3_5_moe", "qwen3_next", "olmo_hybrid", "lara_mini"]
TOLERANCE = {family: 1e-5 for family in ATTENTION} | {family: 1e-3 for family in HYBRIDS}
SMOLLM2 = Path(__file__).parents[2] / "runs" / "start" / "smollm2"


def sample_of(tokens: list[int], number: int) -> Sample:
    """All tokens but the first are trained."""
    length = len(tokens)
    sequence = TokenSequence(
        tokens=tokens,
        trained=[False] + [True] * (length - 1),
        sampler_logprobs=[0.0] + [-1.0] * (length - 1),
        versions=[0] * length,
    )
    return Sample(ticket=0, rollout_index=number, sequence_index=0, sequence=sequence, advantage=1.0, staleness=0)


def family_tree(longest: int) -> list[list[int]]:
    """Forks inside completions, a sample that begins another, one that repeats another, one that shares nothing."""
    generator = torch.Generator().manual_seed(3)

    def draw(length: int) -> list[int]:
        return torch.randint(0, 64, (length,), generator=generator).tolist()

    prompt = draw(longest // 2)
    answer = prompt + draw(longest // 4)
    fork = answer + draw(longest // 8)
    return [
        fork + draw(9),
        answer,
        fork + draw(7),
        prompt + draw(4),
        answer[:-1],
        draw(3),
        fork + draw(9),
        answer,
        fork,
    ]


@st.composite
def families(draw: st.DrawFn) -> list[list[int]]:
    """Random samples: each goes on from a random place of an earlier one, or repeats it up to there, or begins anew."""
    tokens = st.lists(st.integers(0, 63), min_size=1, max_size=12)
    samples = [draw(tokens) + draw(tokens)]
    for _ in range(draw(st.integers(1, 6))):
        root = draw(st.sampled_from([[], *samples]))
        grown = root[: draw(st.integers(0, len(root)))] + draw(st.one_of(st.just([]), tokens))
        samples.append(grown if len(grown) > 1 else grown + draw(tokens) + draw(tokens))
    return samples


def alone(model: PreTrainedModel, samples: list[list[int]], attention: str = "eager") -> torch.Tensor:
    """Log-probs of all tokens but the first ones, by the model's own forward of each sample."""
    model.set_attn_implementation(attention)
    read: list[torch.Tensor] = []
    for sample in samples:
        tokens = torch.tensor([sample])
        logits = model(input_ids=tokens, use_cache=False).logits[0, :-1]
        read.append(logits.log_softmax(-1).gather(1, tokens[0, 1:, None])[:, 0])
    return torch.cat(read)


def packed(model: PreTrainedModel, samples: list[list[int]]) -> torch.Tensor:
    verify_packing(model)
    row = Tree().lay_out([sample_of(tokens, number) for number, tokens in enumerate(samples)])
    return row_logprobs(model, row, temperature=1.0).logprobs


def assert_equal_alone(model: PreTrainedModel, samples: list[list[int]], tolerance: float) -> None:
    """Values and gradients."""
    expected, weights = alone(model, samples), list(model.parameters())
    cotangent = torch.linspace(-1, 1, len(expected))
    wanted = torch.autograd.grad((expected * cotangent).sum(), weights)
    found = packed(model, samples)
    assert torch.allclose(found, expected, rtol=0, atol=tolerance)
    for gradient, want in zip(torch.autograd.grad((found * cotangent).sum(), weights), wanted, strict=True):
        assert (gradient - want).norm() <= tolerance * want.norm() + tolerance / 10


@pytest.mark.spec("A-146", "A-147")
@pytest.mark.parametrize("family", ATTENTION)
def test_each_sample_of_a_trie_row_is_read_as_if_alone(family: str, make_model: MakeModel):
    assert_equal_alone(make_model(family), family_tree(64), TOLERANCE[family])


@pytest.mark.spec("A-018", "A-156")
@pytest.mark.parametrize("family", HYBRIDS)
def test_each_sample_of_a_hybrid_goes_on_from_its_own_state(family: str, make_model: MakeModel):
    assert_equal_alone(make_model(family), family_tree(180), TOLERANCE[family])


@pytest.mark.spec("A-147")
@pytest.mark.parametrize("family", ["qwen3", "gemma2_capped", "gemma3", "qwen3_5"])
@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(samples=families())
def test_samples_of_any_trie_are_read_as_if_alone(family: str, make_model: MakeModel, samples: list[list[int]]):
    assert_equal_alone(make_model(family), samples, TOLERANCE[family])


@pytest.mark.parametrize("family", ["qwen3", "qwen3_5"])
def test_a_row_that_shares_gives_what_whole_samples_side_by_side_give(family: str, make_model: MakeModel):
    model, samples = make_model(family), family_tree(64)
    verify_packing(model)
    made = [sample_of(tokens, number) for number, tokens in enumerate(samples)]
    rows = [packing.lay_out(made) for packing in (Tree(), Sequence())]
    shared, whole = (row_logprobs(model, row, temperature=1.0).logprobs for row in rows)
    assert rows[0].num_tokens < rows[1].num_tokens / 2
    assert torch.allclose(shared, whole, rtol=0, atol=TOLERANCE[family])


@pytest.mark.parametrize("family", ["gemma3", "qwen3_5"])
@pytest.mark.parametrize("threads", [1, 2])
def test_a_trie_row_repeats_itself_bit_for_bit(family: str, threads: int, make_model: MakeModel):
    model, samples = make_model(family), family_tree(180)
    weights = list(model.parameters())
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(True)
    try:
        once, again = (torch.autograd.grad(packed(model, samples).sum(), weights) for _ in range(2))
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(torch.equal(one, other) for one, other in zip(once, again, strict=True))


@pytest.mark.slow
@pytest.mark.spec("A-147")
@pytest.mark.skipif(not SMOLLM2.is_dir(), reason="the model is made by examples/smollm2/prepare.py")
def test_smollm2_reads_a_trie_row_as_it_reads_each_sample_alone():
    model = AutoModelForCausalLM.from_pretrained(SMOLLM2, dtype=torch.float32).eval()
    samples = family_tree(120)
    with torch.no_grad():
        expected = alone(model, samples)
        kernel_alone = (alone(model, samples, "sdpa") - expected).abs().max()
        found = packed(model, samples)
    assert (found - expected).abs().max() <= max(1e-4, 2 * kernel_alone)
