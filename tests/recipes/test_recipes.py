"""Recipes: what they come to, how they are laid, what is refused, and what the commands print."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from agrpo.cli import app
from agrpo.config import RunConfig, Settings, resolve
from agrpo.errors import ConfigError
from agrpo.recipes import beneath, chosen, find, recipes
from agrpo.recipes.resolving import resolved, settings_of

PAGE = (Path(__file__).parents[2] / "docs" / "recipes.md").read_text()
RUN = """
[model]
path = "policy"
[prompts]
name = "files"
path = "prompts.jsonl"
[[rewards]]
name = "accuracy"
[stop]
max_steps = 3
"""


def run_with(tmp_path: Path, names: str, text: str = "", *sets: str) -> Settings:
    file = tmp_path / "run.toml"
    file.write_text(RUN + text)
    return resolve(file, sets, beneath=beneath(names))


def built(tmp_path: Path, names: str, text: str = "", *sets: str) -> dict[str, Any]:
    """Every setting, defaults filled in."""
    return RunConfig.build(run_with(tmp_path, names, text, *sets)).settings.tree


def names_of(name: str) -> str:
    return ",".join([*find(name).needs[:1], name])


@pytest.mark.parametrize("name", [*recipes()])
def test_every_recipe_is_a_run_that_can_be_built_and_names_its_paper(name: str):
    recipe = find(name)
    settings_of(chosen(names_of(name)))
    assert "arXiv:" in recipe.paper or "(20" in recipe.paper
    assert recipe.about.endswith((".", "once."))
    assert not {"model", "prompts", "stop", "run"} & {*recipe.settings()}, "a recipe names neither model nor prompts"


PRESETS: list[tuple[str, str, dict[str, Any]]] = [
    ("P-001", "grpo", {"loss.epsilon": 10.0, "divergence.coefficient": 0.001, "engine.num_generations": 16}),
    ("P-001", "grpo", {"engine.max_completion_length": 32768, "async.weight_sync_steps": 16, "step.groups": 32}),
    ("P-003", "gspo", {"loss.level": "sequence", "loss.epsilon": 3e-4, "loss.epsilon_high": 4e-4}),
    (
        "P-003",
        "gspo",
        {"divergence.coefficient": 0.0, "async.weight_sync_steps": 4, "aggregation.name": "sequence_mean"},
    ),
    ("P-004", "gmpo", {"loss.name": "gmpo", "loss.epsilon": 0.4, "aggregation.name": "sequence_mean"}),
    ("P-005", "dapo", {"loss.epsilon": 0.2, "loss.epsilon_high": 0.28, "aggregation.name": "token_mean"}),
    (
        "P-005",
        "dapo",
        {"step.mask_truncated": True, "step.zero_variance_reward": "accuracy", "engine.num_generations": 16},
    ),
    ("P-007", "intellect-2", {"loss.delta": 4.0, "loss.epsilon": 0.2, "divergence.coefficient": 0.001}),
    ("P-007", "intellect-2", {"engine.num_generations": 16, "optimizer.learning_rate": 3e-7}),
    ("P-008", "skywork-or1", {"entropy.adaptive": True, "entropy.coefficient": 0.01, "entropy.target": 5.0}),
    ("P-009", "80-20", {"masks.top_entropy": 0.2, "loss.epsilon_high": 0.28}),
    ("P-010", "dr-grpo", {"aggregation.name": "constant", "advantage.scale": "none", "engine.num_generations": 8}),
    ("P-010", "dr-grpo", {"engine.max_completion_length": 3000, "divergence.coefficient": 0.0}),
    (
        "P-011",
        "lite-ppo",
        {"advantage.scale": "batch", "engine.top_p": 0.99, "engine.top_k": 100, "engine.temperature": 0.99},
    ),
    ("P-012", "tis", {"correction.mode": "sequence_truncate", "correction.maximum": 2.0}),
    ("P-013", "mis", {"correction.mode": "sequence_mask", "correction.minimum": 0.5, "correction.maximum": 2.0}),
    ("P-015", "scalerl", {"loss.name": "cispo", "loss.epsilon_high": 5.0, "advantage.scale": "batch"}),
    ("P-016", "2-grpo", {"engine.num_generations": 2, "aggregation.name": "sequence_mean"}),
    ("P-017", "sapo", {"loss.temperature_pos": 1.0, "loss.temperature_neg": 1.05, "aggregation.name": "sequence_mean"}),
    ("P-018", "v32", {"divergence.coefficient": 0.001, "masks.off_policy_threshold": 0.5, "engine.top_k": 512}),
    ("P-019", "gdpo", {"advantage.name": "gdpo"}),
    ("P-020", "luspo", {"loss.level": "sequence", "loss.epsilon": 2e-3, "loss.epsilon_high": 2.5e-3}),
    ("P-021", "vespo", {"loss.k_pos": 2.0, "loss.lambda_pos": 3.0, "loss.k_neg": 3.0, "loss.lambda_neg": 2.0}),
    ("P-021", "vespo", {"correction.mode": "token_truncate", "aggregation.name": "token_mean"}),
    (
        "P-022",
        "score-centering",
        {"loss.importance_min": 0.5, "loss.importance_max": 5.0, "engine.num_sampler_logprobs": 8},
    ),
]
"""The rows' presets under the names that settings have here."""


@pytest.mark.spec("G-263", "G-264", "G-265", "G-266", "G-267", "G-268", "G-269", "G-271", "G-272", "G-273", "G-274")
@pytest.mark.spec("G-275", "G-276", "G-277")
@pytest.mark.parametrize(("row", "name", "expected"), PRESETS)
def test_a_preset_is_what_its_row_says(row: str, name: str, expected: dict[str, Any]):
    values = {each.key: each.value for each in resolved(chosen(names_of(name)))}
    assert {key: values[key] for key in expected} == expected, row


def test_the_rows_name_every_paper_of_the_family():
    assert {row for row, _, _ in PRESETS} | {"P-002", "P-006", "P-014"} == {f"P-{number:03}" for number in range(1, 23)}


def test_no_band_masks_where_a_paper_masks_nothing(tmp_path: Path):
    loss = RunConfig.build(run_with(tmp_path, "gspo")).loss
    assert (loss.importance_min, loss.importance_max) == (0.0, math.inf)  # type: ignore[attr-defined]


@pytest.mark.spec("P-904")
def test_recipes_lie_under_the_file_and_the_file_under_the_command_line(tmp_path: Path):
    text = "[loss]\nepsilon = 0.1\n[engine]\nnum_generations = 4\n"
    settings = run_with(tmp_path, "dapo", text, "loss.epsilon_high=0.3")
    assert settings.tree["loss"]["epsilon"] == 0.1
    assert settings.tree["loss"]["epsilon_high"] == 0.3
    assert settings.tree["engine"]["num_generations"] == 4
    origins = {key: settings.origins[key] for key in ("loss.name", "loss.epsilon", "loss.epsilon_high")}
    assert origins == {
        "loss.name": "recipe dapo, version 1",
        "loss.epsilon": str(tmp_path / "run.toml"),
        "loss.epsilon_high": "--set",
    }


def test_a_file_that_chooses_another_part_is_not_given_the_recipes_knobs_for_it(tmp_path: Path):
    tree = built(tmp_path, "gspo", '[loss]\nname = "score_centering"\n')
    assert tree["loss"]["name"] == "score_centering"
    assert tree["loss"]["epsilon"] == 0.2
    assert tree["aggregation"]["name"] == "sequence_mean"


@pytest.mark.spec("P-006")
def test_a_recipes_rewards_are_added_to_those_of_the_file(tmp_path: Path):
    text = "[engine]\nmax_completion_length = 1000\n"
    names = [reward["name"] for reward in built(tmp_path, "dapo,long-cot-rewards", text)["rewards"]]
    assert names == ["accuracy", "soft_overlong_punishment", "cosine_scaled", "repetition_penalty"]
    settings = run_with(tmp_path, "dapo,long-cot-rewards", text)
    assert settings.tree["rewards"][1] == {
        "name": "soft_overlong_punishment",
        "max_completion_len": 1000,
        "soft_punish_cache": 200,
    }
    assert settings.tree["rewards"][2]["max_len"] == 1000
    assert settings.origins["rewards.3"] == "recipe long-cot-rewards, version 1"
    own = '[[rewards]]\nname = "repetition_penalty"\nmax_penalty = -0.5\n'
    assert [reward["name"] for reward in built(tmp_path, "long-cot-rewards", own)["rewards"]].count(
        "repetition_penalty"
    ) == 1


@pytest.mark.spec("P-912")
def test_dapo_looks_at_the_one_reward_of_the_file_and_at_none_of_several(tmp_path: Path):
    assert built(tmp_path, "dapo")["step"]["zero_variance_reward"] == "accuracy"
    second = '[[rewards]]\nname = "think_format"\n'
    assert built(tmp_path, "dapo", second)["step"]["zero_variance_reward"] is None


@pytest.mark.spec("P-903", "P-906")
@pytest.mark.parametrize(
    ("names", "told"),
    [
        ("dapo,grpo", "dapo and grpo each say what a step minimises; choose one"),
        ("dapo,dapo", "dapo and dapo each say"),
        ("tis,tis", "tis is named twice"),
        ("80-20", r"80-20 modifies dapo; name that before it, such as --recipe dapo,80-20"),
        ("grpo,80-20", "80-20 modifies dapo"),
        ("dappo", 'no recipe is called "dappo"; did you mean "dapo"'),
        (" , ", "names no recipe"),
    ],
)
def test_names_that_do_not_go_together_are_refused(names: str, told: str):
    with pytest.raises(ConfigError, match=told):
        chosen(names)


@pytest.mark.spec("P-903")
def test_two_recipes_that_differ_are_refused_unless_the_run_decides(tmp_path: Path):
    told = (
        r"correction\.mode: recipe tis, version 1 sets 'sequence_truncate', recipe mis, version 1 'sequence_mask'; leave one of "
        r"them out, or set it yourself"
    )
    with pytest.raises(ConfigError, match=told):
        run_with(tmp_path, "dapo,tis,mis")
    with pytest.raises(ConfigError, match=r"correction\.maximum|correction\.minimum|correction\.mode"):
        run_with(tmp_path, "vespo,tis")
    text = '[correction]\nmode = "token_mask"\nminimum = 0.5\nmaximum = 2.0\n'
    assert built(tmp_path, "dapo,tis,mis", text)["correction"]["mode"] == "token_mask"


@pytest.mark.parametrize(
    ("written", "name"), [("dr_grpo", "dr-grpo"), ("cispo", "scalerl"), ("intellect_2", "intellect-2")]
)
def test_the_fields_other_names_are_known(written: str, name: str):
    assert find(written).name == name


@pytest.mark.spec("P-905")
def test_the_command_lists_shows_and_compares():
    def printed(*words: str) -> str:
        result = CliRunner().invoke(app, ["recipes", *words], env={"COLUMNS": "200"})
        assert result.exit_code == 0, result.output
        return result.output

    listed = printed()
    assert all(name in listed for name in recipes())
    shown = printed("dapo")
    assert "Expected: a loss of 0.453333" in shown
    assert "recipe dapo, version 1" in shown
    assert "optimizer.learning_rate" in shown and "default" in shown
    difference = printed("diff", "grpo", "dapo")
    assert "loss.epsilon_high" in difference
    assert "optimizer.learning_rate" not in difference, "what is alike is left out"


@pytest.mark.parametrize("words", [["diff"], ["diff", "dapo"], ["dapo", "grpo"], ["diff", "dapo", "grpo", "tis"]])
def test_other_words_are_refused(words: list[str]):
    result = CliRunner().invoke(app, ["recipes", *words])
    assert result.exit_code != 0


@pytest.mark.parametrize("name", [*recipes()])
def test_the_page_has_every_recipe_in_its_own_words(name: str):
    assert f"| `{name}` | {find(name).kind} | {find(name).about} |" in PAGE
