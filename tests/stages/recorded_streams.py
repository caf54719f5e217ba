"""Streams of tokens that real engines sampled in several turns, recorded once: `python -m tests.stages.recorded_streams`.

A tiny model is taught to call a tool, not well, so that it thinks, calls, calls wrongly, chats and never ends. It needs vLLM
(`make vllm`) and a minute.
"""

from __future__ import annotations

import asyncio
import json
import random
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agrpo.config import ModelSection, resolve
from agrpo.engines import Engine, Needs
from agrpo.engines.transformers import Transformers
from agrpo.engines.vllm import Vllm
from agrpo.records.rollout import Rollout
from agrpo.records.sampling import Sampling
from agrpo.runs import prepare
from agrpo.stages.process import Supervisor
from tests.conftest import CHAT_TEMPLATE
from tests.processes import until
from tests.stages.playing import QUESTION, Stage, call_of, tokenizer_with
from tests.stages.test_conversation import FORGETFUL
from tests.stages.walk import settings

STREAMS = Path(__file__).parent / "recorded_streams.json"
TEMPLATES = {"appends": CHAT_TEMPLATE, "forgets": FORGETFUL}
TOOL = "add"
SAMPLING = Sampling(num_generations=6, max_completion_length=96, temperature=1.0, request_timeout_seconds=60.0)
MAX_TOKENS = 900
SERVER = [
    "--enforce-eager",
    "--max-num-seqs=8",
    "--max-num-batched-tokens=512",
    "--block-size=32",
    "--kv-cache-memory-bytes=67108864",
]
NUM_LESSONS = 160


def teach(folder: Path) -> None:
    """Write a model beside the tokenizer there that mostly thinks, calls `add` and tells the result."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    stage, draw = Stage(folder, TOOL), random.Random(0)
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=len(stage.renderer.tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        initializer_range=0.08,
        pad_token_id=0,
        eos_token_id=1,
        bos_token_id=None,
    )
    model = Qwen3ForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
    for _ in range(NUM_LESSONS):
        asked, ids = stage.talk.prompt(QUESTION), list[int]()
        first, second = draw.randrange(10), draw.randrange(10)
        thought = f"<think>{draw.choice(['hello', '4+5'])}</think>"
        for line in [thought + call_of("add", a=first, b=second), f"{first + second}"]:
            ids += stage.renderer.encode(
                line + "<|end|>" + ("" if ids else f"<|tool|>{first + second}<|end|><|assistant|>")
            )
        tokens = torch.tensor([[*asked, *ids]])
        labels = tokens.clone()
        labels[:, : len(asked)] = -100
        model(input_ids=tokens, labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.save_pretrained(folder)


def stream_of(name: str, template: str, rollouts: list[Rollout]) -> dict[str, Any]:
    """As it is recorded."""
    return {
        "engine": name,
        "template": template,
        "rollouts": [
            [
                {
                    "prompt_ids": turn.prompt_ids,
                    "output_ids": turn.output_ids,
                    "output_log_probs": turn.output_log_probs,
                    "output_versions": turn.output_versions,
                    "stop_reason": turn.stop_reason,
                }
                for turn in rollout.turns
            ]
            for rollout in rollouts
        ],
    }


def by_transformers(folder: Path) -> list[Rollout]:
    return _driven(folder, lambda: Transformers(threads=1)(ModelSection(path=str(folder))))


def by_vllm(folder: Path, place: Path) -> list[Rollout]:
    (place / "prompts.jsonl").write_text(json.dumps({"prompt": QUESTION}))
    tree = settings(folder, place / "prompts.jsonl", place)
    tree["engine"] = {
        "name": "vllm",
        "serve": True,
        "arguments": SERVER,
        "max_model_len": 1024,
        "num_generations": 6,
        "max_completion_length": 96,
        "start_seconds": 300.0,
    }
    run = prepare(resolve(values=tree), folder=str(place / "run"))

    with Supervisor(run.url, run.local / "logs") as supervisor:
        stage = supervisor.start("server")
        until(lambda: run.server_urls() or stage.ended, 300.0)
        assert not stage.ended, "\n".join(stage.output.last_lines())
        part = Vllm(base_urls=run.server_urls(), start_seconds=60.0, outage_seconds=60.0)
        return _driven(folder, lambda: part(ModelSection(path=str(folder)), Needs(sampling=SAMPLING)))


def _driven(folder: Path, make: Callable[[], Engine]) -> list[Rollout]:
    async def main() -> list[Rollout]:
        engine = make()
        try:
            await engine.load(folder, 0)
            return await Stage(folder, TOOL, max_tokens=MAX_TOKENS).sampled(engine, SAMPLING)
        finally:
            await engine.close()

    return asyncio.run(main())


def record(tokenizer: Any) -> None:
    """Both engines, over templates that append and that forget."""
    streams: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as scratch:
        for name, template in TEMPLATES.items():
            folder = tokenizer_with(tokenizer, Path(scratch) / name, template)
            teach(folder)
            streams.append(stream_of("transformers", name, by_transformers(folder)))
        folder = Path(scratch) / "appends"
        STREAMS.write_text(json.dumps(streams, separators=(",", ":")) + "\n", "utf-8")
        streams.append(stream_of("vllm", "appends", by_vllm(folder, Path(scratch))))
        STREAMS.write_text(json.dumps(streams, separators=(",", ":")) + "\n", "utf-8")


if __name__ == "__main__":
    from tests.conftest import make_tiny_tokenizer

    record(make_tiny_tokenizer())
