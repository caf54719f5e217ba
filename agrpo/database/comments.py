"""What columns mean. One name means one thing, so a column that says nothing of its own is explained by its name.

A column of `live_samples` is explained where `samples` explains it. Any other takes the words below; a view's, after that,
what the tables say of the name, where they agree. Names with two meanings, such as `num_tokens`, are explained in SQL.
"""

from __future__ import annotations

from collections import defaultdict

import duckdb

WORDS = {
    "acknowledged_at": "When the engine began to serve the version.",
    "adopted_through": "Last step whose sampled groups stay valid.",
    "advantage": "What the learner made of the reward: how much better than its group, by the run's advantage.",
    "attempt": "Incarnation of the learner, from 0.",
    "aux_loss": "Of balancing the experts of a mixture, before its coefficient; NULL: there is none.",
    "backward_seconds": "Backward passes.",
    "base_step": "Last step taken over from the parent.",
    "claim_try": "Which claim of the ticket this is, from 0.",
    "claimed_at": "When a generator took the ticket.",
    "clipped_high_share": "Tokens above the trust region whose advantage is positive.",
    "comment": "What it holds.",
    "completion_ids": "Generated tokens of all turns, one after the other.",
    "config_digest": "Of the settings that the weights depend on.",
    "digest": "Of all weights.",
    "drop_reason": "Why the group was not trained, such as equal_rewards or stale.",
    "duplicate": "Whether an earlier rollout of the group has the same tokens.",
    "duration_seconds": "From its first request to its end.",
    "empty": "Nothing is trained, and the weights stay as they are.",
    "environment": "Name of the environment that the rollouts act in; NULL: none.",
    "finished_at": "When it ended.",
    "first_step": "First step that counts.",
    "folder": "Key of the weights in the run folder.",
    "forward_seconds": "Forward passes.",
    "generated_at": "When the group's last rollout ended.",
    "generator": "Incarnation of the generator.",
    "grad_norm": "Of the gradient, before clipping.",
    "group_reward_mean": "Mean reward of the group.",
    "group_reward_std": "Sample standard deviation of the group's rewards.",
    "happened_at": "When.",
    "host": "Machine.",
    "kind": "What it is.",
    "last_step": "Last step that counts; NULL: all it has.",
    "learning_rate": "Of the step.",
    "logprob_difference_max": "Largest absolute difference between sampler and recomputed log-prob, nats.",
    "loss": "Of the step; nothing to say where it trained nothing.",
    "micro_batch": "Row of the step that held the sample, from 0.",
    "model_version": "Policy version that sampled it: of its first token.",
    "name": "Its name.",
    "num_prompts": "Prompts consumed since the start of the run.",
    "num_rollouts": "Completions of the group.",
    "num_samples": "Training sequences.",
    "num_trained_tokens": "Tokens that carry loss.",
    "num_turns": "Sampling requests.",
    "number": "Of the record in its stream, from 0.",
    "optimizer_seconds": "Clipping the gradient, and the optimizer.",
    "payload": "What the event carries.",
    "pid": "Process.",
    "planned_entropy_coefficient": "Of the bonus for entropy, before the step; NULL: there is no bonus.",
    "planned_at": "When the plan was written.",
    "prompt_id": "Hash of the prompt's content: the same question has the same id in every epoch.",
    "publish": "Version that the step's weights are published as; NULL: not published.",
    "published_at": "When its record was written.",
    "ratio_max": "Largest importance ratio, before any masking.",
    "ratio_min": "Smallest importance ratio, before any masking.",
    "reason": "Why a group was dropped, or how far a pending one has come: claimed, generated or scored.",
    "refusal": "Why the prompt was refused; then there are no rollouts.",
    "reward": "Weighted sum over the rewards that gave a value; NULL where none did.",
    "rollout_id": "Of the rollout, the same in every log.",
    "rollout_index": "Place of the rollout in its group, from 0.",
    "row_index": "Row of the dataset.",
    "scored_at": "When the last reward had judged.",
    "seed": "Of its random draws.",
    "sequence_index": "Place among the rollout's training sequences; above 0 where turns did not continue one another.",
    "settings": "Resolved settings, table by table.",
    "staleness": "Weight updates between sampling and training.",
    "started_at": "When it began.",
    "status": "trained, dropped or pending.",
    "step": "Optimizer step, from 1.",
    "stop_reason": "Why sampling ended: stop, length, or what failed.",
    "stream": "Who wrote the records, such as groups or learner-…",
    "ticket": "Number of the group in the run, from 0.",
    "tool_call_count": "Tools called.",
    "tool_failure_count": "Tools called in vain.",
    "trained": "Whether a step trained it.",
    "turn_index": "Place of the turn in its rollout, from 0.",
    "value": "Its value.",
    "version": "Policy version, from 0.",
    "whatif": "Name of the what-if.",
    "weight": "Its weight in the total reward.",
}

_COLUMNS = """
    SELECT columns.table_name, columns.column_name, columns.comment, duckdb_tables.table_name IS NOT NULL
    FROM duckdb_columns() AS columns LEFT JOIN duckdb_tables() USING (database_name, table_name)
    WHERE NOT columns.internal
"""


def explain_columns(connection: duckdb.DuckDBPyConnection) -> None:
    """Give every column without a comment of its own the one that its name has."""
    columns = connection.execute(_COLUMNS).fetchall()
    explained = {(relation, column): comment for relation, column, comment, is_table in columns if comment and is_table}
    by_name: defaultdict[str, set[str]] = defaultdict(set)
    for (_, column), comment in explained.items():
        by_name[column].add(comment)
    statements: list[str] = []
    for relation, column, comment, is_table in columns:
        agreed = by_name[column] if not is_table and len(by_name[column]) == 1 else set[str]()
        word = explained.get((relation.removeprefix("live_"), column)) or WORDS.get(column) or "".join(agreed)
        if word and not comment:
            text = word.replace("'", "''")
            statements.append(f"COMMENT ON COLUMN {relation}.{column} IS '{text}'")
    connection.execute(";".join(statements))
