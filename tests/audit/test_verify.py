"""Verifying: a sound run balances, and whatever is done to one is found and named."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from agrpo.audit import verify
from agrpo.queue.run_folder import RunFolder, StepKey
from agrpo.queue.versions import newest_version
from agrpo.records.documents import dump
from agrpo.records.progress import Drop, DropReason
from tests.audit.finished import GROUPS, STEPS, begin, flip, line, plan_at, replan, told
from tests.stages.walk import Walk


def test_a_finished_run_balances(finished: RunFolder):
    balance = verify(finished, deep=True)
    assert balance.findings == []
    assert line(balance, "steps") == f"{STEPS} 1 to {STEPS} done"
    assert f"trained {GROUPS * STEPS}" in line(balance, "tickets")
    assert line(balance, "database").endswith("rows; every record is in it")


def test_verifying_writes_nothing(finished: RunFolder):
    before = {path: path.stat().st_mtime_ns for path in Path(finished.url).rglob("*")}
    verify(finished)
    assert {path: path.stat().st_mtime_ns for path in Path(finished.url).rglob("*")} == before


@pytest.mark.parametrize(
    "pattern",
    [
        "run.json",
        "attempts/*.json",
        "bases/*.json",
        "claims/000000/*0003.0000.json",
        "groups/000000/*0003.arrow",
        "scored/000000/*0003.arrow",
        "steps/000000/*2.plan.json",
        "steps/000000/*2.done.json",
        "steps/000000/*2.tokens.arrow",
        "versions/000000/*2.json",
        "weights/*/model.safetensors",
        "checkpoints/*4-*/model.safetensors",
        "checkpoints/*4-*/optimizer.safetensors",
        "checkpoints/*4-*/MANIFEST.json",
        "acks/*/*.json",
        "events/learner*/*1.json",
        "model/model.safetensors",
    ],
)
def test_a_damaged_byte_is_found_and_its_file_named(folder: RunFolder, pattern: str):
    file = sorted(Path(folder.url).glob(pattern))[0]
    flip(file)
    found = told(folder, database=False)
    name = str(file.relative_to(folder.url))
    assert any(name in one or str(Path(name).parent) in one for one in found), found


def test_a_damaged_record_alone_is_blamed(folder: RunFolder):
    for name in ("groups/000000/000000000003.arrow", "versions/000000/00000002.json", "events"):
        file = Path(folder.url, name)
        flip(file if file.is_file() else min(file.rglob("*.json")))
    found = told(folder)
    assert len(found) == 3, found
    assert not any(one.startswith("database") for one in found)


def test_a_done_record_that_is_gone_is_a_hole(folder: RunFolder):
    folder.filesystem.delete("steps/000000/00000002.done.json")
    found = told(folder)
    assert "step 2: steps 1 to 4 are done; expected its done record, found none" in found


def test_a_plan_that_is_gone_is_named(folder: RunFolder):
    folder.filesystem.delete("steps/000000/00000002.plan.json")
    assert "step 2 of attempt 0: it is done; expected its plan, found none" in told(folder)


def test_an_advantage_that_was_changed_behind_a_valid_checksum_is_found(folder: RunFolder):
    plan = plan_at(folder, 3)
    first, *rest = plan.samples
    replan(folder, plan, samples=[replace(first, advantage=first.advantage + 0.5), *rest])
    found, by_rewards = told(folder, database=False)
    assert found.startswith("step 3 (attempt 0): sample 0 was planned as ticket ")
    assert f"advantage {first.advantage + 0.5!r}" in found
    assert f"advantage {first.advantage!r}" in found
    assert by_rewards.endswith(f"{first.advantage + 0.5!r}; its rewards give {first.advantage!r}")


def test_a_ticket_in_two_plans_is_consumed_twice(folder: RunFolder):
    first, third = plan_at(folder, 1), plan_at(folder, 3)
    replan(folder, third, drops=[*third.drops, Drop(ticket=first.tickets[0], reason=DropReason.STALE)])
    expected = f"ticket {first.tickets[0]}: consumed twice, by step 1 (attempt 0) and step 3 (attempt 0); expected once"
    assert expected in told(folder, database=False)


@pytest.mark.parametrize("topic", ["groups", "scored"])
def test_a_slot_that_is_gone_and_trained_is_named(folder: RunFolder, topic: str):
    ticket = plan_at(folder, 2).tickets[1]
    folder.filesystem.delete(f"{topic}/000000/{ticket:012d}.arrow")
    found = told(folder, database=False)
    assert any(one.startswith(f"ticket {ticket}: step 2 (attempt 0) trains it; expected {topic}/") for one in found)


def test_a_slot_under_another_ticket_is_found(folder: RunFolder):
    one, other = plan_at(folder, 2).tickets
    slots = Path(folder.url, "groups", "000000")
    (slots / f"{one:012d}.arrow").unlink()
    shutil.copy(slots / f"{other:012d}.arrow", slots / f"{one:012d}.arrow")
    assert f"groups/000000/{one:012d}.arrow: expected ticket {one}, found [{other}]" in told(folder, database=False)


def test_a_claim_that_is_gone_leaves_a_hole(folder: RunFolder):
    folder.filesystem.delete(f"claims/000000/{1:012d}.0000.json")
    assert any(one.startswith("ticket 1: ") and "expected a claim" in one for one in told(folder, database=False))


def test_weights_of_another_step_are_found(folder: RunFolder):
    newest = newest_version(folder)
    older = folder.version(0, newest.version - 1)
    file = Path(folder.url, newest.folder, "model.safetensors")
    file.unlink()
    shutil.copy(Path(folder.url, older.folder, "model.safetensors"), file)
    (found,) = told(folder, database=False)
    assert found.startswith(f"{newest.folder}/model.safetensors: ")
    assert newest.digest in found
    assert older.digest in found


def test_weights_of_the_newest_version_that_are_gone_are_named(folder: RunFolder):
    newest = newest_version(folder)
    folder.filesystem.delete(newest.folder)
    (found,) = told(folder, database=False)
    assert (
        found == f"{newest.folder}: version {newest.version} is the newest; expected its weights, found no such folder"
    )


def test_one_number_for_two_contents_is_found(folder: RunFolder):
    ready = folder.version(0, 2)
    key = f"versions/000000/{2:08d}.json"
    folder.filesystem.put(key, dump(replace(ready, digest=folder.version(0, 3).digest)), exclusive=False)
    assert any(one.startswith(f"{key}: it holds weights") for one in told(folder, database=False))


def test_a_chain_of_digests_that_breaks_is_found(folder: RunFolder):
    replan(folder, plan_at(folder, 3), parent_digest="0" * 32)
    (found,) = told(folder, database=False)
    assert found.startswith(f"step 3 (attempt 0): its plan begins from weights {'0' * 32}, step 2 ended in ")


def test_entropy_coefficient_that_the_step_before_did_not_leave_is_found(folder: RunFolder):
    replan(folder, plan_at(folder, 3), entropy_coefficient=0.5)
    (found,) = told(folder, database=False)
    assert found.startswith("step 3 (attempt 0): its plan begins from an entropy coefficient 0.5, step 2 ended in None")


def test_staleness_that_the_versions_contradict_is_found(folder: RunFolder):
    plan = plan_at(folder, 1)
    done = folder.done(StepKey(0, 1))
    replan(folder, plan, samples=[replace(sample, staleness=3) for sample in plan.samples])
    changed = replace(done, samples=[replace(sample, staleness=3) for sample in done.samples])
    folder.filesystem.put("steps/000000/00000001.done.json", dump(changed), exclusive=False)
    found = told(folder, database=False)
    expected = "step 1 (attempt 0) trains it at staleness 3; expected 0: planned after 0 publishes, sampled after 0"
    assert found == [f"ticket {ticket}: {expected}" for ticket in plan.tickets]


def test_a_checkpoint_that_forgot_a_ticket_is_found(folder: RunFolder):
    dropped = plan_at(folder, 4)
    replan(folder, dropped, tickets=dropped.tickets[:1])
    ticket = dropped.tickets[1]
    assert any(
        one.startswith("checkpoints/") and f"ticket {ticket}: it holds the ticket as consumed, and no plan" in one
        for one in told(folder, database=False)
    )


def test_a_half_done_step_and_what_waits_are_no_findings(folder: RunFolder):
    folder.filesystem.delete("steps/000000/00000004.done.json")
    folder.filesystem.delete("versions/000000/00000004.json")
    for kind, ending in (("weights", "00000004-*"), ("checkpoints", "00000004-*")):
        for path in Path(folder.url, kind).glob(ending):
            shutil.rmtree(path)
    shutil.rmtree(Path(folder.url, "model"))
    for engine in folder.engines():
        folder.filesystem.delete(f"acks/{engine}/00000004.json")
    balance = verify(folder, database=False)
    assert balance.findings == []
    assert line(balance, "steps") == "4 1 to 3 done, 1 planned and not done"


def test_a_run_that_goes_on_is_not_disturbed_and_balances(tiny_model: Path, tmp_path: Path):
    folder = begin(tiny_model, tmp_path, stop={"max_steps": 12})
    living = Walk(folder).start("generator", "scorer", "learner", "recorder")
    found = []
    living.until(lambda: bool(folder.versions(0)))
    while any(thread.is_alive() for thread in living.threads[:3]) and len(found) < 50:
        found.append(verify(folder).findings)
    living.threads[2].join(60)
    living.stop.set()
    living.join()
    assert found
    assert [one for each in found for one in each] == []
    assert verify(folder).findings == []
