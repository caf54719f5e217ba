"""What-ifs by hand-made groups, whose advantages are worked out on paper, and over a real run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agrpo.config import resolve
from agrpo.database.queries import query
from agrpo.database.writer import Database
from agrpo.errors import ConfigError, RewardError, RolloutNotFound
from agrpo.filters import load_filters
from agrpo.queue.run_folder import RunFolder, StepKey
from agrpo.queue.whatifs import WhatIfs
from agrpo.records.whatif import WhatIfGroup
from agrpo.runs import prepare
from agrpo.stages.choosing import _REASONS
from agrpo.stages.recorder import record_once
from agrpo.whatif.asking import REASONS, answer, answered
from agrpo.whatif.question import Question, ask_advantage, ask_reward, begin
from agrpo.whatif.summary import summarize
from tests.database.synthetic import contents
from tests.stages.groups import a_config, a_group, publish
from tests.stages.walk import Walk, settings, walk

JUDGES = "tests.whatif.judges"


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    """Rewards 1 and 0, equal ones, one that is missing, and a group that the engine lost."""
    document = {"settings": {"tree": a_config().settings.tree, "origins": {}}}
    made = RunFolder.create(str(tmp_path / "run"), document)
    for ticket, rewards in enumerate([(1.0, 0.0), (1.0, 1.0), (1.0, None)]):
        publish(made, a_group(ticket), rewards)
    publish(made, a_group(3, lengths=(0, 0)), (None, None))
    return made


@pytest.fixture(scope="module")
def real(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    place = tmp_path_factory.mktemp("real")
    rows = [{"prompt": [{"role": "user", "content": f"{first}+1 ="}]} for first in range(3)]
    (place / "prompts.jsonl").write_text("\n".join(map(json.dumps, rows)))
    made = prepare(resolve(values=settings(tiny_model, place / "prompts.jsonl", place)))
    walk(made)
    return made


def asked(folder: RunFolder, question: Question, limit: int | None = None) -> list[WhatIfGroup]:
    begun = begin(folder, question)
    answer(folder, begun, limit=limit)
    return [*answered(folder, begun.whatif.name)]


def test_the_reward_of_the_run_changes_nothing(real: RunFolder):
    groups = asked(real, ask_reward(real, f"{JUDGES}:same", []))
    found = summarize(groups)
    assert found.num_groups == len(real.scored.numbers()) >= 8
    assert (found.num_flipped_rollouts, found.num_changed_rewards) == (0, 0)
    assert found.rank_correlation == pytest.approx(1)
    assert not found.lost and not found.won and not found.examples
    assert [one.advantage for group in groups for one in group.rollouts] == [
        one.advantage_before for group in groups for one in group.rollouts
    ]


def test_the_recorded_advantage_is_the_one_that_was_trained(real: RunFolder):
    groups = {group.ticket: group for group in asked(real, ask_advantage(real, "grpo", [], name="as-it-was"))}
    planned = [sample for step in real.done_steps(0) for sample in real.plan(StepKey(0, step)).samples]
    assert len(planned) >= 16
    for sample in planned:
        assert groups[sample.ticket].rollouts[sample.rollout_index].advantage_before == sample.advantage


def test_the_opposite_reward_flips_every_advantage(real: RunFolder):
    groups = asked(real, ask_reward(real, f"{JUDGES}:negated", []))
    found = summarize(groups)
    assert found.num_flipped_rollouts == found.num_signed > 0
    assert found.num_flipped_groups == found.num_groups - found.drops.total()
    assert found.rank_correlation == pytest.approx(-1)
    assert found.reward_mean == -found.reward_mean_before
    assert all(one.reward == -one.reward_before for group in groups for one in group.rollouts)
    assert [flip.moved for flip in found.examples] == sorted((flip.moved for flip in found.examples), reverse=True)


def test_groups_that_would_be_dropped_or_won_back_are_told_by_reason(folder: RunFolder):
    flat = summarize(asked(folder, ask_reward(folder, "tests.stages.judges:always_one", [])))
    assert flat.drops_before == {"equal_rewards": 1, "too_few_scores": 1, "failed": 1}
    assert flat.drops == {"equal_rewards": 3, "failed": 1}
    assert (flat.lost, flat.won) == ({"equal_rewards": 1}, {})
    fine = summarize(asked(folder, ask_reward(folder, f"{JUDGES}:same", [])))
    assert (fine.lost, fine.won) == ({}, {"equal_rewards": 1, "too_few_scores": 1})
    assert fine.drops == {"failed": 1}


def test_the_reasons_are_those_of_the_learner():
    assert [*REASONS] == [*_REASONS]
    assert [mark.value for mark in REASONS] == [reason.value for reason in _REASONS.values()]


def test_a_reward_stands_in_the_place_of_the_recorded_ones_or_beside_them(folder: RunFolder):
    alone = asked(folder, ask_reward(folder, "tests.stages.judges:always_one", ["weight=0.5"], name="alone"))
    beside = asked(folder, ask_reward(folder, "tests.stages.judges:always_one", ["weight=0.5"], keep=True, name="kept"))
    assert [[one.reward for one in group.rollouts] for group in alone] == [[0.5, 0.5]] * 3 + [[None, None]]
    kept = [[one.reward for one in group.rollouts] for group in beside]
    assert kept == [[1.5, 0.5], [1.5, 1.5], [1.5, 0.5], [None, None]]


def test_an_advantage_is_made_of_the_recorded_rewards(folder: RunFolder):
    groups = asked(folder, ask_advantage(folder, "grpo", ["scale=none"]))
    assert [one.advantage for one in groups[0].rollouts] == [0.5, -0.5]
    assert [one.advantage_before for one in groups[0].rollouts] == pytest.approx([0.70700679, -0.70700679])
    found = summarize(groups)
    assert (found.num_flipped_rollouts, found.num_changed_rewards, found.num_ranked) == (0, 0, 1)
    assert found.drops == found.drops_before


def test_rollouts_that_the_reward_fails_on_are_told_with_the_reason(folder: RunFolder):
    publish(folder, a_group(4, lengths=(6, 5)), (0.0, 1.0))
    groups = asked(folder, ask_reward(folder, f"{JUDGES}:moody", []))
    failed, well = groups[4].rollouts
    assert (failed.reward, failed.reward_before) == (None, 0.0)
    assert "ValueError: six tokens are too many" in (failed.error or "")
    assert well.reward is not None and well.error is None
    found = summarize(groups)
    assert found.errors.total() == 1
    assert found.lost == {"too_few_scores": 1}


def test_a_reward_that_never_answers_ends_the_what_if(folder: RunFolder):
    for ticket in range(4, 12):
        publish(folder, a_group(ticket), (0.0, 1.0))
    with pytest.raises(RewardError, match=r"failed on every completion of 8 groups in a row.*ValueError: not today"):
        asked(folder, ask_reward(folder, f"{JUDGES}:broken", []))


def test_a_what_if_goes_on_where_it_was(folder: RunFolder):
    question = ask_reward(folder, f"{JUDGES}:negated", [])
    assert [group.ticket for group in asked(folder, question, limit=2)] == [2, 3]
    written = Path(folder.url, WhatIfs(folder.filesystem).groups(question.whatif.name).key(2))
    before = written.stat().st_mtime_ns
    publish(folder, a_group(4), (0.0, 1.0))
    again = ask_reward(folder, f"{JUDGES}:negated", [])
    assert [group.ticket for group in asked(folder, again)] == [0, 1, 2, 3, 4]
    assert written.stat().st_mtime_ns == before


def test_a_name_asks_one_thing_only(folder: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    asked(folder, ask_advantage(folder, "grpo", [], name="mine"))
    with pytest.raises(
        ConfigError, match=r"what-if mine already.*settings was \{\} and is \{'scale': 'none'\}.*--name"
    ):
        begin(folder, ask_advantage(folder, "grpo", ["scale=none"], name="mine"))
    with pytest.raises(ConfigError, match="kind was 'advantage' and is 'reward'"):
        begin(folder, ask_reward(folder, f"{JUDGES}:same", [], name="mine"))
    module = tmp_path / "changing_judge.py"
    module.write_text("def judge(completions, **columns):\n    return [0.0 for _ in completions]\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    begin(folder, ask_reward(folder, "changing_judge:judge", []))
    module.write_text(module.read_text().replace("0.0", "1.0"))
    with pytest.raises(ConfigError, match=r"changing_judge-judge already.*the code of its module has changed"):
        begin(folder, ask_reward(folder, "changing_judge:judge", []))


@pytest.mark.parametrize(
    ("part", "sets", "told"),
    [
        ("exact_mach", [], 'did you mean "exact_match"'),
        ("tests.whatif.judges:absent", [], "absent"),
        ("no_such_module:judge", [], "no_such_module"),
        ("tests.whatif.judges:same", ["wieght=2"], 'unknown setting; did you mean "weight"'),
        ("tests.whatif.judges:same", ["weight=much"], "weight = 'much'"),
        ("tests.whatif.judges:same", ["name=other"], "the part's name"),
    ],
)
def test_a_reward_that_cannot_be_asked_is_refused_before_anything_is_written(folder, part: str, sets: list, told: str):
    with pytest.raises(ConfigError, match=told):
        asked(folder, ask_reward(folder, part, sets))
    assert folder.filesystem.list("whatif") == []


@pytest.mark.parametrize("part", [["gdpo"], ["grpo", "scale=batch"]])
def test_an_advantage_over_whole_steps_is_refused_since_groups_are_asked_one_by_one(folder: RunFolder, part: list[str]):
    with pytest.raises(
        ConfigError, match="is made of all groups that a step trains, and a what-if takes groups one by one"
    ):
        ask_advantage(folder, part[0], part[1:])


def test_filters_and_the_reward_that_must_differ_judge_what_the_other_reward_gives(tmp_path: Path):
    band = [{"name": "pass_rate", "low": 0.1, "high": 0.9, "reward": "exact_match"}]
    config = a_config(filters=band, step={"zero_variance_reward": "exact_match"})
    made = RunFolder.create(str(tmp_path / "run"), {"settings": {"tree": config.settings.tree, "origins": {}}})
    for ticket, rewards in enumerate([(1.0, 0.0), (1.0, 1.0)]):
        publish(made, a_group(ticket), rewards, filters=load_filters(config.filters))
    found = summarize(asked(made, ask_reward(made, "tests.stages.judges:always_one", [])))
    assert (found.drops_before, found.drops) == ({"left_out": 1}, {"left_out": 2})
    assert found.lost == {"left_out": 1}


def test_an_advantage_that_cannot_be_asked_is_refused(folder: RunFolder):
    with pytest.raises(ConfigError, match=r'no part named "gepo"; did you mean "grpo"'):
        ask_advantage(folder, "gepo", [])
    with pytest.raises(ConfigError, match=r'advantage.scal: unknown setting; did you mean "scale"'):
        ask_advantage(folder, "grpo", ["scal=none"])
    with pytest.raises(ConfigError, match=r"--name a/b"):
        ask_advantage(folder, "grpo", [], name="a/b")
    assert folder.filesystem.list("whatif") == []


def test_a_run_without_groups_has_nothing_to_ask(tmp_path: Path):
    document = {"settings": {"tree": a_config().settings.tree, "origins": {}}}
    with pytest.raises(RolloutNotFound, match="has no scored group yet"):
        ask_advantage(RunFolder.create(str(tmp_path / "run"), document), "grpo", [])


def test_the_recorder_projects_what_ifs_and_leaves_the_facts_alone(folder: RunFolder):
    record_once(folder, Database(folder.database))
    facts = contents(folder.database)
    asked(folder, ask_reward(folder, "tests.stages.judges:always_one", ["weight=0.5"], keep=True, name="kept"))
    assert record_once(folder, Database(folder.database)) == 5
    found = contents(folder.database)
    projected = {"ingest", "whatif_runs", "whatif_groups", "whatif_rollouts"}
    assert {name for name in found if found[name] != facts[name]} == projected
    asking = query(folder, "SELECT whatif, kind, part, settings->>'$.weight' AS weight, keep FROM whatif_runs")
    assert [tuple(row.values()) for row in asking.to_pylist()] == [
        ("kept", "reward", "tests.stages.judges:always_one", "0.5", True)
    ]
    rows = query(
        folder, "SELECT * EXCLUDE (whatif, error) FROM whatif_rollouts WHERE ticket = 1 ORDER BY ALL"
    ).to_pylist()
    assert [tuple(row.values()) for row in rows] == [(1, 0, 1.0, 1.5, 0.0, 0.0), (1, 1, 1.0, 1.5, 0.0, 0.0)]
    drops = query(folder, "SELECT ticket, drop_reason_before, drop_reason FROM whatif_groups ORDER BY 1").to_pylist()
    assert [tuple(row.values()) for row in drops] == [
        (0, None, None), (1, "equal_rewards", "equal_rewards"), (2, "too_few_scores", None), (3, "failed", "failed"),
    ]  # fmt: skip


def test_a_what_if_asked_while_the_run_goes_on_disturbs_nothing(tiny_model: Path, tmp_path: Path):
    (tmp_path / "prompts.jsonl").write_text(json.dumps({"prompt": [{"role": "user", "content": "1+1 ="}]}))
    folder = prepare(resolve(values=settings(tiny_model, tmp_path / "prompts.jsonl", tmp_path, stop={"max_steps": 6})))
    going = Walk(folder).start("generator", "scorer", "learner")
    going.until(lambda: len(folder.done_steps(0)) >= 1)
    during = asked(folder, ask_reward(folder, f"{JUDGES}:negated", []))
    record_once(folder, Database(folder.database))
    going.join()
    assert len(during) >= 2
    assert folder.done_steps(0) == [1, 2, 3, 4, 5, 6]
    whole = asked(folder, ask_reward(folder, f"{JUDGES}:negated", []))
    record_once(folder, Database(folder.database))
    assert whole[: len(during)] == during
    (counted,) = query(folder, "SELECT count(*) AS n, count(DISTINCT ticket) AS tickets FROM whatif_groups").to_pylist()
    assert counted == {"n": len(whole), "tickets": len(whole)}
