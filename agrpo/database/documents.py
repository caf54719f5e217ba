"""Documents as rows: what a run writes about its own progress, one function per kind of record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa

from agrpo.database.batch import Batch, Row
from agrpo.database.schema import table_schemas
from agrpo.database.values import as_json, timestamp
from agrpo.records.progress import Acknowledgement, Attempt, Base, Done, Event, Plan, Rewind, WeightsReady
from agrpo.records.trained_tokens import tokens_table


def add_run(batch: Batch, url: str, document: Mapping[str, Any]) -> None:
    """The row of `run.json`."""
    settings = document["settings"]["tree"]
    name = settings.get("run", {}).get("name")
    batch.add_rows("runs", [{"name": name, "url": url, "settings": as_json(settings), "document": as_json(document)}])


def add_attempt(batch: Batch, attempt: Attempt) -> None:
    """One incarnation of the learner."""
    batch.add_rows("attempts", [_timed(asdict(attempt), "started_at")])


def add_base(batch: Batch, base: Base) -> None:
    """Where an attempt joins an older one."""
    batch.add_rows("bases", [asdict(base)])


def add_rewind(batch: Batch, rewind: Rewind) -> None:
    """A wish to go back to a step."""
    batch.add_rows("rewinds", [_timed(asdict(rewind), "asked_at")])


def add_plan(batch: Batch, plan: Plan) -> None:
    """The plan, and the groups it consumes."""
    kept = (
        "attempt, step, version, ordinal, parent_digest, num_updates, learning_rate, entropy_coefficient, seed, publish, empty, "
        "num_trained_tokens, num_oversize, num_truncated, num_replaced, num_queued_samples, config_digest, planned_at, "
        "adopted_from, ranks"
    )
    row: Row = {name: getattr(plan, name) for name in kept.split(", ")}
    batch.add_rows("plans", [_timed({**row, "micro_batches": plan.rows}, "planned_at")])
    ages = {sample.ticket: sample.staleness for sample in plan.samples}
    key: Row = {"attempt": plan.attempt, "step": plan.step}
    trained = [{**key, "ticket": ticket, "trained": True, "staleness": ages.get(ticket)} for ticket in plan.tickets]
    dropped = [
        {
            **key,
            "ticket": drop.ticket,
            "trained": False,
            "drop_reason": drop.reason.value,
            "left_out_by": drop.left_out_by,
        }
        for drop in plan.drops
    ]
    batch.add_rows("step_groups", [*trained, *dropped])


@dataclass(frozen=True, kw_only=True)
class FinishedStep:
    """A done record with what was seen of its trained tokens; None where that was not kept."""

    done: Done
    tokens: pa.Buffer | None


def add_done(batch: Batch, finished: FinishedStep) -> None:
    """The finished step, its rows, its samples and its logged measures."""
    done = finished.done
    kept = (
        "attempt, step, loss, grad_norm, aux_loss, policy_loss, entropy_coefficient, digest, reference_digest, num_tokens, num_prompts, "
        "publish, empty, started_at, finished_at, peak_flops_per_second"
    )
    row: Row = {name: getattr(done, name) for name in kept.split(", ")}
    batch.add_rows("steps", [_timed(row | asdict(done.timings), "started_at", "finished_at")])
    key: Row = {"attempt": done.attempt, "step": done.step}
    batch.add_rows("step_rows", [{**key, "row_index": place, **asdict(facts)} for place, facts in enumerate(done.rows)])
    if done.samples:
        batch.add_table("samples", _samples(done, finished.tokens))
    batch.add_rows("metrics", [{**key, "name": name, "value": value} for name, value in done.metrics.items()])


def add_version(batch: Batch, ready: WeightsReady) -> None:
    """Published weights, without their probe."""
    kept = ("attempt", "version", "step", "ordinal", "digest", "folder", "published_at")
    batch.add_rows("versions", [_timed({name: getattr(ready, name) for name in kept}, "published_at")])


def add_acknowledgement(batch: Batch, acknowledgement: Acknowledgement) -> None:
    """An engine's word that it serves a version."""
    batch.add_rows("acknowledgements", [_timed(asdict(acknowledgement), "acknowledged_at")])


def add_event(batch: Batch, event: Event) -> None:
    """One event; what it carries is JSON."""
    row = asdict(event)
    batch.add_rows("events", [{**row, "happened_at": timestamp(row.pop("at")), "payload": as_json(event.payload)}])


def _samples(done: Done, tokens: pa.Buffer | None) -> pa.Table:
    """The samples' rows with their token lists, which stay in Arrow. Both are in the plan's order."""
    found = None if tokens is None else tokens_table(tokens)
    columns: dict[str, pa.Array | pa.ChunkedArray] = {}
    for field in table_schemas()["samples"]:
        if field.name in ("attempt", "step"):
            columns[field.name] = pa.repeat(pa.scalar(getattr(done, field.name), field.type), len(done.samples))
        elif field.name not in ("log_probs", "entropies"):
            columns[field.name] = pa.array([getattr(sample, field.name) for sample in done.samples], field.type)
        else:
            columns[field.name] = pa.nulls(len(done.samples), field.type) if found is None else found.column(field.name)
    return pa.table(columns)


def _timed(row: Row, *names: str) -> Row:
    """The row with the Unix seconds of these columns as timestamps."""
    times = {name: seconds for name in names if isinstance(seconds := row[name], float)}
    return row | {name: timestamp(seconds) for name, seconds in times.items()}
