"""docs/vllm.md says of servers that run elsewhere what agrpo itself does with its own."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest

from agrpo.config import ModelSection, RunConfig, resolve
from agrpo.engines import Needs
from agrpo.engines.serving_vllm.command import LORA_RANKS, REFUSED, server_command
from agrpo.engines.serving_vllm.environment import Installation
from agrpo.engines.vllm import Vllm
from agrpo.records.sampling import Sampling
from agrpo.runs.publishing import settled
from tests.runs.made import a_machine
from tests.test_config import changed

PAGE = (Path(__file__).parent.parent / "docs" / "vllm.md").read_text("utf-8")
GPU = Installation(python=Path("python"), package="vllm", version="0.32.0")
PLACES = {"--served-model-name", "--host", "--port", "--disable-uvicorn-access-log", "--max-logprobs"}
"""What a server elsewhere has otherwise, or by itself."""


def table(name: str) -> dict[str, Any]:
    """What the page sets in this table for servers that run elsewhere."""
    files = [tomllib.loads(text) for text in re.findall(r"^```toml\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)]
    (found,) = [file for file in files if "base_urls" in file.get("engine", {})]
    return found[name]


def launch() -> list[str]:
    """The documented command, as words."""
    (found,) = [
        text
        for text in re.findall(r"^```sh\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
        if "vllm serve" in text and "--dtype" in text
    ]
    return shlex.split(found.replace("\\\n", " "))


@pytest.mark.spec("A-172", "A-173", "A-174")
def test_the_documented_launch_has_every_flag_that_agrpo_sets_itself() -> None:
    model = ModelSection(**table("model"))
    own = server_command(Vllm(serve=True, max_model_len=4096), model, Needs(), GPU, port=1, inherited={}, gpus=())
    words, told = own.line, launch()
    flags = {word for word in words if word.startswith("--")} - PLACES
    assert flags <= {*told}
    values = {flag: words[words.index(flag) + 1] for flag in flags if not words[words.index(flag) + 1].startswith("--")}
    assert values == {flag: told[told.index(flag) + 1] for flag in values}
    assert told[:4] == ["VLLM_SERVER_DEV_MODE=1", "vllm", "serve", "Qwen/Qwen3-1.7B"]
    assert told[told.index("--api-server-count") + 1] == "8"


def test_the_page_launches_what_a_run_with_its_settings_expects_also_where_none_says_a_precision() -> None:
    told = launch()
    served = told[told.index("--dtype") + 1]
    assert ModelSection(**table("model")).served_dtype == served
    unsaid = RunConfig.build(resolve(values=changed(engine={"name": "vllm", "serve": True})))
    assert settled(unsaid, a_machine(64, gpus=(80, 80))).model.served_dtype == served
    words = " ".join(PAGE.split())
    assert "on a machine with GPUs bfloat16" in words and "else `model.dtype`, which is float32" in words
    assert settled(unsaid, a_machine(64)).model.served_dtype == "float32"


def test_server_and_learner_on_one_machine_are_shown_different_gpus() -> None:
    section = PAGE.partition("## Servers that run elsewhere")[2].partition("\n## ")[0]
    assert re.findall(r"CUDA_VISIBLE_DEVICES=(\d) .*(vllm serve|agrpo train)", section) == [
        ("1", "vllm serve"),
        ("0", "agrpo train"),
    ]


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
