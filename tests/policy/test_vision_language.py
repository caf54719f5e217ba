"""Vision-language checkpoints on text: read as whole models, of which the text model alone is trained and published."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForImageTextToText

from agrpo.config import AdapterSection, ModelSection, OptimizerSection
from agrpo.engines.decoding.model import load_model
from agrpo.errors import ConfigError
from agrpo.packing import Packing
from agrpo.packing.sequence import Sequence
from agrpo.packing.tree import Tree
from agrpo.policy.deltanet import is_delta_net
from agrpo.policy.digest import tensor_digests
from agrpo.policy.logprobs import next_token_logprobs, row_logprobs
from agrpo.policy.model import load_policy
from agrpo.policy.optimizer import build_optimizer
from agrpo.records.sample import Sample
from agrpo.tensors import outside_text, owned_tensors
from agrpo.weights.filesystem import write_weights
from tests.policy.test_trie_rows import family_tree, sample_of
from tests.policy.vision_language import SEEING, seeing

MakeSamples = Callable[..., list[Sample]]


@pytest.fixture(params=SEEING)
def checkpoint(request: pytest.FixtureRequest, tmp_path: Path) -> ModelSection:
    """One of each family, written by `save_pretrained`."""
    seeing(request.param).save_pretrained(tmp_path / "checkpoint")
    return ModelSection(path=str(tmp_path / "checkpoint"))


@pytest.mark.spec("A-263")
@pytest.mark.parametrize("packing", [Tree(), Sequence()], ids=["tree", "sequence"])
def test_samples_in_a_row_have_the_log_probs_and_gradients_of_samples_alone(checkpoint: ModelSection, packing: Packing):
    policy, alone = load_policy(checkpoint, "cpu"), AutoModelForImageTextToText.from_pretrained(checkpoint.path)
    samples = [sample_of(tokens, number) for number, tokens in enumerate(family_tree(64))]
    found = row_logprobs(policy, packing.lay_out(samples), temperature=1.0).logprobs
    weights = torch.linspace(-1, 1, len(found))
    (weights * found).sum().backward()
    tokens = [torch.tensor([sample.sequence.tokens]) for sample in samples]
    logits = [alone(input_ids=ids).logits[0, :-1].log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0] for ids in tokens]
    expected = torch.cat(logits)
    (weights * expected).sum().backward()
    tolerance = 1e-3 if is_delta_net(policy) else 1e-5
    assert (found - expected).abs().max() <= tolerance
    own = dict(alone.named_parameters())
    for name, weight in policy.named_parameters():
        if weight.requires_grad:
            assert (weight.grad - own[name].grad).norm() <= tolerance * (1 + own[name].grad.norm()), name


@pytest.mark.spec("A-264")
def test_nothing_outside_the_text_model_has_a_gradient_or_an_optimizer_state(
    checkpoint: ModelSection, make_samples: MakeSamples
):
    policy = load_policy(checkpoint, "cpu")
    outside = outside_text(policy)
    assert outside == {
        name for name in owned_tensors(policy) if "visual" in name or "vision" in name or "multi" in name
    }
    optimizer, before = build_optimizer(policy, OptimizerSection(learning_rate=1e-2)), owned_tensors(policy)
    kept = {name: before[name].clone() for name in outside}
    row_logprobs(policy, Sequence().lay_out(make_samples([9, 5])), temperature=1.0).logprobs.sum().backward()
    optimizer.step()
    for name, weight in policy.named_parameters():
        assert (name in outside) == (not weight.requires_grad) == (weight not in optimizer.state), name
    assert all(torch.equal(owned_tensors(policy)[name], tensor) for name, tensor in kept.items())
    assert tensor_digests(policy).keys() == owned_tensors(policy).keys() - outside


@pytest.mark.spec("A-265")
def test_what_reads_no_text_is_not_published_and_the_engine_keeps_its_own(checkpoint: ModelSection, tmp_path: Path):
    policy, engine = load_policy(checkpoint, "cpu"), load_model(checkpoint)
    with torch.no_grad():
        for weight in policy.parameters():
            weight.mul_(1.1)
    write_weights(tmp_path, policy)
    outside = outside_text(policy)
    assert outside and load_file(tmp_path / "model.safetensors").keys() == owned_tensors(policy).keys() - outside
    before = {name: tensor.clone() for name, tensor in owned_tensors(engine._network).items()}
    engine.load(tmp_path, 1)
    loaded, trained = owned_tensors(engine._network), owned_tensors(policy)
    for name, tensor in loaded.items():
        assert torch.equal(tensor, before[name] if name in outside else trained[name]), name
        assert before[name].count_nonzero() == 0 or not torch.equal(trained[name], before[name]), name
    ids = torch.arange(2, 12)[None]
    logits = engine.next_logits(ids, torch.ones_like(ids), torch.arange(10)[None])
    assert (logits[0].log_softmax(-1) - next_token_logprobs(policy, ids[0].tolist())).abs().max() <= 1e-5


def test_an_adapter_stands_beside_layers_of_the_text_model_alone(tmp_path: Path):
    seeing("Qwen2_5_VL").save_pretrained(tmp_path)
    section = ModelSection(path=str(tmp_path))
    for targets in ("all-linear", ["gate_proj", "q_proj"]):
        policy = load_policy(section, "cpu", adapter=AdapterSection(rank=2, targets=targets))
        adapted = {name for name, weight in policy.named_parameters() if weight.requires_grad}
        assert adapted and all(name.startswith("model.language_model.layers.") for name in adapted)
    with pytest.raises(ConfigError, match='"qkv" names no layer'):
        load_policy(section, "cpu", adapter=AdapterSection(rank=2, targets=["qkv"]))
