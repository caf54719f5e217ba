"""The head's own derivative against a vocabulary written out, in float64 and where a prediction is nearly certain."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from agrpo.policy import tiles
from agrpo.policy.head import Head
from agrpo.policy.tiles import Read, read_targets
from agrpo.records.top_tokens import NO_TOKEN

POSITIONS = torch.tensor([0, 1, 1, 3, 2, 1])
TARGETS = torch.tensor([0, 4, 6, 2, 2, 6])
TOP = torch.tensor([[3, 0, NO_TOKEN], [1, 2, 4], [6, NO_TOKEN, NO_TOKEN], [0, 5, 2], [2, 3, NO_TOKEN], [6, 1, 0]])
CANDIDATES = [[0, 3, 5], [], [6, 2], [0, 2, 5, 6], [], [6, 1, 0]]
Variant = tuple[float | None, bool, list[list[int]] | None, Tensor | None]
VARIANTS: list[Variant] = [
    (softcap, bias, candidates, top)
    for softcap, bias in [(None, False), (None, True), (2.0, False)]
    for candidates in (None, CANDIDATES)
    for top in (None, TOP)
]
EACH = pytest.mark.parametrize(("softcap", "bias", "candidates", "top"), VARIANTS)


def leaves(bias: bool) -> list[Tensor]:
    """Hidden states of four positions, weights of seven words, and their bias."""
    draw = torch.Generator().manual_seed(1)
    shapes = [(4, 3), (7, 3), (7,)] if bias else [(4, 3), (7, 3)]
    return [torch.randn(shape, generator=draw, dtype=torch.float64).requires_grad_() for shape in shapes]


def read(given: list[Tensor], variant: Variant, **settings: bool) -> Read:
    """Shared positions: three terms are predicted at one of them."""
    softcap, _, candidates, top = variant
    bias = given[2] if len(given) > 2 else None
    head = Head(weight=given[1], bias=bias, scale=0.8, softcap=softcap, temperature=0.7)
    hidden = given[0].index_select(0, POSITIONS)
    return read_targets(head, hidden, TARGETS, candidates, chunk=4, top_ids=top, **settings)


def written_out(given: list[Tensor], variant: Variant) -> Tensor:
    """Log-probs `[N, V]` by torch's own functions."""
    softcap, _, candidates, _ = variant
    logits = given[0][POSITIONS] @ given[1].T + (given[2] if len(given) > 2 else 0.0)
    logits = logits * 0.8 / 0.7 if softcap is None else (logits * 0.8 / softcap).tanh() * softcap / 0.7
    for place, kept in enumerate(candidates or []):
        left_out = torch.ones(7, dtype=torch.bool)
        left_out[kept] = not kept
        logits = (
            logits.index_put((torch.tensor(place),), logits[place].masked_fill(left_out, -1e30)) if kept else logits
        )
    return logits.log_softmax(-1)


@pytest.mark.spec("A-166")
@EACH
def test_every_output_is_that_of_the_vocabulary_written_out(softcap, bias, candidates, top):
    variant, given = (softcap, bias, candidates, top), leaves(bias)
    found, every = read(given, variant), written_out(given, variant)
    assert torch.allclose(found.logprobs, every.gather(1, TARGETS[:, None])[:, 0], rtol=0, atol=1e-12)
    entropy = -(every.exp() * every.clamp(min=-1e3)).sum(-1)
    assert torch.allclose(found.entropy, entropy, rtol=0, atol=1e-12)
    if top is not None:
        assert found.top_logprobs is not None and found.log_rest is not None
        named = every.gather(1, top.clamp(min=0)).masked_fill(top == NO_TOKEN, -math.inf)
        assert torch.allclose(found.top_logprobs.exp(), named.exp(), rtol=0, atol=1e-12)
        rest = 1 - named.exp().sum(1)
        assert torch.allclose(found.log_rest.exp(), rest, rtol=0, atol=1e-12)


@EACH
@pytest.mark.parametrize("entropy_gradient", [False, True])
def test_gradients_are_those_of_finite_differences(softcap, bias, candidates, top, entropy_gradient):
    variant = (softcap, bias, candidates, top)

    def outputs(*given: Tensor) -> tuple[Tensor, ...]:
        found = read(list(given), variant, entropy_gradient=entropy_gradient)
        named = [] if found.top_logprobs is None else [found.top_logprobs.masked_fill(TOP == NO_TOKEN, 0.0)]
        return found.logprobs, *named, *([found.entropy] if entropy_gradient else [])

    assert torch.autograd.gradcheck(outputs, leaves(bias))


def test_entropy_carries_a_gradient_only_where_it_is_asked_for():
    variant = VARIANTS[0]
    assert not read(leaves(False), variant).entropy.requires_grad
    assert read(leaves(False), variant, entropy_gradient=True).entropy.requires_grad


def derivatives(kind: torch.dtype, of: Callable[[Read], Tensor], gap: float) -> list[Tensor]:
    """By hidden states and weights, where word 2 of 50 is ahead of all others by about `gap`; told in float64."""
    draw = torch.Generator().manual_seed(3)
    weight = 0.05 * torch.randn(50, 8, generator=draw)
    hidden = torch.randn(8, generator=draw) + 0.02 * torch.randn(6, 8, generator=draw)
    weight[2] = gap * hidden.mean(0) / hidden.mean(0).square().sum()
    leaves = [each.to(kind).requires_grad_() for each in (hidden, weight)]
    targets = torch.tensor([2, 2, 2, 7, 9, 2])
    top = torch.tensor([[2, 7, 9, NO_TOKEN]]).repeat(6, 1)
    head = Head(weight=leaves[1], bias=None, scale=1.0, softcap=None, temperature=1.0)
    found = read_targets(head, leaves[0], targets, None, chunk=4, top_ids=top, entropy_gradient=True)
    return [each.double() for each in torch.autograd.grad(of(found).sum(), leaves)]


@pytest.mark.parametrize(
    "of",
    [
        lambda found: found.logprobs[[0, 1, 2, 5]],
        lambda found: found.top_logprobs[:, :3].exp(),
        lambda found: found.top_logprobs[:, 0],
        lambda found: found.entropy,
    ],
    ids=["targets", "masses", "likeliest", "entropy"],
)
@pytest.mark.parametrize("gap", [12.0, 16.0, 20.0])  # 1 - p from 3e-4 over 5e-6 to 1e-7
def test_nearly_certain_predictions_keep_their_gradient(of: Callable[[Read], Tensor], gap: float):
    exact, found = (derivatives(kind, of, gap) for kind in (torch.float64, torch.float32))
    for wanted, gradient in zip(exact, found, strict=True):
        assert wanted.abs().max() > 0
        assert (gradient - wanted).norm() <= 1e-4 * wanted.norm()


def test_half_precision_weights_gather_their_gradient_in_full():
    hidden, weight = (torch.ones(shape, dtype=torch.bfloat16).requires_grad_() for shape in ((4096, 4), (3, 4)))
    head = Head(weight=weight, bias=None, scale=1.0, softcap=None, temperature=1.0)
    found = read_targets(head, hidden, torch.zeros(4096, dtype=torch.int64), None, chunk=1)
    found.logprobs.sum().backward()
    assert found.logprobs.dtype == torch.float32
    assert weight.grad is not None and weight.grad[0].tolist() == pytest.approx([4096 * 2 / 3] * 4, rel=4e-3)


def test_a_tile_is_the_narrower_the_more_tokens_are_read(monkeypatch: pytest.MonkeyPatch):
    """All others that are read are added up for each, so that numbers grow with the square of how many there are."""
    draw = torch.Generator().manual_seed(2)
    head = Head(weight=torch.randn(64, 4, generator=draw), bias=None, scale=1.0, softcap=None, temperature=1.0)
    hidden, top = torch.randn(20, 4, generator=draw), torch.stack([torch.randperm(64, generator=draw)[:32]] * 20)
    whole = read_targets(head, hidden, top[:, 0], None, chunk=20, top_ids=top)
    sizes: list[int] = []
    others = tiles._others

    def counted(own: Tensor, rest: Tensor) -> Tensor:
        sizes.append(len(own) * own.shape[1] * (own.shape[1] + 1))
        return others(own, rest)

    monkeypatch.setattr(tiles, "_others", counted)
    monkeypatch.setattr(tiles, "LARGEST_TILE", 4000)
    found = read_targets(head, hidden, top[:, 0], None, chunk=20, top_ids=top)
    assert max(sizes) <= 4000 and sum(sizes) == 20 * 32 * 33
    assert whole.top_logprobs is not None and found.top_logprobs is not None
    assert torch.allclose(found.top_logprobs, whole.top_logprobs, atol=1e-6)
