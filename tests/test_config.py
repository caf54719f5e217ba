"""Settings: layered, checked all at once, refused by name before anything starts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from agrpo.config import RunConfig, Settings, load_settings, resolve
from agrpo.errors import ConfigError

WHOLE: dict[str, Any] = {
    "model": {"path": "somewhere"},
    "prompts": {"name": "files", "path": "prompts.jsonl"},
    "rewards": [{"name": "exact_match"}],
    "stop": {"max_steps": 3},
}


def changed(**tables: Any) -> dict[str, Any]:
    tree = {name: dict(values) if isinstance(values, dict) else values for name, values in WHOLE.items()}
    for name, values in tables.items():
        tree[name] = {**tree.get(name, {}), **values} if isinstance(values, dict) else values
    return tree


def problems(tree: dict[str, Any]) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        RunConfig.build(resolve(values=tree))
    return caught.value.problems


def test_a_minimal_run_builds_every_part():
    config = RunConfig.build(resolve(values=WHOLE))
    assert config.sampling.num_generations == 8
    assert config.settings.tree["loss"]["name"] == "score_centering"
    assert config.zero_variance == "refill"


def test_resolved_values_build_the_same_run_again():
    config = RunConfig.build(resolve(values=changed(loss={"importance_max": float("inf")})))
    again = RunConfig.build(load_settings({"settings": {"tree": config.settings.tree, "origins": {}}}))
    assert again.settings.tree == config.settings.tree
    assert again.loss == config.loss


@pytest.mark.spec("A-061", "A-064", "A-140")
@pytest.mark.parametrize(
    ("tables", "num_top"),
    [
        ({}, 8),
        ({"engine": {"num_sampler_logprobs": 4}}, 4),
        ({"loss": {"name": "clip"}}, 0),
        ({"loss": {"name": "clip"}, "engine": {"num_sampler_logprobs": 3}}, 3),
    ],
)
def test_sampler_is_asked_for_as_many_top_log_probs_as_the_loss_reads(tables: dict[str, Any], num_top: int):
    config = RunConfig.build(resolve(values=changed(**tables)))
    assert config.sampling.num_sampler_logprobs == num_top
    assert config.settings.tree["engine"]["num_sampler_logprobs"] == num_top


def test_loss_that_would_get_no_top_log_probs_is_refused():
    (told,) = problems(changed(engine={"num_sampler_logprobs": 0}))
    assert told.startswith("engine.num_sampler_logprobs = 0: this loss reads the sampler's most likely tokens")
    assert 'set loss.name = "clip"' in told


@pytest.mark.spec("K39")
@pytest.mark.parametrize(
    ("tree", "expected"),
    [
        (changed(engine={"num_generation": 8}), 'did you mean "num_generations"?'),
        (changed(step={"groups": 0}), "step.groups = 0"),
        (changed(engine={"num_generations": 1}), "engine.num_generations = 1"),
        (changed(**{"async": {"max_staleness": -1}}), "async.max_staleness = -1"),
        (changed(stop={"stall_seconds": 0}), "stop.stall_seconds = 0"),
        (changed(optimizer={"learning_rate": -1.0}), "optimizer.learning_rate = -1.0"),
        (changed(engine={"top_p": 0.0}), "engine.top_p = 0.0"),
        (changed(loss={"name": "clipp"}), 'did you mean "clip"?'),
        (changed(rewards=[{"name": "exact_mach"}]), 'did you mean "exact_match"?'),
        (changed(engine={"temperature": 0.0}), "engine.temperature = 0.0"),
        (changed(lossy={"name": "clip"}), 'lossy: unknown table; did you mean "loss"?'),
        (changed(rewards=[{"name": "exact_match", "wieght": 2.0}]), 'did you mean "weight"?'),
        (changed(rewards=[{"name": "exact_match", "timeout_seconds": 0}]), "timeout_seconds = 0"),
    ],
)
def test_a_bad_setting_is_refused_by_name(tree: dict[str, Any], expected: str):
    found = problems(tree)
    assert len(found) == 1
    assert expected in found[0]


@pytest.mark.spec("K39")
def test_all_problems_are_listed_at_once_with_their_origin(tmp_path: Path):
    file = tmp_path / "run.toml"
    file.write_text('[model]\npath = "m"\n[engine]\ntop_p = 0.0\nnum_generation = 4\n[loss]\nname = "clop"\n')
    with pytest.raises(ConfigError) as caught:
        RunConfig.build(resolve(file, ["step.groups=0"]))
    text = str(caught.value)
    for expected in ("engine.top_p = 0.0", "engine.num_generation:", '"clop"', "step.groups = 0", "rewards: missing"):
        assert expected in text
    assert f"({file})" in text
    assert "(--set)" in text


@pytest.mark.spec("K39")
def test_settings_are_checked_without_loading_torch():
    code = (
        "import sys; from agrpo.config import *; from tests.test_config import WHOLE;"
        "RunConfig.build(resolve(values=WHOLE)); print('torch' in sys.modules or 'transformers' in sys.modules)"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "False"


@pytest.mark.spec("A-052")
def test_truncation_needs_top_k_that_bounds_the_candidate_set():
    assert "top_k" in problems(changed(engine={"top_p": 0.9}))[0]
    RunConfig.build(resolve(values=changed(engine={"top_p": 0.9, "top_k": 64})))


@pytest.mark.spec("A-054")
def test_min_p_needs_top_k_that_bounds_the_candidate_set():
    assert "top_k" in problems(changed(engine={"min_p": 0.1}))[0]


@pytest.mark.spec("A-068")
def test_less_than_one_step_between_publishes_is_refused():
    assert "weight_sync_steps" in problems(changed(**{"async": {"weight_sync_steps": 0}}))[0]


def test_a_run_without_an_end_is_refused():
    tree = changed()
    tree["stop"] = {}
    assert problems(tree) == ["stop: says no end; set stop.max_steps or stop.epochs"]


@pytest.mark.spec("K36")
def test_a_decaying_schedule_with_an_unknown_end_is_refused():
    tree = changed(optimizer={"scheduler": "linear"})
    tree["stop"] = {"epochs": 1}
    assert "decays to the last step" in problems(tree)[0]


@pytest.mark.parametrize("choice", ["keep", "drop"])
def test_steps_are_not_counted_where_a_rollout_loop_may_leave_prompts_out(choice: str):
    def ending(**stop: int) -> dict[str, Any]:
        return {**changed(step={"zero_variance": choice, "groups": 4}), "stop": stop}

    loop = {"rollout_loop": {"path": "my_loop:MyLoop"}}
    assert RunConfig.build(resolve(values=ending(epochs=2))).num_steps(10) == 5
    config = RunConfig.build(resolve(values={**ending(epochs=2), **loop}))
    assert config.num_steps(10) is None
    assert RunConfig.build(resolve(values={**ending(max_steps=3), **loop})).num_steps(10) == 3
    linear = {**loop, "optimizer": {"scheduler": "linear"}}
    assert problems({**ending(epochs=2), **linear}) == [
        'optimizer.scheduler: "linear" decays to the last step, whose number is unknown with rollout_loop.path, whose '
        "filter_prompt may leave prompts out; set stop.max_steps, or a constant schedule (built in)"
    ]
    assert RunConfig.build(resolve(values={**ending(max_steps=3), **linear})).num_steps(10) == 3


def test_layers_override_each_other_and_keep_their_origin(tmp_path: Path):
    file = tmp_path / "run.toml"
    file.write_text("[optimizer]\nlearning_rate = 1e-4\nwarmup_steps = 0\n")
    settings = resolve(file, ["optimizer.learning_rate=1e-5"], values=WHOLE)
    assert settings.tree["optimizer"] == {"learning_rate": 1e-5, "warmup_steps": 0}
    assert settings.origins["optimizer.learning_rate"] == "--set"
    assert settings.origins["optimizer.warmup_steps"] == str(file)
    assert settings.origins["model.path"] == "built in"


@pytest.mark.parametrize("setting", ["learning_rate", "=3", "optimizer.learning_rate"])
def test_a_set_without_key_or_value_is_refused(setting: str):
    with pytest.raises(ConfigError, match=r"table\.key=value"):
        resolve(sets=[setting])


@pytest.mark.parametrize(
    ("setting", "table"), [("rewards.0.weight=2", "rewards"), ("optimizer.betas.0=0.8", "optimizer.betas")]
)
def test_an_entry_of_a_list_cannot_be_set_and_says_so(setting: str, table: str):
    tree = changed(optimizer={"betas": [0.9, 0.99]})
    with pytest.raises(ConfigError, match=rf"^--set {setting}: {table} is a list, .* such as --set '{table}=\[…\]'$"):
        resolve(values=tree, sets=[setting])


def test_a_missing_or_broken_file_is_one_clear_problem(tmp_path: Path):
    with pytest.raises(ConfigError, match="no such file"):
        resolve(tmp_path / "none.toml")
    (tmp_path / "broken.toml").write_text("[run\n")
    with pytest.raises(ConfigError, match="not TOML"):
        resolve(tmp_path / "broken.toml")


def test_a_value_where_a_table_belongs_is_refused():
    assert problems({**changed(), "step": 3}) == ["step = 3: expected a table [step] (built in)"]
    assert any("loss = 'clip'" in problem for problem in problems({**changed(), "loss": "clip"}))


def test_equal_reward_groups_are_kept_in_lockstep_unless_said_otherwise():
    lockstep = RunConfig.build(Settings(tree=changed(**{"async": {"max_staleness": 0}})))
    assert lockstep.lockstep
    assert lockstep.zero_variance == "keep"


def test_a_cap_on_bytes_is_refused_where_they_are_not_counted():
    config = RunConfig.build(resolve(values=changed(store={"max_bytes": 10**9})))
    assert (config.store.max_bytes, config.store.min_free_bytes) == (10**9, 2**28)
    (problem,) = problems(changed(run={"dir": "s3://bucket/runs"}, store={"max_bytes": 10**9}))
    assert problem.startswith("store.max_bytes: run.dir is s3://bucket/runs, whose bytes are not counted")


def test_filters_are_settled_with_their_settings_and_are_not_there_where_none_is_asked_for():
    band = {"name": "pass_rate", "low": 0.2, "high": 0.8}
    config = RunConfig.build(resolve(values=changed(filters=[band, {"name": "my_filters:Mine", "level": 3}])))
    assert [(one.name, one.settings) for one in config.filters] == [
        ("pass_rate", {"low": 0.2, "high": 0.8}),
        ("my_filters:Mine", {"level": 3}),
    ]
    again = RunConfig.build(load_settings({"settings": {"tree": config.settings.tree, "origins": {}}}))
    assert again.filters == config.filters
    assert "filters" not in RunConfig.build(resolve(values=WHOLE)).settings.tree


@pytest.mark.spec("K39")
@pytest.mark.parametrize(
    ("tree", "expected"),
    [
        (changed(filters={"name": "overlong"}), "filters = {'name': 'overlong'}: expected tables [[filters]]"),
        (
            changed(filters=[{"name": "overlog"}]),
            'did you mean "overlong"? Or name one of yours as "package.module:Class"',
        ),
        (
            changed(filters=[{"name": "overlong", "max_shar": 1}]),
            'filters.0.max_shar: unknown setting; did you mean "max_share"?',
        ),
        (changed(filters=[{"name": "duplicates"}] * 2), 'filters: "duplicates" is listed twice'),
        (
            changed(filters=[{"name": "pass_rate", "low": 0, "high": 0.5, "reward": "exact_mach"}]),
            'filters.0.reward: the run has no reward "exact_mach"; did you mean "exact_match"?',
        ),
        (
            changed(step={"zero_variance_reward": "exact_mach"}),
            'step.zero_variance_reward: the run has no reward "exact_mach"; did you mean "exact_match"?',
        ),
        (
            changed(advantage={"name": "gdpo"}, engine={"num_generations": 1}),
            "the advantage gdpo compares the rollouts of a prompt",
        ),
    ],
)
def test_a_bad_filter_or_reward_name_is_refused(tree: dict[str, Any], expected: str):
    found = problems(tree)
    assert [expected in one for one in found] in ([True], [True, False], [False, True])


@pytest.mark.spec("K36")
def test_steps_are_not_counted_where_filters_leave_groups_out():
    tree = {**changed(step={"zero_variance": "drop"}, filters=[{"name": "duplicates"}]), "stop": {"epochs": 2}}
    assert RunConfig.build(resolve(values=tree)).num_steps(16) is None
    (told,) = problems({**tree, "optimizer": {"scheduler": "linear"}})
    assert "unknown with filters, which may leave groups out" in told


@pytest.mark.spec("K26")
@pytest.mark.parametrize(
    ("tables", "choice"),
    [
        ({}, "refill"),
        ({"divergence": {"coefficient": 0.01}}, "keep"),
        ({"entropy": {"coefficient": 0.01}}, "keep"),
        ({"entropy": {"adaptive": True, "target": 0.5}}, "keep"),
        ({"divergence": {"coefficient": 0.01}, "step": {"zero_variance": "drop"}}, "drop"),
        ({"async": {"max_staleness": 0}}, "keep"),
    ],
)
def test_groups_of_equal_rewards_are_kept_by_default_where_a_term_moves_the_policy_without_them(
    tables: dict[str, Any], choice: str
):
    from agrpo.audit.terms import Terms  # it loads torch

    config = RunConfig.build(resolve(values=changed(**tables)))
    assert config.zero_variance == choice
    assert Terms.of({"settings": {"tree": config.settings.tree, "origins": {}}}).zero_variance == choice
