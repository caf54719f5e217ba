from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from weakref import ref

import numpy as np
import pytest
import torch
from torch.distributed.tensor import DTensor

from agrpo.checkpoints.single import Keepsakes, read_checkpoint, write_checkpoint
from agrpo.errors import ModelError, StoreFull
from agrpo.policy.digest import digest_of, tensor_digests
from agrpo.policy.ranks.group import Group
from agrpo.policy.trainee import Origin, Trainee, begin
from agrpo.policy.update import UpdateOutcome
from agrpo.records.manifest import RunIdentity
from agrpo.records.progress import CheckpointState
from agrpo.stages.ranks import Recruiter
from agrpo.tensors import merged_tensors, published_tensors, trained_tensors
from agrpo.tensors.moments import moments_of, step_counts
from tests.policy.ranks.conftest import numbers_of_step, rows_of_step

MakeOrigin = Callable[..., Origin]
RUN = RunIdentity(name="sums", created_at="2026-11-29T08:00:00+00:00", config_digest="0" * 32)


def of(origin: Origin, recruiter: Recruiter, size: int = 2) -> Trainee:
    return begin(origin, recruiter.form(size), recruiter)


def steps(trainee: Trainee, numbers: range = range(3)) -> list[UpdateOutcome]:
    return [trainee.update(rows_of_step(step), numbers_of_step(step), lambda: None) for step in numbers]


def bits(trainee: Trainee) -> dict[str, str]:
    """Of weights, moments and counts."""
    moments = moments_of(trainee.model, trainee.optimizer)
    counts = {f"steps of {name}": str(count) for name, count in step_counts(trainee.model, trainee.optimizer).items()}
    return tensor_digests(trainee.model) | digests_of(moments) | counts


def digests_of(tensors) -> dict[str, str]:
    from agrpo.tensors import digest_of_tensor

    return {name: digest_of_tensor(tensor) for name, tensor in tensors.items()}


def assert_close(found, expected, tolerance: float) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, atol=tolerance, rtol=0)


@pytest.mark.spec("A-143")
@pytest.mark.parametrize("tied", [False, True])
def test_two_ranks_take_the_steps_that_one_process_takes(recruiter: Recruiter, origin_of: MakeOrigin, tied: bool):
    origin = origin_of(tied=tied)
    alone, shared = begin(origin), of(origin, recruiter)
    for one, two in zip(steps(alone), steps(shared), strict=True):
        assert two.loss == pytest.approx(one.loss, abs=1e-6)
        assert two.grad_norm == pytest.approx(one.grad_norm, rel=1e-5)
        assert len(two.rows) == 4 and two.rows[3].logprobs.size == 0
        for mine, theirs in zip(one.rows, two.rows, strict=True):
            np.testing.assert_allclose(theirs.logprobs, mine.logprobs, atol=1e-5)
            np.testing.assert_allclose(theirs.entropy, mine.entropy, atol=1e-5)
            assert mine.measures.keys() == theirs.measures.keys()
            for name, values in mine.measures.items():
                np.testing.assert_allclose(theirs.measures[name], values, rtol=1e-4, atol=1e-6, err_msg=name)
    assert_close(trained_tensors(shared.model), trained_tensors(alone.model), 1e-6)


def test_a_rank_holds_its_share_and_tells_of_whole_tensors(recruiter: Recruiter, origin_of: MakeOrigin):
    origin = origin_of()
    alone, shared = begin(origin), of(origin, recruiter)
    held = {name: tuple(weight.to_local().shape) for name, weight in shared.model.named_parameters()}
    assert held["lm_head.weight"] == (33, 32)  # of 65
    assert held["model.layers.1.mlp.up_proj.weight"] == (32, 32)  # of 64
    assert tensor_digests(shared.model) == tensor_digests(alone.model)
    mine, theirs = alone.probe(3), shared.probe(3)
    assert theirs.top_ids == mine.top_ids
    assert theirs.top_logprobs == pytest.approx(mine.top_logprobs, abs=1e-6)


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("threads", [1, 2])
def test_the_same_steps_give_the_same_bits_at_any_number_of_ranks_and_threads(
    recruiter: Recruiter, origin_of: MakeOrigin, size: int, threads: int
):
    trainee = of(replace(origin_of(tied=True), threads=threads * size), recruiter, size)
    steps(trainee)
    first = bits(trainee)
    trainee.begin_again()
    steps(trainee)
    assert bits(trainee) == first


def test_a_step_that_is_not_finite_leaves_every_rank_as_it_was(recruiter: Recruiter, origin_of: MakeOrigin):
    trainee = of(origin_of(), recruiter)
    steps(trainee, range(1))
    before = bits(trainee)
    bad = rows_of_step(1)
    bad[1].advantages[0] = np.nan  # of the second rank
    with pytest.raises(ModelError, match=r"loss is nan \(first in row 1 of 4\)"):
        trainee.update(bad, numbers_of_step(1), lambda: None)
    assert bits(trainee) == before


@pytest.mark.slow
def test_a_checkpoint_of_two_ranks_loads_in_one_and_in_three(
    recruiter: Recruiter, origin_of: MakeOrigin, tmp_path: Path
):
    origin = origin_of(tied=True)
    trainee = of(origin, recruiter)
    steps(trainee)
    expected, state = bits(trainee), state_of(trainee)
    write_checkpoint(tmp_path / "of two", trainee.model, trainee.optimizer, run=RUN, state=state)
    steps(trainee, range(3, 4))
    ahead = bits(trainee)
    for size in (1, 3, 2):
        other = of(origin, recruiter, size)
        read_checkpoint(tmp_path / "of two", other.model, other.optimizer, run=RUN, keepsakes=Keepsakes())
        assert bits(other) == expected
    steps(other, range(3, 4))
    assert bits(other) == ahead


def test_a_trainee_goes_from_one_process_to_two_and_back(recruiter: Recruiter, origin_of: MakeOrigin, tmp_path: Path):
    made = list[Path]()

    def scratch() -> Path:
        made.append(tmp_path / str(len(made)))
        made[-1].mkdir()
        return made[-1]

    trainee = begin(origin_of(), recruits=recruiter, scratch=scratch)
    steps(trainee, range(1))
    alone = bits(trainee)
    trainee.become(2)
    assert (trainee.group.size, bits(trainee)) == (2, alone)
    steps(trainee, range(1, 2))
    shared = bits(trainee)
    trainee.become(1)
    assert (trainee.group.size, bits(trainee)) == (1, shared)
    assert [folder.exists() for folder in made] == [False, False]


def test_the_peak_is_that_of_as_many_devices_as_carry_out_the_step(
    recruiter: Recruiter, origin_of: MakeOrigin, monkeypatch: pytest.MonkeyPatch
):
    trainee = begin(origin_of(), recruits=recruiter)
    trainee.become(2)
    assert trainee.peak_flops_per_second is None  # nobody asked for it
    monkeypatch.setattr("agrpo.policy.trainee.peak_flops_per_second", lambda device, dtype: 5e9)
    trainee.find_peak()
    peaks = [trainee.peak_flops_per_second]
    for size in (1, 2):
        trainee.become(size)
        peaks.append(trainee.peak_flops_per_second)
    assert peaks == [1e10, 5e9, 1e10]


@pytest.mark.parametrize("dora", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_an_adapter_is_trained_by_two_ranks_and_merged(recruiter: Recruiter, origin_of: MakeOrigin, dora: bool):
    origin = origin_of(rank=2, dora=dora)
    alone, shared = begin(origin), of(origin, recruiter)
    for one, two in zip(steps(alone), steps(shared), strict=True):
        assert two.loss == pytest.approx(one.loss, abs=1e-6)
    assert_close(trained_tensors(shared.model), trained_tensors(alone.model), 1e-5)
    assert_close(merged_tensors(shared.model), merged_tensors(alone.model), 1e-5)


@pytest.mark.spec("A-044")
def test_two_ranks_hold_float32_and_compute_in_bfloat16(recruiter: Recruiter, origin_of: MakeOrigin):
    origin = origin_of(model={"mixed_precision": "bfloat16"})
    alone, shared = begin(origin), of(origin, recruiter)
    gathered = types_seen_in_a_layer(shared)
    for one, two in zip(steps(alone), steps(shared), strict=True):
        assert two.loss == pytest.approx(one.loss, abs=0.02)
        assert two.grad_norm == pytest.approx(one.grad_norm, rel=0.1)
    assert {source.dtype for source in trained_tensors(shared.model).sources.values()} == {torch.float32}
    assert {moment.dtype for moment in moments_of(shared.model, shared.optimizer).values()} == {torch.float32}
    assert {tensor.dtype for tensor in published_tensors(shared.model).values()} == {torch.bfloat16}
    assert gathered == {("weight", torch.bfloat16), ("state", torch.bfloat16)}


def types_seen_in_a_layer(trainee: Trainee) -> set[tuple[str, torch.dtype]]:
    """Of a weight while its layer computes, where it is whole, and of what comes out; filled by later steps."""
    seen: set[tuple[str, torch.dtype]] = set()
    projection = trainee.model.get_submodule("model.layers.0.mlp.up_proj")

    def look(module: torch.nn.Module, given: object, state: torch.Tensor) -> None:
        weight = module.get_parameter("weight")
        assert weight.shape == (64, 32) and not isinstance(weight, DTensor)
        seen.update({("weight", weight.dtype), ("state", state.dtype)})

    projection.register_forward_hook(look)
    return seen


@pytest.mark.spec("A-143")
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_gradients_of_narrow_weights_are_summed_over_ranks_in_float32(
    recruiter: Recruiter, origin_of: MakeOrigin, dtype: str, monkeypatch: pytest.MonkeyPatch
):
    trainee = of(origin_of(model={"dtype": dtype}), recruiter)
    seen: set[torch.dtype] = set()
    add_up = torch.distributed.reduce_scatter_single

    def look(**settings: Any) -> object:
        seen.update({settings["output"].dtype, settings["input"].dtype})
        return add_up(**settings)

    monkeypatch.setattr(torch.distributed, "reduce_scatter_single", look)
    trainee.update(rows_of_step(0), numbers_of_step(0), lambda: None)
    assert seen == {torch.float32}
    assert {str(source.dtype) for source in trained_tensors(trainee.model).sources.values()} == {f"torch.{dtype}"}


@pytest.mark.parametrize("size", [1, 2])
def test_the_weights_before_are_gone_when_the_first_ones_are_loaded_again(
    recruiter: Recruiter, origin_of: MakeOrigin, size: int, monkeypatch: pytest.MonkeyPatch
):
    trainee = of(origin_of(model={"mixed_precision": "bfloat16"}), recruiter, size)
    steps(trainee, range(1))
    before = [ref(trainee.model), ref(trainee.optimizer)]
    load, still_there = Origin.load, list[bool]()

    def look(origin: Origin, group: Group) -> object:
        still_there.extend(held() is not None for held in before)
        return load(origin, group)

    monkeypatch.setattr(Origin, "load", look)
    trainee.begin_again()
    assert still_there == [False, False]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="/dev/full is a disk without room")
def test_where_weights_find_no_room_on_their_way_they_stay_as_they_are(
    recruiter: Recruiter, origin_of: MakeOrigin, tmp_path: Path
):
    folder = tmp_path / "scratch"

    def scratch() -> Path:
        folder.mkdir()
        (folder / "moments").symlink_to("/dev/full")
        return folder

    trainee = begin(origin_of(), recruits=recruiter, scratch=scratch)
    steps(trainee, range(1))
    before = bits(trainee)
    with pytest.raises(
        StoreFull, match=rf"cannot write {folder}: no space left .*make room there, then `agrpo resume`"
    ):
        trainee.become(2)
    assert (trainee.group.size, bits(trainee), folder.exists()) == (1, before, False)


def state_of(trainee: Trainee) -> CheckpointState:
    return CheckpointState(
        attempt=0,
        step=3,
        digest=digest_of(tensor_digests(trainee.model)),
        floor=0,
        consumed=[],
        num_replaced=0,
        num_tokens=1,
        num_prompts=1,
        version=3,
        written_at=1.5,
    )
