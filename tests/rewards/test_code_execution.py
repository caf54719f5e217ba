"""Programs that a policy wrote: which test cases they pass, and how they end."""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agrpo.config import RewardSection
from agrpo.errors import RewardError
from agrpo.rewards import rewards
from agrpo.rewards.code_execution import CodeExecution
from agrpo.rewards.programs.cases import Case, cases_of, code_of, same_output
from agrpo.rewards.programs.running import Launcher, launched
from tests.rewards.answers import BOUNDS, block, failure_of
from tests.rewards.worlds import all_ended, descendants, group_of, score

SUM = "a, b = map(int, input().split())\nprint(a + b)"
SUMS = [{"input": "1 2\n", "output": "3\n"}, {"input": "2 2\n", "output": "4"}]


def test_a_program_that_passes_every_case_is_worth_one() -> None:
    judge = rewards.build("code_execution", {})
    said = [block(SUM), block("print(3)"), block("print(input())"), SUM, ""]
    assert judge(group_of(*said, tests=SUMS)) == [1.0, 0.0, 0.0, 0.0, 0.0]


def test_partial_credit_is_the_share_of_cases_passed() -> None:
    judge = rewards.build("code_execution", {"partial": True})
    assert judge(group_of(block(SUM), block("print(3)"), block("print(9)"), tests=SUMS)) == [1.0, 0.5, 0.0]


def test_an_answer_is_given_up_at_its_first_case_over_time() -> None:
    judge = rewards.build("code_execution", {"partial": True, "wall_seconds": 3.0})
    program = "n = int(input())\nprint(n, flush=True)\nif n == 2: import time; time.sleep(60)"
    tests = [{"input": str(n), "output": str(n)} for n in range(1, 6)]
    began = time.monotonic()
    assert judge(group_of(block(program), tests=tests)) == [0.2]
    assert time.monotonic() - began < 30


def test_an_answer_is_given_up_at_its_first_case_over_processor_time() -> None:
    judge = rewards.build("code_execution", {"partial": True, "cpu_seconds": 1, "wall_seconds": 20.0})
    program = "n = int(input())\nprint(n, flush=True)\nif n == 2:\n    while True: pass"
    tests = [{"input": str(n), "output": str(n)} for n in (1, 2, 3, 4)]
    assert judge(group_of(block(program), tests=tests)) == [0.25]


def test_tests_in_python_see_the_programs_names() -> None:
    judge = rewards.build("code_execution", {"partial": True})
    tests = ["assert double(2) == 4", "assert double('a') == 'aa'", "assert double([]) == [1]"]
    said = [block("def double(x):\n    return x * 2"), block("def double(x):\n    return x + x if x == 2 else x")]
    assert judge(group_of(*said, tests=tests)) == pytest.approx([2 / 3, 1 / 3])


@pytest.mark.parametrize("way", ["import os\nos._exit(0)", "raise SystemExit(3)", "raise ValueError"])
def test_a_program_that_ends_before_its_test_has_not_passed_it(launcher: Launcher, way: str) -> None:
    assert failure_of(launcher, way, Case(test="pass")) is not None


def test_a_program_that_ends_well_is_tested_all_the_same(launcher: Launcher) -> None:
    assert failure_of(launcher, "def f(): return 1\nraise SystemExit(0)", Case(test="assert f() == 1")) is None


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("print('other')", "it printed 'other', expected 'done'"),
        ("def f():\n    return [][1]\nf()", "IndexError: list index out of range (answer.py:2)"),
        ("def f(:", "SyntaxError: invalid syntax"),
        ("raise SystemExit('no idea')", "no idea"),
        ("raise SystemExit(3)", "it ended with exit status 3"),
        ("import os\nos.abort()", "it was killed by SIGABRT"),
        ("while True: pass", "it used more than 1 s of processor time (cpu_seconds)"),
        ("a = [0] * 10**9", "MemoryError (answer.py:1)"),
        ("print('a' * 10**7)", "it printed more than 1000 bytes (output_bytes)"),
        ("while True: print('a' * 99)", "it printed more than 1000 bytes (output_bytes)"),
        ("open('x', 'w').write('a' * 2**22)", "OSError: [Errno 27] File too large (answer.py:1)"),
        ("for i in range(99): globals()[f'f{i}'] = open('/dev/null')", "OSError: [Errno 24] Too many open files"),
    ],
)
def test_every_failure_has_its_reason(launcher: Launcher, program: str, reason: str) -> None:
    assert (failure_of(launcher, program) or "").startswith(reason)
    assert failure_of(launcher, "print('done')") is None


def test_a_program_that_waits_for_ever_is_ended_by_the_clock() -> None:
    bounds, case = replace(BOUNDS, wall_seconds=0.3), Case(output="done")
    with launched(bounds) as impatient:
        failure = impatient.run("import time\ntime.sleep(60)", case).failure(case, bounds)
    assert failure == "it did not end within 0.3 s (wall_seconds)"


@contextmanager
def launcher_killed_while_it_runs_a_program() -> Generator[list[int]]:
    """The processes that were running then: the launcher and its program."""
    known, seen, deadline = descendants(os.getpid()), [], time.monotonic() + 30

    def kill() -> None:
        while not seen and time.monotonic() < deadline:
            for pid in descendants(os.getpid()) - known:
                if programs := descendants(pid):
                    seen.extend((pid, *programs))
                    os.kill(pid, signal.SIGKILL)
                    return
            time.sleep(0.01)

    thread = threading.Thread(target=kill)
    thread.start()
    yield seen
    thread.join()


@pytest.mark.skipif(sys.platform != "linux", reason="processes are looked for in /proc")
@pytest.mark.parametrize("partial", [False, True])
def test_an_answer_that_takes_the_launcher_along_is_worth_nothing_and_the_next_is_judged(partial: bool) -> None:
    judge = rewards.build("code_execution", {"partial": partial})
    said = [block("import time\ntime.sleep(5)\nprint('done')"), block("print('done')")]
    with launcher_killed_while_it_runs_a_program() as killed:
        assert judge(group_of(*said, tests=[{"output": "done"}] * 2)) == [0.0, 1.0]
    assert killed and all_ended(killed)


@pytest.mark.parametrize(
    "program",
    [
        "import threading, time\ndef main():\n    time.sleep(0.2)\n    print('done')\nthreading.Thread(target=main).start()",
        "from concurrent.futures import ThreadPoolExecutor\nThreadPoolExecutor(1).submit(print, 'done')",
        "import atexit, io, sys\nfirst, sys.stdout = sys.stdout, io.StringIO()\n"
        "atexit.register(lambda: first.write(sys.stdout.getvalue()))\nprint('done')",
        "import io, sys\nprint('done')\nsys.stdout = io.StringIO()",
        "import io, sys\nprint('done')\nsys.stdout = None",
        "import sys\nprint('done')\nsys.stdout.close()",
        "import io, sys\nout = io.TextIOWrapper(sys.stdout.detach())\nout.write('done')",
        "out = open(1, 'w')\nout.write('done')",
        "import os\nos.chdir(os.path.dirname(os.path.abspath(__file__)))\nprint('done')",
    ],
)
def test_a_program_may_speak_as_late_as_an_interpreter_lets_it(launcher: Launcher, program: str) -> None:
    assert failure_of(launcher, program) is None


def test_a_test_may_use_threads_and_what_a_program_registered_for_its_exit(launcher: Launcher) -> None:
    program = "import atexit\nfrom concurrent.futures import ThreadPoolExecutor\nopen('x', 'w').close()\n"
    program += "pool = ThreadPoolExecutor(1)\npool.submit(int)\n"
    program += "import os\natexit.register(os.remove, 'x')"
    assert failure_of(launcher, program, Case(test="open('x')\nassert pool.submit(int).result() == 0")) is None


def test_no_process_and_no_folder_is_left(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = descendants(os.getpid())
    judge = rewards.build("code_execution", {"wall_seconds": 0.5})
    judge(group_of(block("import time\ntime.sleep(60)"), block("open('x', 'w')\n" + SUM), tests=SUMS))
    assert descendants(os.getpid()) <= before
    assert [*tmp_path.iterdir()] == []


def test_a_folder_that_a_killed_call_left_is_removed_after_a_day(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    old, new = tmp_path / "agrpo-programs-old", tmp_path / "agrpo-programs-new"
    old.mkdir()
    new.mkdir()
    os.utime(old, (time.time() - 2 * 86400,) * 2)
    with launched(BOUNDS):
        pass
    assert [*tmp_path.iterdir()] == [new]


def test_the_reward_runs_in_the_scorers_killable_child() -> None:
    section = RewardSection(name="code_execution", settings={"partial": True})
    (scored,) = score(section, group_of(block(SUM), block("print(3)"), block("import os\nos.fork()"), tests=SUMS))
    assert (scored.values, scored.errors) == ([1.0, 0.5, 0.0], [None, None, None])


def test_the_reason_of_an_answer_that_fails_is_a_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "agrpo.rewards"):
        score(RewardSection(name="code_execution"), group_of(block(SUM), block("print(3)"), "no", ticket=7, tests=SUMS))
    told = [record.getMessage() for record in caplog.records]
    assert "code_execution: group 7, completion 1: test 2 of 2: it printed '3', expected '4'" in told
    assert "code_execution: group 7, completion 2: the answer has no block of Python (```python)" in told
    assert not any("completion 0" in line for line in told)


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        ("```python\na\n```", "a\n"),
        ("```py\na\n```\n```text\nb\n```", "a\n"),
        ("```\na\n```\n```\nb\n```", "b\n"),
        ("```python\na\n```\n```\nb\n```", "a\n"),
        ("```Python title=x\na\n```", "a\n"),
        ("~~~python\na\n```\n~~~", "a\n```\n"),
        ("````python\ns = '''\n```\n'''\n````", "s = '''\n```\n'''\n"),
        ("```python\n```", ""),
        ("```python\na", None),
        ("`a`", None),
        ("```c\na\n```", None),
        ("", None),
    ],
)
def test_the_program_is_the_last_block_of_python(answer: str, code: str | None) -> None:
    assert code_of(answer) == code


def test_cases_are_read_in_the_forms_that_data_sets_keep_them_in() -> None:
    one = [Case(input="1\n2", output="3")]
    forms: list[Any] = [
        [{"input": "1\n2", "output": "3"}],
        [{"input": ["1", "2"], "output": ["3"]}],
        {"inputs": ["1\n2"], "outputs": ["3"]},
    ]
    for form in [*forms, *(json.dumps(form) for form in forms)]:
        assert cases_of(form, "tests") == one
    assert cases_of("assert f(1) == 2", "tests") == [Case(test="assert f(1) == 2")]
    assert cases_of("[f(x) for x in y]", "tests") == [Case(test="[f(x) for x in y]")]
    assert cases_of(["assert f(1)", {"output": "3"}], "tests") == [Case(test="assert f(1)"), Case(output="3")]


@pytest.mark.parametrize(
    ("fact", "message"),
    [
        ([], 'the fact "tests" holds no test cases'),
        (7, "holds no test cases but 7"),
        (None, "holds no test cases but None"),
        ([7], r"tests\[0\] is 7; expected"),
        ([{"input": "1"}], r"tests\[0\] is \{'input': '1'\}"),
        ([{"output": 4}], r"tests\[0\] has 4 as text"),
        ({"inputs": ["1"], "outputs": []}, "has the keys inputs, outputs"),
        ({"fn_name": "f", "inputs": [[1]], "outputs": [2]}, "write each as Python"),
    ],
)
def test_a_fact_that_holds_no_test_cases_says_what_was_expected(fact: Any, message: str) -> None:
    with pytest.raises(RewardError, match=message):
        cases_of(fact, "tests")


def test_output_is_compared_by_line_without_white_space_at_ends() -> None:
    assert same_output("1 2 \n3\n\n", "1 2\n3")
    assert not same_output("1  2\n3", "1 2\n3")
    assert not same_output("\n1", "1")


def test_the_part_is_found_by_its_name() -> None:
    assert rewards["code_execution"] is CodeExecution
