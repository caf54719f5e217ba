"""What a reward model adds to the plan of memory, by hand, and the GPU that it asks for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agrpo.config import RunConfig, resolve
from agrpo.runs import checks
from agrpo.runs.checks import check
from agrpo.runs.memory import MemoryPlan, Part, plan_memory
from agrpo.runs.memory.parts import IMPORTS
from tests.runs.made import WEIGHTS, a_config, a_machine, a_model, parts_of
from tests.runs.test_memory_servers import serving

WITH_HEAD = {"architectures": ["LlamaForSequenceClassification"], "id2label": {"0": "good"}}


def a_judged_config(place: Path, workers: int = 1, **knobs: Any) -> RunConfig:
    """A run of two rewards: a function, and a model of `WEIGHTS` numbers."""
    tree = a_config(place, workers={"scorers": workers}).settings.tree
    judge = {"name": "reward_model", "path": str(a_model(place / "judge", **WITH_HEAD)), **knobs}
    return RunConfig.build(resolve(values={**tree, "rewards": [*tree["rewards"], judge]}))


def judge_parts(plan: MemoryPlan, place: int = 0) -> list[Part]:
    return [*parts_of(plan, "judge", place).values()]


def test_its_imports_its_weights_and_a_batch_are_counted_for_every_scorer(tmp_path: Path):
    plan = plan_memory(a_judged_config(tmp_path, workers=2, batch_size=3, max_length=20), a_machine(64))
    own = [part for part in plan.places[0].parts if part.process == "judge"]
    imports, *rest = own
    assert imports.likely == 2 * IMPORTS.classifier
    weights, again, batch, once_more = sorted(rest, key=lambda part: part.likely)
    assert weights == again and batch == once_more
    assert (weights.what, batch.what) == (f"weights of {tmp_path / 'judge'}", "a batch of 3 x 20 tokens")
    # 20 tokens of three texts: 4 numbers for each of the 32 between layers, 3 for each of the 48 inside; a quarter is spare.
    assert (weights.likely, batch.likely) == (4 * WEIGHTS, round(1.25 * 3 * 20 * (4 * 32 + 3 * 48) * 4))
    assert (weights.least, batch.least) == (4 * WEIGHTS, 0)
    # One other reward, for two scorers.
    forked = parts_of(plan, "scorer")["imports, and the children that judge"]
    assert forked.likely == 2 * (IMPORTS.scorer + IMPORTS.judge)


def test_a_text_is_as_long_as_the_runs_conversations_unless_less_is_judged(tmp_path: Path):
    (_, _, batch) = judge_parts(plan_memory(a_judged_config(tmp_path, batch_size=1), a_machine(64)))
    assert batch.what == "a batch of 1 x 32 tokens"
    assert batch.lower == ()


def test_on_the_learners_gpu_it_is_counted_there(tmp_path: Path):
    config = a_judged_config(tmp_path, device="cuda:0", dtype="bfloat16")
    here, there = (judge_parts(plan_memory(config, a_machine(64, gpus=(24.0,))), place) for place in (0, 1))
    assert [part.likely for part in here] == [IMPORTS.classifier + IMPORTS.driver]
    assert [part.likely for part in there[:2]] == [IMPORTS.gpu_context, 2 * WEIGHTS]


def test_on_a_gpu_of_its_own_it_has_a_place_of_its_own(tmp_path: Path):
    tree = a_judged_config(tmp_path, device="cuda:1").settings.tree
    config = RunConfig.build(resolve(values={**tree, "workers": {"learner_processes": 1}}))
    plan = plan_memory(config, a_machine(64, gpus=(24.0, 16.0)))
    assert [place.name for place in plan.places[1:]] == ["the learner's GPU", "the reward model's GPU (cuda:1)"]
    assert judge_parts(plan, 1) == [] and len(judge_parts(plan, 2)) == 3
    assert plan.places[2].memory.total == 16 * 2**30


def test_one_that_is_not_here_is_told_and_not_counted(tmp_path: Path):
    tree = a_judged_config(tmp_path).settings.tree
    rewards = [{"name": "reward_model", "path": "nobody/nothing"}]
    plan = plan_memory(RunConfig.build(resolve(values={**tree, "rewards": rewards})), a_machine(64))
    assert plan.unknown == "the weights of nobody/nothing, which are not all here yet or of another kind"
    assert [part.what for part in judge_parts(plan)] == ["imports"]


def test_a_gpu_that_nobody_sees_is_refused_before_the_run(
    tiny_classifier: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    tree = a_judged_config(tmp_path).settings.tree
    rewards = [{"name": "reward_model", "path": str(tiny_classifier), "device": "cuda:2"}]
    config = RunConfig.build(resolve(values={**tree, "rewards": rewards}))
    monkeypatch.setattr(checks.memory, "machine_here", lambda: a_machine(64, gpus=(24.0, 24.0)))
    told = [problem for problem in check(config) if "device" in problem]
    assert told == [
        'reward "reward_model": device = "cuda:2": 2 GPUs can be seen (CUDA_VISIBLE_DEVICES, nvidia-smi), counted from cuda:0; '
        'name another, or "cpu"'
    ]


@pytest.mark.parametrize(
    ("workers", "gpus", "arguments", "device", "left"),
    [
        ({"learner_processes": 1}, 3, [], "cuda:1", "take cuda:1; name one that is free: cuda:2"),
        ({"learner_processes": 1}, 3, [], "cuda:2", None),
        ({}, 3, [], "cuda:2", "take cuda:2; set workers.learner_processes = 1, which leaves cuda:2 to it"),
        ({}, 2, [], "cuda:1", "take cuda:1; none is free: name cuda:0"),
        ({}, 2, [], "cuda:0", None),
        ({}, 2, ["--device-ids=0"], "cuda:1", None),
        ({"learner_processes": 1}, 4, ["-tp=2"], "cuda:2", "take cuda:1, cuda:2; name one that is free: cuda:3"),
    ],
)
def test_a_gpu_of_the_runs_servers_is_refused_with_what_is_left(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    workers: dict[str, int],
    gpus: int,
    arguments: list[str],
    device: str,
    left: str | None,
):
    tree = a_judged_config(tmp_path, device=device).settings.tree
    engine = serving(tmp_path / "servers", *arguments).settings.tree["engine"]
    config = RunConfig.build(resolve(values={**tree, "engine": engine, "workers": workers}))
    monkeypatch.setattr(checks.memory, "machine_here", lambda: a_machine(64, gpus=(24.0,) * gpus))
    told = [problem for problem in check(config) if "device =" in problem]
    assert told == [] if left is None else left in told[0]
