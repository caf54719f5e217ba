"""What a program may not do, said to the operating system before it begins. Stands alone: only the launcher loads it.

Nothing here can be taken back by the process, nor by one it starts. What a system lacks is asked first; what it has and
refuses all the same raises `OSError`.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import resource
import struct
import sys
from dataclasses import dataclass

_libc = ctypes.CDLL(None, use_errno=True)

_NEW_USER, _NEW_NET = 0x10000000, 0x40000000  # clone(2)
_NO_NEW_PRIVILEGES, _SET_SECCOMP, _FILTER = 38, 22, 2  # prctl(2), seccomp(2)
_THREAD = 0x00010000

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06  # filter.h
_ALLOW, _REFUSE, _KILL = 0x7FFF0000, 0x00050000, 0x80000000  # seccomp.h
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16  # struct seccomp_data
_X32 = 0x40000000


@dataclass(frozen=True, kw_only=True)
class Calls:
    """Numbers of system calls on one machine."""

    audit: int
    """What the kernel calls the machine."""
    never: tuple[int, ...]
    socket: int
    clone: int
    to_itself: tuple[int, int]
    """kill and tgkill, whose first argument must be the process."""


CLONE3 = 435
CALLS = {
    "x86_64": Calls(
        audit=0xC000003E,
        socket=41,
        never=(57, 58, 101, 129, 165, 200, 272, 297, 308, 310, 311, 321, 424, 425, 438, 442),
        clone=56,
        to_itself=(62, 234),
    ),
    "aarch64": Calls(
        audit=0xC00000B7,
        socket=198,
        never=(40, 97, 117, 130, 138, 240, 268, 270, 271, 280, 424, 425, 438, 442),
        clone=220,
        to_itself=(129, 131),
    ),
}
"""Never: fork, vfork, ptrace, rt_sigqueueinfo, mount, tkill, unshare, rt_tgsigqueueinfo, setns, process_vm_readv,
process_vm_writev, bpf, pidfd_send_signal, io_uring_setup, pidfd_getfd, mount_setattr. The second machine has neither
fork nor vfork."""

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


def has_filter() -> bool:
    """Whether `filter_calls` knows this machine."""
    return sys.platform == "linux" and sys.maxsize > 2**32 and platform.machine() in CALLS


def filter_calls(*, sockets: bool) -> None:
    """Refuse other processes, signals to them and, unless they are allowed, `sockets`."""
    program = _program(CALLS[platform.machine()], os.getpid(), sockets=sockets)
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *line) for line in program))
    header = ctypes.create_string_buffer(struct.pack("@HP", len(program), ctypes.addressof(code)))
    _checked(_libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0), "prctl(PR_SET_NO_NEW_PRIVS)")
    _checked(_libc.prctl(_SET_SECCOMP, _FILTER, header, 0, 0), "prctl(PR_SET_SECCOMP)")


def _program(calls: Calls, pid: int, *, sockets: bool) -> list[tuple[int, int, int, int]]:
    """Lines of code, lines to skip if true and if false, and a constant each. Every branch ends in a verdict of its own."""
    refused = (_RETURN, 0, 0, _REFUSE | errno.EPERM)
    program = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUAL, 1, 0, calls.audit),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER),
    ]
    program += [(_AT_LEAST, 0, 1, _X32), refused]
    for number in calls.never if sockets else (calls.socket, *calls.never):
        program += [(_EQUAL, 0, 1, number), refused]
    # A thread is a clone too; clone3 hides its flags behind a pointer, and libraries go back to clone without it.
    program += [(_EQUAL, 0, 1, CLONE3), (_RETURN, 0, 0, _REFUSE | errno.ENOSYS)]
    allowed = (_RETURN, 0, 0, _ALLOW)
    program += [
        (_EQUAL, 0, 4, calls.clone),
        (_LOAD, 0, 0, _FIRST_ARGUMENT),
        (_ANY_BIT, 0, 1, _THREAD),
        allowed,
        refused,
    ]
    for number in calls.to_itself:
        program += [(_EQUAL, 0, 4, number), (_LOAD, 0, 0, _FIRST_ARGUMENT), (_EQUAL, 0, 1, pid), allowed, refused]
    return [*program, allowed]


def can_keep() -> bool:
    """Whether there is Landlock: Linux 5.13 and later, where it is not switched off."""
    return _landlock_version() > 0


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
