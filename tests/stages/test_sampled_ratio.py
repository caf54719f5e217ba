"""What an engine says of its tokens and what the learner says of them, under the same weights, through the records."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest
import torch

from agrpo.config import ModelSection
from agrpo.engines import engines
from agrpo.losses.score_centering import ScoreCentering
from agrpo.packing import packings
from agrpo.policy.logprobs import row_logprobs
from agrpo.policy.model import load_policy
from agrpo.records.arrow import group_from_arrow, group_to_arrow
from agrpo.records.batch import Row
from agrpo.records.group import RolloutGroup
from agrpo.records.prompt import Prompt
from agrpo.records.rollout import Rollout, TurnRecord
from agrpo.records.sample import Sample
from agrpo.records.sampling import CompletionRequest, Sampling
from agrpo.records.tokens import TokenInputs, TopInputs


def sampled(folder: Path, sampling: Sampling) -> list[TurnRecord]:
    async def complete() -> list[TurnRecord]:
        engine = engines.build("transformers", {"threads": 1})(ModelSection(path=str(folder)))
        try:
            await engine.load(folder, 0)
            requests = [
                CompletionRequest(prompt_ids=[12, 40, 77], seed=seed, sampling=sampling, stop_ids=frozenset({1}))
                for seed in range(6)
            ]
            return await engine.complete(requests)
        finally:
            await engine.close()

    return asyncio.run(complete())


def row_of(turns: list[TurnRecord]) -> Row:
    """As the learner lays it out, after the way through a slot."""
    rollouts = [
        Rollout(completion=[], completion_ids=turn.output_ids, turns=[turn], index=index)
        for index, turn in enumerate(turns)
    ]
    group = RolloutGroup(ticket=0, prompt=Prompt(id="p", messages=[]), rollouts=rollouts, model_version=0)
    found = group_from_arrow(group_to_arrow(group))
    samples = [
        Sample(ticket=0, rollout_index=index, sequence_index=0, sequence=sequence, advantage=1.0, staleness=0)
        for index, (sequence,) in enumerate(found.completions_sequences)
    ]
    return packings.build("sequence", {}).lay_out(samples)


@pytest.mark.spec("K27", "A-166")
@pytest.mark.parametrize(
    "settings",
    [
        {"top_k": 20, "top_p": 0.8},
        {"top_k": 5},
        {"top_k": 40, "min_p": 0.2, "temperature": 0.5},
        {"temperature": 0.5},
        {},
    ],
    ids=lambda settings: ",".join(settings) or "nothing left out",
)
def test_unchanged_policy_gives_every_token_that_was_named_the_log_prob_it_was_sampled_with(
    tiny_model: Path, settings: dict[str, float]
):
    sampling = Sampling(max_completion_length=12, num_sampler_logprobs=8, **settings)
    row = row_of(sampled(tiny_model, sampling))
    policy = load_policy(ModelSection(path=str(tiny_model)))
    with torch.no_grad():
        read = row_logprobs(policy, row, temperature=sampling.temperature, with_top=True)
    assert row.top is not None and read.top_logprobs is not None and read.log_rest is not None
    assert np.abs(read.logprobs.numpy() - row.sampler_logprobs).max() < 1e-4
    named = row.top.ids >= 0
    assert np.abs(read.top_logprobs.numpy()[named] - row.top.logprobs[named]).max() < 1e-4
    assert 1 <= row.top.counts.min() and row.top.counts.max() <= 9
    tokens = TokenInputs(
        logprobs=read.logprobs,
        sampler_logprobs=torch.from_numpy(row.sampler_logprobs),
        advantages=torch.from_numpy(row.advantages),
        sample=torch.from_numpy(row.sample),
        num_samples=row.num_samples,
        top=TopInputs(
            logprobs=read.top_logprobs,
            sampler_logprobs=torch.from_numpy(row.top.logprobs),
            log_rest=read.log_rest,
        ),
    )
    measures = ScoreCentering()(tokens).measures
    assert not measures["masked"].any()
    held = (read.top_logprobs[:, :-1].exp().sum(1) - measures["sampler_mass"]).abs().max().item()
    assert held < 1e-5
