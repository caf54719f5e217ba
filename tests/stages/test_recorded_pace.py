"""What a real run records of its pace, its timings and its trained tokens."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from agrpo.config import resolve
from agrpo.database.queries import query
from agrpo.database.writer import Database
from agrpo.queue.run_folder import RunFolder
from agrpo.records.arrow import group_from_arrow, group_to_arrow, scored_from_arrow
from agrpo.records.progress import Hint
from agrpo.runs import prepare
from agrpo.stages.recorder import record_once
from tests.stages.groups import a_group
from tests.stages.walk import Walk, settings, walk


@pytest.fixture(scope="module")
def finished(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    place = tmp_path_factory.mktemp("pace")
    prompts = place / "prompts.jsonl"
    rows = [{"prompt": [{"role": "user", "content": f"{first}+1 ="}]} for first in range(8)]
    prompts.write_text("\n".join(json.dumps(row) for row in rows))
    folder = prepare(resolve(values=settings(tiny_model, prompts, place, asynchronous={"max_staleness": 1})))
    walk(folder)
    record_once(folder, Database(folder.database))
    return folder


def asked(folder: RunFolder, sql: str) -> list[tuple]:
    return [tuple(row.values()) for row in query(folder.database, sql).to_pylist()]


def test_the_parts_of_a_step_add_up_to_its_wall_time(finished: RunFolder):
    parts = "wait read plan forward backward optimizer digest record sync checkpoint other".split()
    total = " + ".join(f"{part}_seconds" for part in parts)
    rows = asked(finished, f"SELECT step, step_seconds, {total}, forward_seconds, backward_seconds FROM live_steps")
    assert len(rows) == 4
    for _, whole, summed, forward, backward in rows:
        assert summed == pytest.approx(whole, abs=1e-9)
        assert forward > 0 < backward
    rest = asked(
        finished,
        "SELECT optimizer_seconds, digest_seconds, read_seconds, plan_seconds, record_seconds, sync_transfer_seconds, "
        "sync_seconds, checkpoint_seconds FROM live_steps WHERE step > 1",
    )
    assert all(min(spent) > 0 and spent[5] < spent[6] for spent in rest)
    # The publish after step k lies in the window of step k + 1; version 0 came before the first.
    assert asked(finished, "SELECT num_syncs FROM live_steps ORDER BY step") == [(0,), (1,), (1,), (1,)]


def test_every_trained_token_has_the_learners_log_prob_and_entropy(finished: RunFolder):
    rows = asked(
        finished,
        "SELECT log_probs, entropies, output_log_probs, num_trained_tokens, ratio_mean, entropy_mean "
        "FROM live_samples JOIN turns USING (ticket, rollout_index)",
    )
    assert len(rows) > 8
    for learner, entropies, sampler, trained, ratio, entropy in rows:
        assert len(learner) == len(entropies) == len(sampler) == trained
        assert np.exp(np.subtract(learner, sampler)).mean() == pytest.approx(ratio, abs=1e-5)
        assert np.mean(entropies) == pytest.approx(entropy, abs=1e-5)


def test_a_group_says_what_ran_beside_it_and_how_long_run_ahead_held_it_back(finished: RunFolder):
    rows = asked(
        finished, "SELECT ticket, concurrency, concurrency_cap, backpressure_seconds, interval_seconds FROM groups"
    )
    assert {cap for _, _, cap, _, _ in rows} == {512}
    assert all(4 <= running <= 512 for _, running, _, _, _ in rows)  # rollouts of a group may end one by one
    held = [seconds for _, _, _, seconds, _ in rows if seconds is not None]
    assert held and min(held) >= 0
    assert dict(asked(finished, "SELECT ticket, backpressure_seconds FROM groups"))[0] is None
    assert all(interval >= 0 for *_, interval in rows)


def test_scores_say_how_long_the_group_waited_and_who_waited_with_it(finished: RunFolder):
    rows = asked(finished, "SELECT score_seconds, score_wait_seconds, score_queue_size FROM scored_groups")
    assert rows
    for seconds, waited, queue in rows:
        assert seconds > 0 and waited >= 0 and queue >= 0


def test_rows_of_a_step_hold_its_samples(finished: RunFolder):
    rows = asked(
        finished,
        "SELECT r.step, r.row_index, r.num_samples, r.num_tokens, r.attention_cost, count(*), sum(s.num_tokens), max(s.num_tokens), "
        "sum(s.num_tokens * (s.num_tokens + 1) // 2) FROM live_step_rows r JOIN live_samples s "
        "ON (r.step, r.row_index) = (s.step, s.micro_batch) GROUP BY ALL",
    )
    assert len(rows) == 4
    for _, _, samples, tokens, cost, counted, summed, longest, pairs in rows:
        assert samples == counted
        assert longest < tokens < summed and cost < pairs, "samples of a group share their prompt"


@pytest.mark.spec("A-356")
def test_steps_say_how_much_of_the_devices_peak_their_rows_needed(finished: RunFolder):
    rows = asked(
        finished,
        "SELECT step, sum(flops), any_value(forward_seconds + backward_seconds), any_value(step_seconds), "
        "any_value(peak_flops_per_second) FROM live_step_rows JOIN live_steps USING (step) GROUP BY step ORDER BY step",
    )
    logged = dict(asked(finished, "SELECT step || name, value FROM live_metrics WHERE name LIKE '%mfu'"))
    assert len(rows) == 4
    for step, flops, compute, wall, peak in rows:
        assert flops > 0 and 1e8 < peak < 1e15
        assert logged[f"{step}perf/fwd_bwd_mfu"] == pytest.approx(float(flops) / (compute * peak))
        assert logged[f"{step}perf/wall_clock_mfu"] == pytest.approx(float(flops) / (wall * peak))


@pytest.mark.spec("A-309", "A-310", "A-319")
def test_groups_say_how_many_rollouts_ran_and_how_long_run_ahead_held_the_next(tiny_model: Path, tmp_path: Path):
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(json.dumps({"prompt": [{"role": "user", "content": "1+1 ="}]}))
    tree = settings(
        tiny_model,
        prompts,
        tmp_path,
        # Long enough that none of three groups is finished before the third is begun, on a busy machine too.
        engine={"max_completion_length": 400},
        asynchronous={"max_staleness": 8, "max_concurrent_rollouts": 64},
    )
    folder = prepare(resolve(values=tree))
    learner = Walk(folder).start("learner")
    learner.until(lambda: bool(folder.versions(0)))
    learner.stop.set()
    learner.threads[0].join(60)
    folder.write_hint(Hint(limit_ticket=3, dropped=0, floor=0, written_at=time.time()))
    generator = Walk(folder).start("generator")
    generator.until(lambda: len(folder.groups.numbers()) == 3)
    time.sleep(0.3)
    folder.write_hint(Hint(limit_ticket=4, dropped=0, floor=0, written_at=time.time()))
    generator.until(lambda: folder.groups.exists(3))
    generator.stop.set()
    generator.join()
    paces = [group_from_arrow(folder.groups.read(ticket) or b"").pace for ticket in range(4)]
    assert [(pace.concurrency, pace.concurrency_cap) for pace in paces if pace] == [(4, 64), (8, 64), (12, 64), (4, 64)]
    assert [pace.backpressure_seconds for pace in paces[:3] if pace] == [None, None, None]
    held = paces[3].backpressure_seconds if paces[3] else None
    assert held is not None and 0.25 < held < 30


@pytest.mark.spec("A-315", "A-317")
def test_scores_say_who_waited_and_for_how_long(tiny_model: Path, tmp_path: Path):
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(json.dumps({"prompt": [{"role": "user", "content": "1+1 ="}]}))
    folder = prepare(resolve(values=settings(tiny_model, prompts, tmp_path)))
    for ticket in range(3):
        group = replace(a_group(ticket, lengths=(3, 4)), finished_at=time.time() - 5.0)
        folder.groups.publish(ticket, group_to_arrow(group))
    scorer = Walk(folder).start("scorer")
    scorer.until(lambda: len(folder.scored.numbers()) == 3)
    scorer.stop.set()
    scorer.join()
    found = [scored_from_arrow(folder.scored.read(ticket) or b"").scoring for ticket in range(3)]
    assert [scoring.queue_size for scoring in found if scoring] == [2, 1, 0]
    assert all(scoring and 5.0 <= scoring.wait_seconds < 65 and scoring.seconds > 0 for scoring in found)
