"""Checkpoints that bring their own code: run where `model.trust_remote_code` says so, in the learner and in the engine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agrpo.config import ModelSection
from agrpo.engines.decoding.model import load_model
from agrpo.errors import ModelError
from agrpo.policy.model import load_policy
from tests.policy.conftest import MakeModel

CODE = """
from transformers import LlamaConfig, LlamaForCausalLM

class OwnConfig(LlamaConfig):
    model_type = "own"

class OwnForCausalLM(LlamaForCausalLM):
    config_class = OwnConfig
"""


@pytest.fixture
def own_checkpoint(tmp_path: Path, make_model: MakeModel, monkeypatch: pytest.MonkeyPatch) -> str:
    """A Llama under another name, whose classes lie beside its weights."""
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    folder = tmp_path / "checkpoint"
    make_model("llama").save_pretrained(folder)
    (folder / "own.py").write_text(CODE)
    config = json.loads((folder / "config.json").read_text())
    brought = {"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.OwnForCausalLM"}
    own = {"model_type": "own", "architectures": ["OwnForCausalLM"], "auto_map": brought}
    (folder / "config.json").write_text(json.dumps(config | own))
    return str(folder)


@pytest.mark.spec("A-047")
def test_code_of_a_checkpoint_is_run_by_learner_and_engine_where_it_is_trusted(own_checkpoint: str):
    trusted = ModelSection(path=own_checkpoint, trust_remote_code=True)
    assert type(load_policy(trusted, "cpu")).__name__ == "OwnForCausalLM"
    assert type(load_model(trusted)._network).__name__ == "OwnForCausalLM"


def test_code_of_a_checkpoint_is_not_run_otherwise(own_checkpoint: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("transformers.dynamic_module_utils.TIME_OUT_REMOTE_CODE", 1)
    for load in (lambda section: load_policy(section, "cpu"), load_model):
        with pytest.raises(ModelError, match="trust_remote_code"):
            load(ModelSection(path=own_checkpoint))
