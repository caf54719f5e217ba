"""Runs as wholes: everything that cannot work is said before anything is written; runs are found by short names."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agrpo.config import RunConfig, resolve
from agrpo.errors import ConfigError, RecordError, RunExists, RunNotFound, StoreReadOnly
from agrpo.queue.amendments import amend
from agrpo.queue.run_folder import RunFolder
from agrpo.records.progress import Hint
from agrpo.resuming import take_up
from agrpo.runs import find, prepare, summaries
from agrpo.runs.checks import bytes_needed
from tests.runs.made import a_machine
from tests.stages.walk import settings


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    file = tmp_path / "prompts.jsonl"
    file.write_text(json.dumps({"prompt": [{"role": "user", "content": "1+1"}], "answer": "2"}))
    return file


def refused(tree: dict[str, Any], runs: Path) -> str:
    """What `prepare` says, having written nothing."""
    with pytest.raises(ConfigError) as caught:
        prepare(resolve(values=tree))
    assert not runs.exists()
    return str(caught.value)


def test_a_missing_model_is_refused(prompts: Path, tmp_path: Path):
    told = refused(settings(tmp_path / "no-model", prompts, tmp_path / "runs"), tmp_path / "runs")
    assert f"model.path: no folder {tmp_path / 'no-model'}" in told


def test_a_hub_id_that_cannot_be_had_is_refused(prompts: Path, tmp_path: Path):
    tree = settings(tmp_path, prompts, tmp_path / "runs")
    tree["model"]["path"] = "nobody/nothing-1b"
    assert 'model.path: "nobody/nothing-1b" is no folder' in refused(tree, tmp_path / "runs")


def test_a_folder_that_holds_no_model_is_refused_with_what_it_lacks(prompts: Path, tmp_path: Path):
    tree = settings(tmp_path, prompts, tmp_path / "runs")
    assert "no config.json, no tokenizer_config.json, no *.safetensors" in refused(tree, tmp_path / "runs")


def test_more_processes_of_the_learner_than_gpus_are_refused(
    tiny_model: Path, prompts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("agrpo.runs.memory.machine_here", lambda: a_machine(64, gpus=(80, 80)))
    tree = settings(tiny_model, prompts, tmp_path / "runs", workers={"learner_processes": 3})
    assert "workers.learner_processes: 3 processes need a GPU each, and 2 can be seen" in refused(
        tree, tmp_path / "runs"
    )
    tree["workers"]["learner_processes"] = 2
    assert prepare(resolve(values=tree)).document()["settings"]["tree"]["workers"]["learner_processes"] == 2


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([{"question": "1+1"}], "prompt"),
        ([{"prompt": "1+1"}], "expected a list of messages"),
        ([{"prompt": []}], "expected a list of messages"),
        ([{"prompt": [{"content": "1+1"}]}], 'lacks "role" or "content"'),
    ],
)
@pytest.mark.spec("A-009", "A-031")
def test_prompts_that_are_no_conversations_are_refused(
    tiny_model: Path, tmp_path: Path, rows: list[dict[str, Any]], expected: str
):
    file = tmp_path / "rows.jsonl"
    file.write_text("\n".join(json.dumps(row) for row in rows))
    assert expected in refused(settings(tiny_model, file, tmp_path / "runs"), tmp_path / "runs")


@pytest.mark.spec("A-019")
def test_a_prompt_with_an_image_is_refused(tiny_model: Path, tmp_path: Path):
    file = tmp_path / "rows.jsonl"
    content = [{"type": "image", "image": "x.png"}, {"type": "text", "text": "what is it?"}]
    file.write_text(json.dumps({"prompt": [{"role": "user", "content": content}]}))
    assert "only text" in refused(settings(tiny_model, file, tmp_path / "runs"), tmp_path / "runs")


def test_a_missing_dataset_is_refused(tiny_model: Path, tmp_path: Path):
    tree = settings(tiny_model, tmp_path / "none.jsonl", tmp_path / "runs")
    assert "none.jsonl" in refused(tree, tmp_path / "runs")


def test_a_reward_that_cannot_be_imported_is_refused(tiny_model: Path, prompts: Path, tmp_path: Path):
    told = refused(settings(tiny_model, prompts, tmp_path / "runs", reward="distinct_token"), tmp_path / "runs")
    assert "distinct_tokens" in told


@pytest.mark.spec("K39")
def test_everything_that_is_wrong_is_said_at_once(tmp_path: Path):
    tree = settings(tmp_path / "no-model", tmp_path / "none.jsonl", tmp_path / "runs", reward="nothing")
    told = refused(tree, tmp_path / "runs")
    assert all(word in told for word in ("model.path", "prompts:", "nothing"))


def test_a_fresh_run_in_a_folder_that_holds_one_is_refused(tiny_model: Path, prompts: Path, tmp_path: Path):
    tree = settings(tiny_model, prompts, tmp_path)
    prepare(resolve(values=tree), folder=str(tmp_path / "mine"))
    with pytest.raises(RunExists, match="already holds a run; resume it"):
        prepare(resolve(values=tree), folder=str(tmp_path / "mine"))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of one MiB."""
    place = tmp_path / "small"
    place.mkdir()
    mounted = (
        os.geteuid() == 0
        and subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)], capture_output=True, check=False
        ).returncode
        == 0
    )
    if not mounted:
        pytest.skip("a small disk needs the right to mount a tmpfs")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_a_disk_too_small_for_the_run_is_refused(tiny_model: Path, prompts: Path, small_disk: Path):
    with pytest.raises(ConfigError, match=r"has 1 MiB free; this run keeps up to \d+ MiB"):
        prepare(resolve(values=settings(tiny_model, prompts, small_disk)))


def test_room_is_counted_for_a_tied_head_beside_every_version(tiny_model: Path, prompts: Path, tmp_path: Path):
    tree = settings(tiny_model, prompts, tmp_path, asynchronous={"max_staleness": 2})
    alone = RunConfig.build(resolve(values=tree))
    tree["engine"] = {"name": "vllm", "num_generations": 4, "max_completion_length": 6}
    with_heads = RunConfig.build(resolve(values=tree))
    vocabulary = json.loads((tiny_model / "config.json").read_text())["vocab_size"]
    assert bytes_needed(with_heads) - bytes_needed(alone) == (2 + 3) * vocabulary * 64 * 4


def test_a_folder_that_cannot_be_written_is_refused(tiny_model: Path, prompts: Path, small_disk: Path):
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.raises((ConfigError, StoreReadOnly), match=r"cannot be written|read-only"):
        prepare(resolve(values=settings(tiny_model, prompts, small_disk)))


def test_a_run_keeps_its_resolved_settings_and_what_they_are_read_with(tiny_model: Path, prompts: Path, tmp_path: Path):
    document = prepare(resolve(values=settings(tiny_model, prompts, tmp_path))).document()
    assert document["settings"]["tree"]["optimizer"]["betas"] == [0.9, 0.999]
    assert document["settings"]["origins"]["run.seed"] == "built in"
    assert document["prompts_per_epoch"] == 1
    assert set(document["model_digests"]) >= {"config.json", "tokenizer.json"}


def test_runs_are_found_by_path_by_the_beginning_of_a_name_and_as_latest(tmp_path: Path):
    for name, year in (("one-20260101T000000", 2026), ("two-20250101T000000", 2025), ("mine", 2024)):
        RunFolder.create(str(tmp_path / name), {"name": name, "created_at": f"{year}-01-01T00:00:00+00:00"})
    assert find("latest", str(tmp_path)).url.endswith("one-20260101T000000")
    assert find("two", str(tmp_path)).url.endswith("two-20250101T000000")
    assert find(str(tmp_path / "two-20250101T000000")).url.endswith("two-20250101T000000")
    with pytest.raises(RunNotFound, match="it holds: mine, two-20250101T000000, one-20260101T000000"):
        find("three", str(tmp_path))


def test_a_whole_name_is_found_although_another_begins_with_it(tmp_path: Path):
    for name in ("few", "fewer"):
        RunFolder.create(str(tmp_path / name), {"name": name})
    assert find("few", str(tmp_path)).url.endswith("/few")


def test_a_beginning_that_two_runs_share_is_refused(tmp_path: Path):
    for name in ("run-20260101T000000", "run-20260102T000000"):
        RunFolder.create(str(tmp_path / name), {"name": name})
    with pytest.raises(RunNotFound, match="begins 2 names"):
        find("run", str(tmp_path))


def test_the_list_of_runs_tells_their_state(tiny_model: Path, prompts: Path, tmp_path: Path):
    tree = settings(tiny_model, prompts, tmp_path)
    for name in ("a", "b"):
        prepare(resolve(values=tree), folder=str(tmp_path / name))
    RunFolder.open(str(tmp_path / "b")).write_hint(Hint(limit_ticket=None, dropped=0, floor=0, finished=True))
    assert [(one.name, one.state, one.steps) for one in summaries(str(tmp_path))] == [
        ("a", "not started", 0),
        ("b", "finished", 0),
    ]


def write(tmp_path: Path, name: str, text: str) -> None:
    """Put a text in place of the run's `run.json`."""
    file = tmp_path / name / "run.json"
    file.parent.mkdir(exist_ok=True)
    file.unlink(missing_ok=True)
    file.write_text(text)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "run.json is damaged: Expecting value"),
        ("{}", "it has no name, no created_at, no settings, no config_digest; bring it back from a copy"),
        ("[]", "a JSON object was expected"),
        ('{"name": "mine"}', "it has no created_at, no settings, no config_digest"),
        ('{"checksum": "0"}', "does not end with its checksum"),
    ],
)
def test_a_run_json_that_is_none_is_told_wherever_it_is_read(tmp_path: Path, text: str, told: str):
    write(tmp_path, "mine", text)
    folder = RunFolder.open(str(tmp_path / "mine"))
    for read in (folder.run_json, folder.document, lambda: take_up(folder)):
        with pytest.raises(RecordError, match=told):
            read()
    amend(folder, {"stop.max_steps": 9}, {})
    with pytest.raises(RecordError, match=told):
        folder.document()


def test_a_run_that_cannot_be_read_is_listed_beside_the_others(tiny_model: Path, prompts: Path, tmp_path: Path):
    runs = tmp_path / "runs"
    tree = settings(tiny_model, prompts, runs)
    for name in ("whole", "steps", "newer"):
        prepare(resolve(values=tree), folder=str(runs / name))
    write(runs, "torn", '{"na')
    write(runs, "newer", json.dumps({**find("newer", str(runs)).run_json(), "schema_version": "2.0"}))
    Path(runs, "steps", "bases").mkdir()
    Path(runs, "steps", "bases", "000000.json").write_text("{")
    found = {one.name: (one.state, one.steps) for one in summaries(str(runs))}
    unread = {"torn": ("damaged", None), "steps": ("damaged", None), "newer": ("too new", None)}
    assert found == {"whole": ("not started", 0), **unread}
    command = [sys.executable, "-m", "agrpo", "runs", "--dir", str(runs)]
    told = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert (told.returncode, told.stderr) == (0, "")
    assert f"torn (damaged): {runs}/torn/run.json is damaged: " in told.stdout


def test_the_latest_run_is_the_latest_although_it_is_damaged(tmp_path: Path):
    RunFolder.create(str(tmp_path / "a"), {"name": "a", "created_at": "2025-01-01T00:00:00+00:00"})
    write(tmp_path, "b", "")
    assert find("latest", str(tmp_path)).url == str(tmp_path / "b")
    assert find("a", str(tmp_path)).url == str(tmp_path / "a")


def test_a_run_does_not_go_on_from_other_weights(tiny_model: Path, prompts: Path, tmp_path: Path):
    model = Path(shutil.copytree(tiny_model, tmp_path / "model"))
    folder = prepare(resolve(values=settings(model, prompts, tmp_path / "runs")))
    take_up(folder)
    file = model / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"\x7f")
    with pytest.raises(ConfigError, match=r"changed: model\.safetensors\. Put them back"):
        take_up(folder)
