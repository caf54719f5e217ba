"""Reward functions that the tests name by path: some judge, some misbehave, all of them in a process of their own."""

from __future__ import annotations

import asyncio
import functools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path


def texts(completions):
    return [messages[-1]["content"] for messages in completions]


def length(completions, **_):
    return [float(len(text)) for text in texts(completions)]


def received(**keywords):
    """Fails with what it was called with, so that a test can read it."""
    shown = {name: getattr(value, "__name__", repr(value)) for name, value in keywords.items()}
    raise AssertionError(" ".join(f"{name}={shown[name]}" for name in sorted(shown)))


def matches(completions, solution):
    return [float(text == expected) for text, expected in zip(texts(completions), solution, strict=True)]


def needs_reference(completions, reference):
    return [1.0 for _ in completions]


def by_position(completions, /):
    return [1.0 for _ in completions]


def above(completions, limit, **_):
    return [float(len(text) > limit) for text in texts(completions)]


above_two = functools.partial(above, limit=2)


class Above:
    def __init__(self, limit):
        self.limit = limit

    def __call__(self, completions, **_):
        return above(completions, self.limit)


above_three = Above(3)
unnamed = lambda completions, **_: [0.0 for _ in completions]  # noqa: E731
answer = 42


async def async_length(completions, **_):
    await asyncio.sleep(0)
    return [float(len(text)) for text in texts(completions)]


async_partial = functools.partial(async_length)


def knows_progress(completions, trainer_state):
    """As many as its weights had steps, of all, and then its pass of all."""
    state = trainer_state
    return [state.global_step / state.max_steps, state.epoch / state.num_train_epochs]


async def async_knows_progress(completions, trainer_state):
    return knows_progress(completions, trainer_state)


def notes(completions, log_extra, log_metric):
    log_extra("text", texts(completions))
    log_extra("length", [len(text) for text in texts(completions)])
    log_metric("longest", max(len(text) for text in texts(completions)))
    return length(completions)


async def async_notes(completions, log_extra, log_metric):
    return notes(completions, log_extra, log_metric)


def notes_and_misbehaves(completions, log_extra, log_metric, way):
    """Notes first, so that what a call notes before it fails is there to be left aside."""
    log_extra("asked", [len(completions)] * len(completions))
    log_metric("asked_max", len(completions))
    log_metric("asked_count", len(completions))
    log_metric("length", float(len(texts(completions)[0])))
    return misbehaves(completions, way)


def notes_what_it_is_told(completions, log_extra, log_metric, note, **_):
    """Whatever the fact `note` spells."""
    eval(note[0], {"log_extra": log_extra, "log_metric": log_metric})
    return [1.0 for _ in completions]


def forges_its_answer(completions, answer):
    """Writes an answer of its own to the pipe, in the place of the child's."""
    from agrpo.rewards.sandbox.frames import frame

    for descriptor in range(3, 64) if "bad" in texts(completions) else ():
        try:
            os.write(descriptor, frame(0, answer[0].encode()))
        except OSError:
            continue
    return length(completions)


# K21: one completion says "bad"; the fact `way` says what becomes of whoever judges it.


def loop_in_python():
    while True:
        pass


def ignore_signals():
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_IGN)
    while True:
        time.sleep(0.01)


def compute_in_c():
    return 7 ** (7**9)


def take_four_gigabytes():
    block = bytearray(4 * 2**30)
    raise AssertionError(f"{len(block)} bytes were to be had")


def call_exit():
    sys.exit(3)


def end_at_once():
    os._exit(3)


def fail():
    raise KeyError("no such answer")


def crash():
    os.kill(os.getpid(), signal.SIGSEGV)


def misbehaves(completions, way, **_):
    for text in texts(completions):
        if text == "bad":
            globals()[way[0]]()
    return length(completions)


def returns(value, completions, **_):
    """Whatever the fact `value` spells."""
    return eval(value[0], {"texts": texts(completions)})


async def async_returns(value, completions, **_):
    return eval(value[0], {"texts": texts(completions), "time": time})


def sizes_differ(completions, **_):
    """Wrong by one for a batch, right for one completion."""
    return [1.0] * (len(completions) + (len(completions) > 1))


def compare(completions, **_):
    """Cannot be judged alone."""
    raise ValueError("nothing to compare")


compare.whole_group = True


def says(completions, **_):
    print("hello from the judge")
    os.write(1, b"and from below python\n")
    os.write(2, b"and from its errors\n")
    return [1.0 for _ in completions]


def environment(completions, variable, **_):
    return [float(os.environ.get(variable[0], "1") == "") for _ in completions]


async def async_environment(completions, variable, **_):
    return environment(completions, variable)


def sleeps(completions, **_):
    """Sleeps past the limit without using the processor."""
    time.sleep(0.8)
    return [1.0 for _ in completions]


def remembers(completions, _calls=[], **_):  # noqa: B006
    _calls.append(1)
    return [float(len(_calls)) for _ in completions]


# Processes that a judge leaves behind; their numbers go to the file named by the fact `note`.


def _note(path, pid):
    with Path(path).open("a") as file:
        file.write(f"{pid}\n")


def leaves_a_child(completions, note, **_):
    _note(note[0], subprocess.Popen(["sleep", "600"]).pid)
    return [1.0 for _ in completions]


def leaves_a_daemon(completions, note, **_):
    _note(note[0], subprocess.Popen(["sleep", "600"], start_new_session=True).pid)
    return [1.0 for _ in completions]


def hangs_with_a_child(completions, note, **_):
    _note(note[0], subprocess.Popen(["sleep", "600"]).pid)
    _note(note[0], os.getpid())
    time.sleep(600)


def kills_its_template_once(completions, note, **_):
    if not Path(note[0]).exists():
        _note(note[0], subprocess.Popen(["sleep", "600"]).pid)
        _note(note[0], os.getpid())
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(600)
    return length(completions)


def always_kills_its_template(completions, **_):
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(600)


def scribbles(completions, **_):
    """Writes into whatever it was left open."""
    for text in texts(completions):
        for descriptor in range(3, 64) if text == "bad" else ():
            try:
                os.write(descriptor, b"scribble" * 8)
            except OSError:
                continue
    return length(completions)


# Two judges of which neither can end before the other has begun.


def _wait_for(path):
    deadline = time.monotonic() + 10
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} never came"
        time.sleep(0.005)


def meets_sync(completions, folder, **_):
    (Path(folder[0]) / "sync").touch()
    _wait_for(Path(folder[0]) / "async")
    return [1.0 for _ in completions]


def meets_other(completions, folder, **_):
    _wait_for(Path(folder[0]) / "sync")
    return [2.0 for _ in completions]


async def meets_async(completions, folder, **_):
    while not (Path(folder[0]) / "sync").exists():
        await asyncio.sleep(0.005)
    (Path(folder[0]) / "async").touch()
    return [3.0 for _ in completions]


async def meets_another_async(completions, folder, **_):
    (Path(folder[0]) / "sync").touch()
    while not (Path(folder[0]) / "async").exists():
        await asyncio.sleep(0.005)
    return [4.0 for _ in completions]


async def async_misbehaves(completions, way, **_):
    if "bad" in texts(completions):
        await globals()[way[0]]()
    return length(completions)


async def async_fail():
    raise KeyError("no such answer")


async def async_exit():
    sys.exit(3)


async def async_cancel():
    raise asyncio.CancelledError


async def async_interrupt():
    raise KeyboardInterrupt


async def async_block():
    await asyncio.sleep(0)
    time.sleep(0.4)


async def async_hang():
    while True:
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            if asyncio.get_running_loop().is_closed():
                raise
            await asyncio.sleep(0.05)  # swallows it once
            return
