"""What `agrpo quickstart` does: prepare a task, measure the policy, train it, measure it again, and show where to look."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agrpo.config import resolve
from agrpo.queue.history import done_steps
from agrpo.queue.run_folder import RunFolder
from agrpo.quickstart.evaluate import Evaluation, pass_rates
from agrpo.quickstart.plots import plot_pass_rates, plot_rewards
from agrpo.quickstart.prepare import Prepared, prepare
from agrpo.quickstart.progress import progress_bar
from agrpo.quickstart.question import Task
from agrpo.quickstart.tasks import task_named
from agrpo.quickstart.warm_start import OnStep
from agrpo.runs import prepare as prepare_run

if TYPE_CHECKING:
    import pyarrow as pa

QUESTIONS = (
    (
        "How did the reward rise?",
        "SELECT step, round(value, 3) AS reward FROM live_metrics WHERE name = 'reward' AND (step = 1 OR step % 10 = 0) "
        "ORDER BY step",
    ),
    (
        "What became of the groups? (Equal rewards teach nothing: as the policy learns, more groups are dropped.)",
        "SELECT status, reason, count(*) AS num_groups FROM group_status GROUP BY ALL ORDER BY num_groups DESC",
    ),
    (
        "Which answers of the last steps earned nothing?",
        "SELECT step, completion_text, reward FROM rollouts_with_rewards WHERE reward = 0 AND step IS NOT NULL "
        "ORDER BY step DESC, ticket, rollout_index LIMIT 5",
    ),
)
"""Asked at the end, as examples."""


@dataclass(frozen=True, kw_only=True)
class Terminal:
    """How the command speaks."""

    say: Callable[[str], None]
    show: Callable[[pa.Table], None]
    follow: Callable[[str], None]
    """Runs the stages of a run's URL to their end."""


def run_quickstart(name: str, *, seed: int, runs_dir: str, terminal: Terminal) -> RunFolder:
    """The whole quickstart. Returns the finished run."""
    began, task = time.monotonic(), task_named(name)
    terminal.say(f"[1/4] warm start: {task.about}")
    with progress_bar("warm start", task.warm_start_steps) as on_step:
        prepared = prepared_task(name, seed=seed, runs_dir=runs_dir, on_step=on_step)
    rows = _rows(prepared.held_out)
    terminal.say(f"[2/4] the warm-started policy on {len(rows)} held-out prompts")
    before = pass_rates(prepared.model, rows, max_completion_length=task.max_completion_length)
    terminal.say(_measured(before))
    folder = prepare_run(resolve(prepared.run_file, [f"run.dir={runs_dir}"]))
    terminal.say(f"[3/4] GRPO, {task.max_steps} steps; run {folder.url}")
    terminal.follow(folder.url)
    terminal.say("[4/4] the trained policy on the same prompts")
    after = pass_rates(Path(folder.local, "model"), rows, max_completion_length=task.max_completion_length)
    terminal.say(_measured(after))
    plots = _plot(task, prepared, folder, before, after)
    _ask(folder, runs_dir, terminal)
    terminal.say(
        f"\nheld-out reward  {before.mean_reward:.3f} -> {after.mean_reward:.3f}   (temperature 1, seed {seed})"
    )
    terminal.say(f"held-out greedy  {before.overall.greedy:.3f} -> {after.overall.greedy:.3f}")
    _say_where(prepared, folder, plots, terminal)
    terminal.say(f"took {time.monotonic() - began:.0f} s")
    return folder


def prepared_task(name: str, *, seed: int, runs_dir: str, on_step: OnStep | None = None) -> Prepared:
    """The task's start in `{runs_dir}/start`, found there or made."""
    task = task_named(name)
    start = Path(runs_dir, "start", f"{task.name}-seed{seed}")
    start.parent.mkdir(parents=True, exist_ok=True)
    return prepare(task, start, seed, num_threads=_threads(), on_step=on_step)


def rewards_of(folder: RunFolder) -> list[float]:
    """Mean reward of every step of the run's history."""
    found = [folder.done(step) for step in done_steps(folder)]
    return [done.metrics["reward"] for done in found if done is not None and "reward" in done.metrics]


def _threads() -> int:
    """Half the cores, four at most: more only wait for each other over a model this small, above all on a busy machine."""
    return min(4, max(1, (os.cpu_count() or 2) // 2))


def _rows(file: Path) -> list[dict[str, Any]]:
    import pyarrow.parquet as pq

    return pq.read_table(file).to_pylist()


def _measured(evaluation: Evaluation) -> str:
    rate = evaluation.overall
    return (
        f"      reward {evaluation.mean_reward:.3f} at temperature 1, {rate.greedy:.3f} right greedily, "
        f"{rate.any_sample:.3f} right in one of {evaluation.num_samples} samples"
    )


def _plot(task: Task, prepared: Prepared, folder: RunFolder, before: Evaluation, after: Evaluation) -> list[Path]:
    plots = [Path(folder.local, "plots", "reward.png")]
    plot_rewards(rewards_of(folder), plots[0], title=f"{task.name}, seed {prepared.seed}: reward while training")
    if len(before.by_difficulty) > 1:
        plots.append(Path(folder.local, "plots", "pass_rate.png"))
        trained = sorted({row["difficulty"] for row in _rows(prepared.prompts)})
        plot_pass_rates(
            before.by_difficulty,
            after.by_difficulty,
            plots[1],
            trained=range(trained[0], trained[-1] + 1),
            title=f"{task.name}, seed {prepared.seed}: held-out pass rate by length",
        )
    return plots


def _ask(folder: RunFolder, runs_dir: str, terminal: Terminal) -> None:
    from agrpo.database.queries import query

    terminal.say("\nthree questions to the database:")
    for question, sql in QUESTIONS:
        place = "" if runs_dir == "./runs" else f" --dir {runs_dir}"
        terminal.say(f'\n{question}\n  agrpo sql latest{place} "{sql}"')
        terminal.show(query(folder.database, sql))


def _say_where(prepared: Prepared, folder: RunFolder, plots: list[Path], terminal: Terminal) -> None:
    for label, place in (
        ("run", folder.url),
        *(("plot", plot) for plot in plots),
        ("database", folder.database),
        ("model", Path(folder.local, "model")),
        ("run file", prepared.run_file),
    ):
        terminal.say(f"{label:<9}{place}")
    terminal.say(f"look     agrpo report {folder.url}")
    terminal.say(f"         agrpo show {folder.url} --worst")
