"""Hundreds of rollouts in flight with slow tools, beside the ceiling that the tools' latency alone allows.

    python benchmarks/concurrent_rollouts.py                            512 rollouts in flight, 4 turns of tools of 1 s
    python benchmarks/concurrent_rollouts.py --seconds 0.2 --profile    quick tools, and where the loop's time goes

The generator's own stage makes the groups, in this process: it claims, asks a scripted engine that answers at once, reads
the calls, runs the tools, renders their results, and publishes. A rollout is so many turns that call a tool, and a last one
that calls again and is cut. With S rollouts in flight the tools alone allow S / (turns x latency) rollouts a second: what
is below that is ours. Tools sleep, so that they need no processor, and the engine's words are settled beforehand.

All rollouts share one loop. A rollout keeps it for its turns and what goes with them, and waits for its calls, one fewer than
its turns: where a call of S rollouts takes longer than S times the loop's processor time for each call ("tools bind from"),
the tools are what a run waits for, if the loop has a core of its own. That time includes the start of the stage. On a machine that others
use, that figure and the shares of ways beside one another are worth more than the share of the ceiling.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import tempfile
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stand.generating import Made, generate, publish_uniform
from stand.runs import begin, load_average, make_model
from stand.tables import bar, print_table

from agrpo.config import ModelSection
from agrpo.stages.rendering import Renderer

GROUP_SIZE = 8
PATIENCE = 10
"""Times the ceiling's seconds, and half a minute, that a way may take before it is given up."""
WAYS = {
    "async def": ("fetch",),
    "def, on threads": ("look_up",),
    "both, drawn by the seed": ("fetch", "look_up"),
    "an environment's method": ("ask",),
}
"""The tools that a way's calls name."""


@dataclass(frozen=True, kw_only=True)
class Load:
    """How much is in flight, and how slow it is."""

    rollouts: int
    turns: int
    seconds: float
    """Of one call."""
    waves: int
    """Rollouts in all, over those in flight."""

    @property
    def num_groups(self) -> int:
        return self.rollouts * self.waves // GROUP_SIZE

    @property
    def ceiling_seconds(self) -> float:
        """What the tools alone take."""
        return self.waves * self.turns * self.seconds


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One way."""

    seconds: float
    """From the first claim to the end of the last group."""
    loop_seconds: float
    """Processor time of the thread on which the loop runs, from the start of the stage."""
    num_rollouts: int
    num_turns: int
    num_calls: int
    most_threads: int
    late_seconds: float
    """Mean of what calls took beyond their latency: for a thread to start and to be heard of."""

    @property
    def turn_seconds(self) -> float:
        """Of the loop, for one turn, be it followed by a call or the last."""
        return self.loop_seconds / self.num_turns

    @property
    def call_seconds(self) -> float:
        """Of the loop, for each call: with so many rollouts at once, a call that takes as many times that binds."""
        return self.loop_seconds / self.num_calls


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rollouts", type=int, default=512, help=f"in flight, a multiple of {GROUP_SIZE} (512)")
    parser.add_argument("--turns", type=int, default=4, help="of a rollout, each with a call that is run (4)")
    parser.add_argument("--seconds", type=float, default=1.0, help="latency of one call (1)")
    parser.add_argument("--waves", type=int, default=2, help="rollouts in all, over those in flight (2)")
    parser.add_argument("--profile", action="store_true", help="of the first way, where the loop's time goes")
    options = parser.parse_args()
    if options.rollouts % GROUP_SIZE:
        parser.error(f"--rollouts {options.rollouts}: expected a multiple of {GROUP_SIZE}, the size of a group")
    load = Load(rollouts=options.rollouts, turns=options.turns, seconds=options.seconds, waves=options.waves)
    with tempfile.TemporaryDirectory(prefix="agrpo-bench-") as temporary:
        place = Path(temporary)
        if options.profile:
            print_profile(place, load)
            return
        print_ways(load, {way: measure(place, way, load) for way in WAYS})


def measure(place: Path, way: str, load: Load, profile: cProfile.Profile | None = None) -> Measured:
    """Make the groups of one way."""
    folder = begin(place, changes(place, WAYS[way], load), name=way.replace(" ", "-"))
    publish_uniform(folder, vocab_size(place))
    most_threads = 0
    with bar(way, load.num_groups) as progress:

        def look(made: int) -> None:
            nonlocal most_threads
            most_threads = max(most_threads, threading.active_count())
            progress.reach(made)

        patience = 30.0 + PATIENCE * load.ceiling_seconds
        made = generate(folder, load.num_groups, seconds=patience, look=look, profile=profile)
    return measured(made, load, most_threads=most_threads)


def measured(made: Made, load: Load, *, most_threads: int) -> Measured:
    """What the groups tell. A call that failed would make it quicker: there may be none."""
    groups = made.groups
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    calls = [call for rollout in rollouts for call in rollout.tool_calls if call.failure is None]
    expected = len(rollouts) * load.turns
    assert len(calls) == expected, f"{len(calls)} calls gave a result; expected {expected}"
    return Measured(
        seconds=max(group.finished_at for group in groups) - min(group.claimed_at for group in groups),
        loop_seconds=made.loop_seconds,
        num_rollouts=len(rollouts),
        num_turns=sum(len(rollout.turns) for rollout in rollouts),
        num_calls=len(calls),
        most_threads=most_threads,
        late_seconds=sum(call.duration_seconds for call in calls) / len(calls) - load.seconds,
    )


def changes(place: Path, names: tuple[str, ...], load: Load) -> Mapping[str, Any]:
    """What differs from the quickstart's settings: every answer is a call of one of these tools."""
    renderer = Renderer(ModelSection(path=str(make_model(place))))
    calls = [
        f'<tool_call>{{"name": "{name}", "arguments": {{"seconds": {load.seconds}}}}}</tool_call>' for name in names
    ]
    tools: dict[str, Any] = {
        "max_tool_calling_iterations": load.turns,
        "timeout_seconds": 60.0 + load.seconds,
        "functions": [f"stand.slow_tools:{name}" for name in names if name != "ask"],
    }
    surroundings = {"environments": {"factory": "stand.slow_tools:Desk"}} if "ask" in names else {}
    return {
        "engine": {
            "name": "scripted",
            "vocab_size": vocab_size(place),
            "completions": [renderer.encode(call) for call in calls],
            "num_generations": GROUP_SIZE,
            "max_completion_length": 200,
        },
        "async": {
            "max_concurrent_rollouts": load.rollouts,
            "max_staleness": load.num_groups,
            "scoring_queue": load.num_groups + 1,
        },
        "stop": {"max_steps": 1000, "stall_seconds": 3600.0},
        "tools": tools,
        **surroundings,
    }


def vocab_size(place: Path) -> int:
    return len(Renderer(ModelSection(path=str(make_model(place)))).tokenizer)


def print_ways(load: Load, found: Mapping[str, Measured]) -> None:
    columns = [
        "tools",
        "rollouts",
        "s",
        "ceiling",
        "of the ceiling",
        "loop, CPU ms a turn",
        "tools bind from, s",
        "ms late",
        "threads",
    ]
    rows = [
        [
            way,
            each.num_rollouts,
            f"{each.seconds:.2f}",
            f"{load.ceiling_seconds:.2f}",
            f"{load.ceiling_seconds / each.seconds:.1%}",
            f"{1000 * each.turn_seconds:.2f}",
            f"{load.rollouts * each.call_seconds:.2f}",
            f"{1000 * each.late_seconds:.0f}",
            each.most_threads,
        ]
        for way, each in found.items()
    ]
    print(
        f"\n{load.rollouts} rollouts in flight, {load.turns} turns with a call of {load.seconds:g} s each, {load.waves} waves, "
        f"{load_average()}\n"
    )
    print_table(columns, rows)


def print_profile(place: Path, load: Load) -> None:
    """Of the loop's own thread alone: threads of tools sleep."""
    profile = cProfile.Profile(time.thread_time)
    way = next(iter(WAYS))
    found = measure(place, way, load, profile)
    print(f"{way}: {load.ceiling_seconds / found.seconds:.1%} of the ceiling, {load_average()}, profiled\n")
    pstats.Stats(profile).sort_stats("cumulative").print_stats(70)


if __name__ == "__main__":
    main()
