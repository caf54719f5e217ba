"""Seconds that each question of docs/sql.md takes on a made-up run. Arguments: rollouts (1,000,000), a folder to build in.

The run is written in bulk, through the real schema: groups of 16, two rewards, two attempts with a rewind, dropped and
pending groups, tokens with their log-probs. A question is asked as `agrpo questions` asks it, file opened and let go.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import duckdb
from rich.progress import track

from agrpo.database.queries import query
from agrpo.database.questions import Question, all_questions
from agrpo.database.schema import VERSION, create_all

ROLLOUTS_PER_GROUP = 16
GROUPS_PER_STEP = 40
GROUPS_PER_CHUNK = 2_500
TURNS = 3
"""Each time is the best of so many: the machine may be shared."""
LIMIT_SECONDS = 1.0
BIG_TABLES = ("rollouts", "turns", "scores", "rewards", "samples")


class Seconds(NamedTuple):
    """What a call took."""

    wall: float
    cpu: float
    """Of all threads together: what a machine that others use does not change."""


_SETTING_UP = """
CREATE TEMP MACRO u(a, b, salt) AS (hash(a, b, salt) % 1000003) / 1000003.0;
CREATE TEMP MACRO step_of(ticket) AS ticket // {groups_per_step} + 1;
CREATE TEMP TABLE facts AS SELECT
    {groups}::BIGINT AS groups, {groups} - 200 AS consumed, greatest({groups} // 12, 1) AS prompts,
    ({groups} - 200) // {groups_per_step} AS steps, ({groups} - 200) // {groups_per_step} // 2 AS rewind;
CREATE TEMP TABLE done AS
    SELECT 0 AS attempt, step FROM facts, range(1, least(rewind + 20, steps) + 1) t(step)
    UNION ALL SELECT 1, step FROM facts, range(rewind + 1, steps + 1) t(step);
CREATE TEMP MACRO moment(seconds) AS to_timestamp(1700000000 + seconds);

INSERT INTO schema_info VALUES ({version});
INSERT INTO runs SELECT 'synthetic', 'file:///synthetic', settings, json_object('settings', json_object(
    'tree', settings, 'origins', json('{{"step.groups": "run.toml"}}')), 'prompts_per_epoch', prompts + 40)
    FROM facts, (SELECT '{{"loss": {{"name": "clip", "epsilon": 0.2, "epsilon_high": 0.28}}, "step": {{"groups": 32}},
        "run": {{"seed": 1}}}}'::JSON AS settings);
INSERT INTO attempts BY NAME
    SELECT attempt, 'host' AS host, 1 AS pid, moment(10 * min(step)) AS started_at FROM done GROUP BY attempt;
INSERT INTO bases BY NAME
    SELECT 0 AS attempt, NULL AS parent, 0 AS base_step, 0 AS adopted_through, false AS void
    UNION ALL SELECT 1, 0, rewind, rewind, false FROM facts;
INSERT INTO plans BY NAME SELECT
    attempt, step, step - 1 AS version, 1e-4 AS learning_rate, step AS seed, step AS publish, false AS empty,
    10000 AS num_trained_tokens, 0 AS num_oversize, [range(20), range(20)] AS micro_batches, 'c0ffee' AS config_digest,
    moment(10 * step) AS planned_at, 64 AS num_queued_samples
    FROM done;
INSERT INTO steps BY NAME SELECT
    attempt, step, u(step, 0, 'loss') AS loss, u(step, 0, 'norm') AS grad_norm, md5(step::VARCHAR) AS digest,
    15000 * step AS num_tokens, 40 * step AS num_prompts, step AS publish, false AS empty,
    moment(10 * step) AS started_at, moment(10 * step + 9) AS finished_at, 9.0 AS step_seconds, 2.0 AS wait_seconds,
    0.1 AS read_seconds, 0.2 AS plan_seconds, 2.0 AS forward_seconds, 3.0 AS backward_seconds, 0.5 AS optimizer_seconds,
    0.2 AS digest_seconds, 0.5 AS sync_seconds, 0.3 AS sync_transfer_seconds, 0.1 AS checkpoint_seconds,
    0.1 AS other_seconds
    FROM done;
INSERT INTO step_rows BY NAME SELECT
    attempt, step, i AS row_index, 12 AS num_samples, 400 AS num_tokens, 1e5 AS attention_cost
    FROM done, range(32) t(i);
INSERT INTO metrics SELECT attempt, step, name, u(step, name, 'metric') FROM done, (SELECT unnest({names}) AS name);
INSERT INTO versions BY NAME SELECT
    attempt, step AS version, step, md5(step::VARCHAR) AS digest, 'weights/' || step AS folder,
    moment(10 * step + 9) AS published_at
    FROM (FROM done UNION ALL SELECT 0, 0);
INSERT INTO acknowledgements BY NAME SELECT DISTINCT
    engine, step AS version, moment(10 * step + 9 + u(step, engine, 'lag')) AS acknowledged_at, 1e-4 AS probe_difference
    FROM done, (SELECT unnest(['generator-a', 'generator-b']) AS engine);
INSERT INTO events BY NAME SELECT
    'learner-' || attempt AS stream, step AS number,
    CASE WHEN step % 50 = 0 THEN 'checkpoint' ELSE 'published' END AS kind, moment(10 * step + 9) AS happened_at, attempt,
    json_object('version', step, 'step', step) AS payload
    FROM done;
INSERT INTO step_groups BY NAME SELECT
    attempt, step, ticket, u(ticket, 0, 'drop') > 0.2 AS trained,
    CASE WHEN u(ticket, 0, 'drop') < 0.15 THEN 'equal_rewards' WHEN u(ticket, 0, 'drop') <= 0.2 THEN 'stale' END
        AS drop_reason,
    CASE WHEN u(ticket, 0, 'drop') > 0.2 THEN hash(ticket) % 3 END AS staleness
    FROM facts, range(consumed) t(ticket) JOIN done ON step = step_of(ticket);
INSERT INTO ingest SELECT 'claims', ticket FROM facts, range(groups) t(ticket);
INSERT INTO ingest SELECT 'groups', ticket FROM facts, range(groups) t(ticket);
INSERT INTO ingest SELECT 'scored', ticket FROM facts, range(groups) t(ticket);
"""

_CHUNK = """
CREATE OR REPLACE TEMP TABLE drawn AS SELECT
    ticket, i::INTEGER AS rollout_index, ticket % prompts AS prompt, 8 + (hash(ticket, i) % 25)::INTEGER AS length,
    greatest(least(step_of(ticket) - 1, steps) - hash(ticket) % 3, 0)::BIGINT AS model_version,
    0.3 + 0.6 * ticket / groups - 0.4 * u(ticket % prompts, 0, 'hard') AS chance
    FROM facts, range({first}, {last}) t(ticket), range({per_group}) r(i);
INSERT INTO groups BY NAME SELECT
    ticket, md5(any_value(prompt)::VARCHAR) AS prompt_id,
    '[{{"role": "user", "content": "State the answer to problem ' || any_value(prompt) || '"}}]' AS prompt,
    '{{"answer": "42"}}' AS facts, ticket // any_value(prompts) AS epoch, any_value(prompt) AS row_index,
    any_value(model_version) AS model_version, 0 AS base, 0 AS claim_try, 'generator-a' AS generator,
    moment(ticket // 4) AS claimed_at, moment(ticket // 4 + 2) AS finished_at, {per_group} AS num_rollouts, 9000 AS slot_bytes,
    64 AS concurrency, 128 AS concurrency_cap, CASE WHEN ticket % 8 = 0 THEN 1.5 END AS backpressure_seconds,
    0.25 AS interval_seconds
    FROM drawn, facts WHERE ticket < groups - 50 GROUP BY ticket;
INSERT INTO turns BY NAME SELECT
    ticket, rollout_index, 0 AS turn_index, 'stop' AS stop_reason,
    list_transform(range(12), lambda k: (hash(prompt, k) % 30000)::INTEGER) AS prompt_ids,
    list_transform(range(length), lambda k: (hash(ticket, rollout_index, k) % 30000)::INTEGER) AS output_ids,
    list_transform(range(length), lambda k: (-5 * pow(u(ticket, rollout_index, k), 3))::FLOAT) AS output_log_probs,
    list_transform(range(length), lambda k: model_version::INTEGER) AS output_versions
    FROM drawn, facts WHERE ticket < groups - 50;
INSERT INTO rollouts BY NAME SELECT
    ticket, rollout_index, md5(ticket || '.' || rollout_index) AS rollout_id, ticket AS seed,
    CASE WHEN length = 32 THEN 'length' ELSE 'stop' END AS stop_reason, length < 32 AS terminated,
    '[{{"role": "assistant", "content": "the answer is ' || length || '"}}]' AS completion,
    'the answer is ' || (hash(ticket, rollout_index) % 997) AS completion_text, 12 AS num_prompt_tokens,
    length AS num_completion_tokens, 12 + length AS num_forwarded_tokens, 1 AS num_turns, 0 AS tool_call_count,
    0 AS tool_failure_count, drawn.model_version, 0.5 AS duration_seconds, output_ids AS completion_ids
    FROM drawn JOIN (FROM turns WHERE ticket >= {first} AND ticket < {last}) USING (ticket, rollout_index);
INSERT INTO scored_groups BY NAME SELECT
    ticket, prompt_id, model_version, CASE WHEN hash(ticket) % 9 = 0 THEN ['equal_rewards'] ELSE [] END AS marks,
    finished_at AS generated_at, finished_at + INTERVAL 1 SECOND AS scored_at, 0.5 AS score_seconds,
    0.1 AS score_wait_seconds, 3 AS score_queue_size
    FROM groups WHERE ticket >= {first} AND ticket < {last} AND ticket < (SELECT groups - 100 FROM facts);
INSERT INTO rewards BY NAME SELECT
    ticket, rollout_index, name, CASE name WHEN 'accuracy' THEN 1.0 ELSE 0.2 END AS weight,
    CASE WHEN broken THEN NULL WHEN name = 'accuracy' THEN (u(ticket, rollout_index, name) < chance)::DOUBLE
        ELSE (u(ticket, rollout_index, name) < 0.9)::DOUBLE END AS value,
    CASE WHEN broken THEN 'TimeoutError: no value within 30 s' END AS error, 0.5 AS duration_seconds
    FROM facts, (SELECT *, u(ticket, name, 'broken') < 0.001 AS broken
        FROM drawn, (SELECT unnest(['accuracy', 'format']) AS name)) WHERE ticket < groups - 100;
INSERT INTO scores BY NAME SELECT
    ticket, rollout_index, sum(weight * value) AS reward, hash(ticket, rollout_index) % 50 = 0 AS duplicate
    FROM rewards WHERE ticket >= {first} AND ticket < {last} GROUP BY ticket, rollout_index;
CREATE OR REPLACE TEMP TABLE trained AS SELECT
    attempt, step, ticket, rollout_index, length, output_log_probs, staleness,
    list_transform(output_log_probs, lambda p, k: least(0, p + 0.1 * (u(ticket, rollout_index, -k) - 0.5)
        + CASE WHEN hash(ticket, rollout_index, k) % 5000 = 0 THEN 0.6 ELSE 0 END)::FLOAT) AS log_probs
    FROM step_groups JOIN drawn USING (ticket) JOIN turns USING (ticket, rollout_index)
    WHERE trained AND ticket >= {first} AND ticket < {last};
INSERT INTO samples BY NAME SELECT
    attempt, step, ticket, rollout_index, 0 AS sequence_index, rollout_index % 2 AS micro_batch,
    4 * u(ticket, rollout_index, 'advantage') - 2 AS advantage, staleness, 12 + length AS num_tokens,
    length AS num_trained_tokens, list_avg(entropies) AS entropy_mean,
    list_avg(list_transform(differences, lambda d: abs(d))) AS logprob_difference_mean,
    list_max(list_transform(differences, lambda d: abs(d))) AS logprob_difference_max,
    exp(list_min(differences)) AS ratio_min, list_avg(list_transform(differences, lambda d: exp(d))) AS ratio_mean,
    exp(list_max(differences)) AS ratio_max, 0 AS masked_share, 0 AS clipped_low_share, 0 AS clipped_high_share,
    log_probs, entropies
    FROM (SELECT *,
        list_transform(list_zip(log_probs, output_log_probs), lambda z: z[1] - z[2]) AS differences,
        list_transform(log_probs, lambda p: (-p / 2)::FLOAT) AS entropies FROM trained);
"""

_NAMES = [
    *("reward", "loss", "grad_norm", "learning_rate", "entropy", "num_tokens", "frac_zero_std_groups", "perf/step_s"),
    *("rewards/accuracy/mean", "rewards/format/mean", "sample/dropped_stale_count", "completions/max_length"),
    *(f"batch/made_up_{number}" for number in range(40)),
]


def main(num_rollouts: int, folder: Path) -> None:
    path = folder / "run.duckdb"
    build(path, num_rollouts)
    scan = best(lambda: [query(path, f"SELECT bit_xor(hash(COLUMNS(*))) FROM {table}") for table in BIG_TABLES])
    size = path.stat().st_size / 1e6
    print(f"{num_rollouts:,} rollouts, {size:,.0f} MB; best of {TURNS}; cpu: of all threads")
    print(f"a full scan of {', '.join(BIG_TABLES)}: {scan.wall:.2f} s, {scan.cpu:.2f} s cpu\n")
    print(f"{'question':34} {'seconds':>8} {'cpu':>7} {'of a scan':>10} {'rows':>6}")
    times = {question: measure(path, question, scan) for question in all_questions()}
    slowest = max(times, key=lambda question: times[question].wall)
    late = [question.name for question, seconds in times.items() if seconds.wall > LIMIT_SECONDS]
    print(
        f"\nslowest: {slowest.name}, {times[slowest].wall:.2f} s; over {LIMIT_SECONDS:.0f} s: {', '.join(late) or 'none'}"
    )


def measure(path: Path, question: Question, scan: Seconds) -> Seconds:
    """Seconds of one question, printed."""
    sql = question.sql()
    rows = len(query(path, sql))
    seconds = best(lambda: query(path, sql))
    share = seconds.cpu / scan.cpu
    name = f"{question.number:2} {question.name:31}"
    print(f"{name} {seconds.wall:8.3f} {seconds.cpu:7.3f} {share:10.0%} {rows:6}", flush=True)
    return seconds


def best(act: Callable[[], object]) -> Seconds:
    """The quickest of some calls."""
    found: list[Seconds] = []
    for _ in range(TURNS):
        wall, cpu = time.perf_counter(), time.process_time()
        act()
        found.append(Seconds(time.perf_counter() - wall, time.process_time() - cpu))
    return Seconds(min(one.wall for one in found), min(one.cpu for one in found))


def build(path: Path, num_rollouts: int) -> None:
    """Write the made-up run, some thousand groups at a time."""
    groups = num_rollouts // ROLLOUTS_PER_GROUP
    if groups < 1_000:
        raise SystemExit(f"{num_rollouts} rollouts are too few for two attempts; ask for 16000 or more")
    with duckdb.connect(str(path)) as connection:
        create_all(connection)
        connection.execute("DELETE FROM schema_info")
        connection.execute(
            _SETTING_UP.format(groups=groups, groups_per_step=GROUPS_PER_STEP, version=VERSION, names=_NAMES)
        )
        for first in track(range(0, groups, GROUPS_PER_CHUNK), description="building", transient=True):
            last = min(first + GROUPS_PER_CHUNK, groups)
            connection.execute(_CHUNK.format(first=first, last=last, per_group=ROLLOUTS_PER_GROUP))


def arguments(given: Sequence[str]) -> tuple[int, str | None]:
    """Number of rollouts, and the folder to build in."""
    return int(given[0].replace(",", "").replace("_", "")) if given else 1_000_000, given[1] if len(given) > 1 else None


if __name__ == "__main__":
    count, parent = arguments(sys.argv[1:])
    with tempfile.TemporaryDirectory(prefix="agrpo-bench-", dir=parent) as temporary:
        main(count, Path(temporary))
