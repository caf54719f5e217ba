"""The values that docs/spec/papers.md works out, section 4: what recipes compute, in plain tensors (P-916)."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from agrpo.advantages import advantages
from agrpo.aggregations import aggregations
from agrpo.config.objective import CorrectionSection, DivergenceSection, EntropySection, MasksSection
from agrpo.losses.cispo import Cispo
from agrpo.losses.gmpo import Gmpo
from agrpo.losses.sapo import Sapo
from agrpo.losses.score_centering import ScoreCentering
from agrpo.losses.vespo import Vespo
from agrpo.objective import Objective
from agrpo.objective.entropy import applied, following
from agrpo.records.score import Mark, marks_of
from agrpo.records.tokens import TokenInputs, TopInputs
from tests.losses.fixtures import clip, f1, f2, share_of, tensor, tokens_of, totals_of, value_of

DAPO = {"epsilon": 0.2, "epsilon_high": 0.28}


def close(value: float) -> object:
    """Within 1e-6; 1e-5 of it where it is above 1, or below 1e-3 and not 0."""
    small = 0 < abs(value) < 1e-3
    return pytest.approx(value, rel=1e-5, abs=0) if small or abs(value) > 1 else pytest.approx(value, abs=1e-6)


def grpo_advantages(rewards: list[float], **settings: object) -> list[float]:
    return advantages.build("grpo", settings)(np.array(rewards)).tolist()


@pytest.mark.spec("P-001.test")
def test_grpo():
    high, low = 0.865875, -0.865875
    assert grpo_advantages([1, 0, 0, 1]) == pytest.approx([high, low, low, high], abs=1e-6)
    assert value_of(clip(epsilon=10.0), "sequence_mean", f1()) == close(0.0)
    assert value_of(clip(), "sequence_mean", f1()) == close(0.0875)
    for unbiased, expected in ((False, 1.48721e-4), (True, 1.78466e-4)):
        section = DivergenceSection(coefficient=0.001, unbiased=unbiased)
        found = share_of(clip(epsilon=10.0), "sequence_mean", f1(reference=0.5), divergence=section)
        assert found.share.item() == close(expected)
        assert found.token_loss.measures["divergence"].min().item() > 0
    plain = share_of(
        clip(), "sequence_mean", f1(reference=0.5), divergence=DivergenceSection(coefficient=1.0, unbiased=False)
    )
    assert plain.token_loss.measures["divergence"].tolist() == pytest.approx([0.148721] * 6, abs=1e-6)


@pytest.mark.spec("P-003.test")
def test_gspo():
    gspo = clip(epsilon=3e-4, epsilon_high=4e-4, level="sequence")
    found = share_of(gspo, "sequence_mean", f1())
    ratios = found.token_loss.measures["importance_ratio"]
    assert [ratios[0].item(), ratios[2].item()] == [close(1.161895), close(1.113987)]
    terms = -found.token_loss.loss.detach()
    assert [terms[0].item(), terms[2].item()] == [close(1.0004), close(-1.113987)]
    assert found.share.item() == close(0.056794)
    unmoved = tokens_of([1.0] * 6, [0, 0, 1, 1, 1, 1], [1.0, -0.25])
    assert value_of(gspo, "sequence_mean", unmoved) == -0.375


@pytest.mark.spec("P-004.test")
def test_gmpo():
    found = share_of(Gmpo(), "sequence_mean", f1())
    terms = found.token_loss.loss.detach().abs()
    assert [terms[0].item(), terms[2].item()] == [close(1.158724), close(1.113987)]
    assert found.share.item() == close(-0.022369)
    assert value_of(clip(epsilon=10.0, level="sequence"), "sequence_mean", f1()) == close(-0.023954)


@pytest.mark.spec("P-005.test")
def test_dapo():
    assert value_of(clip(**DAPO), "token_mean", f1()) == close(0.453333)
    assert value_of(clip(**DAPO), "sequence_mean", f1()) == close(0.0675)
    filtered = tokens_of([1.5, 0.9], [0, 0], [1.0])
    assert value_of(clip(**DAPO), "token_mean", filtered) == close(-1.09)
    groups = [[1.0] * passed + [0.0] * (16 - passed) for passed in (0, 3, 16, 9)]
    assert [Mark.EQUAL_REWARDS not in marks_of(rewards) for rewards in groups] == [False, True, False, True]


@pytest.mark.spec("P-007.test", "G-136")
def test_two_sided_clip():
    tokens = tokens_of([5.0, 3.0, 5.0, 0.5], [0, 1, 2, 3], [-1.0, -1.0, 1.0, -1.0])
    assert clip(delta=4.0)(tokens).loss.tolist() == [close(4.0), close(3.0), close(-1.2), close(0.8)]
    assert clip()(tokens).loss[0].item() == close(5.0)


@pytest.mark.spec("P-008.test", "G-225", "G-226")
def test_adaptive_entropy():
    section = EntropySection(coefficient=0.01, adaptive=True, target=5.0, delta=0.005)
    objective = Objective(loss=clip(), aggregation=aggregations.build("token_mean", {}), entropy=section)
    coefficient, seen = section.coefficient, []
    for height in (4.0, 5.0, 6.0):
        tokens = f1(entropies=[height] * 6)
        totals = objective.looked_ahead(totals_of(tokens, entropy_coefficient=coefficient), np.full(6, height))
        change = objective(tokens, totals).share.item() - value_of(clip(), "token_mean", tokens)
        coefficient = following(section, coefficient, height)
        seen.append((totals.entropy_coefficient, change, coefficient))
    assert seen == [
        (close(0.01), close(-0.04), close(0.015)),
        (close(0.015), close(-0.075), close(0.02)),
        (0.0, 0.0, close(0.015)),
    ]


@pytest.mark.spec("G-224", "G-225")
def test_coefficient_stays_within_its_bounds_and_a_fixed_one_as_it_is():
    section = EntropySection(coefficient=0.01, adaptive=True, minimum=0.008, maximum=0.012, target=5.0)
    assert (following(section, 0.01, 5.0), following(section, 0.01, 5.1)) == (0.012, 0.008)
    fixed = EntropySection(coefficient=0.01)
    assert (following(fixed, 0.01, 0.0), applied(fixed, 0.01, 9.0)) == (0.01, 0.01)
    tokens = f1(entropies=[3.0] * 6)
    without = value_of(clip(), "token_mean", tokens, entropy=EntropySection())
    assert without == value_of(clip(), "token_mean", f1())


@pytest.mark.spec("P-009.test", "G-141")
def test_high_entropy_minority():
    tokens = f1(entropies=[2.0, 0.1, 0.2, 1.5, 0.05, 0.3])
    masks = MasksSection(top_entropy=0.2)
    objective = Objective(loss=clip(**DAPO), aggregation=aggregations.build("token_mean", {}), masks=masks)
    entropies = np.array([2.0, 0.1, 0.2, 1.5, 0.05, 0.3])
    found = objective(tokens, objective.looked_ahead(totals_of(tokens), entropies))
    assert found.token_loss.measures["entropy_masked"].tolist() == [False, True, True, False, True, True]
    assert found.share.item() == close(-0.03)
    alone = replace(objective, masks=MasksSection(top_entropy=0.0))
    assert alone.looked_ahead(totals_of(tokens), entropies).num_entropy_tokens == 1
    assert replace(objective, masks=MasksSection()).looked_ahead(totals_of(tokens), entropies).num_entropy_tokens == 6


@pytest.mark.spec("P-010.test")
def test_dr_grpo():
    assert grpo_advantages([1, 0, 0, 1], scale="none") == pytest.approx([0.5, -0.5, -0.5, 0.5])
    assert value_of(clip(), "constant", f1()) == close(0.14)


@pytest.mark.spec("P-012.test", "P-013.test", "G-162", "G-163", "G-164")
@pytest.mark.parametrize(
    ("mode", "minimum", "maximum", "expected"),
    [
        ("off", None, 2.0, 0.453333),
        ("token_truncate", None, 2.0, 0.147333),
        ("sequence_truncate", None, 2.0, -0.432667),
        ("token_mask", 0.5, 2.0, 0.394),
        ("sequence_mask", None, 3.0, 0.294),
        ("sequence_mask", 0.5, 2.0, 0.0),
    ],
)
def test_importance_sampling(mode: str, minimum: float | None, maximum: float, expected: float):
    section = CorrectionSection(mode=mode, minimum=minimum, maximum=maximum)  # pyright: ignore[reportArgumentType]
    tokens = f1() if mode == "off" else f2()
    assert value_of(clip(**DAPO), "token_mean", tokens, correction=section) == close(expected)


@pytest.mark.spec("G-164")
def test_open_upper_bound_masks_small_ratios_alone():
    section = CorrectionSection(mode="token_mask", minimum=0.5, maximum=None)
    weights = share_of(clip(), "token_mean", f2(), correction=section).token_loss.measures["correction"]
    assert weights.tolist() == pytest.approx([1.2, 3.0, 0.0, 1.0, 1.0, 0.9])


@pytest.mark.spec("P-014.test")
@pytest.mark.parametrize(("mode", "expected"), [("sequence_truncate", -0.024), ("token_truncate", -0.048)])
def test_sequence_importance_sampling_is_unbiased(mode: str, expected: float):
    section = CorrectionSection(mode=mode, maximum=None)  # pyright: ignore[reportArgumentType]
    objective = Objective(loss=clip(), aggregation=aggregations.build("sequence_sum", {}), correction=section)
    logit = tensor([math.log(0.6 / 0.4)]).requires_grad_()
    first = {"a": torch.nn.functional.logsigmoid(logit), "b": torch.nn.functional.logsigmoid(-logit)}
    then = {"aa": 0.7, "ab": 0.3, "ba": 0.2, "bb": 0.8}
    drawn = {"aa": (0.5, 0.4), "ab": (0.5, 0.6), "ba": (0.5, 0.4), "bb": (0.5, 0.6)}
    expectation = torch.zeros(())
    for answer, mu in drawn.items():
        tokens = TokenInputs(
            logprobs=torch.cat([first[answer[0]], tensor([then[answer]]).log()]),
            sampler_logprobs=tensor(mu).log(),
            advantages=tensor([1.0, 1.0] if answer in ("aa", "bb") else [0.0, 0.0]),
            sample=torch.zeros(2, dtype=torch.long),
            num_samples=1,
        )
        expectation = expectation + mu[0] * mu[1] * objective(tokens, totals_of(tokens)).share
    (-expectation).backward()
    assert logit.grad is not None
    assert logit.grad.item() == close(expected)


@pytest.mark.spec("P-015.test", "G-151")
def test_scalerl():
    tokens = f1()
    found = share_of(Cispo(cap=5.0), "token_mean", tokens)
    found.share.backward()
    assert found.share.item() == close(-0.731667)
    assert tokens.logprobs.grad is not None and tokens.logprobs.grad[0].item() == close(-0.25)
    far = tokens_of([6.0, *[1.0] * 5], [0, 0, 1, 1, 1, 1], [1.0, -1.0])
    share_of(Cispo(cap=5.0), "token_mean", far).share.backward()
    assert far.logprobs.grad is not None and far.logprobs.grad[0].item() == close(-0.833333)


@pytest.mark.spec("P-016.test")
def test_two_rollouts():
    pair = grpo_advantages([1.0, 0.0])
    assert pair == pytest.approx([0.707007, -0.707007], abs=1e-6)
    assert value_of(clip(), "sequence_mean", f1(pair)) == close(0.061863)
    assert grpo_advantages([1.0, 1.0]) == [0.0, 0.0]
    assert Mark.EQUAL_REWARDS in marks_of([1.0, 1.0])


@pytest.mark.spec("P-017.test", "G-152")
def test_sapo():
    found = share_of(Sapo(), "sequence_mean", f1())
    terms = -found.token_loss.loss.detach()
    assert [terms[:2].mean().item(), terms[2:].mean().item()] == [close(2.19496), close(-2.084662)]
    assert found.share.item() == close(-0.055149)
    unmoved = tokens_of([1.0, 1.0], [0, 1], [1.0, -1.0])
    loss = Sapo()(unmoved).loss
    assert loss.tolist() == [close(-2.0), close(1.904762)]
    loss.sum().backward()
    assert unmoved.logprobs.grad is not None and unmoved.logprobs.grad.tolist() == pytest.approx([-1.0, 1.0])


@pytest.mark.spec("P-018.1", "G-138")
def test_unbiased_divergence():
    tokens = tokens_of([1.5], [0], [0.0], reference=0.5)
    section = DivergenceSection(coefficient=0.001)
    found = share_of(clip(), "token_mean", tokens, divergence=section).token_loss.measures["divergence"]
    assert found.item() == close(0.223082)


@pytest.mark.spec("P-018.2", "G-140")
@pytest.mark.parametrize(
    ("ratios", "advantage", "fallen", "is_masked"),
    [
        ([0.7, 1.1, 1.0, 2.0], -1.0, -0.107946, False),
        ([0.5, 0.5, 0.6, 0.7], -1.0, 0.563449, True),
        ([0.5, 0.5, 0.6, 0.7], 1.0, 0.563449, False),
    ],
)
def test_off_policy_mask(ratios: list[float], advantage: float, fallen: float, is_masked: bool):
    tokens = tokens_of(ratios, [0] * 4, [advantage])
    assert (tokens.sampler_logprobs - tokens.logprobs).mean().item() == close(fallen)
    section = MasksSection(off_policy_threshold=0.5)
    found = share_of(clip(), "token_mean", tokens, masks=section)
    assert found.token_loss.measures["off_policy_masked"].tolist() == [is_masked] * 4
    assert (found.share.item() == 0) == is_masked


@pytest.mark.spec("P-020.test", "G-153")
def test_luspo():
    luspo = clip(epsilon=2e-3, epsilon_high=2.5e-3, level="sequence")
    found = share_of(luspo, "sequence_sum", f1())
    terms = -found.token_loss.loss.detach()
    assert [terms[:2].sum().item(), terms[2:].sum().item()] == [close(2.005), close(-4.455949)]
    assert found.share.item() == close(1.225474)


@pytest.mark.spec("P-021.test", "G-155", "G-156")
def test_vespo():
    found = share_of(Vespo(), "token_mean", f1())
    phi = found.token_loss.measures["phi"]
    assert [phi[0].item(), phi[2].item()] == [close(0.637762), close(1.240293)]
    assert found.share.item() == close(-0.750107)
    unmoved = Vespo()(tokens_of([1.0, 1.0], [0, 1], [1.0, -1.0]))
    assert unmoved.measures["phi"].tolist() == [1.0, 1.0]


@pytest.mark.parametrize(
    ("policy", "sampler", "centred", "plain"),
    [
        (
            [0.6, 0.04, 0.26, 0.10],
            [0.5, 0.1, 0.3, 0.1],
            [-0.456, 0.0096, 0.3224, 0.124],
            [-0.48, 0.048, 0.312, 0.12],
        ),
        (
            [0.5, 0.3, 0.15, 0.05],
            [0.4, 0.3, 0.2, 0.1],
            [-0.625, 0.375, 0.1875, 0.0625],
            [-0.625, 0.375, 0.1875, 0.0625],
        ),
    ],
)
def test_score_centering(policy: list[float], sampler: list[float], centred: list[float], plain: list[float]):
    """Gradients of P-022.test. Its value is another surrogate's: docs/objectives.md."""
    for loss, expected in ((ScoreCentering(), centred), (clip(epsilon=10.0), plain)):
        logits = tensor(policy).log().requires_grad_()
        own = logits.log_softmax(0)
        tokens = TokenInputs(
            logprobs=own[:1],
            sampler_logprobs=tensor(sampler).log()[:1],
            advantages=tensor([1.0]),
            sample=torch.zeros(1, dtype=torch.long),
            num_samples=1,
            top=TopInputs(
                logprobs=own[None, :2],
                sampler_logprobs=tensor(sampler).log()[None, :2],
                log_rest=own.detach().exp()[None, 2:].sum(1).log(),
            ),
        )
        loss(tokens).loss.sum().backward()
        assert logits.grad is not None
        assert logits.grad.tolist() == pytest.approx(expected, abs=1e-6)


@pytest.mark.spec("G-139")
def test_unbiased_divergence_of_ratios_of_sequences_has_the_sequence_weight_at_every_token():
    tokens = f1(reference=0.5)
    section = DivergenceSection(coefficient=1.0)
    found = share_of(clip(level="sequence"), "token_mean", tokens, divergence=section).token_loss
    expected = [0.148721 * 1.161895] * 2 + [0.148721 * 1.113987] * 4
    assert found.measures["divergence"].tolist() == pytest.approx(expected, abs=1e-6)


@pytest.mark.spec("G-143", "G-140")
def test_masks_and_corrections_leave_the_divergence_alone():
    section = DivergenceSection(coefficient=1.0)
    around = {
        "divergence": section,
        "masks": MasksSection(off_policy_threshold=0.01),
        "correction": CorrectionSection(mode="token_mask", minimum=0.9, maximum=1.3),
    }
    tokens = replace(f2(), reference_logprobs=f1(reference=0.5).reference_logprobs)
    both = share_of(clip(), "token_mean", tokens, **around)
    gone = both.token_loss.measures["off_policy_masked"] | (both.token_loss.measures["correction"] == 0)
    assert gone.any() and not gone.all()
    alone = both.token_loss.measures["divergence"]
    assert torch.equal(both.token_loss.loss.detach()[gone], alone[gone])


@pytest.mark.spec("G-134")
def test_correction_without_old_log_probs_reads_the_policy_before_the_step():
    section = CorrectionSection(mode="token_truncate", maximum=None)
    tokens = f1()
    found = share_of(clip(epsilon=0.0), "token_mean", tokens, correction=section)
    assert found.token_loss.measures["importance_ratio"].tolist() == [1.0] * 6
    assert found.token_loss.measures["correction"].tolist() == pytest.approx([1.5, 0.9, 0.7, 1.1, 1.0, 2.0])
    unclipped = value_of(clip(epsilon=10.0), "token_mean", f1())
    assert found.share.item() == pytest.approx(unclipped)


@pytest.mark.spec("G-157")
def test_vespo_takes_a_correction_into_its_weight_and_no_second_time():
    section = CorrectionSection(mode="token_truncate", maximum=None)
    found = share_of(Vespo(), "token_mean", f2(), correction=section)
    sampled = share_of(Vespo(), "token_mean", replace(f2(), old_logprobs=None))
    assert found.token_loss.measures["phi"].tolist() == pytest.approx(sampled.token_loss.measures["phi"].tolist())
    assert found.share.item() == pytest.approx(sampled.share.item())


@pytest.mark.spec("G-223", "G-227")
def test_bonus_is_the_mean_entropy_of_tokens_with_a_policy_term_whatever_the_aggregation():
    heights = [2.0, 0.1, 0.2, 1.5, 0.05, 0.3]
    section = EntropySection(coefficient=0.1)
    for name in aggregations.names():
        for masks, entropy in ((MasksSection(), 4.15 / 6), (MasksSection(top_entropy=0.2), 3.5 / 2)):
            tokens = f1(entropies=heights)
            objective = Objective(loss=clip(), aggregation=aggregations.build(name, {}), masks=masks, entropy=section)
            totals = objective.looked_ahead(totals_of(tokens, entropy_coefficient=0.1), np.array(heights))
            assert totals.entropy_mean == pytest.approx(entropy)
            without = replace(totals, entropy_coefficient=0.0)
            change = objective(tokens, totals).share.item() - objective(tokens, without).share.item()
            assert change == pytest.approx(-0.1 * entropy)
