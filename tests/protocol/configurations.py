"""Bounds worth exploring, by name, and for each rule the bounds within which its absence shows."""

from __future__ import annotations

from typing import NamedTuple

from tests.protocol.state import Bounds

QUICK = {
    "lockstep": Bounds(steps=2, tickets=3, lockstep=True, staleness=0),
    "two_groups": Bounds(steps=1, groups=2, tickets=3),
    "two_generators": Bounds(steps=1, tickets=2, claims=1, generators=2),
    "dying_generator": Bounds(steps=1, tickets=2, claims=1, deaths=1),
    "flat": Bounds(steps=1, tickets=3, claims=1, checkpoint_every=1, flat=frozenset({0})),
    "flat_lockstep": Bounds(steps=2, tickets=3, lockstep=True, staleness=0, flat=frozenset({0})),
    "hinted": Bounds(steps=1, tickets=3, claims=1, hinted=True),
    "back_to_the_start": Bounds(steps=1, tickets=3, claims=1, rewinds=(0,)),
    "diverge": Bounds(steps=1, tickets=2, claims=1, diverge=True),
}
"""Every state within seconds."""
COMPLETE = {
    "two_learners": Bounds(steps=2, tickets=3, claims=1),
    "three_learners": Bounds(attempts=3, steps=1, tickets=1, checkpoint_every=1),
    "three_in_lockstep": Bounds(attempts=3, steps=1, tickets=2, lockstep=True, staleness=0),
    "two_steps_of_two_groups": Bounds(steps=2, groups=2, tickets=4, claims=1),
    "seldom_published": Bounds(steps=2, tickets=3, claims=1, sync=2),
    "recorder": Bounds(steps=1, tickets=2, claims=1, recorder=True),
    "two_rewinds": Bounds(attempts=3, steps=1, tickets=2, lockstep=True, staleness=0, rewinds=(0, 0), zombies=False),
    "diverge_and_back": Bounds(
        attempts=3, steps=1, tickets=2, lockstep=True, staleness=0, diverge=True, rewinds=(0,), zombies=False
    ),
    "diverge_and_die": Bounds(attempts=3, steps=1, tickets=2, claims=1, diverge=True, zombies=False),
    "archive_and_back": Bounds(
        steps=3, tickets=5, checkpoint_every=1, lockstep=True, staleness=0, archive=True, rewinds=(1,), zombies=False
    ),
    "groups_back_in_lockstep": Bounds(
        steps=2, groups=2, tickets=6, lockstep=True, staleness=0, rewinds=(1,), flat=frozenset({1})
    ),
}
"""Every state within a minute."""
CAPPED = {
    "diverge_and_back_async": Bounds(attempts=3, steps=1, tickets=2, diverge=True, rewinds=(0,), zombies=False),
    "two_rewinds_of_three_tickets": Bounds(attempts=3, steps=1, tickets=3, claims=1, rewinds=(0, 0), zombies=False),
    "diverge_two_steps": Bounds(attempts=3, steps=2, tickets=3, claims=1, diverge=True, zombies=False),
    "three_learners_two_steps": Bounds(attempts=3, steps=2, tickets=3, claims=1),
    "two_generators_two_steps": Bounds(steps=2, tickets=3, claims=1, generators=2),
    "dying_generators": Bounds(steps=2, tickets=3, generators=2, deaths=1),
    "two_rewinds_among_zombies": Bounds(attempts=3, steps=2, tickets=4, claims=1, rewinds=(1, 0)),
    "diverge_and_back_among_zombies": Bounds(attempts=3, steps=2, tickets=3, claims=1, diverge=True, rewinds=(1,)),
}
"""Too many states to see them all in a test."""
CONFIGURATIONS = {**QUICK, **COMPLETE, **CAPPED}


class Needed(NamedTuple):
    """What the model finds within small bounds when a rule is taken away."""

    bounds: Bounds
    violation: str
    slow: bool = False


NEEDED = {
    "tombs": Needed(QUICK["lockstep"], "I4 the newest learner waits for ever (choose)"),
    "first": Needed(QUICK["lockstep"], "I4 the newest learner waits for ever (lost)"),
    "version_0": Needed(QUICK["lockstep"], "I4 version 0 is owed and never published"),
    "adopt": Needed(
        Bounds(attempts=3, steps=1, tickets=2, claims=1, zombies=False), "I7 the half-done step 1 is chosen again"
    ),
    "plans_consume": Needed(QUICK["flat"], "I6 the checkpoint of step 1 consumes what no plan does"),
    "hint_again": Needed(QUICK["hinted"], "I4 the newest learner waits for ever (choose)"),
    "hint_there": Needed(
        Bounds(steps=2, tickets=2, claims=1, hinted=True), "I4 the newest learner waits for ever (choose)"
    ),
    "fence": Needed(Bounds(steps=1, tickets=2, claims=1), "I3 the prompt of ticket 1 is lost with its version"),
    "owed": Needed(Bounds(steps=2, tickets=2, claims=1, zombies=False), "I4 version 1 is owed and never published"),
    "numbers": Needed(QUICK["diverge"], "I2 version 1 names two contents"),
    "ordinals": Needed(
        Bounds(steps=2, tickets=3, claims=1, diverge=True, zombies=False), "I5 ticket 1 is trained 2 publishes late"
    ),
    "through": Needed(COMPLETE["diverge_and_die"], "I3 the prompt of ticket 1 is lost with its version", slow=True),
    "reissue": Needed(
        Bounds(steps=2, tickets=3, claims=1, rewinds=(0,), zombies=False), "I3 prompt 0 is trained twice"
    ),
    "skip": Needed(QUICK["back_to_the_start"], "I3 ticket 1 is sampled for another prompt than its own"),
    "left_over": Needed(
        Bounds(attempts=3, steps=1, tickets=2, claims=1, rewinds=(0, 0), zombies=False),
        "I3 a prompt is lost or given out twice",
        slow=True,
    ),
    "wishes": Needed(
        Bounds(attempts=3, steps=1, tickets=1, rewinds=(0,), zombies=False),
        "I9 the wish to go back to step 0 is forgotten",
    ),
    "back": Needed(QUICK["back_to_the_start"], "I4 generator 0 stays behind the history for ever"),
    "look": Needed(QUICK["back_to_the_start"], "I4 generator 0 stays behind the history for ever"),
    "archive": Needed(
        COMPLETE["archive_and_back"], "I3 ticket 1 is archived, unconsumed, and cannot be chosen", slow=True
    ),
    "live_rows": Needed(COMPLETE["recorder"], "I8 the recorder shows a ticket twice"),
}
