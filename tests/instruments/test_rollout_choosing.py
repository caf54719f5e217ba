"""Which rollouts are meant, and what is said where none is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from agrpo.database.writer import Database
from agrpo.errors import RolloutNotFound
from agrpo.instruments.rollout_page.choosing import Pick, find_rollout, groups_of_prompt, pick
from agrpo.queue.run_folder import RunFolder, StepKey
from agrpo.records.arrow import group_to_arrow
from agrpo.records.group import RolloutGroup
from agrpo.records.progress import DropReason
from agrpo.records.prompt import Prompt
from agrpo.records.rollout import StopReason
from agrpo.stages.recorder import record_once
from tests.database.synthetic import a_rollout, add_attempt, add_done, add_group, add_plan, add_scores, new_run


def add_named_group(folder: RunFolder, ticket: int, stop: StopReason = StopReason.STOP) -> None:
    """Two rollouts with ids of their own, such as `ab3-0`; the second may fail."""
    first, second = a_rollout(0, [5, 6, 1]), a_rollout(1, [4, 1], stop=stop)
    failed = "gone" if stop is not StopReason.STOP else None
    add_group(
        folder,
        ticket,
        [
            replace(first, rollout_id=f"ab{ticket}-0"),
            replace(second, rollout_id=f"ab{ticket}-1", error=failed),
        ],
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> RunFolder:
    """Step 1 trains 0 and 1 and drops 2 as stale; step 2 trains 3; 4 is refused, 5 is claimed, 6 is not recorded."""
    folder = new_run(tmp_path_factory.mktemp("choosing") / "run")
    add_attempt(folder, 0)
    for ticket in range(4):
        add_named_group(folder, ticket, StopReason.TIMEOUT if ticket == 1 else StopReason.STOP)
        add_scores(folder, ticket, {"correct": [1.0, None if ticket == 1 else 0.25 * ticket]})
    refused = Prompt(id="p4", messages=[{"role": "user", "content": "too long"}])
    group = RolloutGroup(ticket=4, prompt=refused, rollouts=[], model_version=0, refusal="too long: 2000 tokens")
    folder.groups.publish(4, group_to_arrow(group))
    add_done(folder, add_plan(folder, StepKey(0, 1), [0, 1], {2: DropReason.STALE}))
    add_done(folder, add_plan(folder, StepKey(0, 2), [3], {4: DropReason.REFUSED_PROMPT}))
    folder.claims.take(5, owner="generator-b", base=0)
    record_once(folder, Database(folder.database))
    add_named_group(folder, 6)
    return folder


def refusal(call, *arguments, **options) -> str:
    with pytest.raises(RolloutNotFound) as caught:
        call(*arguments, **options)
    return str(caught.value)


def test_a_rollout_is_found_by_ticket_and_index_by_ticket_and_by_the_beginning_of_its_id(folder):
    found = {name: str(find_rollout(folder, name)) for name in ("3/1", "3", "ab2-1", "ab3-0", "4")}
    assert found == {"3/1": "3/1", "3": "3/0", "ab2-1": "2/1", "ab3-0": "3/0", "4": "4"}


def test_an_id_that_begins_several_is_refused_with_the_candidates(folder):
    assert refusal(find_rollout, folder, "ab3") == (
        'rollout "ab3" is the beginning of 2: ab3-0 (3/0), ab3-1 (3/1); write more of it'
    )
    assert refusal(find_rollout, folder, "ab").endswith("ab2-0 (2/0), ab2-1 (2/1) and 2 more; write more of it")
    assert "recorded so far: 5 groups, up to ticket 4" in refusal(find_rollout, folder, "zz")


def test_what_is_not_recorded_says_how_far_it_is_and_how_far_the_recorder_is(folder):
    assert refusal(find_rollout, folder, "3/2") == "group 3 has no rollout 2; it has 2 rollouts, 0 to 1"
    assert "group 4 has no rollout 0; it has none: its prompt was refused" in refusal(find_rollout, folder, "4/0")
    assert "group 5 is claimed by generator-b and not generated yet" in refusal(find_rollout, folder, "5")
    assert "group 6 is generated and not recorded yet" in refusal(find_rollout, folder, "6/0")
    assert refusal(find_rollout, folder, "7") == (
        "group 7 is not claimed by any generator. Recorded so far: 5 groups, up to ticket 4"
    )


def places(folder: RunFolder, what: Pick, **options) -> list[str]:
    return [str(one.place) for one in pick(folder, what, **{"count": 9, **options}).rollouts]


def test_the_best_and_the_worst_go_by_reward_and_the_newest_of_equals_comes_first(folder):
    assert places(folder, Pick.BEST) == ["3/0", "2/0", "1/0", "0/0", "3/1", "2/1", "0/1"]
    assert places(folder, Pick.WORST) == ["0/1", "2/1", "3/1", "3/0", "2/0", "1/0", "0/0"]
    assert places(folder, Pick.WORST, last=1) == ["3/1", "3/0"]


def test_failed_and_dropped_rollouts_are_found_and_counted(folder):
    assert places(folder, Pick.FAILED) == ["1/1"]
    assert places(folder, Pick.DROPPED, reason="stale") == ["2/0", "2/1"]
    assert places(folder, Pick.DROPPED, reason="refused_prompt") == ["4"]
    one = pick(folder, Pick.DROPPED, reason="stale")
    assert (len(one.rollouts), one.num_matching) == (1, 2)


def test_where_nothing_matches_it_is_said_what_there_is(folder):
    assert refusal(pick, folder, Pick.DROPPED, reason="oversize") == (
        "no rollout was dropped as oversize; groups dropped in the whole run: refused_prompt 1, stale 1. Recorded so far: 5 "
        "groups, up to ticket 4"
    )
    assert refusal(pick, folder, Pick.FAILED, last=1).startswith("no rollout failed in the last 1 steps.")


def test_the_groups_of_a_prompt_are_told_newest_first(folder):
    found = groups_of_prompt(folder, "p3")
    assert (found.prompt_id, found.num_matching, found.prompt[0]["content"]) == ("p3", 1, "1+1?")
    (group,) = found.groups
    assert (group.ticket, group.status, group.step, group.num_rollouts, group.num_different) == (3, "trained", 2, 2, 2)
    assert (group.reward_mean, group.mean_tokens) == (0.875, 2.5)
    assert group.reward_std == pytest.approx(0.25 / 2**0.5)
    assert 'prompt "p" is the beginning of 5: p0, p1' in refusal(groups_of_prompt, folder, "p")
    assert refusal(groups_of_prompt, folder, "p0", last=1).startswith("no group of prompt p0 is in the last 1 steps")


def test_a_run_without_a_database_says_how_to_make_one(tmp_path: Path):
    with pytest.raises(Exception, match="does not exist; the recorder makes it"):
        find_rollout(new_run(tmp_path / "run"), "0")
