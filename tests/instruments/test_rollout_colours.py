"""Bands of a scale: which values they hold, and that they follow the run's own bounds."""

from __future__ import annotations

import math

import pytest

from agrpo.instruments.rollout_page.colours import Band, Colouring, scale_of
from agrpo.instruments.rollout_page.facts import TokenFacts

CLIP = {"loss": {"name": "clip", "epsilon": 0.2, "epsilon_high": 0.28, "importance_min": 0.5, "importance_max": 5.0}}


def band(colouring: Colouring, settings: dict | None = None, **known: float) -> Band:
    token = TokenFacts(token_id=1, text="x", trained=True, **known)
    found = scale_of(colouring, settings or {}, [token]).band(token)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("ratio", "label", "marks"),
    [
        (0.49, "below 0.5 (left out of the loss)", "«»"),
        (0.79, "below 0.8", "‹›"),
        (0.81, "0.8 to 1.28 (trust region)", ""),
        (1.27, "0.8 to 1.28 (trust region)", ""),
        (1.29, "above 1.28", "‹›"),
        (5.01, "above 5 (left out of the loss)", "«»"),
        (math.nan, "above 5 (left out of the loss)", "«»"),
    ],
)
def test_a_ratio_is_told_by_the_bounds_of_the_loss(ratio, label, marks):
    found = band(Colouring.RATIO, CLIP, ratio=ratio)
    assert (found.label, "".join(found.marks)) == (label, marks)


def test_a_loss_without_bounds_has_bands_that_claim_none():
    labels = [one.label for one in scale_of(Colouring.RATIO, {"loss": {"name": "mine"}}, []).bands]
    assert labels == ["below 0.5 (far)", "below 0.8", "0.8 to 1.2 (near 1)", "above 1.2", "above 5 (far)"]


def test_a_trust_region_wider_than_what_is_kept_ends_where_tokens_are_left_out():
    wide = {"loss": {"epsilon": 0.6, "epsilon_high": None, "importance_min": 0.5, "importance_max": 1.5}}
    assert band(Colouring.RATIO, wide, ratio=0.45).label == "below 0.5 (left out of the loss)"
    assert band(Colouring.RATIO, wide, ratio=1.4).label == "0.5 to 1.5 (trust region)"


@pytest.mark.parametrize(
    ("p", "label"), [(0.95, "≥ 0.9"), (0.85, "< 0.9"), (0.4, "< 0.5"), (0.09, "< 0.1"), (0.009, "< 0.01")]
)
def test_a_log_prob_is_told_by_its_probability(p, label):
    assert band(Colouring.LOGPROB, sampler_logprob=math.log(p)).label.endswith(f"(p {label})")


def test_the_sign_of_an_advantage_has_a_hue_and_zero_has_none():
    styles = [band(Colouring.ADVANTAGE, advantage=value).style for value in (-2.0, -0.5, 0.0, 0.5, 2.0)]
    assert styles[2] == ""
    assert len(set(styles)) == 5


def test_what_is_not_known_is_in_no_band():
    token = TokenFacts(token_id=1, text="x", trained=True)
    assert {scale_of(one, {}, [token]).band(token) for one in Colouring} == {None}
