"""The rules of the protocol. Each can be taken away, and the model then finds what it is for."""

from __future__ import annotations

RULES = {
    "tombs": "a new attempt first declares every older one without a base void",
    "first": "an attempt that finds no base begins the run itself",
    "version_0": "step 0 owes version 0, as a done step owes the version of its plan",
    "adopt": "half-done plans are copied before the base that makes them visible",
    "plans_consume": "a ticket is consumed by a plan only; drops outside one stay in memory",
    "hint_again": "a learner that waits says again how far generators may go",
    "hint_there": "it compares with the word that is there, not with its own last one: a zombie may have spoken since",
    "fence": "a learner with a newer attempt beside it ends before it publishes",
    "owed": "a new attempt publishes the version that the last publishing step owes",
    "numbers": "a version's number is one more than any in any plan of any attempt",
    "ordinals": "staleness counts the publishes of the history: the extra one of a divergence counts once",
    "through": "a base keeps its parent's `adopted_through` if that is higher",
    "reissue": "a re-issued ticket is void for ever, written or not",
    "skip": "tickets claimed under an older base use up no re-issued prompt",
    "left_over": "re-issued prompts that no ticket has had yet are given out by the next rewind",
    "wishes": "a rewind is asked for by a record; the next attempt fulfils it until a base names it",
    "back": "a generator whose version has left the lineage loads the newest of the lineage",
    "look": "a generator names the newest base also where that has brought no new version",
    "archive": "groups are chosen from the archive as from their slots",
    "live_rows": "the recorder's views follow the bases",
}
ALL = frozenset(RULES)
