"""The crash table of the architecture page: what a learner leaves behind, and what the next attempt makes of it."""

from __future__ import annotations

from dataclasses import dataclass

from agrpo.queue.run_folder import RunFolder, StepKey
from tests.protocol.learners import STEPS, events


@dataclass(frozen=True)
class Left:
    """How far attempt 0 came with its last step."""

    begun: bool
    based: bool
    step: int
    """0 before the first plan."""
    done: bool
    published: bool
    checkpoint: bool


def left_behind(folder: RunFolder) -> Left:
    step = max(folder.planned_steps(0), default=0)
    based = 0 in folder.bases()
    return Left(
        begun=bool(folder.attempts()),
        based=based,
        step=step,
        done=step in folder.done_steps(0) if step else based,
        published=step in folder.versions(0),
        checkpoint=f"{step:08d}-000000" in folder.filesystem.list("checkpoints"),
    )


def assert_found(folder: RunFolder, left: Left) -> None:
    """The next attempt has done what the table says."""
    if not left.based:
        return _assert_begun_anew(folder, left)
    base = folder.bases()[1]
    assert (base.parent, base.base_step) == (0, left.step if left.done else left.step - 1)
    told = events(folder, 1)
    if left.done:
        assert (("replayed", left.step) in told) == (not left.checkpoint)
        assert (("published", left.step) in told) == (not left.published)
        assert left.step not in folder.planned_steps(1)
    else:
        _assert_adopted(folder, left.step)
    if base.base_step + (not left.done) < STEPS:
        following = folder.plan(StepKey(1, left.step + 1))
        assert following is not None and following.adopted_from is None
    return None


def _assert_begun_anew(folder: RunFolder, left: Left) -> None:
    """Nothing happened."""
    attempt = max(folder.attempts())
    assert attempt == left.begun
    assert folder.bases()[attempt].parent is None
    assert not left.begun or folder.bases()[0].void
    assert folder.done_steps(attempt) == list(range(1, STEPS + 1))


def _assert_adopted(folder: RunFolder, step: int) -> None:
    """The plan without done was carried out once, by the next attempt, as it was written."""
    written, adopted = folder.plan(StepKey(0, step)), folder.plan(StepKey(1, step))
    assert written is not None and adopted is not None
    assert adopted.adopted_from == 0
    assert adopted.samples == written.samples
    assert (adopted.rows, adopted.drops, adopted.publish) == (written.rows, written.drops, written.publish)
    assert step not in folder.done_steps(0)
    assert step in folder.done_steps(1)
