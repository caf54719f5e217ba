from __future__ import annotations

from collections.abc import Callable

import torch
from transformers import PreTrainedModel

from agrpo.policy.digest import digest_of, tensor_digests
from agrpo.tensors import digest_of_tensor

MakeModel = Callable[..., PreTrainedModel]


def test_tied_weight_appears_once_under_its_first_name(make_model: MakeModel):
    digests = tensor_digests(make_model("qwen3"))
    assert "model.embed_tokens.weight" in digests and "lm_head.weight" not in digests
    assert all(len(digest) == 32 for digest in digests.values())


def test_persistent_buffers_count_and_others_do_not():
    module = torch.nn.Linear(2, 2)
    module.register_buffer("kept", torch.ones(1))
    module.register_buffer("derived", torch.ones(1), persistent=False)
    assert set(tensor_digests(module)) == {"weight", "bias", "kept"}


def test_one_bit_changes_the_digest_of_its_tensor_and_of_the_whole(make_model: MakeModel):
    model = make_model("llama")
    before = tensor_digests(model)
    with torch.no_grad():
        model.lm_head.weight.view(torch.int32)[3, 4] ^= 1
    after = tensor_digests(model)
    assert [name for name in before if before[name] != after[name]] == ["lm_head.weight"]
    assert digest_of(before) != digest_of(after)


def test_digest_sees_type_shape_and_the_sign_of_zero():
    zeros = torch.zeros(4)
    others = [torch.zeros(2, 2), torch.zeros(4, dtype=torch.int32), -torch.zeros(4), torch.zeros(3)]
    assert all(digest_of_tensor(other) != digest_of_tensor(zeros) for other in others)
    assert digest_of_tensor(torch.zeros(4, 2)[:, 0]) == digest_of_tensor(zeros)


def test_digest_of_digests_does_not_depend_on_their_order():
    assert digest_of({"a": "1", "b": "2"}) == digest_of({"b": "2", "a": "1"}) != digest_of({"a": "2", "b": "1"})
