"""What a program may not do, said to the operating system before it begins. Stands alone: only the launcher loads it.

Nothing here can be taken back by the process, nor by one it starts. What a system lacks is asked first; what it has and
refuses all the same raises `OSError`.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import struct
import sys

_libc = ctypes.CDLL(None, use_errno=True)

_NEW_USER, _NEW_NET = 0x10000000, 0x40000000  # clone(2)
_END_WITH_PARENT, _NO_NEW_PRIVILEGES = 1, 38  # prctl(2)
_CAPABILITIES = 0x20080522  # capset(2), version 3

# Landlock, by version of its interface: https://docs.kernel.org/userspace-api/landlock.html
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1, 2, 4, 8
_READING = _EXECUTE | _READ_FILE | _READ_DIR
_RIGHTS = {1: 0x1FFF, 2: 0x3FFF, 3: 0x7FFF}
_DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom", "/dev/random")
_SYSTEM = (
    "/usr",
    "/lib",
    "/lib64",
    "/bin",
    "/nix/store",
    "/etc/ld.so.cache",
    "/etc/localtime",
    "/etc/mime.types",
    "/sys/devices/system/cpu",
)


def leave_network() -> bool:
    """Move this process, which must have one thread, into a network of its own that leads nowhere."""
    return sys.platform == "linux" and _libc.unshare(_NEW_USER | _NEW_NET) == 0


def limit(*, cpu_seconds: int, memory_bytes: int, file_bytes: int, can_filter: bool) -> None:
    """Bind processor time, address space, the size of a file, open files, and dumps of a crash.

    Without the filter, the number of processes is bound too: that of the whole user, and on Linux threads count.
    """
    _lower(resource.RLIMIT_CORE, 0, 0)
    # The soft limit ends a program that lets it, the hard one any other.
    _lower(resource.RLIMIT_CPU, cpu_seconds, cpu_seconds + 1)
    if sys.platform == "linux":  # macOS does not enforce it, and refuses one below what is mapped
        _lower(resource.RLIMIT_AS, memory_bytes, memory_bytes)
    _lower(resource.RLIMIT_FSIZE, file_bytes, file_bytes)
    _lower(resource.RLIMIT_NOFILE, 64, 64)
    if not can_filter:
        _lower(resource.RLIMIT_NPROC, 0, 0)


def drop_privileges() -> None:
    """Give up what root may do, for good: raise its own limits, change the system's clock, and the like."""
    header = ctypes.create_string_buffer(struct.pack("=Ii", _CAPABILITIES, 0))
    _checked(_libc.capset(header, ctypes.create_string_buffer(24)), "capset")


def end_with_parent() -> None:
    """Have this process killed when the launcher ends, which it cannot do itself if it is killed."""
    _checked(_libc.prctl(_END_WITH_PARENT, signal.SIGKILL, 0, 0, 0), "prctl(PR_SET_PDEATHSIG)")


def can_keep() -> bool:
    """Whether there is Landlock: Linux 5.13 and later, where it is not switched off."""
    return _landlock_version() > 0


def can_keep_from_truncation() -> bool:
    """Whether Landlock refuses to empty a file that may only be read: Linux 6.2 and later."""
    return _landlock_version() >= 3


def keep_to(folder: str) -> None:
    """Let the process write below `folder` alone, and read there, in the interpreter and in the system's libraries."""
    rights = _RIGHTS[min(_landlock_version(), 3)]
    attributes = ctypes.create_string_buffer(struct.pack("=Q", rights), 8)
    ruleset = _libc.syscall(_CREATE_RULESET, attributes, 8, 0)
    _checked(min(ruleset, 0), "landlock_create_ruleset")
    for place in {os.path.realpath(place) for place in (sys.prefix, sys.base_prefix, sys.exec_prefix, *_SYSTEM)}:
        _allow(ruleset, place, _READING)
    for place in _DEVICES:
        _allow(ruleset, place, _READ_FILE | _WRITE_FILE)
    _allow(ruleset, folder, rights)
    _checked(_libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0), "prctl(PR_SET_NO_NEW_PRIVS)")
    _checked(_libc.syscall(_RESTRICT_SELF, ruleset, 0), "landlock_restrict_self")
    os.close(ruleset)


def _landlock_version() -> int:
    return _libc.syscall(_CREATE_RULESET, None, 0, 1) if sys.platform == "linux" else -1


def _allow(ruleset: int, place: str, rights: int) -> None:
    try:
        opened = os.open(place, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    of_files = _EXECUTE | _WRITE_FILE | _READ_FILE | 0x4000  # a file has no entries to make or remove
    rule = struct.pack("=Qi", rights if os.path.isdir(place) else rights & of_files, opened)
    _libc.syscall(_ADD_RULE, ruleset, 1, ctypes.create_string_buffer(rule, len(rule)), 0)
    os.close(opened)


def _checked(returned: int, call: str) -> None:
    if returned != 0:
        raise OSError(ctypes.get_errno(), f"{call} failed: {os.strerror(ctypes.get_errno())}")


def _lower(which: int, soft: int, hard: int) -> None:
    _, ceiling = resource.getrlimit(which)
    if ceiling != resource.RLIM_INFINITY:
        soft, hard = min(soft, ceiling), min(hard, ceiling)
    resource.setrlimit(which, (soft, hard))
