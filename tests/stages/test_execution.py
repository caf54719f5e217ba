from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from agrpo.policy.logprobs import next_token_logprobs
from agrpo.policy.model import load_policy
from agrpo.policy.optimizer import build_optimizer
from agrpo.records.batch import Row
from agrpo.records.group import RolloutGroup
from agrpo.records.progress import Done, Plan, PlannedSample
from agrpo.records.prompt import Prompt
from agrpo.records.rollout import Rollout, TurnRecord
from agrpo.stages.clock import StepClock
from agrpo.stages.execution import StepMaterial, TokensOf, Trainee, carry_out
from tests.metrics.made import scored
from tests.stages.groups import PROMPT_IDS, a_config


def row_of(owners: list[int], num_samples: int) -> Row:
    """A row whose trained tokens belong to these samples; the rest of it is not looked at."""
    none = np.zeros(0)
    return Row(
        tokens=none,
        positions=none,
        parents=none,
        index=none,
        targets=none,
        sample=np.array(owners),
        sampler_logprobs=none,
        advantages=none,
        num_samples=num_samples,
    )


def test_tokens_are_told_by_sample_wherever_a_row_has_them():
    tokens = TokensOf(row_of([1, 0, 1, 2, 1], 3))
    values = np.array([4.0, 1.0, 5.0, -2.0, 9.0], np.float32)
    assert tokens.mean(values) == [1.0, 6.0, -2.0]
    assert tokens.each(np.minimum, values) == [1.0, 4.0, -2.0]
    assert tokens.each(np.maximum, values) == [1.0, 9.0, -2.0]
    assert [part.tolist() for part in tokens.split(values)] == [[1.0], [4.0, 5.0, 9.0], [-2.0]]


def test_shares_are_means_of_what_holds_of_a_token():
    assert TokensOf(row_of([0, 0, 0, 0, 1], 2)).mean(np.array([True, False, False, False, True])) == [0.25, 1.0]


def test_a_sample_without_a_trained_token_is_no_sample_of_a_row():
    with pytest.raises(AssertionError, match="without a trained token"):
        TokensOf(row_of([0, 2], 3))


RATIOS = [[0.7, 0.4, 1.0, 1.5], [1.3, 6.0, 0.7, 1.0, 1.2], [0.75, 0.6], [1.29]]
"""How much likelier the learner finds each token than its sampler did, by rollout. The bounds are 0.8, 1.28; 0.5, 5."""


def carried_out(folder: Path, ratios: list[list[float]], advantages: list[float]) -> Done:
    """A step on answers whose sampler said of each token what makes this ratio of it, in two rows."""
    config = a_config(
        model={"path": str(folder)},
        loss={"name": "clip", "epsilon": 0.2, "epsilon_high": 0.28, "importance_min": 0.5, "importance_max": 5.0},
    )
    model = load_policy(config.model, "cpu")
    rollouts: list[Rollout] = []
    for index, wanted in enumerate(ratios):
        ids = [30 + 7 * index + place for place in range(len(wanted))]
        known = [next_token_logprobs(model, PROMPT_IDS + ids[:place])[token] for place, token in enumerate(ids)]
        said = [float(logprob) - math.log(ratio) for logprob, ratio in zip(known, wanted, strict=True)]
        turn = TurnRecord(prompt_ids=PROMPT_IDS, output_ids=ids, output_log_probs=said, output_versions=[0] * len(ids))
        rollouts.append(Rollout(completion=[], completion_ids=ids, turns=[turn], index=index))
    numbers = range(len(ratios))
    plan = Plan(
        attempt=0,
        step=1,
        tickets=[0],
        drops=[],
        samples=[
            PlannedSample(ticket=0, rollout_index=index, sequence_index=0, advantage=advantages[index], staleness=0)
            for index in numbers
        ],
        rows=[[*numbers[::2]], [*numbers[1::2]]],
        num_trained_tokens=sum(map(len, ratios)),
        version=0,
        learning_rate=1e-4,
        seed=0,
        publish=1,
        config_digest="",
        planned_at=1.0,
    )
    material = StepMaterial(
        plan=plan,
        groups={0: RolloutGroup(ticket=0, prompt=Prompt(id="p", messages=[]), rollouts=rollouts, model_version=0)},
        consumed=[scored(0, {"a": advantages})],
        clock=StepClock(),
    )
    return carry_out(config, Trainee(model, build_optimizer(model, config.optimizer)), material).done


@pytest.mark.spec("A-296", "A-297", "A-298")
@pytest.mark.spec("A-302", "A-303", "A-305", "A-306")
def test_a_step_tells_of_its_samples_what_their_ratios_make_of_them(tiny_model: Path):
    done = carried_out(tiny_model, RATIOS, [-1.0, 1.0, -2.0, 2.0])

    def told(name: str) -> list[float]:
        return [getattr(sample, name) for sample in done.samples]

    assert [sample.rollout_index for sample in done.samples] == [0, 1, 2, 3]
    assert told("masked_share") == pytest.approx([1 / 4, 1 / 5, 0, 0])
    assert told("clipped_low_share") == pytest.approx([2 / 4, 0, 1, 0])
    assert told("clipped_high_share") == pytest.approx([0, 2 / 5, 0, 1])
    assert told("ratio_min") == pytest.approx([0.4, 0.7, 0.6, 1.29], abs=1e-5)
    assert told("ratio_mean") == pytest.approx([0.9, 2.04, 0.675, 1.29], abs=1e-5)
    assert told("ratio_max") == pytest.approx([1.5, 6.0, 0.75, 1.29], abs=1e-4)
    largest = [math.log(1 / 0.4), math.log(6), math.log(1 / 0.6), math.log(1.29)]
    assert told("logprob_difference_max") == pytest.approx(largest, abs=1e-5)
    expected = {"low_mean": 4 / 12, "high_mean": 3 / 12, "region_mean": 7 / 12, "low_min": 0.0, "high_max": 1.0}
    assert {name: done.metrics[f"clip_ratio/{name}"] for name in expected} == pytest.approx(expected)
    assert done.metrics["sampling/masked_mean"] == pytest.approx(2 / 12)
    assert done.metrics["sampling/sampling_logp_difference/max"] == pytest.approx(math.log(6), abs=1e-5)
    mean = math.fsum(abs(math.log(ratio)) for ratios in RATIOS for ratio in ratios) / 12
    assert done.metrics["sampling/sampling_logp_difference/mean"] == pytest.approx(mean, abs=1e-5)


@pytest.mark.spec("A-304")
@pytest.mark.parametrize(("sign", "low_min", "high_max"), [(-1.0, 1 / 5, 0.0), (1.0, 0.0, 2 / 5)])
def test_extreme_shares_are_those_of_the_least_and_the_most_clipped_sample(
    tiny_model: Path, sign: float, low_min: float, high_max: float
):
    metrics = carried_out(tiny_model, RATIOS[:2], [sign, sign]).metrics
    assert metrics["clip_ratio/low_min"] == pytest.approx(low_min)
    assert metrics["clip_ratio/high_max"] == pytest.approx(high_max)
