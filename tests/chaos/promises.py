"""Runs under a killer, each held to what docs/durability.md promises of its mode."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from agrpo.audit import verify
from agrpo.audit.rebuilding import rebuild
from agrpo.audit.replaying import replay
from agrpo.database.writer import Database
from agrpo.queue.run_folder import RunFolder
from agrpo.queue.versions import newest_version
from agrpo.stages.recorder import record_once
from agrpo.weights.filesystem import check_weights
from tests.chaos.balance import balance, events_of_kind, last_tensors, told
from tests.chaos.killer import Blow, Killer, Strike
from tests.chaos.running import Running
from tests.chaos.tiny import begin
from tests.stages.walk import walk


@dataclass(frozen=True, kw_only=True)
class Torment:
    """What a run goes through."""

    seed: int
    kills: int
    steps: int
    """The run's last one; it should come after the last kill."""
    flow_every: int
    unhurried: bool = True
    """As in `begin`."""
    victims: Sequence[str] = ()
    """As in `Killer`."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A run that was struck at and came to its end."""

    name: str
    strikes: list[Strike]
    flows: int
    restarts: int
    """Of stages, by their supervisors."""
    replayed: int
    """Steps carried out again."""
    seconds: float

    def __str__(self) -> str:
        kills = sum(strike.blow is Blow.KILL for strike in self.strikes)
        return (
            f"{self.name}: {kills} kills, {len(self.strikes) - kills} other blows, {self.restarts} restarts, {self.flows} flows, "
            f"{self.replayed} steps replayed, {self.seconds:.0f} s"
        )


def kill_again_and_again(model: Path, place: Path, mode: str, torment: Torment, *, url: str | None = None) -> Outcome:
    """Begin a run, strike at it, let it end, and hold it to its promises. `url`: instead of a folder of `place`."""
    began = time.monotonic()
    folder = begin(model, place, mode, steps=torment.steps, url=url, unhurried=torment.unhurried)
    with Running(folder, place / "flow.log") as running:
        killer = Killer(
            running=running,
            seed=torment.seed,
            kills=torment.kills,
            flow_every=torment.flow_every,
            victims=torment.victims,
            check=lambda: _balances(folder),
            check_still=lambda: _is_whole(folder),
        )
        killer.rage()
        flows = running.flows
    _is_whole(folder)
    assert [plan.step for plan, _ in balance(folder)] == [*range(1, torment.steps + 1)]
    PROMISES[mode](folder, model, place, torment.steps)
    return Outcome(
        name=f"{mode}, seed {torment.seed}",
        strikes=killer.strikes,
        flows=flows,
        restarts=events_of_kind(folder, "stage_restarted"),
        replayed=events_of_kind(folder, "replayed"),
        seconds=time.monotonic() - began,
    )


def _balances(folder: RunFolder, *, database: bool = False) -> None:
    """While the run goes on."""
    found = verify(folder, database=database).findings
    assert not found, f"{folder.url} does not balance: {'; '.join(map(str, found[:5]))}"


def _is_whole(folder: RunFolder) -> None:
    """While nothing runs: the books balance, and the database is what a new one would be."""
    record_once(folder, Database(folder.database))
    _balances(folder, database=True)
    rebuilt = rebuild(folder, check=True)
    assert rebuilt.identical, f"{rebuilt.unreadable}: {[t for t in rebuilt.comparisons if not t.identical]}"


def _as_if_never_killed(folder: RunFolder, model: Path, place: Path, steps: int) -> None:
    """Lockstep: the same groups in the same steps, the same weights after each, the same optimizer state."""
    whole = begin(model, place / "whole", "lockstep", steps=steps)
    walk(whole)
    for found, expected in zip(told(folder), told(whole), strict=True):
        assert found == expected
    assert last_tensors(folder) == last_tensors(whole)


def _replays(folder: RunFolder, model: Path, place: Path, steps: int) -> None:
    """Asynchronous: what is recorded leads, step for step from the first weights, to those on disk."""
    replayed = replay(folder, from_start=True)
    assert replayed.identical, replayed.difference
    newest = newest_version(folder)
    assert newest is not None
    assert (len(replayed.steps), replayed.digest) == (newest.step, newest.digest)
    weights = folder.filesystem.local_folder(newest.folder)
    assert weights is not None
    check_weights(weights, newest.digest)


PROMISES: dict[str, Callable[[RunFolder, Path, Path, int], None]] = {
    "lockstep": _as_if_never_killed,
    "asynchronous": _replays,
}
