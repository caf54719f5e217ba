"""Tokens per CPU-second of the transformers engine, as a ratio to `generate` of transformers, on a tiny model.

    python benchmarks/engine_throughput.py              three rounds
    python benchmarks/engine_throughput.py --rounds 9   more of them, where the machine is busy

One torch thread; 32 prompts of 22 tokens, 8 completions of 20 tokens each. CPU time, so that other work on the machine
disturbs little; the ways take turns, and the median of the rounds counts.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import torch
from stand.runs import load_average
from stand.tables import bar, print_table
from transformers import GenerationConfig, PreTrainedModel, Qwen3Config, Qwen3ForCausalLM
from transformers.utils import logging

from agrpo.config import ModelSection
from agrpo.engines import Engine, engines
from agrpo.records.sampling import CompletionRequest, Sampling

PROMPTS, GROUP, PROMPT_TOKENS, COMPLETION_TOKENS = 32, 8, 22, 20
GENERATE = "transformers generate"

Way = Callable[[], Awaitable[int]]
"""Samples some completions; gives how many tokens they have."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--rounds", type=int, default=3, help="turns that each way takes, after one that does not count (3)"
    )
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as folder:
        model = tiny_model(Path(folder))
        speeds = asyncio.run(measured(model, Path(folder), arguments.rounds))
    print(f"{load_average()}\n")
    rows = [[name, f"{speed:.0f}", f"{speed / speeds[GENERATE]:.2f}"] for name, speed in speeds.items()]
    print_table(["way", "tokens/CPU-second", "of generate"], rows)


def tiny_model(folder: Path) -> PreTrainedModel:
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=320,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        head_dim=32,
        tie_word_embeddings=True,
        initializer_range=0.08,
        pad_token_id=0,
        eos_token_id=None,
    )
    model = Qwen3ForCausalLM(config).eval()
    model.save_pretrained(folder)
    return model


async def measured(model: PreTrainedModel, folder: Path, rounds: int) -> dict[str, float]:
    """Tokens per CPU-second by way, after one round that does not count."""
    engine = engines.build("transformers", {"threads": 1})(ModelSection(path=str(folder)))
    try:
        await engine.load(folder, 0)
        ways = ways_of(engine, model)
        speeds: dict[str, list[float]] = {name: [] for name in ways}
        with bar("engine", (rounds + 1) * len(ways)) as progress:
            for _ in range(rounds + 1):
                for name, way in ways.items():
                    speeds[name].append(await speed_of(way))
                    progress.advance(name)
    finally:
        await engine.close()
    return {name: statistics.median(found[1:]) for name, found in speeds.items()}


def ways_of(engine: Engine, model: PreTrainedModel) -> dict[str, Way]:
    groups = groups_of(Sampling(max_completion_length=COMPLETION_TOKENS))
    every_request = [request for group in groups for request in group]
    return {
        GENERATE: lambda: generated(model, groups),
        "engine, one call of 256": lambda: completed(engine, [every_request]),
        "engine, 32 calls of 8": lambda: completed(engine, groups),
        "engine, 32 lanes renewed one by one": lambda: renewed(engine, groups),
        "engine, top-k 50, top-p 0.95, 5 log-probs": lambda: completed(
            engine, with_sampling(groups, top_k=50, top_p=0.95, num_sampler_logprobs=5)
        ),
        "engine, 32 reproducible calls of 8": lambda: completed(engine, with_sampling(groups, reproducible=True)),
    }


def groups_of(sampling: Sampling) -> list[list[CompletionRequest]]:
    draw = random.Random(0)
    prompts = [draw.choices(range(10, 300), k=PROMPT_TOKENS) for _ in range(PROMPTS)]
    return [
        [
            CompletionRequest(prompt_ids=ids, seed=GROUP * place + index, sampling=sampling, stop_ids=frozenset())
            for index in range(GROUP)
        ]
        for place, ids in enumerate(prompts)
    ]


def with_sampling(groups: list[list[CompletionRequest]], **changes: float) -> list[list[CompletionRequest]]:
    return [[replace(each, sampling=replace(each.sampling, **changes)) for each in group] for group in groups]


async def speed_of(way: Way) -> float:
    began = time.process_time()
    tokens = await way()
    return tokens / (time.process_time() - began)


async def completed(engine: Engine, calls: list[list[CompletionRequest]]) -> int:
    answers = await asyncio.gather(*[engine.complete(requests) for requests in calls])
    return sum(len(turn.output_ids) for turns in answers for turn in turns)


async def renewed(engine: Engine, groups: list[list[CompletionRequest]]) -> int:
    """Each lane asks for a group as soon as its last one is there. Lengths differ, so the lanes fall out of step."""

    async def lane(place: int) -> int:
        draw, tokens = random.Random(place), 0
        for _ in range(4):
            sampling = Sampling(max_completion_length=draw.randint(1, 2 * COMPLETION_TOKENS - 1))
            requests = [replace(each, sampling=sampling, seed=draw.getrandbits(60)) for each in groups[place]]
            tokens += await completed(engine, [requests])
        return tokens

    return sum(await asyncio.gather(*[lane(place) for place in range(PROMPTS)]))


async def generated(model: PreTrainedModel, groups: list[list[CompletionRequest]]) -> int:
    ids = torch.tensor([group[0].prompt_ids for group in groups])
    settings = GenerationConfig(
        do_sample=True,
        top_k=0,
        top_p=1.0,
        temperature=1.0,
        max_new_tokens=COMPLETION_TOKENS,
        num_return_sequences=GROUP,
        pad_token_id=0,
    )
    with torch.inference_mode():
        sequences = model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=settings)
    return (sequences.shape[1] - ids.shape[1]) * len(sequences)


if __name__ == "__main__":
    main()
