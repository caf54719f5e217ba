"""Our objectives against the reference's, case by case."""

from __future__ import annotations

import pytest
import torch

from agrpo.objective.entropy import following
from tests.losses.reference import Case, golden, names

CONSTANT = {"gmpo/truncated_row": 0.7 / 4, "gmpo/top_entropy": -0.5 / 4}
"""By case, what the reference's loss has beside ours and its gradient has not: an answer that is masked whole counts there as one
of ratio 1, so that its advantage, -0.7 or 0.5, is a quarter of a mean. Here it has no term."""


def test_all_cases_are_run():
    assert len(names()) == 96 == len(set(names()))
    assert set(CONSTANT) <= set(names())


@pytest.mark.spec("A-139", "A-141", "A-142", "G-133", "G-135", "G-136", "G-137", "G-138", "G-140", "G-141")
@pytest.mark.spec("G-146", "G-148", "G-149", "G-151", "G-152", "G-153", "G-155", "G-156", "G-222")
@pytest.mark.parametrize("name", names())
def test_loss_and_gradients_are_the_references(name: str):
    case = Case.of(name)
    found = case.run()
    assert found.loss + CONSTANT.get(name, 0.0) == pytest.approx(case.out["loss"], abs=1e-6)
    assert torch.allclose(found.by_logprobs, case.expected("dloss_dlogps"), rtol=0, atol=1e-6)
    if case.out.get("dloss_dentropies") is not None:
        assert torch.allclose(found.by_entropy, case.expected("dloss_dentropies"), rtol=0, atol=1e-6)


@pytest.mark.spec("A-302", "A-303", "A-304", "A-305", "A-306", "G-256", "G-257", "G-258", "G-259", "G-260")
@pytest.mark.parametrize(
    "name", ["grpo/base", "grpo/clip_higher", "dapo/wide", "gspo/near_wide_eps", "gmpo/base", "grpo/two_sided_delta"]
)
def test_clip_measures_are_the_references(name: str):
    case = Case.of(name)
    found, metrics = case.run(), case.out["metrics"]
    by_sample = name.startswith("gspo")  # there the reference counts samples
    low, high = (found.by_sample(measure) for measure in ("clipped_low", "clipped_high"))
    means = (
        [sum(low) / len(low), sum(high) / len(high)]
        if by_sample
        else [found.mean("clipped_low"), found.mean("clipped_high")]
    )
    assert means[0] == pytest.approx(metrics["clip_ratio/low_mean"], abs=1e-6)
    assert means[1] == pytest.approx(metrics["clip_ratio/high_mean"], abs=1e-6)
    assert sum(means) == pytest.approx(metrics["clip_ratio/region_mean"], abs=1e-6)
    assert min(low) == pytest.approx(metrics["clip_ratio/low_min"], abs=1e-6)
    assert max(high) == pytest.approx(metrics["clip_ratio/high_max"], abs=1e-6)


@pytest.mark.spec("G-261")
@pytest.mark.parametrize("name", ["cispo/base", "cispo/wide", "cispo/truncated_row", "cispo/on_policy_no_old"])
def test_share_of_capped_tokens_is_the_references(name: str):
    case = Case.of(name)
    assert case.run().mean("capped") == pytest.approx(case.out["metrics"]["cispo_clip_ratio"], abs=1e-6)


@pytest.mark.spec("G-262")
@pytest.mark.parametrize("name", ["vespo/base", "vespo/wide", "vespo/is_token_truncate", "vespo/is_token_mask"])
def test_phi_of_a_sequence_is_the_references(name: str):
    case = Case.of(name)
    phi = case.run().by_sample("phi")
    assert sum(phi) / len(phi) == pytest.approx(case.out["metrics"]["vespo/phi_seq_mean"], abs=1e-6)


@pytest.mark.spec("G-160", "G-161", "G-162", "G-163", "G-164", "G-165")
@pytest.mark.parametrize("name", [name for name in names() if "/is_" in name])
def test_correction_is_the_references(name: str):
    case = Case.of(name)
    found, expected = case.run().measures["correction"], case.expected("importance_sampling_ratio")
    assert not found.requires_grad
    assert torch.allclose(found, expected.expand(case.mask.shape)[case.mask], rtol=0, atol=1e-6)


@pytest.mark.spec("G-255")
@pytest.mark.parametrize("name", ["grpo/kl_bias_corrected", "grpo/kl_plain_k3", "dapo/off_policy_mask_kl"])
def test_divergence_is_the_references(name: str):
    case = Case.of(name)
    assert case.run().mean("divergence") == pytest.approx(case.out["metrics"]["kl"], abs=1e-6)


@pytest.mark.spec("G-225", "G-226")
@pytest.mark.parametrize("name", [name for name in names() if "entropy_adaptive" in name])
def test_adaptive_coefficient_becomes_what_the_references_becomes(name: str):
    case = Case.of(name)
    case_of_file = next(each for each in golden()["cases"] if each["name"] == name)
    after = case.out | case_of_file
    objective = case.objective()
    totals = objective.looked_ahead(case.totals(), case.values["entropies"][case.mask].numpy())
    assert totals.entropy_mean == pytest.approx(float(after["last_world_entropy_after"]), abs=1e-6)
    became = following(objective.entropy, case.config["entropy_coef"], totals.entropy_mean)
    assert became == pytest.approx(after["entropy_coef_after"], abs=1e-12)


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("async/base", {"epsilon": 0.21}),
        ("cispo/wide", {"epsilon_high": 2.1}),
        ("sapo/base", {"sapo_temperature_neg": 1.1}),
        ("vespo/base", {"vespo_k_pos": 2.1}),
        ("gmpo/base", {"epsilon": 0.41}),
        ("dapo/is_token_mask", {"is_clip_max": 1.05}),
        ("dapo/entropy_bonus", {"entropy_coef": 0.011}),
        ("grpo/kl_plain_k3", {"beta": 0.101}),
        ("dapo/top_entropy_0.2", {"top_entropy_quantile": 0.5}),
    ],
)
def test_setting_changed_on_purpose_disagrees_with_the_reference(name: str, changed: dict[str, float]):
    case = Case.of(name, **changed)
    assert abs(case.run().loss - case.out["loss"]) > 1e-5
