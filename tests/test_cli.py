"""The command line: what it prints, and what it says when it cannot."""

from __future__ import annotations

import io
import json
import os
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest
from pyarrow import parquet

import agrpo as agrpo_package
from agrpo.cli import commands
from agrpo.config import resolve
from agrpo.runs import prepare
from tests.stages.walk import Walk, settings


@pytest.fixture(scope="module")
def finished(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run, called `small`."""
    place = tmp_path_factory.mktemp("cli")
    prompts = place / "prompts.jsonl"
    prompts.write_text(json.dumps({"prompt": [{"role": "user", "content": "1+1 ="}], "answer": "2"}))
    folder = prepare(
        resolve(values=settings(tiny_model, prompts, place, stop={"max_steps": 1})), folder=f"{place}/small"
    )
    walk = Walk(folder).start("generator", "scorer", "learner")
    walk.join()
    recorder = Walk(folder).start("recorder")
    recorder.until(folder.database.exists)
    recorder.stop.set()
    recorder.join()
    return place


def agrpo(*arguments: str, code: int = 0) -> subprocess.CompletedProcess[bytes]:
    done = subprocess.run([sys.executable, "-m", "agrpo", *arguments], capture_output=True, check=False, timeout=120)
    assert done.returncode == code, done.stderr.decode()
    return done


def test_sql_prints_csv_json_and_parquet(finished: Path):
    ask = ("sql", str(finished / "small"), "SELECT step, name FROM live_metrics WHERE name = 'reward'")
    assert agrpo(*ask).stdout.decode().splitlines() == ["step,name", "1,reward"]
    assert json.loads(agrpo(*ask, "--format", "json").stdout) == [{"step": 1, "name": "reward"}]
    table = parquet.read_table(io.BytesIO(agrpo(*ask, "--format", "parquet").stdout))
    assert table.to_pylist() == [{"step": 1, "name": "reward"}]
    assert "reward" in agrpo(*ask, "--format", "table").stdout.decode()


def test_a_mistake_in_sql_is_one_line_and_not_a_traceback(finished: Path):
    told = agrpo("sql", str(finished / "small"), "SELECT stepp FROM live_metrics", code=1).stderr.decode()
    assert told.startswith("error: ")
    assert "DatabaseError" not in told
    assert "stepp" in told
    assert "Traceback" not in told


def test_runs_are_listed_for_people_and_for_programs(finished: Path):
    assert "small" in agrpo("runs", "--dir", str(finished)).stdout.decode()
    (run,) = json.loads(agrpo("runs", "--dir", str(finished), "--format", "json").stdout)
    assert (run["state"], run["steps"]) == ("finished", 1)


def test_check_says_everything_wrong_at_once_and_exits_two(tmp_path: Path):
    file = tmp_path / "run.toml"
    file.write_text('[model]\npath = "m"\n[engine]\ntop_p = 0.0\n[loss]\nname = "clop"\n[[rewards]]\nname = "no"\n')
    told = agrpo("check", str(file), "--set", "step.group=3", code=2).stderr.decode()
    for word in ("engine.top_p", "loss.name", "rewards.0.name", 'did you mean "groups"?', "prompts.name: missing"):
        assert word in told
    assert "Traceback" not in told


def test_check_prints_the_resolved_settings_with_their_origins(finished: Path, tiny_model: Path):
    file = finished / "run.toml"
    file.write_text(
        f'[model]\npath = "{tiny_model}"\n[prompts]\nname = "files"\npath = "{finished}/prompts.jsonl"\n'
        '[[rewards]]\nname = "exact_match"\n[stop]\nmax_steps = 1\n'
    )
    told = agrpo("check", str(file), "--set", "run.seed=7").stdout.decode()
    assert "run.seed = 7  # --set" in told
    assert f"stop.max_steps = 1  # {file}" in told
    assert "step.groups = 8  # default" in told


def test_rewards_are_modules_of_the_folder_one_works_in(finished: Path, tiny_model: Path, tmp_path: Path):
    (tmp_path / "my_rewards.py").write_text(
        "def long(completion_ids, **columns):\n    return [1.0 for _ in completion_ids]\n"
    )
    file = tmp_path / "run.toml"
    file.write_text(
        f'[model]\npath = "{tiny_model}"\n[prompts]\nname = "files"\npath = "{finished}/prompts.jsonl"\n'
        '[[rewards]]\nname = "my_rewards:long"\n[stop]\nmax_steps = 1\n'
    )
    script = Path(sys.executable).parent / "agrpo"
    done = subprocess.run(
        [script, "check", file], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_project_with_flows_of_its_own_runs_agrpos(tmp_path: Path):
    (tmp_path / "flows.py").write_text("raise AssertionError('this is a project of Prefect')\n")
    (tmp_path / "my_rewards.py").write_text("")
    program = (
        "import contextlib, sys\n"
        "from agrpo.cli import main\n"
        "sys.argv = ['agrpo', '--version']\n"
        "with contextlib.suppress(SystemExit):\n"
        "    main()\n"
        "import flows.server, my_rewards\n"
        "print(flows.server.__file__, my_rewards.__file__)"
    )
    root = Path(agrpo_package.__file__).parent.parent
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    told = [f"agrpo {agrpo_package.__version__}", f"{root}/flows/server.py {tmp_path}/my_rewards.py"]
    assert done.stdout.splitlines() == told, done.stderr


def test_sql_that_is_no_text_is_refused_with_its_file(finished: Path):
    file = finished / "query.sql"
    file.write_bytes(b"SELECT '\xff'")
    told = agrpo("sql", str(finished / "small"), "--file", str(file), code=2).stderr.decode()
    assert "UTF-8" in told and "Traceback" not in told


def test_check_takes_the_home_of_who_asks_for_a_tilde(
    finished: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("HOME", str(finished))
    (finished / "model").symlink_to(tiny_model)
    file = finished / "home.toml"
    file.write_text(
        '[run]\ndir = "~/runs"\n[model]\npath = "~/model"\n[prompts]\nname = "files"\npath = "~/prompts.jsonl"\n'
        '[[rewards]]\nname = "exact_match"\n[stop]\nmax_steps = 1\n'
    )
    told = agrpo("check", str(file)).stdout.decode()
    for line in (f'run.dir = "{finished}/runs"', f'model.path = "{finished}/model"'):
        assert line in told


@pytest.mark.spec("K39")
def test_a_bad_run_starts_nothing_and_writes_nothing(tmp_path: Path):
    file = tmp_path / "run.toml"
    file.write_text('[model]\npath = "./none"\n[run]\ndir = "runs"\n')
    agrpo("train", str(file), code=2)
    assert [entry.name for entry in tmp_path.iterdir()] == ["run.toml"]


def test_an_unknown_run_is_named_with_those_there_are(finished: Path):
    told = agrpo("sql", "other", "SELECT 1", "--dir", str(finished), code=1).stderr.decode()
    assert "small" in told


@pytest.mark.parametrize("command", [page.name for page in pkgutil.iter_modules(commands.__path__)])
def test_every_command_has_help(command: str):
    assert "Usage" in agrpo(command, "--help").stdout.decode()


def test_record_builds_a_database_that_is_gone_and_rebuild_makes_it_again(finished: Path):
    run = finished / "small"
    ask = ("sql", str(run), "SELECT count(*) AS rollouts FROM rollouts")
    before = agrpo(*ask).stdout
    (run / "run.duckdb").unlink()
    assert b"records added" in agrpo("record", str(run)).stdout
    assert agrpo(*ask).stdout == before
    assert agrpo("record", str(run)).stdout.startswith(b"0 records added")
    assert agrpo("rebuild", str(run), "--check").stdout.startswith(b"identical: ")
    assert b"is made again from" in agrpo("rebuild", str(run)).stdout
    assert agrpo(*ask).stdout == before


def test_a_long_table_for_people_is_cut_and_says_so(finished: Path):
    ask = ("sql", str(finished / "small"), "SELECT range AS number, repeat('x', 1000) AS text FROM range(1000)")
    told = agrpo(*ask, "--format", "table").stdout.decode()
    assert "the first 200 of 1,000 rows" in told
    assert "199" in told and "201" not in told
    assert len(agrpo(*ask, "--format", "csv").stdout.splitlines()) == 1001


def test_what_a_policy_wrote_does_not_act_on_the_terminal(finished: Path):
    ask = ("sql", str(finished / "small"), "SELECT chr(27) || '[31mred' AS text")
    assert "␛[31mred" in agrpo(*ask, "--format", "table").stdout.decode()
