"""`agrpo show` from the outside: synthetic runs, and a small real one."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from agrpo.cli import main
from agrpo.config import resolve
from agrpo.database.writer import Database
from agrpo.queue.run_folder import RunFolder, StepKey
from agrpo.records.progress import DropReason
from agrpo.records.rollout import Rollout, StopReason
from agrpo.runs import prepare
from agrpo.stages.recorder import record_once
from tests.database.synthetic import add_attempt, add_done, add_group, add_plan, add_scores, new_run
from tests.stages.walk import settings, walk


@pytest.fixture(scope="module")
def six(tmp_path_factory) -> RunFolder:
    """Six groups: 0 to 2 trained, 3 lost by the engine, 4 with equal rewards, 5 stale."""
    folder = new_run(tmp_path_factory.mktemp("show") / "six")
    add_attempt(folder, 0)
    lost = [
        Rollout(
            completion=[],
            completion_ids=[],
            turns=[],
            index=index,
            rollout_id=f"lost{index}",
            stop_reason=StopReason.ENGINE_ERROR,
            error="no answer within 600 s",
        )
        for index in (0, 1)
    ]
    for ticket in range(6):
        add_group(folder, ticket, lost if ticket == 3 else None, version=0 if ticket == 5 else 3)
        given = [None, None] if ticket == 3 else [1.0, 1.0] if ticket == 4 else [1.0, 0.0]
        add_scores(folder, ticket, {"correct": given})
    drops = {3: DropReason.FAILED, 4: DropReason.EQUAL_REWARDS, 5: DropReason.STALE}
    add_done(folder, add_plan(folder, StepKey(0, 1), [0, 1, 2], drops, version=5))
    record_once(folder, Database(folder.database))
    return folder


@pytest.fixture
def show(monkeypatch, capsys):
    """What `agrpo show` prints, or says where it ends with this code."""

    def told(folder: RunFolder, *arguments: str, code: int = 0) -> str:
        monkeypatch.setattr(sys, "argv", ["agrpo", "show", folder.url, *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        printed = capsys.readouterr()
        assert ended.value.code == code, printed.err
        return printed.err if code else printed.out

    return told


def test_errored_filtered_and_stale_rollouts_are_found_with_their_whole_story(six, show):
    for choice, ticket, reason in (
        (["--failed"], 3, "failed"),
        (["--dropped", "equal_rewards"], 4, "equal_rewards"),
        (["--dropped", "stale"], 5, "stale"),
        (["--dropped", "failed"], 3, "failed"),
    ):
        page = json.loads(show(six, *choice, "--format", "json"))
        group, rollout, (consumed,) = page["group"], page["rollout"], page["consumed"]
        assert (group["ticket"], group["status"], group["reason"]) == (ticket, "dropped", reason)
        assert (consumed["attempt"], consumed["step"], consumed["drop_reason"]) == (0, 1, reason)
        assert group["prompt"] == [{"role": "user", "content": "1+1?"}]
        assert group["model_version"] == (0 if ticket == 5 else 3)
        assert group["claimed_at"] < group["generated_at"] < group["scored_at"] < consumed["planned_at"]
        assert [(one["name"], one["value"]) for one in page["rewards"]] == [("correct", None if ticket == 3 else 1.0)]
        tokens = [
            (one["token_id"], one["sampler_logprob"], one["version"])
            for turn in page["turns"]
            for one in turn["tokens"]
        ]
        assert tokens == ([] if ticket == 3 else [(one, -0.5, group["model_version"]) for one in (5, 6, 1)])
        assert rollout["error"] == ("no answer within 600 s" if ticket == 3 else None)


def test_a_failed_rollout_is_a_page_too(six, show):
    text = show(six, "--failed")
    assert "rollout 3/0 of six: dropped in step 1: failed" in text
    assert "stopped: engine_error" in text
    assert text.count("no answer within 600 s") == 4  # head, completion, and both rollouts of the group
    assert "--failed: the first of 2; -n 2 lists more" in text


def test_a_ticket_shows_its_group_and_then_the_first_rollout(six, show):
    lines = show(six, "0").splitlines()
    assert lines[0] == "group 0: 2 rollouts, trained in step 1"
    assert any(line.startswith("rollout 0/0") for line in lines)
    assert sum("answer 1" in line for line in lines) == 1


def test_several_are_a_list_that_says_how_many_there_are(six, show):
    text = show(six, "--best", "-n", "3")
    assert [line.split()[0] for line in text.splitlines()[1:4]] == ["5/0", "4/0", "4/1"]
    assert f"--best: 3 of 10; read one with: agrpo show {six.url} 5/0" in " ".join(text.split())
    found = json.loads(show(six, "--worst", "-n", "2", "--format", "json"))
    assert (found["num_matching"], [one["ticket"] for one in found["rollouts"]]) == (10, [5, 2])


def test_groups_of_a_prompt_are_a_table(six, show):
    text = " ".join(show(six, "--prompt", "p4").split())
    assert "prompt p4: 1 of 1 groups, newest first" in text
    assert "equal_rewards 3 1 0 2.5 2 of 2" in text
    assert json.loads(show(six, "--prompt", "p4", "--format", "json"))["groups"][0]["reward_std"] == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--best", "--worst"], "--best and --worst exclude one another"),
        (["0/1", "--failed"], "ROLLOUT and --failed exclude one another"),
        ([], "which rollout? Give one of ROLLOUT, --best, --worst, --failed, --dropped, --prompt"),
        (["0/1", "--last", "3"], "ROLLOUT is one; leave out --last"),
        (["--best", "-n", "2", "--tokens"], "a list shows no tokens; leave out --tokens"),
        (["--prompt", "p4", "--logs"], "a list shows no tokens; leave out --logs"),
        (["0", "--format", "json", "--colour", "ratio"], "JSON has every value of every token; leave out --colour"),
        (["--dropped", "lost"], "is not one of"),
    ],
)
def test_options_that_would_be_ignored_are_refused_by_name(six, show, arguments, message):
    assert message in " ".join(show(six, *arguments, code=2).replace("│", "").split())


def test_what_is_not_there_is_one_line_and_not_a_traceback(six, show):
    told = show(six, "9", code=1)
    assert told.startswith("error: group 9 is not claimed by any generator. Recorded so far: 6 groups")
    assert "Traceback" not in told


@pytest.fixture(scope="module")
def real(tiny_model: Path, tmp_path_factory) -> RunFolder:
    """One step of a real learner and a real engine."""
    place = tmp_path_factory.mktemp("real")
    prompts = place / "prompts.jsonl"
    rows = [{"prompt": [{"role": "user", "content": f"{first}+1 ="}]} for first in range(4)]
    prompts.write_text("\n".join(json.dumps(row) for row in rows))
    folder = prepare(resolve(values=settings(tiny_model, prompts, place, stop={"max_steps": 1})))
    walk(folder)
    record_once(folder, Database(folder.database))
    return folder


def test_a_real_rollout_shows_its_text_and_ratios_that_agree_with_the_recorded_mean(real, show):
    page = json.loads(show(real, "--best", "--last", "1", "--format", "json"))
    tokens = [one for turn in page["turns"] for one in turn["tokens"]]
    text = "".join(one["text"] for one in tokens if not one["text"].startswith("⟨"))
    assert text.removesuffix("<|end|>").replace("�", "") == page["rollout"]["completion_text"].replace("�", "")
    (sample,) = page["samples"]
    assert sum(one["ratio"] for one in tokens) / len(tokens) == pytest.approx(sample["ratio_mean"], abs=1e-5)
    assert sum(one["entropy"] for one in tokens) / len(tokens) == pytest.approx(sample["entropy_mean"], abs=1e-5)


def test_a_real_page_has_no_control_sequence_where_there_is_no_terminal(real, show):
    text = show(real, "--worst", "--colour", "ratio", "--logs")
    assert "importance ratio, learner's over sampler's probability" in text
    assert "\x1b" not in text
