"""The nouns of the model: every durable object of a run in a few small tuples, and what each process has in memory.

A state is hashable, so that the search can tell one that it has seen. Weights are the history of tickets that went into
them, and the kind of machine: equal histories are equal bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

FOREVER = 99
"""A step that no bound reaches."""


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """How far a search goes."""

    attempts: int = 2
    steps: int = 2
    groups: int = 1
    """Tickets of a plan."""
    sync: int = 1
    """Steps between publishes."""
    checkpoint_every: int = 2
    tickets: int = 3
    lockstep: bool = False
    staleness: int = 1
    claims: int = 2
    """Groups that a generator has in work at once."""
    zombies: bool = True
    """Learners with a newer one beside them may go on, late. Otherwise they are dead."""
    generators: int = 1
    deaths: int = 0
    """How often a generator dies and is started again. What died may still write what it had in work."""
    flat: frozenset[int] = frozenset()
    """Prompts whose groups have equal rewards: dropped, and others come instead."""
    hinted: bool = False
    """Generators go as far as the learner's last word lets them; otherwise its word is always fresh."""
    rewinds: tuple[int, ...] = ()
    """Steps to go back to, in the order of the wishes."""
    diverge: bool = False
    """One learner starts on a machine whose arithmetic differs."""
    archive: bool = False
    recorder: bool = False


class Version(NamedTuple):
    """A published version: which weights they are."""

    number: int
    attempt: int
    step: int
    ordinal: int


class Published(NamedTuple):
    version: Version
    weights: tuple


class Base(NamedTuple):
    parent: int | None
    step: int
    through: int
    rewind: int | None = None
    first_ticket: int | None = None
    reissue: tuple[int, ...] = ()
    prompts: tuple[int, ...] = ()
    next_prompt: int = 0
    owed: tuple = ()
    """Half-done plans that this attempt has read. No record: what the invariants remember."""


VOID = Base(-2, 0, 0)


class Plan(NamedTuple):
    trained: tuple[int, ...]
    dropped: tuple[int, ...]
    publish: int | None
    ordinal: int
    """Publishes of the history up to this step."""


class Checkpoint(NamedTuple):
    step: int
    attempt: int
    weights: tuple
    consumed: frozenset[int]
    next_ticket: int
    """No ticket from here on was claimed when it was written."""


class Sample(NamedTuple):
    """Rollouts of one prompt by one version."""

    version: Version
    prompt: int


class Work(NamedTuple):
    """A group in work, by one life of a generator."""

    generator: int
    life: int
    sample: Sample


class Ticket(NamedTuple):
    base: int
    """Base that its first claim names."""
    works: tuple[Work, ...]
    slot: Sample | None = None
    archived: bool = False


class Generator(NamedTuple):
    life: int = 0
    view: int | None = None
    """Head of the lineage when it last looked."""
    serving: Version | None = None


class Hint(NamedTuple):
    limit: int
    dropped: int


class Wish(NamedTuple):
    step: int
    attempts: int
    """Attempts that there were when it was written."""


class Learner(NamedTuple):
    """One attempt's memory. `place`: what it does next."""

    place: str = "void"
    parent: int | None = None
    last: int = 0
    step: int = 0
    weights: tuple = ()
    consumed: frozenset[int] = frozenset()
    known: int = 0
    """Next ticket of the checkpoint that it began from."""
    taken: frozenset[int] = frozenset()
    """Dropped, and in no plan yet."""
    half: tuple = ()
    number: int = 1
    """Next version's."""
    ordinal: int = 0
    machine: int = 0
    wish: int | None = None
    base: Base | None = None
    told: Hint | None = None


RETIRED = Learner(place="retired")


class State(NamedTuple):
    bases: tuple
    plans: tuple
    dones: tuple
    """Weights by attempt and step."""
    checkpoints: frozenset[Checkpoint]
    published: frozenset[Published]
    tickets: tuple
    hint: Hint
    learners: tuple[Learner, ...]
    generators: tuple[Generator, ...]
    wishes: tuple[Wish, ...] = ()
    deaths: int = 0
    seen_bases: tuple | None = None
    """What the recorder has read."""
    seen_plans: tuple | None = None


def first_state(bounds: Bounds) -> State:
    steps = tuple((None,) * (bounds.steps + 1) for _ in range(bounds.attempts))
    return State(
        bases=(None,) * bounds.attempts,
        plans=steps,
        dones=steps,
        checkpoints=frozenset(),
        published=frozenset(),
        tickets=(None,) * bounds.tickets,
        hint=Hint(0, 0),
        learners=(),
        generators=(Generator(),) * bounds.generators,
    )


def put(items: tuple, index: int, item: object) -> tuple:
    return (*items[:index], item, *items[index + 1 :])


def put_step(steps: tuple, attempt: int, step: int, item: object) -> tuple:
    return put(steps, attempt, put(steps[attempt], step, item))
