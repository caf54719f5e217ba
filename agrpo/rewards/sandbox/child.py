"""One call, in a process of its own: bind it, let the reward judge, write the answer, end."""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Callable
from typing import NoReturn

from agrpo.errors import AgrpoError
from agrpo.records.group import RolloutGroup
from agrpo.records.trainer_state import TrainerState
from agrpo.rewards import Call, Noting, Reward
from agrpo.rewards.sandbox.frames import Answer, frame, to_bytes
from agrpo.rewards.sandbox.limits import Limits
from agrpo.rewards.sandbox.verdicts import CallFailed, reason_of, verdicts_of


def judge(reward: Reward, payload: bytes, limits: Limits, pipe: int) -> NoReturn:
    """Judge the pickled group and state, and write the answer to `pipe`. Whatever happens, the process ends here."""
    try:
        _write(pipe, frame(0, to_bytes(attempted(lambda: _bound(reward, payload, limits), limits))))
        os._exit(0)
    finally:
        os._exit(1)


def attempted(judging: Callable[[], Answer], limits: Limits) -> Answer:
    """What judging gives, or that it failed and why: what a reward raises must not reach the code around it."""
    try:
        return judging()
    except MemoryError as error:
        error.__traceback__ = None  # it holds what filled the memory
        return Answer(failure=f"it ran out of memory: the limit is {limits.memory_bytes} bytes (rewards.memory_bytes)")
    except (AgrpoError, CallFailed) as error:
        return Answer(failure=reason_of(error))
    except BaseException as error:
        return Answer(failure=reason_of(error), unforeseen=True)


def answer_to(reward: Reward, payload: bytes) -> Answer:
    """The reward's values for the pickled group and state. Raises what the reward does, or `CallFailed`."""
    group: RolloutGroup
    state: TrainerState
    group, state = pickle.loads(payload)
    call = Call(len(group.rollouts), state)
    returned = reward.judge_and_note(group, call) if isinstance(reward, Noting) else reward(group)
    verdicts = verdicts_of(returned, len(group.rollouts))
    sys.stdout.flush()
    return Answer(
        values=[each.value for each in verdicts],
        errors=[each.error for each in verdicts],
        extras=call.notes.extras,
        metrics=call.notes.metrics,
    )


def _bound(reward: Reward, payload: bytes, limits: Limits) -> Answer:
    limits.impose()
    return answer_to(reward, payload)


def _write(pipe: int, data: bytes) -> None:
    while data:
        data = data[os.write(pipe, data) :]
