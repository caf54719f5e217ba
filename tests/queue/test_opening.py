"""From a URL to a store, and what is said of a URL that leads nowhere."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from agrpo.errors import ConfigError, MissingPackage
from agrpo.queue.filesystems.local import LocalFilesystem
from agrpo.queue.filesystems.memory import MemoryFilesystem
from agrpo.queue.filesystems.object_store import ObjectStore
from agrpo.queue.filesystems.opening import open_filesystem, probe


def test_a_path_and_a_file_url_open_the_same_folder(tmp_path: Path):
    plain, url = open_filesystem(str(tmp_path / "run")), open_filesystem(f"file://{tmp_path}/run")
    assert isinstance(plain, LocalFilesystem)
    assert plain.url == url.url == str(tmp_path / "run")


def test_a_relative_path_is_fixed_when_it_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    store = open_filesystem("./runs/one")
    monkeypatch.chdir("/")
    store.put("run.json", b"{}")
    assert (tmp_path / "runs" / "one" / "run.json").is_file()


def test_one_memory_name_is_one_store_and_another_is_another():
    open_filesystem("memory://opening/one").put("run.json", b"1")
    assert isinstance(open_filesystem("memory://opening/one"), MemoryFilesystem)
    assert open_filesystem("memory://opening/one").get("run.json").to_pybytes() == b"1"
    assert open_filesystem("memory://opening/two").get("run.json") is None


def test_an_s3_url_finds_its_endpoint_and_keys_in_the_environment(s3_endpoint: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    store = open_filesystem("s3://runs/opened/")
    assert isinstance(store, ObjectStore)
    assert store.url == "s3://runs/opened"
    probe(store)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("", '"" names no folder'),
        ("memory://", '"memory://" names no folder'),
        ("s3:///", '"s3:///" names no folder'),
        ("s4://bucket/run", r'fsspec knows no store called "s4"; write a path, s3://bucket/folder'),
    ],
)
def test_a_url_that_leads_nowhere_is_refused_with_what_to_write(url: str, message: str):
    with pytest.raises(ConfigError, match=message):
        open_filesystem(url)


def test_a_missing_package_is_named_with_the_command_that_installs_it():
    program = (
        "import sys; sys.modules['s3fs'] = None\n"
        "from agrpo.queue.filesystems.opening import open_filesystem\n"
        "open_filesystem('s3://bucket/run')"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert MissingPackage.__name__ in ended.stderr
    assert "s3://bucket/run needs a package that is not installed" in ended.stderr
    assert ended.stderr.strip().endswith("pip install 'agrpo[s3]'")


def test_opening_a_folder_needs_neither_pyarrow_nor_fsspec(tmp_path: Path):
    program = (
        "import sys\nfrom agrpo.queue.filesystems.opening import open_filesystem\n"
        f"open_filesystem({str(tmp_path)!r}).put('run.json', b'')\n"
        "sys.exit(bool({'pyarrow', 'fsspec', 'torch'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
