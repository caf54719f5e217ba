"""The plan of memory, worked by hand on a model of a few numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from agrpo.config import resolve
from agrpo.errors import ConfigError
from agrpo.policy.tiles import LARGEST_TILE
from agrpo.runs import check, prepare
from agrpo.runs.memory import lines, plan_memory, problems, warnings
from agrpo.runs.memory.parts import TILE
from agrpo.runs.memory.rows import row_size
from tests.runs.made import GIB, WEIGHTS, a_config, a_machine, a_model, parts_of, planned
from tests.stages.walk import settings


def test_weights_gradients_and_moments_are_held_in_the_type_of_the_model(tmp_path: Path):
    parts = parts_of(planned(a_config(tmp_path)), "learner")
    assert parts["weights"].likely == parts["weights"].least == 4 * WEIGHTS
    assert parts["gradients"].likely == 4 * WEIGHTS
    assert parts["AdamW's moments"].likely == 8 * WEIGHTS


def test_in_mixed_precision_weights_are_there_in_two_types(tmp_path: Path):
    config = a_config(tmp_path, model={"mixed_precision": "bfloat16"})
    parts = parts_of(planned(config), "learner")
    assert parts["weights"].likely == 4 * WEIGHTS
    assert parts["weights in the type computed in"].likely == 2 * WEIGHTS
    assert parts_of(planned(config), "generator")["weights"].likely == 2 * WEIGHTS


def test_of_an_adapter_alone_there_are_gradients_and_moments(tmp_path: Path):
    parts = parts_of(planned(a_config(tmp_path, adapter={"rank": 4})), "learner")
    assert parts["weights"].likely == 4 * (WEIGHTS + 4 * 80)
    assert parts["gradients"].likely == 4 * 4 * 80
    assert parts["AdamW's moments"].likely == 8 * 4 * 80


@pytest.mark.parametrize(("tables", "size"), [({}, 4), ({"model": {"dtype": "bfloat16"}}, 2)])
def test_a_reference_policy_is_one_more_model_without_an_adapter(tmp_path: Path, tables: dict[str, Any], size: int):
    penalty, what = {"divergence": {"coefficient": 0.1}}, "the reference policy's weights"
    part = parts_of(planned(a_config(tmp_path / "copy", **tables, **penalty)), "learner")[what]
    assert part.likely == part.least == size * WEIGHTS
    for others in (tables, {**tables, **penalty, "adapter": {"rank": 4}}):
        assert what not in parts_of(planned(a_config(tmp_path / "none", **others)), "learner")


def test_processes_share_the_reference_policy_and_the_advice_names_an_adapter(tmp_path: Path):
    config = a_config(tmp_path, divergence={"coefficient": 0.1}, workers={"learner_processes": 2})
    plan = planned(config)
    each = [part for part in plan.places[0].parts if part.what == "the reference policy's weights"]
    assert [part.likely for part in each] == [2 * WEIGHTS, 2 * WEIGHTS]
    assert "adapter.rank = 16, which trains small matrices alone" in each[0].lower
    assert sum("the reference policy's weights" in line for line in lines(plan)) == 2


def test_an_adapter_is_held_in_float32_whatever_the_model_is_in(tmp_path: Path):
    config = a_config(tmp_path, model={"dtype": "bfloat16"}, adapter={"rank": 4, "dora": True, "targets": ["up_proj"]})
    parts, numbers = parts_of(planned(config), "learner"), 4 * 80 + 48
    assert parts["weights"].likely == 2 * WEIGHTS + 4 * numbers
    assert parts["gradients"].likely == 4 * numbers
    assert parts["AdamW's moments"].likely == 8 * numbers


def test_an_adapter_for_other_layers_takes_nothing(tmp_path: Path):
    parts = parts_of(planned(a_config(tmp_path, adapter={"rank": 4, "targets": ["q_proj"]})), "learner")
    assert parts["gradients"].likely == 0


def test_a_frozen_head_has_no_gradient(tmp_path: Path):
    whole = parts_of(planned(a_config(tmp_path / "whole")), "learner")["the head's logits"]
    frozen = parts_of(planned(a_config(tmp_path / "frozen", adapter={"rank": 4})), "learner")["the head's logits"]
    assert whole.likely - frozen.likely == 4 * 2 * 100 * 32


def test_processes_of_the_learner_share_all_but_their_rows(tmp_path: Path):
    plan = planned(a_config(tmp_path, workers={"learner_processes": 2}))
    each = [part for part in plan.places[0].parts if (part.process, part.what) == ("learner", "AdamW's moments")]
    assert [part.likely for part in each] == [4 * WEIGHTS, 4 * WEIGHTS]
    # Half of the two groups' 2 * (26 + 4 * 6) tokens.
    assert plan.row.tokens == 50


def test_while_several_processes_read_the_model_each_has_the_whole_of_it(tmp_path: Path):
    what = "the whole model, while 3 processes read it each, or one exports it"
    three = a_config(tmp_path, workers={"learner_processes": 3}, adapter={"rank": 4})
    on_gpus = plan_memory(three, a_machine(64, gpus=(24.0, 24.0, 24.0)))
    assert parts_of(on_gpus, "learner")[what].likely == 3 * 4 * WEIGHTS
    assert parts_of(on_gpus, "learner")[what].least == 0
    assert on_gpus.places[1].name == "each of the learner's 3 GPUs"
    # On CPUs they hold more than that while they train, but for a model that is large beside its rows.
    assert what not in parts_of(planned(three), "learner")
    wide = a_model(tmp_path / "large", vocab_size=4, num_hidden_layers=64)
    tensors = {"model.layers.0.mlp.up_proj.weight": np.zeros((4096, 4096), np.float16)}
    save_file(tensors, wide / "model.safetensors")
    large = a_config(tmp_path, wide, workers={"learner_processes": 3}, adapter={"rank": 1})
    plan = planned(large)
    during = [part.likely for part in plan.places[0].parts if part.process == "learner" and part.what != "imports"]
    assert sum(during) == pytest.approx(3 * 4 * 4096**2, abs=3)


@pytest.mark.parametrize(("packing", "tokens", "gathered"), [("tree", 100, (26 + 4 * 32) / 50), ("sequence", 256, 1.0)])
def test_a_row_is_as_full_as_a_step_can_make_it(tmp_path: Path, packing: str, tokens: int, gathered: float):
    row = row_size(a_config(tmp_path, packing={"name": packing}))
    assert (row.sequence, row.tokens, row.gathered) == (32, tokens, gathered)
    assert row_size(a_config(tmp_path, packing={"name": packing}, step={"micro_tokens": 40})).tokens == 40


def test_activations_are_those_of_a_row_at_its_fullest(tmp_path: Path):
    plan = planned(a_config(tmp_path, packing={"name": "sequence"}))
    layer = 4 * (6 * 32 + 5 * 32 + 2 * 16 + 4 * 48)
    (part,) = [part for what, part in parts_of(plan, "learner").items() if what.startswith("activations")]
    assert part.what == "activations of a row of 256 tokens"
    assert part.likely == round(1.25 * 256 * 2 * layer)
    assert part.least == round(1.25 * 256 * 2 * layer / 8)


def test_a_generator_begins_no_more_rollouts_than_can_be_trained_in_time(tmp_path: Path):
    plan = planned(a_config(tmp_path, asynchronous={"max_staleness": 1}))
    part = parts_of(plan, "generator")["keys and values of 16 rollouts"]
    # 16 rollouts of 32 tokens, keys and values of width 16 in 2 layers; and three times their logits.
    assert part.likely == round(1.25 * 16 * 32 * 2 * 16 * 2 * 4) + 3 * 4 * 16 * 100
    few = planned(a_config(tmp_path, engine={"batch_rollouts": 4}))
    assert "keys and values of 4 rollouts" in parts_of(few, "generator")


def test_the_heads_tile_is_the_one_that_is_planned():
    assert TILE == LARGEST_TILE


def test_with_a_gpu_the_policy_is_there_and_the_imports_are_here(tmp_path: Path):
    plan = plan_memory(a_config(tmp_path), a_machine(64, gpus=(24.0,)))
    here, gpu = plan.places
    assert gpu.name == "the learner's GPU"
    assert "AdamW's moments" in parts_of(plan, "learner", 1) and "AdamW's moments" not in parts_of(plan, "learner")
    assert here.memory.total == 64 * GIB and gpu.memory.total == 24 * GIB


def test_of_a_model_that_is_not_here_the_rest_is_planned(tmp_path: Path):
    plan = planned(a_config(tmp_path, model={"path": "nobody/nothing"}))
    assert plan.unknown is not None and "nobody/nothing" in plan.unknown
    assert "weights" not in parts_of(plan, "learner") and "imports" in parts_of(plan, "learner")


def test_what_fits_with_room_is_told_in_a_table_alone(tmp_path: Path):
    plan = planned(a_config(tmp_path))
    assert problems(plan) == warnings(plan) == []
    assert lines(plan)[0] == "memory of this machine: 1.8 GiB at the fullest, where 64.0 GiB of 64.0 GiB are free"
    assert "    560 MiB  learner    imports" in lines(plan)


def test_what_may_be_too_much_is_warned_of_and_not_refused(tmp_path: Path):
    plan = plan_memory(a_config(tmp_path), a_machine(8, free=1.9))
    (told,) = warnings(plan)
    assert "about 1.8 GiB of this machine at its fullest, where 1.9 GiB of 8.0 GiB are free" in told
    assert problems(plan) == []


def test_a_run_that_cannot_fit_is_refused_with_its_numbers_and_what_to_lower(tmp_path: Path):
    model = a_model(tmp_path / "wide", hidden_size=8192, intermediate_size=32768, num_hidden_layers=80)
    long = {"micro_tokens": 65536}
    config = a_config(tmp_path, model, step=long, engine={"max_completion_length": 20000, "batch_rollouts": 4})
    plan = plan_memory(config, a_machine(24))
    (told,) = problems(plan)
    assert "this machine, which has 24.0 GiB (learner " in told
    assert "memory: this run takes at least " in told and "step.micro_tokens below 65536" in told
    assert warnings(plan) == []


def test_the_row_that_would_fit_is_said(tmp_path: Path):
    model = a_model(tmp_path / "wide", hidden_size=2048, intermediate_size=8192, num_hidden_layers=16)
    config = a_config(tmp_path, model, step={"groups": 64, "micro_tokens": 8192}, engine={"max_completion_length": 64})
    (told,) = warnings(plan_memory(config, a_machine(24)))
    numbers = told.partition("step.micro_tokens = ")[2].partition(",")[0]
    assert 256 <= int(numbers) < 8192
    fitting = a_config(
        tmp_path, model, step={"groups": 64, "micro_tokens": int(numbers)}, engine={"max_completion_length": 64}
    )
    assert warnings(plan_memory(fitting, a_machine(24))) == []


def advice(told: str) -> str:
    return told.partition("; try ")[2]


@pytest.mark.parametrize(
    ("tables", "offered", "left_out"),
    [
        ({}, ['model.dtype = "bfloat16"', "adapter.rank = 16"], ["instead"]),
        ({"model": {"dtype": "bfloat16"}}, ["adapter.rank = 16"], ["bfloat16"]),
        (
            {"model": {"mixed_precision": "bfloat16"}},
            ['model.dtype = "bfloat16" instead of model.mixed_precision'],
            ['model.mixed_precision = "bfloat16"'],
        ),
        ({"adapter": {"rank": 16}}, ['model.dtype = "bfloat16"'], ["adapter.rank"]),
    ],
)
def test_only_what_changes_something_is_advised(
    tmp_path: Path, tables: dict[str, Any], offered: list[str], left_out: list[str]
):
    model = a_model(tmp_path / "large")
    save_file({"model.layers.0.mlp.up_proj.weight": np.zeros((8192, 4096), np.float16)}, model / "model.safetensors")
    config = a_config(tmp_path, model, **tables)
    (told,) = warnings(plan_memory(config, a_machine(64, free=0.5)))
    assert [way for way in offered if way not in advice(told)] == []
    assert [way for way in left_out if way in advice(told)] == []


def test_a_row_that_holds_one_sample_alone_is_made_smaller_by_shorter_completions(tmp_path: Path):
    model = a_model(tmp_path / "wide", hidden_size=2048, intermediate_size=65536, num_hidden_layers=64)
    long = {"step": {"micro_tokens": 2001}, "engine": {"max_completion_length": 2000, "batch_rollouts": 1}}
    (told,) = problems(plan_memory(a_config(tmp_path, model, **long), a_machine(2)))
    assert "a smaller engine.max_completion_length" in advice(told) and "step.micro_tokens" not in advice(told)


def test_a_run_is_checked_before_it_is_begun_and_keeps_its_plan(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(json.dumps({"prompt": [{"role": "user", "content": "1+1"}]}))
    given = resolve(values=settings(tiny_model, prompts, tmp_path / "runs"))
    plan = prepare(given).document()["memory"]
    assert [place["name"] for place in plan["places"]] == ["this machine"]
    assert {part["process"] for part in plan["places"][0]["parts"]} == {
        "learner",
        "generator",
        "scorer",
        "recorder",
        "flow",
    }
    monkeypatch.setattr("agrpo.runs.memory.machine_here", lambda: a_machine(0.5))
    assert [told.partition(":")[0] for told in check(a_config(tmp_path, tiny_model))] == ["memory"]
    with pytest.raises(ConfigError, match=r"memory: this run takes at least .* of this machine, which has 512 MiB"):
        prepare(given, folder=str(tmp_path / "refused"))
    assert not (tmp_path / "refused").exists()
