"""A `rollout_func` of the user's, driven without a run: what it is given, what it may return, what is refused."""

from __future__ import annotations

import asyncio
import json
import re
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agrpo.config import RolloutLoopSection, RunConfig, resolve
from agrpo.database.batch import Batch
from agrpo.database.slots import add_group
from agrpo.errors import ConfigError, EngineError, HookError, PromptRefused
from agrpo.records.arrow import group_from_arrow, group_to_arrow
from agrpo.records.group import RolloutGroup
from agrpo.records.prompt import Prompt
from agrpo.records.rollout import Rollout, StopReason, TurnRecord
from agrpo.rewards.calling import Call
from agrpo.rewards.functions import Keywords
from agrpo.rollout_loop.finding import check_rollout_loop
from agrpo.rollout_loop.returned import completions_of
from agrpo.stages.rendering import Renderer
from agrpo.stages.report import may_pass
from agrpo.stages.rollout_hooks import RolloutHooks
from agrpo.stages.sampled import sampled_of
from agrpo.stages.slots import Slots
from tests.stages import functions
from tests.stages.playing import QUESTION, SEED, Playing, script
from tests.stages.walk import settings

HERE = "tests.stages.functions"
PROMPT = Prompt(id="p", messages=QUESTION, facts={"answer": "9"}, row_index=5)


class Made:
    """Rollouts of a function of the tests, of ticket 7, over an engine that says what a script does."""

    def __init__(self, model: Path, function: str | None, line: Any = None, **tables: Any) -> None:
        loop = {"timeout_seconds": 20, "settings": tables.pop("own", {}), **tables.pop("loop", {})}
        section: Any = {"rollout_func": f"{HERE}:{function}", **loop} if function else {}
        engine = {"num_generations": 2, "max_completion_length": 100, **tables.pop("engine", {})}
        tree = settings(model, model, model, rollout_loop=section, engine=engine)
        tree |= {"loss": {"name": "clip"}, **tables}
        tree["prompts"] = {"name": "reasoning_gym", "dataset": "chain_sum"}
        self.config = RunConfig.build(resolve(values=tree))
        self.renderer = Renderer(self.config.model)
        self.engine = Playing(self.renderer, line or script("9", "8", "7", "6"))
        self.hooks = RolloutHooks(self.config, self.renderer, self.engine)

    def rollouts(self, *, cap: int = 8) -> list[Rollout]:
        async def sample() -> list[Rollout]:
            slots = Slots(cap).queue(self.config.sampling.num_generations)
            async with asyncio.timeout(60):
                return await self.hooks.sample(PROMPT, SEED[1], 3, slots)

        return asyncio.run(sample())


@pytest.mark.parametrize("reproducible", [False, True])
@pytest.mark.parametrize("function", ["passing", "passing_async"])
def test_a_function_that_asks_the_engine_makes_the_rollouts_of_agrpos_own_loop(
    tiny_model: Path, function: str, reproducible: bool
):
    engine = {"reproducible": reproducible}
    own, made = (Made(tiny_model, name, engine=engine).rollouts() for name in (None, function))
    assert [replace(one, duration_seconds=0) for one in made] == [replace(one, duration_seconds=0) for one in own]


@pytest.mark.spec("G-212")
def test_it_is_given_each_prompt_once_and_the_trainer(tiny_model: Path):
    functions.CALLED.clear()
    Made(tiny_model, "passing", own={"depth": 3}).rollouts()
    ((prompts, trainer),) = functions.CALLED
    assert prompts == [QUESTION]
    assert (trainer.num_generations, trainer.rows, trainer.settings.depth) == (2, [{"answer": "9"}], 3)
    assert trainer.processing_class.decode([1]) == "<|end|>" and trainer.config.run.seed == 1


@pytest.mark.spec("G-214")
@pytest.mark.parametrize("key", ["prompt_ids", "completion_ids", "logprobs"])
def test_a_key_that_is_missing_is_named(tiny_model: Path, key: str):
    made = Made(tiny_model, "given", own={"returns": {key: "left out"}})
    with pytest.raises(HookError, match=rf'{HERE}:given, ticket 7 \(row 5\), returned no "{key}"; there is '):
        made.rollouts()


P, C, L = [[3], [3]], [[4, 5], [6, 1]], [[-0.5, -1.0], [-2.0, -0.1]]


@pytest.mark.parametrize(
    ("returns", "told"),
    [
        ({"completion_ids": [[4, 5]]}, r"completion_ids has 1 entries; expected 2, one for each completion"),
        ({"prompt_ids": [[3], []]}, r"prompt_ids\[1\] is empty; expected the tokens that the completion follows"),
        (
            {"completion_ids": [[4, 999999], [6, 1]]},
            r"completion_ids\[0\]\[1\] is 999999; expected a token id from 0 to",
        ),
        ({"completion_ids": [[4, True], [6, 1]]}, r"completion_ids\[0\]\[1\] is True; expected a token id"),
        ({"completion_ids": [[4, 0.5], [6, 1]]}, r"completion_ids\[0\]\[1\] is 0.5; expected a token id"),
        ({"completion_ids": "text"}, r"completion_ids is 'text'; expected a list"),
        ({"logprobs": [[-0.5], [-2.0, -0.1]]}, r"logprobs\[0\] has 1 entries and completion_ids\[0\] 2 tokens"),
        ({"logprobs": [[0.5, -1.0], [-2.0, -0.1]]}, r"logprobs\[0\]\[0\] is 0.5; expected a log-prob in nats, finite"),
        ({"logprobs": [["x", -1.0], [-2.0, -0.1]]}, r"logprobs\[0\]\[0\] is 'x'; expected a log-prob"),
        ({"length": [1]}, r"length has 1 entries; expected 2"),
        ({"answer": [1, 2]}, r'returned "answer", under which rewards are given something else already'),
        ({"prompts": [1, 2]}, r'returned "prompts", under which rewards are given something else already'),
        ({" ": [1, 2]}, r"returned the key ' '; expected names"),
        (
            {"\ud800": [1, 2]},
            r"returned the key '\\ud800', which holds half a surrogate pair and cannot be recorded; rename",
        ),
        ({"env_mask": [[1, 1], [1, 0]]}, r'returned "env_mask"; every token of completion_ids is trained'),
        ({"logprob_token_ids": [[4, 5], [6, 2]]}, r"logprob_token_ids\[1\] is not completion_ids\[1\]"),
        (
            {"logprobs": [[[-1], [-1]], [[-1], [-1]]]},
            r'logprobs\[0\] has several log-probs .* expected "logprob_token_ids"',
        ),
    ],
)
def test_what_does_not_fit_is_refused_with_its_key(tiny_model: Path, returns: dict[str, Any], told: str):
    made = Made(tiny_model, "given", own={"returns": {"prompt_ids": P, "completion_ids": C, "logprobs": L, **returns}})
    with pytest.raises(HookError, match=rf"{HERE}:given, ticket 7 \(row 5\), {told}"):
        made.rollouts()


@pytest.mark.parametrize(
    ("function", "told"),
    [
        ("no_dict", "returned list; expected a dict with prompt_ids, completion_ids, logprobs"),
        ("odd_value", r"thing\[0\] is object, which cannot be recorded"),
        ("half_a_pair", r"thing\[0\] is .* cannot be recorded"),
        ("infinite", r"logprobs\[0\]\[0\] is -inf; expected a log-prob"),
        ("not_a_number", r"logprobs\[0\]\[0\] is nan; expected a log-prob"),
        ("raising", "raised KeyError: 'answer'. Mend it, then `agrpo resume` this run"),
    ],
)
def test_a_function_that_fails_stops_the_run_with_its_name(tiny_model: Path, function: str, told: str):
    with pytest.raises(HookError, match=rf"{HERE}:{function}, ticket 7 \(row 5\), {told}"):
        Made(tiny_model, function).rollouts()


def test_a_function_that_hangs_ends_the_run_by_name(tiny_model: Path):
    with pytest.raises(
        HookError, match=rf"{HERE}:hanging, ticket 7 .* within 0.2 s \(rollout_loop.timeout_sec"
    ) as hung:
        Made(tiny_model, "hanging", loop={"timeout_seconds": 0.2}).rollouts()
    assert not may_pass(hung.value)


def test_a_cap_below_a_group_does_not_hold_it_up(tiny_model: Path):
    assert len(Made(tiny_model, "passing").rollouts(cap=1)) == 2


def test_groups_that_are_begun_whole_go_beyond_a_lower_cap_one_after_the_other():
    async def run() -> list[tuple[int, int, bool]]:
        slots, seen = Slots(3), list[tuple[int, int, bool]]()
        groups = [slots.queue(4) for _ in range(2)]
        waits = [asyncio.create_task(slots.grant_all(places)) for places in groups]
        for places, granted in zip(groups, waits, strict=True):
            await asyncio.wait_for(granted, 10)
            seen.append((slots.in_use, slots.ended, waits[1].done()))
            for place in places:
                place.close()
        return [*seen, (slots.in_use, slots.ended, True)]

    assert asyncio.run(run()) == [(4, 0, False), (4, 4, True), (0, 8, True)]


@pytest.mark.parametrize(
    ("function", "told"),
    [
        ("waiting_for_itself", "use `await trainer.generate_async"),
        ("asking_text", r"trainer.generate: prompt_ids\[0\] is '4 \+ 5 ='; expected a list"),
    ],
)
def test_the_trainer_says_how_it_is_to_be_asked(tiny_model: Path, function: str, told: str):
    with pytest.raises(HookError, match=told):
        Made(tiny_model, function).rollouts()


def test_a_trainer_answers_during_its_own_call_alone(tiny_model: Path):
    functions.CALLED.clear()
    Made(tiny_model, "passing").rollouts()
    with pytest.raises(HookError, match="was asked after the function had returned"):
        asyncio.run(functions.CALLED[0][1].generate_async([[3]]))


def test_an_engine_without_an_answer_fails_the_groups_rollouts(tiny_model: Path):
    made = Made(tiny_model, "passing", lambda index, turn: EngineError if index else "9").rollouts()
    assert [rollout.stop_reason for rollout in made] == [StopReason.ENGINE_ERROR] * 2
    assert [rollout.turns for rollout in made] == [[], []] and made[0].error == "turn 0 of rollout 1"


def test_a_prompt_that_leaves_no_room_refuses_the_group(tiny_model: Path):
    with pytest.raises(PromptRefused, match=r"no more than step\.micro_tokens = 6 can be trained"):
        Made(tiny_model, "passing", engine={"max_completion_length": 5}, step={"micro_tokens": 6}).rollouts()


def test_of_more_answers_than_are_wanted_the_ones_that_are_returned_count(tiny_model: Path):
    made = Made(tiny_model, "longer", lambda index, turn: f"{index} {turn}")
    texts = [rollout.completion[0]["content"] for rollout in made.rollouts()]
    assert texts == ["0 1", "1 1"]


def test_tokens_from_elsewhere_count_as_sampled_by_the_version_at_the_groups_begin(tiny_model: Path):
    made = Made(tiny_model, "elsewhere", lambda index, turn: [40 + index, 41, 42, 43])
    (first, _) = made.rollouts()
    assert first.completion_ids == [40, 41, 7] and first.stop_reason is StopReason.LENGTH
    assert first.turns[0].output_versions == [3, 3, 3]


def row(prompt: list[int], written: list[int]) -> Any:
    (made,) = completions_of(
        {"prompt_ids": [prompt], "completion_ids": [written], "logprobs": [[-1.0] * len(written)]},
        num_completions=1,
        num_tokens=100,
        taken=(),
    )
    return made


def answered(prompt: list[int], output: list[int], version: int) -> TurnRecord:
    """Each token with a version, candidates and most likely tokens of its answer alone."""
    return TurnRecord(
        prompt_ids=prompt,
        output_ids=output,
        output_versions=[version] * len(output),
        output_sampling_mask=[[token, 90 + version] for token in output],
        output_sampler_logprobs=[{token: -float(version)} for token in output],
    )


def test_versions_and_most_likely_tokens_are_found_again_by_the_tokens_before_them():
    asked = [answered([1], [5, 9], 1), answered([1], [5, 6], 2), answered([1, 5, 6, 50], [7, 8], 4)]
    (whole, mixed) = sampled_of([row([1], [5, 6]), row([1], [5, 6, 50, 7])], asked, 3)
    assert (whole.versions, whole.candidates, whole.top) == ([2, 2], [[5, 92], [6, 92]], [{5: -2.0}, {6: -2.0}])
    assert (mixed.versions, mixed.candidates, mixed.top) == ([2, 2, 3, 4], [[5, 92], [6, 92], [], [7, 94]], None)


def test_an_answer_that_was_cut_gives_way_to_the_one_asked_from_the_cut_though_it_begins_alike():
    asked = [answered([1], [5, 6, 7, 9], 1), answered([1, 5], [6, 8, 4], 2)]
    (found,) = sampled_of([row([1], [5, 6, 8, 4])], asked, 3)
    assert found.versions == [1, 2, 2, 2]
    assert found.candidates == [[5, 91], [6, 92], [8, 92], [4, 92]]
    assert found.top == [{5: -1.0}, {6: -2.0}, {8: -2.0}, {4: -2.0}]
    (whole,) = sampled_of([row([1], [5, 6, 7, 9])], asked, 3)
    assert whole.versions == [1, 1, 1, 1]


def test_a_completion_may_begin_amid_an_answer():
    (found,) = sampled_of([row([1, 5], [6, 7, 9])], [answered([1], [5, 6, 7], 1), answered([1, 5, 6, 7], [9], 2)], 3)
    assert found.versions == [1, 1, 2]
    assert found.candidates == [[6, 91], [7, 91], [9, 92]] and found.top == [{6: -1.0}, {7: -1.0}, {9: -2.0}]


@pytest.mark.spec("G-215")
def test_logprob_token_ids_say_whose_log_probs_stand_at_a_token(tiny_model: Path):
    returns = {
        "prompt_ids": P,
        "completion_ids": C,
        "logprobs": [[[-2.0, -0.5], [-1.0, -3.0]], [[-2.0, -0.5], [-0.1, -4.0]]],
        "logprob_token_ids": [[[9, 4], [5, 8]], [[6, 2], [1, 3]]],
    }
    made = Made(tiny_model, "given", own={"returns": returns}, loss={"name": "score_centering"}).rollouts()
    assert made[0].turns[0].output_log_probs == [-0.5, -1.0]
    assert made[0].turns[0].output_sampler_logprobs == [{9: -2.0, 4: -0.5}, {5: -1.0, 8: -3.0}]
    for ids, told in (
        ([[[9, 7], [5, 8]], [[6, 2], [1, 3]]], r"logprob_token_ids\[0\]\[0\] is \[9, 7\]; expected 4 among them"),
        ([[[4], [5, 8]], [[6, 2], [1, 3]]], r"logprob_token_ids\[0\] is not of the shape of logprobs\[0\]"),
    ):
        bad = {**returns, "logprob_token_ids": ids}
        with pytest.raises(HookError, match=told):
            Made(tiny_model, "given", own={"returns": bad}).rollouts()


def test_a_loss_that_reads_the_most_likely_tokens_needs_them_of_tokens_from_elsewhere(tiny_model: Path):
    returns = {"prompt_ids": P, "completion_ids": C, "logprobs": L}
    with pytest.raises(
        HookError, match=r'logprobs\[0\] for tokens that the run\'s engine has not .*loss.name = "clip"'
    ):
        Made(tiny_model, "given", own={"returns": returns}, loss={"name": "score_centering"}).rollouts()


def test_an_empty_completion_is_a_completion(tiny_model: Path):
    returns = {"prompt_ids": P, "completion_ids": [[], [6, 1]], "logprobs": [[], [-1.0, 0.00005]]}
    first, second = Made(tiny_model, "given", own={"returns": returns}).rollouts()
    assert (first.completion_ids, first.stop_reason) == ([], StopReason.LENGTH)
    assert (second.turns[0].output_log_probs, second.stop_reason) == ([-1.0, 0.0], StopReason.STOP)


@pytest.mark.parametrize(
    ("tables", "told"),
    [
        ({"tools": {"functions": ["a:b"]}}, "and tools.functions would never be used"),
        ({"environments": {"factory": "a:B"}}, "and environments would never be used"),
        ({"rollout_loop": {"timeout_seconds": 60}}, "rollout_loop.timeout_seconds = 60: a call may take as long"),
        ({"rollout_loop": {"rollout_func": "a b"}}, "rollout_loop.rollout_func = 'a b': string should match pattern"),
        ({"rollout_loop": {"rollout_fun": "a:b"}}, 'unknown setting; did you mean "rollout_func"'),
    ],
)
def test_settings_that_a_function_would_ignore_are_refused(tiny_model: Path, tables: dict[str, Any], told: str):
    loop = {"rollout_func": "a:b", "timeout_seconds": 20}
    tree = settings(tiny_model, tiny_model, tiny_model)
    tree |= {**tables, "rollout_loop": {**loop, **tables.get("rollout_loop", {})}}
    with pytest.raises(ConfigError, match=told):
        RunConfig.build(resolve(values=tree))


def test_a_deadline_without_a_function_is_refused(tiny_model: Path):
    tree = settings(tiny_model, tiny_model, tiny_model, rollout_loop={"timeout_seconds": 5.0})
    with pytest.raises(ConfigError, match=r"rollout_loop\.timeout_seconds: says how long a rollout_func may take"):
        RunConfig.build(resolve(values=tree))


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("nowhere:made", 'there is no module "nowhere"'),
        (f"{HERE}:pasing", 'has no "pasing"; did you mean "passing"?'),
        (f"{HERE}:CALLED", "is a list; expected a function"),
        (f"{HERE}:one_argument", "is called as one_argument(prompts, trainer); take the same arguments"),
        (f"{HERE}:piece_by_piece", "yields its completions piece by piece"),
    ],
)
def test_a_function_that_cannot_be_used_is_refused_before_anything_starts(path: str, told: str):
    (problem,) = check_rollout_loop(RolloutLoopSection(rollout_func=path))
    assert problem.startswith(f'rollout_loop.rollout_func: "{path}"') and told in problem


def test_a_class_beside_the_function_may_filter_but_not_generate():
    both = [
        RolloutLoopSection(rollout_func=f"{HERE}:passing", path=f"{HERE}:{name}") for name in ("Asking", "Filtering")
    ]
    (problem,), none = map(check_rollout_loop, both)
    assert f"and generate_one of {HERE}:Asking would never be called" in problem and none == []


@pytest.mark.spec("G-216")
def test_any_other_key_reaches_the_rewards_and_is_recorded(tiny_model: Path):
    made = Made(tiny_model, "measured", script("9")).rollouts()
    group = group_from_arrow(group_to_arrow(RolloutGroup(ticket=7, prompt=PROMPT, rollouts=made, model_version=3)))
    taken = Keywords(path="r", takes_all=True, named=frozenset(), required=frozenset()).of(group, Call(2))
    assert (taken["length"], taken["seen"]) == ([2, 2], [{"at": [1, 2.5]}] * 2)
    assert taken["answer"] == ["9", "9"] and taken["completion_ids"] == [rollout.completion_ids for rollout in made]
    batch = Batch()
    add_group(batch, group_to_arrow(group), topk=False)
    recorded = batch.tables()["rollouts"].column("own_columns").to_pylist()
    assert [json.loads(text) for text in recorded] == [{"length": 2, "seen": {"at": [1, 2.5]}}] * 2


def test_what_the_page_shows_is_what_is_called(tiny_model: Path, monkeypatch: pytest.MonkeyPatch):
    text = (Path(__file__).parents[2] / "docs" / "rollout_func.md").read_text("utf-8")
    (written,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    (tables,) = [tomllib.loads(block) for block in re.findall(r"```toml\n(.*?)```", text, re.DOTALL)]
    names: dict[str, Any] = {}
    exec(written, names)
    monkeypatch.setattr(functions, "shown", names["with_hint"], raising=False)
    names["with_hint"].__qualname__ = names["with_hint"].__name__ = "shown"
    made = Made(tiny_model, "shown", own=tables["rollout_loop"]["settings"]).rollouts()
    assert [rollout.columns for rollout in made] == [{"hinted": 0}, {"hinted": 1}]
    assert len(made[1].turns[0].prompt_ids) > len(made[0].turns[0].prompt_ids)
