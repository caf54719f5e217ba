"""One learner step on a batch like the quickstart's, packed and padded.

    python benchmarks/learner_step.py [--rounds 3]

256 samples of 27 to 42 tokens on a two-layer model of width 128, one thread, one whole step each: forward, loss,
backward, clip, AdamW. The padded step is what a trainer does without packing: a padded batch through the model's own
attention, and logits at every position. Prints the best of the rounds, and their ratio.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np
import torch
from stand.runs import load_average
from stand.tables import bar, print_table
from transformers import Qwen3Config, Qwen3ForCausalLM

from agrpo.aggregations.token_mean import TokenMean
from agrpo.config import OptimizerSection
from agrpo.losses.clip import Clip
from agrpo.objective import Objective
from agrpo.packing.sequence import Sequence
from agrpo.policy.determinism import make_deterministic
from agrpo.policy.optimizer import build_optimizer
from agrpo.policy.update import update
from agrpo.policy.verifying import verify_packing
from agrpo.records.sample import Sample, TokenSequence
from agrpo.records.tokens import StepTotals, TokenInputs

NUM_SAMPLES, NUM_PROMPT_TOKENS, COMPLETION_TOKENS, VOCABULARY = 256, 22, (5, 20), 320
MICRO_TOKENS = 16384


def make_model() -> Qwen3ForCausalLM:
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        head_dim=32,
        tie_word_embeddings=True,
        initializer_range=0.08,
    )
    return Qwen3ForCausalLM(config).eval()


def make_samples() -> list[Sample]:
    random = np.random.default_rng(0)
    samples: list[Sample] = []
    for number in range(NUM_SAMPLES):
        length = int(random.integers(COMPLETION_TOKENS[0], COMPLETION_TOKENS[1] + 1))
        tokens = random.integers(0, VOCABULARY, NUM_PROMPT_TOKENS + length).tolist()
        sequence = TokenSequence(
            tokens=tokens,
            trained=[False] * NUM_PROMPT_TOKENS + [True] * length,
            sampler_logprobs=[0.0] * NUM_PROMPT_TOKENS + [-5.8] * length,
            versions=[-1] * NUM_PROMPT_TOKENS + [0] * length,
        )
        advantage = float(random.normal())
        samples.append(
            Sample(
                ticket=number // 8,
                rollout_index=number % 8,
                sequence_index=0,
                sequence=sequence,
                advantage=advantage,
                staleness=0,
            )
        )
    return samples


def totals_of(samples: list[Sample]) -> StepTotals:
    num_tokens = sum(sample.sequence.num_trained for sample in samples)
    return StepTotals(num_tokens=num_tokens, num_samples=len(samples), max_completion_length=COMPLETION_TOKENS[1])


def packed_step(samples: list[Sample]) -> Callable[[], float]:
    model = make_model()
    verify_packing(model)
    optimizer = build_optimizer(model, OptimizerSection(learning_rate=1e-4))
    packing, totals = Sequence(), totals_of(samples)
    loss, aggregation = Clip(importance_min=0.0, importance_max=float("inf")), TokenMean()

    def step() -> float:
        placed = packing.place(samples, MICRO_TOKENS)
        rows = [packing.lay_out([samples[number] for number in row]) for row in placed]
        outcome = update(
            model,
            optimizer,
            rows,
            objective=Objective(loss=loss, aggregation=aggregation),
            totals=totals,
            temperature=1.0,
            learning_rate=1e-4,
            max_grad_norm=1.0,
        )
        return outcome.loss

    return step


def padded_step(samples: list[Sample]) -> Callable[[], float]:
    model = make_model()
    model.set_attn_implementation("sdpa")
    optimizer = build_optimizer(model, OptimizerSection(learning_rate=1e-4))
    totals = totals_of(samples)
    loss, aggregation = Clip(importance_min=0.0, importance_max=float("inf")), TokenMean()

    def step() -> float:
        tokens, mask, trained, sampler = _padded(samples)
        logits = model(input_ids=tokens, attention_mask=mask, use_cache=False).logits[:, :-1]
        logprobs = logits.log_softmax(-1).gather(2, tokens[:, 1:, None])[..., 0]
        owner = torch.arange(len(samples))[:, None].expand_as(trained[:, 1:])
        advantages = torch.tensor([sample.advantage for sample in samples])
        inputs = TokenInputs(
            logprobs=logprobs[trained[:, 1:]],
            sampler_logprobs=sampler[:, 1:][trained[:, 1:]],
            advantages=advantages[owner[trained[:, 1:]]],
            sample=owner[trained[:, 1:]],
            num_samples=len(samples),
        )
        share = aggregation(loss(inputs).loss, inputs, totals)
        share.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return float(share.detach())

    return step


def _padded(samples: list[Sample]) -> tuple[torch.Tensor, ...]:
    width = max(len(sample.sequence.tokens) for sample in samples)
    shape = (len(samples), width)
    tokens, mask, trained = (
        torch.zeros(shape, dtype=torch.long),
        torch.zeros(shape, dtype=torch.long),
        torch.zeros(shape),
    )
    sampler = torch.zeros(shape)
    for number, sequence in enumerate(sample.sequence for sample in samples):
        length = len(sequence.tokens)
        tokens[number, :length] = torch.tensor(sequence.tokens)
        mask[number, :length] = 1
        trained[number, :length] = torch.tensor(sequence.trained, dtype=torch.float)
        sampler[number, :length] = torch.tensor(sequence.sampler_logprobs)
    return tokens, mask, trained.bool(), sampler


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--rounds", type=int, default=3, help="turns that each way takes, after one that does not count (3)"
    )
    rounds = parser.parse_args().rounds
    make_deterministic(threads=1)
    samples = make_samples()
    steps = {"padded": padded_step(samples), "packed": packed_step(samples)}
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    losses: dict[str, float] = {}
    with bar("learner step", (1 + rounds) * len(steps)) as progress:
        for number in range(1 + rounds):
            for name, step in steps.items():
                began = time.process_time()
                loss = step()
                if number == 0:
                    losses[name] = loss
                else:
                    seconds[name].append(time.process_time() - began)
                progress.advance(name)
    best = {name: min(values) for name, values in seconds.items()}
    lengths = [len(sample.sequence.tokens) for sample in samples]
    print(
        f"{len(samples)} samples, {sum(lengths)} tokens, longest {max(lengths)}, one thread, best of {rounds}; ", end=""
    )
    print(f"{load_average()}\n")
    rows = [
        [
            name,
            f"{best[name]:.3f}",
            f"{best['padded'] / best[name]:.2f}",
            f"{sum(lengths) / best[name]:.0f}",
            f"{losses[name]:.6f}",
        ]
        for name in steps
    ]
    print_table(["a whole step", "CPU s", "times as fast", "tokens/CPU-second", "loss of the first step"], rows)


if __name__ == "__main__":
    main()
