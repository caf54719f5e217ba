"""Turns become training sequences: every generated token is trained once, in the context it was sampled in."""

from __future__ import annotations

import pytest

from agrpo.records.rollout import Rollout, TurnRecord
from agrpo.records.sample import drift_of, sequences_of


def turn(prompt: list[int], output: list[int], **fields: object) -> TurnRecord:
    given = {"output_log_probs": [-0.1 * token for token in output], "output_versions": [0] * len(output), **fields}
    return TurnRecord(prompt_ids=prompt, output_ids=output, **given)  # type: ignore[arg-type]


def rollout(*turns: TurnRecord) -> Rollout:
    return Rollout(completion=[], completion_ids=[], turns=list(turns))


@pytest.mark.spec("A-246", "A-247")
def test_a_turn_that_continues_the_kept_tokens_extends_the_sequence():
    (sequence,) = sequences_of(rollout(turn([7], [1, 2, 9]), turn([7, 1, 2, 9, 5, 6], [3, 9])))
    assert sequence.tokens == [7, 1, 2, 9, 5, 6, 3, 9]
    assert sequence.trained == [False, True, True, True, False, False, True, True]
    assert sequence.sampler_logprobs[6] == pytest.approx(-0.3)
    assert sequence.num_trained == 5


@pytest.mark.spec("A-246")
def test_a_turn_that_rewrites_history_starts_another_sequence():
    first, second = sequences_of(rollout(turn([7], [8, 4, 9]), turn([7, 4, 9, 5], [3, 9])))
    assert first.tokens == [7, 8, 4, 9]
    assert second.tokens == [7, 4, 9, 5, 3, 9]
    assert first.num_trained + second.num_trained == 5


@pytest.mark.spec("A-230")
def test_masked_output_tokens_are_context_only():
    (sequence,) = sequences_of(rollout(turn([7], [1, 2, 9], output_mask=[1, 0, 1])))
    assert sequence.trained == [False, True, False, True]
    assert sequence.sampler_logprobs[2] == 0.0


@pytest.mark.spec("A-229")
def test_a_trained_token_without_its_sampler_logprob_is_refused():
    with pytest.raises(ValueError, match="3 output tokens and 2 sampler log-probs"):
        sequences_of(rollout(turn([7], [1, 2, 9], output_log_probs=[-0.1, -0.2])))
    sequences_of(rollout(turn([7], [1, 2, 9], output_log_probs=[], output_mask=[0, 0, 0])))


@pytest.mark.spec("A-231")
def test_candidate_sets_are_kept_beside_the_tokens_they_belong_to():
    (sequence,) = sequences_of(rollout(turn([7], [1, 9], output_sampling_mask=[[1, 2], [9]])))
    assert sequence.candidates == [[], [1, 2], [9]]
    assert sequences_of(rollout(turn([7], [1, 9])))[0].candidates is None


@pytest.mark.parametrize(
    ("prompts", "drifts"),
    [
        ([[1, 2], [1, 2, 9, 9, 3]], [0]),
        ([[1, 2], [1, 2, 9, 9]], [0]),
        ([[1, 2], [1, 2, 9, 3]], [1]),
        ([[1, 2], [1]], [3]),
        ([[1, 2], [4], [4, 9, 9, 5]], [4, 0]),
        ([[1, 2]], []),
    ],
)
def test_drift_is_what_a_prompt_leaves_of_the_tokens_before_it(prompts: list[list[int]], drifts: list[int]):
    """Every turn adds the tokens 9, 9."""
    talk = rollout(*(turn(prompt, [9, 9]) for prompt in prompts))
    assert drift_of(talk) == drifts
    assert sum(drift > 0 for drift in drifts) == len(sequences_of(talk)) - 1
