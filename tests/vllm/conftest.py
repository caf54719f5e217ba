"""What the tests of a real vLLM share: a model it can serve, runs whose servers are real, and one server for all of them.

A server costs half a minute of a core to start. A test that kills one, or needs other flags, begins a run of its own.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from agrpo.config import resolve
from agrpo.queue.run_folder import RunFolder
from agrpo.runs import prepare
from agrpo.stages.process import Supervisor
from agrpo.stages.stage_process import StageProcess
from tests.processes import until
from tests.stages.walk import settings

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

ARGUMENTS = (
    "--enforce-eager",
    "--max-num-seqs=64",
    "--max-num-batched-tokens=512",
    "--block-size=32",
    "--kv-cache-memory-bytes=67108864",
)
"""What keeps a server small: 64 MiB for 65 536 tokens of the model below."""
MAX_MODEL_LEN = 512
START_SECONDS = 240.0


@dataclass(frozen=True, kw_only=True)
class RealServer:
    """A vLLM that serves the model of `vllm_model` in float32, started by the stage `server`."""

    url: str
    model: Path
    """Its folder, and the name it is served under."""
    folder: RunFolder
    """The run whose server it is. No other stage of it has started."""
    stage: StageProcess


@pytest.fixture(scope="session")
def vllm_model(tmp_path_factory: pytest.TempPathFactory, tiny_tokenizer: PreTrainedTokenizerFast) -> Path:
    """A random two-layer Qwen3 in float32 with tied embeddings, and its tokenizer. vLLM needs heads of width 32 on a CPU."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    folder = tmp_path_factory.mktemp("vllm-model")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        config = Qwen3Config(
            vocab_size=len(tiny_tokenizer),
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
        Qwen3ForCausalLM(config).save_pretrained(folder)
    tiny_tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def vllm_prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve sums."""
    file = tmp_path_factory.mktemp("vllm-prompts") / "prompts.jsonl"
    rows = [{"prompt": [{"role": "user", "content": f"{first}+{first + 2} ="}]} for first in range(12)]
    file.write_text("\n".join(json.dumps(row) for row in rows))
    return file


@pytest.fixture(scope="session")
def vllm_tree(vllm_model: Path, vllm_prompts: Path) -> Callable[..., dict[str, Any]]:
    """`vllm_tree(place, **tables)`: settings of a small run in `place` that starts its own server."""

    def tree(place: Path, **tables: Any) -> dict[str, Any]:
        tables["stop"] = {"stall_seconds": START_SECONDS, **tables.get("stop", {})}
        model = tables.pop("model", {}).get("path", vllm_model)
        made = settings(model, vllm_prompts, place, **{name: tables[name] for name in tables if name != "engine"})
        made["engine"] = {
            "name": "vllm",
            "serve": True,
            "arguments": list(ARGUMENTS),
            "max_model_len": MAX_MODEL_LEN,
            "num_generations": 4,
            "max_completion_length": 6,
            "start_seconds": START_SECONDS,
            **tables.get("engine", {}),
        }
        return made

    return tree


@pytest.fixture(scope="session")
def vllm_run(vllm_tree: Callable[..., dict[str, Any]]) -> Callable[..., RunFolder]:
    """`vllm_run(place, **tables)`: that run in `place/run`, begun, with no stage started. Its servers are the caller's."""

    def begun(place: Path, **tables: Any) -> RunFolder:
        return prepare(resolve(values=vllm_tree(place, **tables)), folder=str(place / "run"))

    return begun


@pytest.fixture(scope="session")
def vllm_server(
    vllm_run: Callable[..., RunFolder], vllm_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RealServer]:
    """The server that all share. Whoever loads weights into it leaves it unpaused, and serving some version."""
    folder = vllm_run(tmp_path_factory.mktemp("vllm-server"))
    with Supervisor(folder.url, folder.local / "logs") as supervisor:
        stage = supervisor.start("server")
        until(lambda: folder.server_urls() or stage.ended, START_SECONDS)
        assert not stage.ended, "\n".join(stage.output.last_lines())
        [url] = folder.server_urls()
        yield RealServer(url=url, model=vllm_model, folder=folder, stage=stage)
