"""`[adapter]`: refused by name where it cannot be, settled when a run begins."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from agrpo.config import RunConfig, resolve
from agrpo.errors import ConfigError
from agrpo.runs import adapter_publish, prepare
from agrpo.runs.checks import bytes_needed
from tests.stages.walk import settings

VLLM = {"engine": {"name": "vllm", "serve": True, "num_generations": 4, "max_completion_length": 6}}


@pytest.fixture
def tree(tiny_model: Path, tmp_path: Path) -> dict[str, Any]:
    file = tmp_path / "prompts.jsonl"
    file.write_text(json.dumps({"prompt": [{"role": "user", "content": "1+1"}], "answer": "2"}))
    return settings(tiny_model, file, tmp_path / "runs")


def problems(tree: dict[str, Any], **adapter: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        prepare(resolve(values={**tree, "adapter": adapter}))
    return caught.value.problems


@pytest.mark.parametrize(
    ("adapter", "expected"),
    [
        ({"alpha": 8.0}, "adapter.alpha: says what an adapter is like, and there is none; set adapter.rank"),
        ({"targets": ["q_proj"]}, "adapter.targets: says what an adapter is like"),
        ({"publish": "merged"}, "adapter.publish: says what an adapter is like"),
        ({"rank": 0}, "adapter.rank = 0"),
        ({"rank": 2, "targets": []}, "adapter.targets"),
        ({"rank": 2, "dropout": 0.1}, "adapter.dropout: unknown setting"),
        ({"rank": 2, "targets": ["q_prj"]}, 'adapter.targets: "q_prj" names no layer of '),
        ({"rank": 2, "publish": "adapter"}, "adapter.publish: this engine takes whole weights alone"),
    ],
)
def test_adapters_that_cannot_be_are_refused_by_name(tree: dict[str, Any], adapter: dict[str, Any], expected: str):
    (told, *_) = problems(tree, **adapter)
    assert told.startswith(expected)


@pytest.mark.spec("A-016")
def test_an_adapter_on_the_output_head_is_refused_as_a_value_error(tree: dict[str, Any]):
    with pytest.raises(ValueError, match=r'adapter.targets: "lm_head" is the output head, which takes no adapter'):
        prepare(resolve(values={**tree, "adapter": {"rank": 2, "targets": ["q_proj", "lm_head"]}}))


def test_dora_is_never_published_by_itself(tree: dict[str, Any]):
    told = problems({**tree, **VLLM}, rank=2, dora=True, publish="adapter")
    assert told[0].startswith('adapter.publish: "adapter" cannot be served with adapter.dora = true; set "merged"')


@pytest.mark.spec("A-188")
@pytest.mark.parametrize(
    ("tables", "adapter", "choice", "reason"),
    [
        ({}, {}, "merged", "the engine transformers takes whole weights alone"),
        (VLLM, {}, "adapter", "the run starts its own servers"),
        (VLLM, {"dora": True}, "merged", "the engine vllm cannot serve DoRA"),
        ({"engine": {**VLLM["engine"], "serve": False}}, {}, "merged", "servers that the run does not start"),
        (VLLM, {"publish": "merged"}, "merged", 'adapter.publish = "merged"'),
    ],
)
def test_how_an_adapter_is_published_is_settled_with_a_reason(
    tree: dict[str, Any], tables: dict[str, Any], adapter: dict[str, Any], choice: str, reason: str
):
    config = RunConfig.build(resolve(values={**tree, **tables, "adapter": {"rank": 2, **adapter}}))
    found, told = adapter_publish(config)
    assert found == choice and told.startswith(reason)


def test_the_choice_is_logged_and_what_run_json_holds(tree: dict[str, Any], caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO)
    folder = prepare(resolve(values={**tree, "adapter": {"rank": 2}}))
    assert folder.document()["settings"]["tree"]["adapter"]["publish"] == "merged"
    assert "adapter: published merged, since the engine transformers takes whole weights alone" in caplog.messages


def test_train_says_how_an_adapter_reaches_the_engine(
    tree: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    from agrpo.cli.commands import train

    for name in ("ensure_prefect", "follow", "say_done"):
        monkeypatch.setattr(train, name, lambda *_, **__: None)
    lines: list[str] = []
    for table, values in tree.items():
        for entry in values if isinstance(values, list) else [values]:
            lines += [f"[[{table}]]" if isinstance(values, list) else f"[{table}]"]
            lines += [f"{key} = {json.dumps(value)}" for key, value in entry.items()]
    (tmp_path / "run.toml").write_text("\n".join(lines))
    train.train(tmp_path / "run.toml", sets=["adapter.rank=2"])
    said = capsys.readouterr().out.splitlines()
    assert said[-1] == "adapter: published merged, since the engine transformers takes whole weights alone"
    train.train(tmp_path / "run.toml", sets=["run.name=plain"])
    assert "adapter: " not in capsys.readouterr().out


@pytest.mark.spec("A-196")
@pytest.mark.parametrize(("checkpoint", "warned"), [({}, True), ({"save_steps": 2}, False)])
def test_an_adapter_of_which_one_step_alone_is_kept_is_warned_of(
    tree: dict[str, Any], caplog: pytest.LogCaptureFixture, checkpoint: dict[str, Any], warned: bool
):
    prepare(resolve(values={**tree, "adapter": {"rank": 2}, "checkpoint": checkpoint}))
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert [told.startswith("adapter: only the last step's is kept") for told in warnings] == [True] * warned


def test_an_adapter_needs_less_room_than_whole_weights(tree: dict[str, Any]):
    def needed(**tables: Any) -> int:
        return bytes_needed(RunConfig.build(resolve(values={**tree, **VLLM, **tables})))

    merged = needed(adapter={"rank": 2, "publish": "merged"})
    assert needed(adapter={"rank": 2, "publish": "adapter"}) < merged < needed()
