"""Forgeries: one record changed behind a valid checksum contradicts the others, and is named."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from agrpo.audit import replay
from agrpo.errors import RecordError
from agrpo.queue.archive.archiving import Archiver
from agrpo.queue.run_folder import RunFolder
from agrpo.records.progress import VOID, DropReason
from agrpo.records.score import Mark
from agrpo.runs import go_back
from agrpo.whatif.asking import answer, answered
from agrpo.whatif.question import ask_advantage
from agrpo.whatif.question import begin as ask
from tests.audit.finished import begin, told
from tests.audit.forging import Forger
from tests.stages.walk import walk

Forge = Callable[[Forger], object]


@pytest.fixture(scope="session")
def rewound(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """Five steps, of which the last two were done again after going back."""
    folder = begin(
        tiny_model, tmp_path_factory.mktemp("forged"), stop={"max_steps": 5}, asynchronous={"max_staleness": 2}
    )
    walk(folder)
    go_back(folder, 3)
    walk(folder)
    return folder


@pytest.fixture
def forger(rewound: RunFolder, tmp_path: Path) -> Forger:
    return Forger(RunFolder.open(shutil.copytree(rewound.url, tmp_path / "run").as_posix()))


def first(forger: Forger, step: int) -> int:
    return forger.plan(step).tickets[0]


def of_another_step(forger: Forger) -> None:
    """The newest version holds the weights of the step before."""
    forger.version(5, step=4, digest=forger.done(4).digest)


def of_no_step(forger: Forger) -> None:
    """The newest version says that it holds the first weights, and holds others."""
    forger.version(5, step=0, ordinal=0, digest=forger.done(4).digest)


def sequence_of_nowhere(forger: Forger) -> None:
    plan, done = forger.plan(4), forger.done(4)
    forger.replan(4, samples=[replace(plan.samples[0], sequence_index=7), *plan.samples[1:]])
    forger.redo(4, samples=[replace(done.samples[0], sequence_index=7), *done.samples[1:]])


def other_advantage(forger: Forger) -> None:
    plan, done = forger.plan(4), forger.done(4)
    forger.replan(4, samples=[replace(plan.samples[0], advantage=9.0), *plan.samples[1:]])
    forger.redo(4, samples=[replace(done.samples[0], advantage=9.0), *done.samples[1:]])


def publish(step: int, number: int | None) -> Forge:
    def forge(forger: Forger) -> None:
        forger.replan(step, publish=number)
        forger.redo(step, publish=number)

    return forge


def tokens_of_another_step(forger: Forger) -> None:
    data = forger.folder.tokens(forger.key(5))
    assert data is not None
    forger.folder.filesystem.put(forger.tokens(4), data, exclusive=False)


def other_rewards(forger: Forger) -> None:
    ticket = first(forger, 4)
    forger.rescore(ticket, rewards=[reward + 1 for reward in forger.scored(ticket).rewards])


FORGERIES: list[tuple[str, Forge, str]] = [
    ("a version of the step before", of_another_step, "whose plan publishes version"),
    ("a version of no step", of_no_step, "it names step 0; expected step 0 of version 0"),
    ("a version's ordinal", lambda f: f.version(5, ordinal=9), "it says ordinal 9, the plan of its step 5"),
    ("a sequence of nowhere", sequence_of_nowhere, "trains sequences [7] of its rollout"),
    ("an advantage", other_advantage, "with advantage 9.0; its rewards give"),
    ("no tokens", lambda f: f.folder.filesystem.delete(f.tokens(4)), "expected the file, found none"),
    ("another step's tokens", tokens_of_another_step, "are not the step's samples"),
    ("a publish left out", publish(5, None), "publishes None; expected a version"),
    ("a publish number too high", publish(5, 99), "publishes version 99; expected"),
    ("a publish number twice", lambda f: publish(5, f.plan(4).publish)(f), "publishes version"),
    ("the newest version before", lambda f: f.replan(5, version=0), "the newest before it; its plan says 0"),
    ("groups that took no place", lambda f: f.replan(5, num_replaced=77), "took no place; its plan says 77"),
    ("the settings", lambda f: f.replan(5, config_digest="x"), "which the run began with; its plan says x"),
    ("the seed", lambda f: f.replan(5, seed=1), "which the run's seed gives it; its plan says 1"),
    ("no parent digest", lambda f: f.replan(5, parent_digest=""), "does not say which weights it begins from"),
    ("prompts consumed", lambda f: f.redo(5, num_prompts=1), "its done record says 1"),
    ("a ticket given up is trained", lambda f: f.swap(5, f.base.reissue[0]), "trains it; by the bases it is reissued"),
    (
        "left behind, and was not",
        lambda f: f.drop_last(5, DropReason.VOID_VERSION),
        "drops it as void_version; expected",
    ),
    ("stale, and was not", lambda f: f.drop_last(5, DropReason.STALE), "drops it as stale; expected that it trains it"),
    ("void, and was not", lambda f: f.drop_last(5, DropReason.REISSUED), "by the bases it is not void"),
    ("a sample in no row", lambda f: f.lose_sample(4), "sequences of its rollout"),
    ("oversize samples", lambda f: f.replan(4, num_oversize=1), "of which it says there are 1"),
    ("ranks of a plan", lambda f: f.replan(4, ranks=7), "as many rows for each of its 7 ranks"),
    (
        "a mark",
        lambda f: f.rescore(first(f, 4), marks=frozenset({Mark.EQUAL_REWARDS})),
        "trains it; expected that it drops it as equal_rewards",
    ),
    ("summed rewards", other_rewards, "its scores make rewards"),
    ("the sampler's ordinal", lambda f: f.rescore(first(f, 4), model_ordinal=0), "its scores say version"),
    ("the sampler's version", lambda f: f.rescore(first(f, 4), model_version=77), "its scores say version 77"),
    ("the sampler's attempt", lambda f: f.rescore(first(f, 4), model_attempt=7), "of attempt 7"),
    ("a refusal", lambda f: f.rescore(first(f, 4), refusal="no"), "its scores say no"),
    ("a wish", lambda f: f.folder.filesystem.delete("rewinds/000000.json"), "attempt 1 goes back by it; found none"),
    ("a prompt to ask again", lambda f: f.rebase(prompts=f.base.prompts[:-1]), "to be asked first"),
    ("the next prompt", lambda f: f.rebase(next_prompt=f.base.next_prompt + 1), "to be asked first"),
    (
        "a ticket to give up",
        lambda f: f.rebase(reissue=f.base.reissue[:-1]),
        "drops it as reissued; by the bases it is not void",
    ),
    ("the first ticket", lambda f: f.rebase(first_ticket=f.base.first_ticket - 1), "expected tickets below"),
    ("where it joins", lambda f: f.rebase(base_step=2, adopted_through=2), "expected its done record, found none"),
    ("whose base", lambda f: f.rebase(attempt=7), "found that of 7"),
    ("what stays valid", lambda f: f.rebase(adopted_through=5), "it says up to 5"),
    *(
        (f"a checkpoint's {name}", lambda f, name=name: f.restate(**{name: 990}), "990")
        for name in ("num_replaced", "num_void", "num_prompts", "num_tokens", "version", "ordinal", "next_ticket")
    ),
]


@pytest.mark.parametrize(("forge", "expected"), [pytest.param(forge, told, id=name) for name, forge, told in FORGERIES])
def test_a_forged_record_contradicts_the_others(forger: Forger, forge: Forge, expected: str):
    forge(forger)
    found = told(forger.folder, database=False)
    assert any(expected in one for one in found), found


def test_nothing_is_found_where_nothing_was_forged(forger: Forger):
    assert told(forger.folder, database=False, deep=True) == []


def test_a_replay_names_the_sample_that_its_group_does_not_hold(forger: Forger):
    sequence_of_nowhere(forger)
    with pytest.raises(RecordError, match="step 4 of attempt 1 trains sequence 7 of rollout 0 of ticket"):
        replay(forger.folder, from_start=True)


@pytest.mark.parametrize(
    "name", ["config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "model.safetensors"]
)
@pytest.mark.parametrize("harm", ["flipped", "emptied", "deleted"])
def test_damage_to_the_last_model_is_found(forger: Forger, name: str, harm: str):
    file = Path(forger.folder.url, "model", name)
    data = bytearray(file.read_bytes())
    file.unlink()
    if harm != "deleted":
        data[len(data) // 2] ^= 1
        file.write_bytes(data if harm == "flipped" else b"")
    (found,) = told(forger.folder, database=False)
    assert found.startswith("model: ")
    assert name in found


def test_a_last_model_without_a_manifest_is_told_of_and_no_finding(forger: Forger):
    Path(forger.folder.url, "model", "MANIFEST.json").unlink()
    assert told(forger.folder, database=False) == []


@pytest.mark.parametrize("queue", ["scored", "groups", "claims"])
@pytest.mark.parametrize("harm", ["cut", "longer", "emptied"])
def test_a_damaged_archive_file_is_one_finding_beside_others(forger: Forger, queue: str, harm: str):
    Archiver(forger.folder).archive_all()
    (file,) = Path(forger.folder.url, "archive", queue).iterdir()
    data = file.read_bytes()
    os.unlink(file)
    file.write_bytes({"cut": data[:-9], "longer": data + b"x\n", "emptied": b""}[harm])
    forger.replan(5, seed=1)
    found = told(forger.folder, database=False)
    assert [one.partition(": ")[0] for one in found] == [f"archive/{queue}/{file.name}", "step 5 (attempt 1)"][::-1], (
        found
    )


def test_what_ifs_leave_out_the_groups_that_were_given_up(forger: Forger):
    folder = forger.folder
    answer(folder, ask(folder, ask_advantage(folder, "grpo", ["scale=none"], name="unscaled")))
    asked = {group.ticket for group in answered(folder, "unscaled")}
    given_up = {drop.ticket for step in (4, 5) for drop in forger.plan(step).drops if drop.reason in VOID}
    assert given_up
    assert asked == set(folder.scored.numbers()) - given_up
