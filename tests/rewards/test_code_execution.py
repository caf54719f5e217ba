"""Programs that a policy wrote: which test cases they pass, and what they are kept from."""

from __future__ import annotations

import json
import logging
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agrpo.config import RewardSection
from agrpo.errors import RewardError
from agrpo.rewards import load_reward, rewards
from agrpo.rewards.code_execution import CodeExecution
from agrpo.rewards.programs.cases import Case, cases_of, code_of, same_output
from agrpo.rewards.programs.running import Bounds, Launcher, Means, launched
from tests.rewards.worlds import descendants, group_of, score

BOUNDS = Bounds(
    cpu_seconds=1,
    wall_seconds=30.0,
    memory_bytes=256 * 2**20,
    output_bytes=1000,
    file_bytes=2**20,
    network="none",
)
SUM = "a, b = map(int, input().split())\nprint(a + b)"
SUMS = [{"input": "1 2\n", "output": "3\n"}, {"input": "2 2\n", "output": "4"}]


@pytest.fixture(scope="module")
def launcher() -> Iterator[Launcher]:
    with launched(BOUNDS) as running_launcher:
        yield running_launcher


def failure_of(launcher: Launcher, program: str, case: Case | None = None) -> str | None:
    case = case or Case(output="done")
    return launcher.run(program, case).failure(case, BOUNDS)


def block(program: str, mark: str = "python") -> str:
    return f"<think>?</think>Here:\n```{mark}\n{program}\n```\nThat is it."


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
    ):
        assert "Permission denied" in (failure_of(launcher, program) or "")
    assert not (tmp_path / "new").exists()


def test_what_honest_programs_do_is_allowed(launcher: Launcher) -> None:
    programs = [
        "open('x', 'w').write('done')\nprint(open('x').read())",
        "import threading\nt = threading.Thread(target=print, args=('done',))\nt.start()\nt.join()",
        "import asyncio\nasync def main(): print('done')\nasyncio.run(main())",
        "import dataclasses, typing\n@dataclasses.dataclass\nclass A:\n    x: 'int' = 1\ntyping.get_type_hints(A)\nprint('done')",
        "if __name__ == '__main__': print('done')",
        "import sys\nsys.setrecursionlimit(10000)\nsys.stdout.write('done\\n')",
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


def test_a_system_that_cannot_take_the_network_away_is_refused_unless_that_is_accepted() -> None:
    without = Means(namespace=False, filter=False, folder=False)
    assert "cannot take the network away" in (without.refusal("none") or "")
    assert without.refusal("open") is None
    assert replace(without, namespace=True).refusal("none") is None
    assert replace(without, filter=True).refusal("none") is None
    assert len(without.lacking) == 2


def test_what_a_system_lacks_beside_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    load_reward(RewardSection(name="code_execution"))
    with launched(BOUNDS) as started:
        assert len(capsys.readouterr().out.splitlines()) == len(started.means.lacking)


def test_an_open_network_is_open_only_where_that_is_asked_for() -> None:
    program = "import socket\ns = socket.socket()\ns.bind(('127.0.0.1', 0))\nprint('done')"
    judge = rewards.build("code_execution", {"network": "open"})
    assert judge(
        group_of(block(program), block("import os\nos.fork()\nprint('done')"), tests=[{"output": "done"}])
    ) == [1, 0]


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
