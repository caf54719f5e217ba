"""From logits to tokens, by hand."""

from __future__ import annotations

import math

import pytest
import torch

from agrpo.engines.decoding import sampler
from agrpo.engines.decoding.sampler import Drawn, Sampler
from agrpo.errors import EngineError
from agrpo.records.sampling import Sampling


def draw(probs: list[float], uniforms: list[float], **settings: float) -> Drawn:
    logits = torch.tensor(probs).log().expand(len(uniforms), -1)
    return Sampler([Sampling(**settings)] * len(uniforms)).draw(logits, uniforms)


def test_a_uniform_picks_the_token_whose_share_of_the_line_it_falls_in():
    assert draw([0.5, 0.25, 0.25], [0.0, 0.49, 0.51, 0.74, 0.76, 0.999]).ids == [0, 0, 1, 1, 2, 2]


def test_a_token_of_probability_zero_is_never_drawn():
    assert draw([0.0, 1.0, 0.0], [0.0, 0.5, 1 - 2**-53]).ids == [1, 1, 1]


def test_logits_are_divided_by_the_temperature_first():
    drawn = draw([0.8, 0.2], [0.66, 0.67], temperature=2.0)
    assert drawn.ids == [0, 1]
    assert drawn.logprobs == pytest.approx([math.log(2 / 3), math.log(1 / 3)], abs=1e-6)


@pytest.mark.spec("A-166")
@pytest.mark.parametrize(
    ("settings", "kept"),
    [
        ({"top_k": 2}, [0, 1]),
        ({"top_k": 9}, [0, 1, 2, 3]),
        ({"top_p": 0.4}, [0]),
        ({"top_p": 0.6}, [0, 1]),
        ({"top_p": 0.99}, [0, 1, 2, 3]),
        ({"min_p": 0.6}, [0, 1]),
        ({"top_k": 2, "top_p": 0.55}, [0]),
        ({"top_k": 3, "min_p": 0.3}, [0, 1, 2]),
    ],
)
def test_top_k_top_p_and_min_p_keep_these_of_four_tokens(settings: dict[str, float], kept: list[int]):
    probs = [0.42, 0.28, 0.2, 0.1]
    drawn = draw(probs, [0.0], **settings)
    assert drawn.candidates == [kept]
    assert drawn.logprobs == pytest.approx([math.log(probs[0] / sum(probs[token] for token in kept))], abs=1e-6)


def test_top_k_keeps_exactly_k_of_equally_likely_tokens():
    assert len(draw([0.25] * 4, [0.5], top_k=2).candidates[0]) == 2


def test_top_p_of_one_keeps_a_token_too_small_to_move_the_cumulative_sum():
    drawn = draw([1.0, 1e-20], [0.0], top_k=2)
    assert drawn.candidates == [[0, 1]]


def test_every_row_has_its_own_settings():
    logits = torch.tensor([0.5, 0.3, 0.2]).log().expand(3, -1)
    settings = [Sampling(), Sampling(top_k=1), Sampling(top_k=2, num_sampler_logprobs=1)]
    drawn = Sampler(settings).draw(logits, [0.9, 0.9, 0.9])
    assert drawn.ids == [2, 0, 1]
    assert drawn.candidates == [[], [0], [0, 1]]
    assert [list(top) for top in drawn.top] == [[], [], [0]]


def test_top_p_counts_within_the_rows_own_top_k():
    logits = torch.tensor([0.42, 0.28, 0.2, 0.1]).log().expand(2, -1)
    drawn = Sampler([Sampling(top_k=2, top_p=0.55), Sampling(top_k=4, top_p=0.55)]).draw(logits, [0.0, 0.0])
    assert drawn.candidates == [[0], [0, 1]]


def test_the_most_likely_tokens_leave_out_what_cannot_be_drawn():
    top = draw([0.6, 0.2, 0.2], [0.0], top_k=1, num_sampler_logprobs=3).top
    assert top == [{0: 0.0}]


def test_the_most_likely_tokens_are_those_of_the_processed_distribution():
    top = draw([0.5, 0.1, 0.4], [0.0], num_sampler_logprobs=2).top
    assert list(top[0]) == [0, 2]
    assert list(top[0].values()) == pytest.approx([math.log(0.5), math.log(0.4)], abs=1e-6)


def test_a_batch_drawn_in_chunks_gives_the_same_bits(monkeypatch: pytest.MonkeyPatch):
    logits = torch.randn(7, 11, generator=torch.Generator().manual_seed(0))
    drawing = Sampler([Sampling(top_k=5 * (place % 2), num_sampler_logprobs=2) for place in range(7)])
    uniforms = [place / 7 for place in range(7)]
    whole = drawing.draw(logits, uniforms)
    monkeypatch.setattr(sampler, "CHUNK_NUMBERS", 33)
    assert drawing.draw(logits, uniforms) == whole


def test_logits_that_are_nan_are_refused():
    with pytest.raises(EngineError, match="NaN"):
        Sampler([Sampling()]).draw(torch.tensor([[0.0, math.nan]]), [0.5])
