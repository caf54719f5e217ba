"""A stage whose behaviour the environment variable EXAMPLE chooses; `run_url` is a folder it may write into."""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

from agrpo.errors import ModelError, Retired, Stopped, StoreError
from agrpo.queue.filesystems.opening import open_filesystem
from agrpo.queue.run_folder import RunFolder
from agrpo.stages import StageContext
from agrpo.stages.names import OWN_REPLAY, START_OF_VLLM


def run(context: StageContext) -> None:
    globals()[os.environ["EXAMPLE"]](context)


def finish(context: StageContext) -> None:
    print("all is done")


def work(context: StageContext) -> None:
    """Until asked; then it leaves a mark, as a stage that has put its affairs in order."""
    _say_ready(context)
    context.stop.wait()
    Path(context.run_url, "in order").touch()
    raise Stopped("asked to stop while waiting for work")


def work_on(context: StageContext) -> None:
    """Asked to end, it still has work for longer than the tests' grace: EXAMPLE_SECONDS, and fails where that is 0."""
    _say_ready(context)
    context.stop.wait()
    time.sleep(float(os.environ["EXAMPLE_SECONDS"]) or 1.5)
    if os.environ["EXAMPLE_SECONDS"] == "0":
        raise ModelError("the last work failed")


def fail(context: StageContext) -> None:
    print("loading the model")
    raise ModelError("the model has 3 heads\nand 2 are needed")


def stumble(context: StageContext) -> None:
    _ = {"loss": 0.5}["los"]


def leave(context: StageContext) -> None:
    raise SystemExit(0)


def stop_unasked(context: StageContext) -> None:
    raise Stopped("nobody asked")


def kill_itself(context: StageContext) -> None:
    print("one\ntwo\nthree\nfour")
    os.kill(os.getpid(), signal.SIGKILL)


def die_twice(context: StageContext) -> None:
    """SIGKILL comes to it until two marks are there."""
    marks = Path(context.run_url) / "deaths"
    marks.mkdir(exist_ok=True)
    if len(list(marks.iterdir())) < 2:
        (marks / context.incarnation).touch()
        os.kill(os.getpid(), signal.SIGKILL)


def die_once(context: StageContext) -> None:
    marks = Path(context.run_url) / "died"
    if not marks.exists():
        marks.touch()
        os.kill(os.getpid(), signal.SIGKILL)


def lose_the_store_once(context: StageContext) -> None:
    if _is_first(context):
        raise StoreError("no answer from the store")


def retire(context: StageContext) -> None:
    raise Retired("attempt 1 is retired by attempt 2; the newer learner goes on with the run")


def stand_still_once(context: StageContext) -> None:
    """It says what it waits for and is stopped, as by SIGSTOP from outside; the next one finishes."""
    if _is_first(context):
        _beat(context, "the engine to complete ticket 3", 1.0)
        os.kill(os.getpid(), signal.SIGSTOP)


def wait_for_another(context: StageContext) -> None:
    """It says so for as long as the run goes on."""
    began = time.monotonic()
    while not context.stop.wait(0.02):
        _beat(context, "a finished group", time.monotonic() - began)


def work_in_vain(context: StageContext) -> None:
    """It beats on, and nothing has moved in it for an hour."""
    while not context.stop.wait(0.02):
        _beat(context, None, 3600.0)


def replay_and_die(context: StageContext) -> None:
    """Each incarnation comes as far as the one before, and no further."""
    _wait_and_die(context, OWN_REPLAY)


def start_and_die(context: StageContext) -> None:
    """As a server whose model takes long to load, and that dies of its first request."""
    _wait_and_die(context, START_OF_VLLM)


def _wait_and_die(context: StageContext, waiting_for: str) -> None:
    began = time.monotonic()
    while (waited := time.monotonic() - began) < 2.0:
        _beat(context, waiting_for, waited)
        time.sleep(0.02)
    _beat(context, None, 0.0)
    os.kill(os.getpid(), signal.SIGKILL)


def linger_in_order(context: StageContext) -> None:
    """Asked to stop it does, and its process does not end."""
    atexit.register(time.sleep, 60)
    work(context)


def fail_and_linger(context: StageContext) -> None:
    atexit.register(time.sleep, 60)
    _say_ready(context)
    context.stop.wait()
    fail(context)


def ignore_sigterm(context: StageContext) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    work_for_ever(context)


def work_for_ever(context: StageContext) -> None:
    _say_ready(context)
    while True:
        time.sleep(0.01)
        if context.stop.is_set():
            Path(context.run_url, "asked").touch()


def hold_the_interpreter(context: StageContext) -> None:
    """No Python thread runs any more, so nothing in this process watches anything."""
    _say_ready(context)
    seven = int("7")
    _ = seven ** (seven**9)


def chatter(context: StageContext) -> None:
    """Say something in one thread for ever, and stand still in the main one."""

    def talk() -> None:
        while True:
            print("still here", flush=True)
            time.sleep(0.01)

    threading.Thread(target=talk, daemon=True).start()
    _say_ready(context)
    time.sleep(600)


def compute_long(context: StageContext) -> None:
    """A minute in one call that lets other threads run, as a backward pass: no signal handler runs meanwhile."""

    def listen() -> None:
        context.stop.wait()
        print("heard amid the call", flush=True)
        os._exit(0)

    threading.Thread(target=listen, daemon=True).start()
    _say_ready(context)
    hashlib.pbkdf2_hmac("sha256", b"", b"", 10**8)


def have_children(context: StageContext) -> None:
    """A child and its child, both in the stage's group."""
    leave_children(context)
    _say_ready(context)
    context.stop.wait()


def leave_children(context: StageContext) -> None:
    code = "import subprocess, sys, time; subprocess.Popen(['sleep', '600']); print('up', flush=True); time.sleep(600)"
    child = subprocess.Popen([sys.executable, "-S", "-c", code], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    child.stdout.readline()


def have_a_child_in_a_session_of_its_own(context: StageContext) -> None:
    """As a reward's template is: it ends with its parent's pipe, unless it is stopped."""
    read_end, _ = os.pipe()
    code = f"import os; os.read({read_end}, 1)"
    child = subprocess.Popen([sys.executable, "-S", "-c", code], pass_fds=(read_end,), start_new_session=True)
    os.kill(child.pid, signal.SIGSTOP)
    _say_ready(context)
    context.stop.wait()


def hold_a_port(context: StageContext) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        Path(context.run_url, "port").write_text(str(server.getsockname()[1]))
        work_for_ever(context)


def kill_the_reaper(context: StageContext) -> None:
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            sibling = stat.read_text().rpartition(")")[2].split()[1] == str(os.getppid())
            if sibling and b"reaper.py" in stat.with_name("cmdline").read_bytes():
                os.kill(int(stat.parent.name), signal.SIGKILL)
    _say_ready(context)


def leave_a_thread(context: StageContext) -> None:
    threading.Thread(target=time.sleep, args=(600,), name="straggler", daemon=False).start()


def show_environment(context: StageContext) -> None:
    names = ("PYTHONPATH", "PYTHONUNBUFFERED", "OMP_NUM_THREADS", "AGRPO_SUPERVISOR_FD", "AGRPO_REPORT_FD")
    shown = {name: os.environ.get(name) for name in names} | {"path": sys.path, "cwd": os.getcwd()}
    Path(context.run_url, "environment.json").write_text(json.dumps(shown))


def print_much(context: StageContext) -> None:
    for number in range(100):
        print(f"line {number}")
    print("0%\r50%\r100%")
    print("no line break", end="")


def _is_first(context: StageContext) -> bool:
    """Whether no incarnation was here before."""
    marks = Path(context.run_url) / "incarnations"
    marks.mkdir(exist_ok=True)
    (marks / context.incarnation).touch()
    return len(list(marks.iterdir())) == 1


def _beat(context: StageContext, waiting_for: str | None, waited_seconds: float) -> None:
    RunFolder(open_filesystem(context.run_url)).beat(context.stage, waiting_for, waited_seconds)


def _say_ready(context: StageContext) -> None:
    Path(context.run_url, f"ready {context.incarnation}").touch()
