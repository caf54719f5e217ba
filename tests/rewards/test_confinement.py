"""What a program that a policy wrote is kept from, and what it may do all the same."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from agrpo.config import RewardSection
from agrpo.rewards import load_reward, rewards
from agrpo.rewards.programs import filtering
from agrpo.rewards.programs.cases import Case
from agrpo.rewards.programs.running import Launcher, Means, launched
from tests.rewards.answers import BOUNDS, block, failure_of
from tests.rewards.worlds import group_of


@pytest.mark.skipif(sys.platform != "linux", reason="the means are Linux's")
@pytest.mark.parametrize(
    "program",
    [
        "import socket\nsocket.socket()",
        "import socket\nsocket.create_connection(('127.0.0.1', 22), 1)",
        "import urllib.request\nurllib.request.urlopen('http://192.0.2.1/', timeout=1)",
        "import os\nos.fork()",
        "import subprocess\nsubprocess.run(['true'])",
        "import multiprocessing\nmultiprocessing.Process(target=print).start()",
        "import os\nos.kill(os.getppid(), 9)",
        "import os\nos.kill(-1, 9)",
        "import os\nos.posix_spawn('/bin/true', ['true'], {})",
    ],
)
def test_nothing_outside_the_program_can_be_reached(launcher: Launcher, program: str) -> None:
    if not launcher.means.filter:
        pytest.skip("no filter of system calls on this machine")
    failure = failure_of(launcher, f"{program}\nprint('done')")
    assert failure is not None and "Operation not permitted" in failure


@pytest.fixture(scope="module")
def bystander() -> Iterator[int]:
    """A process of the same user that has nothing to do with the programs."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield process.pid
    assert process.poll() is None, "a program has ended it"
    process.kill()
    process.communicate()


@pytest.mark.skipif(sys.platform != "linux", reason="the means are Linux's")
@pytest.mark.parametrize(
    "program",
    [
        "import fcntl, os\nfcntl.fcntl(0, fcntl.F_SETOWN, {pid})",
        "import fcntl, os, struct\nfcntl.fcntl(0, 15, struct.pack('ii', 1, {pid}))",
        "import fcntl\nfcntl.fcntl(0, 10, 9)",
        "import fcntl\nfcntl.fcntl(0, fcntl.F_SETLEASE, fcntl.F_RDLCK)",
        "import fcntl, struct\nfcntl.ioctl(0, 0x8901, struct.pack('i', {pid}))",
        "import fcntl, struct\nfcntl.ioctl(0, 0x8902, struct.pack('i', {pid}))",
        "import resource\nresource.prlimit({pid}, resource.RLIMIT_NOFILE)",
        "import resource\nresource.prlimit({pid}, resource.RLIMIT_CORE, (0, 0))",
        "import os\nos.setpriority(os.PRIO_PROCESS, {pid}, 19)",
        "import os\nos.setpriority(os.PRIO_USER, 0, os.getpriority(os.PRIO_USER, 0))",
        "import os\nos.sched_setaffinity({pid}, {{0}})",
        "import os\nos.sched_setscheduler({pid}, os.SCHED_BATCH, os.sched_param(0))",
        "import os\nos.sched_setparam({pid}, os.sched_param(0))",
        "call(251, 1, {pid}, 0)",
        "call(314, {pid}, 0, 0)",
        "call(440, {pid}, 0, 0, 0, 0)",
        "call(157, 62, 1, {pid}, 0, 0)",
        "call(157, 1, 0, 0, 0, 0)",
    ],
)
def test_no_other_process_is_signalled_or_bound(launcher: Launcher, bystander: int, program: str) -> None:
    assert_not_permitted(launcher, program.format(pid=bystander))


def _skip_unless_known_here(launcher: Launcher, program: str) -> None:
    """Programs may use `call(number, …)`, with numbers of x86_64."""
    if not launcher.means.filter:
        pytest.skip("no filter of system calls on this machine")
    if "call(" in program and os.uname().machine != "x86_64":
        pytest.skip("the number is another one here")


CALLING = """import ctypes, os
_libc = ctypes.CDLL(None, use_errno=True)
def call(*of):
    if _libc.syscall(*of) == -1: raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
"""


def assert_not_permitted(launcher: Launcher, program: str) -> None:
    _skip_unless_known_here(launcher, program)
    failure = failure_of(launcher, f"{CALLING}{program}\nprint('done')")
    assert failure is not None and "Operation not permitted" in failure


@pytest.mark.skipif(sys.platform != "linux", reason="the means are Linux's")
@pytest.mark.parametrize(
    "program",
    [
        "call(29, 0, 4096, 0o1600)",
        "call(30, 0, 0, 0)",
        "call(64, 0, 1, 0o1600)",
        "call(68, 0, 0o1600)",
        "call(240, b'/agrpo-test', os.O_RDONLY, 0, 0)",
        "call(248, b'user', b'agrpo-test', b'x', 1, -1)",
        "import os\nos.memfd_create('x')",
    ],
)
def test_no_memory_lies_beside_the_address_space_or_outlives_a_program(launcher: Launcher, program: str) -> None:
    assert_not_permitted(launcher, program)


def test_a_program_may_look_after_itself(launcher: Launcher) -> None:
    if sys.platform != "linux":
        pytest.skip("the calls are Linux's")
    program = (
        "import fcntl, os, resource, signal\nresource.prlimit(0, resource.RLIMIT_CPU)\n"
        "resource.prlimit(os.getpid(), resource.RLIMIT_CORE, (0, 0))\nresource.setrlimit(resource.RLIMIT_STACK, (2**20, 2**20))\n"
        "os.sched_setaffinity(0, os.sched_getaffinity(0))\nfcntl.fcntl(0, fcntl.F_GETFL)\n"
        "signal.signal(signal.SIGUSR1, lambda *_: print('done'))\nos.kill(os.getpid(), signal.SIGUSR1)"
    )
    assert failure_of(launcher, program) is None


def test_a_program_of_root_has_none_of_its_privileges() -> None:
    if sys.platform != "linux":
        pytest.skip("the privileges are Linux's")
    with launched(replace(BOUNDS, network="open")) as open_launcher:
        assert "Operation not permitted" in (failure_of(open_launcher, "import os\nos.chroot('.')") or "")


@pytest.mark.skipif(sys.platform != "linux", reason="the means are Linux's")
def test_files_of_others_cannot_be_read_or_written(launcher: Launcher, tmp_path: Path) -> None:
    if not launcher.means.folder:
        pytest.skip("no Landlock on this machine")
    secret = tmp_path / "secret"
    secret.write_text("4")
    for program in (
        f"open({str(secret)!r}).read()",
        f"open({str(tmp_path / 'new')!r}, 'w')",
        "import os\nos.listdir('/')",
        f"import os\nos.truncate({str(secret)!r}, 0)",
    ):
        assert "Permission denied" in (failure_of(launcher, program) or "")
    assert (secret.read_text(), (tmp_path / "new").exists()) == ("4", False)


@pytest.mark.skipif(sys.platform != "linux", reason="the means are Linux's")
@pytest.mark.parametrize(
    "program",
    [
        "os.chmod(place, 0)",
        "os.chown(place, -1, -1)",
        "os.lchown(place, -1, -1)",
        "os.utime(place, (0, 0))",
        "os.setxattr(place, 'user.x', b'1')",
        "os.removexattr(place, 'user.x')",
        "call(452, -100, place.encode(), 0, 0)",
        "call(132, place.encode(), 0)",
        "call(469, -100, place.encode(), 0, 0, 0)",
    ],
)
def test_what_a_file_of_others_is_like_cannot_be_changed(launcher: Launcher, tmp_path: Path, program: str) -> None:
    _skip_unless_known_here(launcher, program)
    place = tmp_path / "theirs"
    place.write_text("4")
    before = _like(place)
    failure = failure_of(launcher, f"{CALLING}place = {str(place)!r}\n{program}\nprint('done')")
    assert failure is None or "Operation not permitted" in failure
    assert _like(place) == before


def _like(place: Path) -> tuple[int, ...]:
    found = os.stat(place)
    return (found.st_mode, found.st_uid, found.st_gid, found.st_mtime_ns, found.st_ctime_ns)


def test_what_a_readable_file_is_like_cannot_be_changed_either(launcher: Launcher) -> None:
    if not launcher.means.filter:
        pytest.skip("no filter of system calls on this machine")
    program = (
        "import os\nf = os.open(os.__file__, os.O_RDONLY)\nbefore = os.fstat(f)\nos.fchmod(f, before.st_mode & 0o777)\n"
    )
    assert failure_of(launcher, f"{program}assert os.fstat(f).st_ctime_ns == before.st_ctime_ns\nprint('done')") is None


EMPTYING = """
import errno, os, sys
sys.path.insert(0, sys.argv[1])
import filtering
filtering.filter_calls(sockets=True, truncation=False)
for way in (lambda: os.truncate("f", 0), lambda: os.open("f", os.O_RDONLY | os.O_TRUNC)):
    try:
        way()
    except OSError as error:
        assert error.errno == errno.EPERM, error
    else:
        sys.exit("emptied")
print(open("f").read())
open("f", "w").close()
"""


def test_the_filter_keeps_files_from_being_emptied_where_landlock_does_not(launcher: Launcher, tmp_path: Path) -> None:
    if not launcher.means.filter:
        pytest.skip("no filter of system calls on this machine")
    (tmp_path / "f").write_text("kept")
    command = [sys.executable, "-c", EMPTYING, str(Path(filtering.__file__).parent)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr, done.returncode) == ("kept\n", "", 0)


def test_what_honest_programs_do_is_allowed(launcher: Launcher) -> None:
    programs = [
        "open('x', 'w').write('done')\nprint(open('x').read())",
        "import threading\nt = threading.Thread(target=print, args=('done',))\nt.start()\nt.join()",
        "import asyncio\nasync def main(): print('done')\nasyncio.run(main())",
        "import dataclasses, typing\n@dataclasses.dataclass\nclass A:\n    x: 'int' = 1\ntyping.get_type_hints(A)\nprint('done')",
        "if __name__ == '__main__': print('done')",
        "import sys\nsys.setrecursionlimit(10000)\nsys.stdout.write('done\\n')",
        "import shutil\nopen('x', 'w').write('done')\nshutil.copy2('x', 'y')\nprint(open('y').read())",
        "import shelve\nwith shelve.open('x') as s: s['a'] = 'done'\nprint(shelve.open('x')['a'])",
        "import sqlite3\nprint(sqlite3.connect('x').execute(\"select 'done'\").fetchone()[0])",
        "import tempfile, random, json, math, collections\ntempfile.TemporaryFile()\nprint('done')",
    ]
    assert [failure_of(launcher, program) for program in programs] == [None] * len(programs)


def test_a_program_knows_nothing_of_the_scorers_environment(
    launcher: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SERVICE_KEY", "secret")
    with launched(BOUNDS) as fresh:
        assert failure_of(fresh, "import os\nassert 'SERVICE_KEY' not in os.environ\nprint('done')") is None


def test_nothing_is_kept_from_one_program_to_the_next(launcher: Launcher) -> None:
    assert failure_of(launcher, "import os, builtins\nbuiltins.x = 1\nopen('x', 'w')\nprint('done')") is None
    assert (
        failure_of(launcher, "import os\nprint('done' if not os.listdir() and 'x' not in dir(__builtins__) else '')")
        is None
    )


def test_what_is_expected_is_nowhere_in_a_programs_memory(launcher: Launcher) -> None:
    program = "import gc\nword = ''.join(['xylo', 'phone'])\nthings = gc.get_objects()\n"
    program += "print(sum(word in repr(thing)[:10**6] for thing in things if thing is not globals()))"
    assert launcher.run(program, Case(output="xylophone")).output == "0\n"
    assert launcher.run(program, Case(input="xylophone")).output != "0\n"


def test_a_system_that_cannot_take_the_network_away_is_refused_unless_that_is_accepted() -> None:
    without = Means(namespace=False, filter=False, folder=False)
    assert "cannot take the network away" in (without.refusal("none") or "")
    assert without.refusal("open") is None
    assert replace(without, namespace=True).refusal("none") is None
    assert replace(without, filter=True).refusal("none") is None
    assert len(without.lacking) == 2


WITHOUT_LANDLOCK = """
from agrpo.config import RewardSection
from agrpo.rewards import load_reward
from agrpo.rewards.programs import filtering
create_ruleset, number, absent = 444, (0x20, 0, 0, 0), (0x06, 0, 0, 0x00050000 | 38)
filtering.bind([number, (0x15, 0, 1, create_ruleset), absent, (0x06, 0, 0, 0x7FFF0000)])
load_reward(RewardSection(name="code_execution"))
"""


def test_what_a_system_lacks_beside_is_said(launcher: Launcher, capsys: pytest.CaptureFixture[str]) -> None:
    load_reward(RewardSection(name="code_execution"))
    said = [f"code_execution: a program can {what}" for what in launcher.means.lacking]
    assert capsys.readouterr().out.splitlines() == said
    if not launcher.means.filter:
        pytest.skip("no filter of system calls on this machine, by which Landlock could be taken away")
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_LANDLOCK], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "code_execution: a program can read and write the files of its user (no Landlock)\n"


def test_an_open_network_is_open_only_where_that_is_asked_for() -> None:
    program = "import socket\ns = socket.socket()\ns.bind(('127.0.0.1', 0))\nprint('done')"
    judge = rewards.build("code_execution", {"network": "open"})
    assert judge(
        group_of(block(program), block("import os\nos.fork()\nprint('done')"), tests=[{"output": "done"}])
    ) == [1, 0]
