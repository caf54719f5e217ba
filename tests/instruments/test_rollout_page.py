"""The page of a rollout as it is read: coloured, marked, as a table, and as JSON."""

from __future__ import annotations

import io
import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from agrpo.database.writer import Database
from agrpo.instruments.rollout_page.choosing import Place
from agrpo.instruments.rollout_page.colours import Colouring
from agrpo.instruments.rollout_page.document import as_json, page_document
from agrpo.instruments.rollout_page.facts import RolloutPage
from agrpo.instruments.rollout_page.page import rollout_page
from agrpo.instruments.rollout_page.pieces import NoPieces, TokenPieces
from agrpo.instruments.rollout_page.reading import read_page
from agrpo.queue.run_folder import RunFolder, StepKey
from agrpo.records.progress import DropReason
from agrpo.records.rollout import Rollout, TurnRecord
from agrpo.stages.recorder import record_once
from agrpo.visible import harmless
from tests.database.synthetic import a_rollout, a_turn, add_attempt, add_done, add_group, add_plan, add_scores, new_run

WORDS = {1: "<end>", 2: " two\n", 4: "four", 5: "five", 6: "six", 7: "\x1b[7m", 8: "8", 9: "9"}
LETTERS = TokenPieces(lambda ids: "".join(WORDS.get(one, "") for one in ids), WORDS.get)
CLIP = {"loss": {"name": "clip", "epsilon": 0.2, "epsilon_high": 0.28, "importance_min": 0.5, "importance_max": 5.0}}


def improbable(rollout: Rollout, *log_probs: float) -> Rollout:
    return replace(rollout, turns=[replace(rollout.turns[0], output_log_probs=list(log_probs))])


def forked() -> Rollout:
    """Its second turn does not continue the first, its third continues the second."""
    turns: list[TurnRecord] = [
        a_turn([7, 8, 9], [5, 6, 1]),
        a_turn([7, 8, 4], [5, 1], version=1),
        a_turn([7, 8, 4, 5, 1, 9, 9], [2, 1], version=1),
    ]
    ids = [one for turn in turns for one in turn.output_ids]
    return replace(a_rollout(0, ids), turns=turns, completion_ids=ids)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> RunFolder:
    """Step 1 trains 0, 1 and 4 and drops 2; nothing has come of 3 yet."""
    folder = new_run(tmp_path_factory.mktemp("page") / "run", topk=True)
    add_attempt(folder, 0)
    rollouts = {
        0: [improbable(a_rollout(0, [5, 6, 1]), -0.05, -3.0, -5.0), a_rollout(1, [4, 1])],
        1: [forked(), a_rollout(1, [4, 1])],
    }
    for ticket in range(5):
        add_group(folder, ticket, rollouts.get(ticket))
        if ticket != 3:
            add_scores(folder, ticket, {"one": [1.0, 0.0], "two": [0.5, None]}, {"one": 0.5, "two": 2.0})
    add_done(folder, add_plan(folder, StepKey(0, 1), [0, 1, 4], {2: DropReason.STALE}))
    record_once(folder, Database(folder.database), topk=True)
    return folder


def read(folder: RunFolder, ticket: int, index: int = 0, pieces=LETTERS) -> RolloutPage:
    return read_page(folder, Place(ticket=ticket, rollout_index=index), pieces)


def shown(page: RolloutPage, *, width: int = 120, coloured: bool = False, **options) -> str:
    """What a terminal of that width gets."""
    out = io.StringIO()
    system = {"force_terminal": True, "color_system": "truecolor"} if coloured else {"color_system": None}
    console = Console(file=out, width=width, **system)
    for part in rollout_page(page, CLIP, coloured=coloured, **options):
        console.print(part, markup=False, highlight=False)
    return out.getvalue()


def part_of(text: str, section: str, following: str) -> list[str]:
    """The lines between two titles."""
    lines = [line.rstrip() for line in text.splitlines()]
    begin = next(place for place, line in enumerate(lines) if line.startswith(f"{section} ─"))
    end = next(place for place, line in enumerate(lines) if line.startswith(f"{following} ─"))
    return lines[begin + 1 : end]


def test_the_head_says_what_it_is_how_it_was_made_and_what_became_of_it(folder):
    lines = [line.rstrip() for line in shown(read(folder, 0)).splitlines()]
    assert lines[0] == "rollout 0/0 of run: trained in step 1"
    assert lines[1:11] == [
        "id       r0",
        "prompt   p0 · row 0, epoch 0",
        "reward   1.5 · group mean 0.75, sample std 1.061 · advantage +1",
        "length   3 prompt + 3 generated tokens, 1 turn · ended by itself (stop)",
        "policy   version 0 · staleness 0 weight updates",
        "step     1 of attempt 0, at version 0",
        "learner  step 1: 3 trained tokens, ratio 0.5 / 1 / 1.5 (least / mean / most), entropy 1 nats, 50.0% clipped high",
        "by       generator-a under attempt 0 · seed 100",
        "times    claimed 2023-11-14 22:13:20 UTC · generated +1.00 s · scored +2.00 s · planned +10.00 s · step 1 done +15.00 s",
        "took     0.25 s to generate · 0.50 s waited for scores · 0.12 s to score its group · 4 rollouts in flight when the group",
    ]


def test_rewards_are_told_by_source_with_their_weight_and_the_total(folder):
    assert part_of(shown(read(folder, 0)), "rewards", "group 0") == [
        "reward  weight  value  weighted  s of the group  error",
        "one        0.5      1       0.5           0.125",
        "two          2    0.5         1           0.125",
        "total                       1.5",
    ]
    (_, _, missing, _) = part_of(shown(read(folder, 0, 1)), "rewards", "group 0")
    assert missing.split() == ["two", "2", "0.125", "no", "value"]


def test_the_group_is_a_table_with_this_rollout_marked(folder):
    lines = [line.rstrip() for line in shown(read(folder, 0, 1)).splitlines()]
    assert lines[-3:] == [
        "   #  reward  advantage  tokens  stop  completion",
        "   0     1.5         +1       3  stop  answer 0",
        "›  1       0         -1       2  stop  answer 1",
    ]


def test_without_colour_improbable_tokens_are_marked_and_nothing_controls_the_terminal(folder):
    text = shown(read(folder, 0))
    assert part_of(text, "completion", "rewards") == [
        "five‹six›«<end>»",
        "",
        "marks: sampler's log-prob, nats; -5.0000 to -0.0500, mean -2.6833",
        "tokens:  below -4.605 (p < 0.01) «» 1  below -2.303 (p < 0.1) ‹› 1  unmarked 1",
    ]
    assert "\x1b" not in text


def test_with_colour_every_band_has_its_own_and_the_ordinary_has_none(folder):
    text = shown(read(folder, 0), coloured=True)
    assert "five\x1b[38;2;0;0;0;48;2;230;159;0msix\x1b[0m\x1b[38;2;255;255;255;48;2;213;94;0m<end>\x1b[0m\n" in text
    assert "‹" not in text


def test_a_token_that_is_an_escape_sequence_does_not_act(folder):
    page = read(folder, 0)
    (turn,) = page.turns
    text = shown(replace(page, turns=[replace(turn, tokens=[replace(turn.tokens[0], text=WORDS[7])])]))
    assert "␛[7m" in text
    assert "\x1b" not in text


def test_ratios_are_coloured_by_the_bounds_of_the_runs_loss(folder):
    lines = part_of(shown(read(folder, 4), colouring=Colouring.RATIO), "completion", "rewards")
    assert lines == [  # the learner's -0.75 to the sampler's -0.5
        "‹five›‹six›‹<end>›",
        "",
        "marks: importance ratio, learner's over sampler's probability; all 0.7788",
        "tokens:  below 0.8 ‹› 3  unmarked 0",
    ]


def test_ratios_out_of_bounds_are_named_as_left_out(folder):
    text = shown(read(folder, 0), colouring=Colouring.RATIO)
    assert "above 5 (left out of the loss) «» 2" in text  # exp(-0.75 + 3) and exp(-0.75 + 5)
    assert f"mean {(math.exp(-0.7) + math.exp(2.25) + math.exp(4.25)) / 3:.4f}" in text


def test_advantage_entropy_and_version_are_said_with_their_unit(folder):
    page = read(folder, 4, 1)
    assert "advantage, one value for all trained tokens of a sequence; all -1" in shown(
        page, colouring=Colouring.ADVANTAGE
    )
    assert "entropy of the learner's next-token distribution, nats; all 1.14" in shown(
        page, colouring=Colouring.ENTROPY
    )
    assert "marks: policy version that sampled the token\n" in shown(page, colouring=Colouring.VERSION).replace(
        " \n", "\n"
    )


@pytest.mark.parametrize(
    ("ticket", "why"),
    [
        (2, "(not trained, the group was dropped: stale; so there is no learner's log-prob, ratio or entropy)"),
        (3, "(not trained yet, the group is generated; so there is no learner's log-prob, ratio or entropy)"),
    ],
)
def test_where_the_learner_said_nothing_it_is_said_why(folder, ticket, why):
    text = shown(read(folder, ticket), colouring=Colouring.RATIO)
    assert part_of(text, "completion", "rewards")[0] == why
    assert "none is known here" in text
    assert why not in shown(read(folder, ticket))


def test_turns_forks_and_context_are_told_apart(folder):
    assert part_of(shown(read(folder, 1)), "completion", "rewards")[:9] == [
        "turn 0 · 3 prompt + 3 tokens · stop · training sequence 0",
        "fivesix<end>",
        "fork: turn 1 begins training sequence 1, for its prompt keeps only 2 of the 6 tokens before it; then 1 token of context:",
        "four",
        "turn 1 · 3 prompt + 2 tokens · stop · training sequence 1",
        "five<end>",
        "context: 2 tokens after turn 1, not trained",
        "99",
        "turn 2 · 7 prompt + 2 tokens · stop · training sequence 1",
    ]
    assert "3 turns in 2 training sequences" in shown(read(folder, 1))


def test_a_table_of_tokens_leaves_out_empty_columns_and_says_once_what_is_the_same(folder):
    lines = part_of(shown(read(folder, 4), as_table=True), "completion", "rewards")
    assert lines[:4] == [
        "all tokens: version 0, trained yes",
        "                sampler  learner          entropy",
        "#  id  token       nats     nats   ratio     nats  alternatives (nats)",
        '0   5  "five"   -0.5000  -0.7500  0.7788   1.0400  "five" -0.50  "⟨id 99⟩" -1.50',
    ]
    dropped = part_of(shown(read(folder, 2), as_table=True), "completion", "rewards")
    assert dropped[1:4] == [
        "all tokens: version 0, trained no",
        "                sampler",
        "#  id  token       nats  alternatives (nats)",
    ]


def test_without_the_tokenizer_the_recorded_text_is_shown_and_the_reason(folder):
    lines = part_of(shown(read(folder, 0, pieces=NoPieces("no tokenizer here"))), "completion", "rewards")
    assert lines == ["(no tokenizer here)", "answer 0"]


def test_eighty_columns_hold_every_line(folder):
    for ticket in (0, 1, 2):
        for options in ({}, {"as_table": True}, {"group_first": True}):
            lines = shown(read(folder, ticket), width=80, **options).splitlines()
            assert max(map(len, lines)) <= 80


def test_json_is_strict_and_has_every_value(folder):
    page = json.loads(page_document(read(folder, 0)))
    assert page["group"]["claimed_at"] == "2023-11-14T22:13:20+00:00"
    assert [reward["value"] for reward in page["rewards"]] == [1.0, 0.5]
    (turn,) = page["turns"]
    assert [token["learner_logprob"] for token in turn["tokens"]] == [-0.75] * 3
    assert page["samples"][0]["log_probs"] == [-0.75] * 3
    assert json.loads(as_json({"a": [math.nan, {"b": -math.inf}], "c": Path("d")})) == {
        "a": [None, {"b": None}],
        "c": "d",
    }


def test_where_the_policy_changes_within_a_completion_it_is_named(folder):
    page = read(folder, 4)
    (turn,) = page.turns
    newer = [replace(token, version=place) for place, token in zip((0, 0, 2), turn.tokens, strict=True)]
    page = replace(page, turns=[replace(turn, tokens=newer)])
    assert part_of(shown(page), "completion", "rewards")[0] == "[v0]fivesix[v2]<end>"
    assert "\x1b[38;2;0;0;0;48;2;86;180;233mfive" in shown(page, colouring=Colouring.VERSION, coloured=True)


def test_in_a_narrow_terminal_only_the_completion_is_cut(folder):
    page = read(folder, 0)
    wordy = [replace(one, completion_text="word " * 40, stop_reason="engine_error") for one in page.rollouts]
    lines = shown(replace(page, rollouts=wordy), width=60).splitlines()
    assert lines[-3].split() == ["#", "reward", "advantage", "tokens", "stop", "completion"]
    assert lines[-1].split()[:5] == ["1", "0", "-1", "2", "engine_error"]
    assert (len(lines[-1]), lines[-1][-1]) == (60, "…")


def test_a_table_of_several_turns_is_one_for_each_and_keeps_its_numbers_whole_in_eighty_columns(folder):
    page = read(folder, 1)
    long = [replace(one, text="long" * 9, version=place) for place, one in enumerate(page.turns[0].tokens)]
    page = replace(page, turns=[replace(page.turns[0], tokens=long), *page.turns[1:]])
    lines = part_of(shown(page, as_table=True, width=80), "completion", "rewards")
    assert lines[0] == "turn 0 · 3 prompt + 3 tokens · stop · training sequence 0"
    assert lines[1] == "all tokens: trained yes"
    assert lines[3].split() == ["#", "id", "token", "nats", "nats", "ratio", "nats", "version", "(nats)"]
    assert [line.split()[3:8] for line in lines if "long" in line] == [
        ["-0.5000", "-0.7500", "0.7788", "1.0100", version] for version in "012"
    ]
    assert lines.count("all tokens: version 1, trained no") == 2


def test_of_a_rollout_func_the_tokens_are_shown_that_it_returned_as_the_prompt_and_its_columns(tmp_path: Path):
    folder = new_run(tmp_path / "run")
    rollouts = [replace(a_rollout(index, [5, 1]), columns={"shots": index, "why": "help"}) for index in range(2)]
    add_group(folder, 0, rollouts)
    record_once(folder, Database(folder.database), topk=False)
    page = read(folder, 0, 1)
    asked = "".join(WORDS.get(one, f"⟨id {one}⟩") for one in rollouts[1].turns[0].prompt_ids)
    title, columns = (
        "prompt, as rollout_loop.rollout_func returned it",
        "columns that rollout_loop.rollout_func returned",
    )
    assert page.asked == asked
    assert page.rollout is not None and page.rollout.own_columns == {"shots": 1, "why": "help"}
    text = shown(page)
    assert part_of(text, columns, "completion") == ["shots  1", "why  help"]
    assert part_of(text, title, columns)[: len(harmless(asked).splitlines())] == harmless(asked).splitlines()
    told = json.loads(page_document(page))
    assert (told["asked"], told["rollout"]["own_columns"], told["by_function"]) == (
        asked,
        {"shots": 1, "why": "help"},
        True,
    )
    without = read(folder, 0, 1, NoPieces("it is gone"))
    assert without.asked is None
    assert "prompt of the row, of which rollout_loop.rollout_func made another" in shown(without)


def test_a_run_without_a_function_shows_the_prompt_of_its_group(folder):
    page = read(folder, 0)
    assert (page.by_function, page.asked) == (False, None)
