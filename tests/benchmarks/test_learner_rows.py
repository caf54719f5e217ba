"""The benchmark of the learner's rows compares what is the same, and reckons its ratios right."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from agrpo.config import ModelSection
from agrpo.losses.score_centering import ScoreCentering
from agrpo.packing.sequence import Sequence
from agrpo.packing.tree import Tree
from agrpo.policy.model import load_policy

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
GROUPS, SIZE, PROMPT, COMPLETION = 2, 4, 12, 3


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The scripts' modules, a tiny policy and samples of it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        import learner_rows
        from stand import peaks, rows, trl_learner, trl_peer
        from stand.runs import make_model
        from stand.top_logprobs import Shape

        policy = load_policy(ModelSection(path=str(make_model(tmp_path_factory.mktemp("model")))), "cpu")
        # Weights of a fresh model are so small that a token hardly feels those before it.
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for weight in policy.parameters():
                weight.add_(torch.randn(weight.shape, generator=generator), alpha=0.1)
        shape = Shape(groups=GROUPS, num_generations=SIZE, prompt_tokens=PROMPT, completion_tokens=COMPLETION)
        samples = rows.sampled_by(policy, rows.samples_of(shape, policy.config.vocab_size), Tree())
        yield SimpleNamespace(
            script=learner_rows,
            rows=rows,
            peaks=peaks,
            peer=trl_peer,
            trl=trl_learner,
            policy=policy,
            samples=samples,
        )


def turn(bench: Any, cpu: float, wall: float = 1.0) -> Any:
    return bench.rows.Turn(cpu_seconds=cpu, seconds=wall, loss=0.0, grad_norm=0.0, logprobs=np.zeros(1))


def test_the_packing_ratio_is_what_the_shape_says(bench: Any):
    shared = bench.rows.laid_out(bench.samples, Tree())
    alone = bench.rows.laid_out(bench.samples, Sequence())
    assert bench.rows.packing_ratio(bench.samples, shared) == SIZE * (PROMPT + COMPLETION) / (
        PROMPT + SIZE * COMPLETION
    )
    assert bench.rows.packing_ratio(bench.samples, alone) == 1.0


def test_every_way_tells_the_same_logprobs_loss_and_gradient(bench: Any):
    tree = bench.rows.packed_turn(bench.policy, bench.samples, Tree())
    whole = bench.rows.packed_turn(bench.policy, bench.samples, Sequence())
    padded = bench.rows.padded_turn(bench.policy, bench.samples)
    assert len(tree.logprobs) == GROUPS * SIZE * COMPLETION
    assert tree.grad_norm > 0.01
    for other in (whole, padded):
        np.testing.assert_allclose(other.logprobs, tree.logprobs, atol=1e-5)
        assert other.loss == pytest.approx(tree.loss, abs=1e-6)
        assert other.grad_norm == pytest.approx(tree.grad_norm, rel=1e-4)


def test_score_centering_is_measured_with_the_same_logprobs(bench: Any):
    tree = bench.rows.packed_turn(bench.policy, bench.samples, Tree())
    centred = bench.rows.packed_turn(bench.policy, bench.samples, Tree(), ScoreCentering())
    np.testing.assert_allclose(centred.logprobs, tree.logprobs, atol=1e-5)


def test_samplers_logprobs_lie_a_little_apart_from_the_policys(bench: Any):
    own = bench.rows.packed_turn(bench.policy, bench.samples, Tree()).logprobs
    told = [value for sample in bench.samples for value in sample.sequence.sampler_logprobs[PROMPT:]]
    assert 0 < np.abs(own - np.array(told)).max() < 5 * bench.rows.NOISE


def test_ways_take_turns_and_the_best_counts(bench: Any):
    asked: list[str] = []
    spent = iter([4.0, 1.0, 6.0, 2.0])
    ways = {name: lambda: turn(bench, next(spent)) for name in ("slow", "fast")}
    turns = bench.rows.take_turns(ways, 2, asked.append)
    assert asked == ["slow", "fast", "slow", "fast"]
    assert bench.rows.cpu_seconds(turns["slow"]) == 4.0
    assert bench.script.speed_up(turns["slow"], turns["fast"]) == 4.0


def test_shapes_of_smollm2_have_the_packing_ratios_that_are_claimed(bench: Any):
    ratios = [
        each.num_generations
        * (each.prompt_tokens + each.completion_tokens)
        / (each.prompt_tokens + each.num_generations * each.completion_tokens)
        for each in bench.script.SHAPES
    ]
    assert [round(ratio, 1) for ratio in ratios] == [1.2, 3.4, 8.0]


def test_the_peer_is_given_the_same_tokens_logprobs_and_advantages(bench: Any):
    batch = json.loads(json.dumps(bench.peer.batch_of(bench.samples)))
    inputs = bench.trl.inputs_of(batch)
    assert inputs["prompt_ids"].shape == (GROUPS * SIZE, PROMPT)
    assert inputs["completion_ids"].shape == (GROUPS * SIZE, COMPLETION)
    first = bench.samples[0]
    assert [*batch["prompt_ids"][0], *batch["completion_ids"][0]] == first.sequence.tokens
    assert batch["sampler_logprobs"][0] == first.sequence.sampler_logprobs[PROMPT:]
    assert inputs["num_items_in_batch"].item() == GROUPS * SIZE * COMPLETION


def test_every_way_of_the_head_runs_and_asks_for_a_gradient(bench: Any):
    for way in bench.peaks.HEAD_WAYS:
        bench.peaks.head_work(way=way, dtype="float32", num_targets=5, hidden_size=8, vocabulary=40)()


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="the high-water mark is Linux's")
def test_a_peak_is_what_a_process_of_its_own_took_at_most(bench: Any):
    few, many = (
        bench.script.peak_of(
            {
                "what": "head",
                "way": "full logits",
                "dtype": "float32",
                "num_targets": number,
                "hidden_size": 8,
                "vocabulary": 20000,
            }
        )
        for number in (1, 1000)
    )
    assert many["mb"] - few["mb"] > 2 * 1000 * 20000 * 4 / 2**20 * 0.95
