"""Where rewards run, such that none can stop, slow or fill the scorer (K21).

    scorer  ── frames ──>  template           imports the reward once; one per reward; its own session
                             ├── child        one per call: forked, limited, killed with its whole process group
                             └── child

The template does nothing but fork, watch and kill, so the limits hold whatever a reward does: loop in C, ignore
signals, take memory, start processes, exit. A call that fails is made again for each completion alone. Two habits of a
reward's module follow: it starts no threads when it is imported (a fork has none of them), and it keeps nothing from
one call to the next (a child ends with its call).

A reward that is dear to load (`Resident`) has another kind of process in the template's place:

    scorer  ── frames ──>  resident           loads the reward once, and judges one call after the other itself

The scorer kills it where a call takes too long, starts another where it has died, and has the call made again.

As many calls of a forked reward run at once as the scorer has cores. A reward that waits for a service is better written as
`async def`: the scorer awaits it itself, as many calls at once as there are groups, and can only stop listening to it.
"""

from __future__ import annotations

from agrpo.rewards.sandbox.runner import RewardRunner

__all__ = ["RewardRunner"]
