"""docs/vllm.md says of servers that run elsewhere what agrpo itself does with its own."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from agrpo.config import ModelSection
from agrpo.engines import Needs
from agrpo.engines.serving_vllm.command import LORA_RANKS, REFUSED, server_command
from agrpo.engines.serving_vllm.environment import Installation
from agrpo.engines.vllm import Vllm
from agrpo.records.sampling import Sampling

PAGE = (Path(__file__).parent.parent / "docs" / "vllm.md").read_text("utf-8")
GPU = Installation(python=Path("python"), package="vllm", version="0.32.0")
PLACES = {"--served-model-name", "--host", "--port", "--disable-uvicorn-access-log", "--max-logprobs"}
"""What a server elsewhere has otherwise, or by itself."""


def launch() -> list[str]:
    """The documented command, as words."""
    (found,) = [
        text for text in re.findall(r"^```sh\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE) if "vllm serve" in text
    ]
    return shlex.split(found.replace("\\\n", " "))


@pytest.mark.spec("A-172", "A-173", "A-174")
def test_the_documented_launch_has_every_flag_that_agrpo_sets_itself() -> None:
    model = ModelSection(path="Qwen/Qwen3-1.7B", dtype="bfloat16")
    own = server_command(Vllm(serve=True, max_model_len=4096), model, Needs(), GPU, port=1, inherited={}, gpus=())
    words, told = own.line, launch()
    flags = {word for word in words if word.startswith("--")} - PLACES
    assert flags <= {*told}
    values = {flag: words[words.index(flag) + 1] for flag in flags if not words[words.index(flag) + 1].startswith("--")}
    assert values == {flag: told[told.index(flag) + 1] for flag in values}
    assert told[:4] == ["VLLM_SERVER_DEV_MODE=1", "vllm", "serve", "Qwen/Qwen3-1.7B"]
    assert told[told.index("--api-server-count") + 1] == "8"


def test_every_flag_of_the_table_is_one_that_agrpo_decides_itself() -> None:
    rows = [line.split("|")[1] for line in PAGE.splitlines() if line.startswith("| `")]
    flags = {flag for row in rows for flag in re.findall(r"--[a-z-]+", row)}
    sets = {"--max-model-len", "--weight-transfer-config", "--return-sampling-mask", "--enable-lora", "--max-loras"}
    assert flags >= sets
    assert flags <= REFUSED.keys()


@pytest.mark.spec("A-190")
def test_the_documented_ranks_are_those_that_vllm_takes() -> None:
    (told,) = re.findall(r"`--max-lora-rank` is one of ([\d, and]+),", PAGE)
    assert [int(rank) for rank in re.findall(r"\d+", told)] == [*LORA_RANKS]


def test_every_variable_of_the_table_is_set_for_the_runs_own_servers() -> None:
    needs = Needs(sampling=Sampling(top_k=8), adapter_rank=8)
    own = server_command(Vllm(serve=True), ModelSection(path="m"), needs, GPU, port=1, inherited={}, gpus=())
    told = set(re.findall(r"`(VLLM_[A-Z0-9_]+)=1`", PAGE))
    assert told == {name for name, value in own.env.items() if name.startswith("VLLM_") and value == "1"} - {
        "VLLM_NO_USAGE_STATS"
    }


@pytest.mark.spec("A-175", "A-176", "A-197")
def test_the_page_says_what_flags_and_adapters_cost() -> None:
    words = " ".join(PAGE.split())
    for told in (
        "With `num_sampler_logprobs = 8`, one API server halves the throughput",
        "With `--api-server-count 8` the cost is under 3 % (one H100, models of 1.5 to 7 billion weights, vLLM 0.32; 20 to 40 %",
        "`--max-model-len` is the longest prompt + `engine.max_completion_length`; with tools, the longest conversation",
        "Generation gets slower by a factor of 1.33 to 1.39.",
    ):
        assert told in words
