"""What memory a machine has, within its control group's limits."""

from __future__ import annotations

from pathlib import Path

from agrpo.runs.memory.here import machine_here
from agrpo.runs.memory.machine import Memory, read_memory

MEMINFO = (
    "MemTotal:       8000000 kB\nMemFree:         100000 kB\nMemAvailable:   6000000 kB\nHugePages_Total:       0\n"
)
KB = 1024


def written(root: Path, **files: str) -> Path:
    for name, text in files.items():
        file = root / name.replace("__", "/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root


def a_proc(root: Path, cgroup: str) -> Path:
    return written(root, meminfo=MEMINFO, self__cgroup=cgroup)


def test_without_a_limit_it_is_the_machines(tmp_path: Path):
    proc = a_proc(tmp_path / "proc", "0::/\n")
    assert read_memory(proc, tmp_path / "groups") == Memory(total=8_000_000 * KB, free=6_000_000 * KB)


def test_a_limit_of_the_group_or_of_one_above_it_counts(tmp_path: Path):
    proc = a_proc(tmp_path / "proc", "0::/pod/run\n")
    groups = written(tmp_path / "groups")
    for folder, limit, used, cached in (("pod", "2000000000", "900000000", "400000000"), ("pod/run", "max", "5", "0")):
        place = groups / folder
        place.mkdir(parents=True, exist_ok=True)
        (place / "memory.max").write_text(f"{limit}\n")
        (place / "memory.current").write_text(f"{used}\n")
        (place / "memory.stat").write_text(f"anon 3\ninactive_file {cached}\n")
    # What the page cache holds can be taken back: 2.0 - (0.9 - 0.4) GB are free.
    assert read_memory(proc, groups) == Memory(total=2_000_000_000, free=1_500_000_000)


def test_the_first_version_of_control_groups_is_read_too(tmp_path: Path):
    proc = a_proc(tmp_path / "proc", "5:cpu:/x\n4:memory:/job\n0::/\n")
    place = tmp_path / "groups" / "memory" / "job"
    place.mkdir(parents=True)
    (place / "memory.limit_in_bytes").write_text("3000000000\n")
    (place / "memory.usage_in_bytes").write_text("1000000000\n")
    (place.parent / "memory.limit_in_bytes").write_text("9223372036854771712\n")
    assert read_memory(proc, tmp_path / "groups") == Memory(total=3_000_000_000, free=2_000_000_000)


def test_this_machine_has_some():
    memory = machine_here().memory
    assert 2**28 < memory.free <= memory.total
