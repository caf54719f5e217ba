"""The filter of system calls that a program runs behind. Stands alone: only the launcher loads it.

It refuses what reaches another process, what outlives the program, and what Landlock leaves open. It cannot be taken
back. Nothing that lies behind a pointer can be judged, so that calls which hide their flags there are said not to exist.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
import sys
from dataclasses import dataclass

_libc = ctypes.CDLL(None, use_errno=True)

_NO_NEW_PRIVILEGES, _SET_SECCOMP, _FILTER = 38, 22, 2  # prctl(2), seccomp(2)
_THREAD = 0x00010000  # clone(2)
_ONLY_READS, _TRUNCATES = 0o0, 0o1000  # open(2)
_ACCESS_MODE = 0o3

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _AND, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06  # filter.h
_ALLOW, _REFUSE, _KILL = 0x7FFF0000, 0x00050000, 0x80000000  # seccomp.h
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16  # struct seccomp_data
_X32 = 0x40000000

Line = tuple[int, int, int, int]
"""Code, lines to skip if true and if false, and a constant."""


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Numbers of system calls on one machine."""

    audit: int
    """What the kernel calls the machine."""
    column: int
    """Its place in a row of the tables below."""


MACHINES = {"x86_64": Machine(audit=0xC000003E, column=0), "aarch64": Machine(audit=0xC00000B7, column=1)}

Numbers = dict[str, tuple[int | None, int | None]]
"""By name, of each machine; None where it has no such call."""

PROCESSES: Numbers = {
    "fork": (57, None),
    "vfork": (58, None),
    "ptrace": (101, 117),
    "rt_sigqueueinfo": (129, 138),
    "setpriority": (141, 140),
    "mount": (165, 40),
    "tkill": (200, 130),
    "ioprio_set": (251, 30),
    "migrate_pages": (256, 238),
    "unshare": (272, 97),
    "move_pages": (279, 239),
    "rt_tgsigqueueinfo": (297, 240),
    "perf_event_open": (298, 241),
    "setns": (308, 268),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "bpf": (321, 280),
    "pidfd_send_signal": (424, 424),
    "io_uring_setup": (425, 425),
    "pidfd_getfd": (438, 438),
    "process_madvise": (440, 440),
    "mount_setattr": (442, 442),
}
LASTING: Numbers = {
    "shmget": (29, 194),
    "shmat": (30, 196),
    "shmctl": (31, 195),
    "semget": (64, 190),
    "semop": (65, 193),
    "semctl": (66, 191),
    "semtimedop": (220, 192),
    "msgget": (68, 186),
    "msgsnd": (69, 189),
    "msgrcv": (70, 188),
    "msgctl": (71, 187),
    "mq_open": (240, 180),
    "mq_unlink": (241, 181),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
}
"""Memory that is no part of the address space, or that stays when the program has ended."""
MODES: Numbers = {
    "chmod": (90, None),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "fchmodat2": (452, 452),
    "chown": (92, None),
    "fchown": (93, 55),
    "lchown": (94, None),
    "fchownat": (260, 54),
    "utime": (132, None),
    "utimes": (235, None),
    "futimesat": (261, None),
    "utimensat": (280, 88),
}
"""Landlock does not know these, and a path cannot be judged here. They change nothing and say that they did, for much that
is honest calls them in passing (`shutil.copy`, `shelve`)."""
ATTRIBUTES: Numbers = {
    "setxattr": (188, 5),
    "lsetxattr": (189, 6),
    "fsetxattr": (190, 7),
    "setxattrat": (463, 463),
    "removexattr": (197, 14),
    "lremovexattr": (198, 15),
    "fremovexattr": (199, 16),
    "removexattrat": (466, 466),
    "file_setattr": (469, 469),
}
SOCKETS: Numbers = {"socket": (41, 198)}
TRUNCATE: Numbers = {"truncate": (76, 45)}
TO_ITSELF: Numbers = {"kill": (62, 129), "tgkill": (234, 131)}
"""Whose first argument must be the process."""
OF_ITSELF: Numbers = {
    "prlimit64": (302, 261),
    "sched_setparam": (142, 118),
    "sched_setscheduler": (144, 119),
    "sched_setaffinity": (203, 122),
    "sched_setattr": (314, 274),
}
"""Whose first argument must be the process, or 0, which is the process too."""
HIDING: Numbers = {"clone3": (435, 435)}
OPENING: dict[str, tuple[int | None, int | None, int]] = {"open": (2, None, 1), "openat": (257, 56, 2)}
"""With the place of the flags among the arguments."""
OPENING_HIDDEN: Numbers = {"openat2": (437, 437)}
COMMANDS: dict[str, tuple[int, int, int, tuple[int, ...]]] = {
    "fcntl": (72, 25, 1, (8, 10, 15, 1024)),
    "ioctl": (16, 29, 1, (0x8901, 0x8902, 0x5412)),
    "prctl": (157, 167, 0, (1, 62)),
}
"""With the place of the command, and those refused: F_SETOWN, F_SETSIG, F_SETOWN_EX and F_SETLEASE, by which another
process is signalled or kept waiting; FIOSETOWN, SIOCSPGRP and TIOCSTI; PR_SET_PDEATHSIG and PR_SCHED_CORE."""
_CLONE: Numbers = {"clone": (56, 220)}

_ALLOWED = (_RETURN, 0, 0, _ALLOW)
_REFUSED = (_RETURN, 0, 0, _REFUSE | errno.EPERM)
_PRETENDED = (_RETURN, 0, 0, _REFUSE | 0)
_ABSENT = (_RETURN, 0, 0, _REFUSE | errno.ENOSYS)


def has_filter() -> bool:
    """Whether `filter_calls` knows this machine."""
    return sys.platform == "linux" and sys.maxsize > 2**32 and platform.machine() in MACHINES


def filter_calls(*, sockets: bool, truncation: bool) -> None:
    """Bind this process and all its threads from here on.

    `sockets`: whether they are allowed. `truncation`: whether emptying a file by its path is left to Landlock.
    """
    bind(program(MACHINES[platform.machine()], os.getpid(), sockets=sockets, truncation=truncation))


def bind(lines: list[Line]) -> None:
    """Have the kernel ask these before every call of this process."""
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *line) for line in lines))
    header = ctypes.create_string_buffer(struct.pack("@HP", len(lines), ctypes.addressof(code)))
    _checked(_libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0), "prctl(PR_SET_NO_NEW_PRIVS)")
    _checked(_libc.prctl(_SET_SECCOMP, _FILTER, header, 0, 0), "prctl(PR_SET_SECCOMP)")


def program(machine: Machine, pid: int, *, sockets: bool, truncation: bool) -> list[Line]:
    """The filter for the process `pid`. Every branch ends in a verdict of its own."""
    lines: list[Line] = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUAL, 1, 0, machine.audit),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER),
        (_AT_LEAST, 0, 1, _X32),
        _REFUSED,
    ]
    never = PROCESSES | LASTING | ATTRIBUTES | ({} if sockets else SOCKETS) | ({} if truncation else TRUNCATE)
    for number in _of(never, machine):
        lines += [(_EQUAL, 0, 1, number), _REFUSED]
    for number in _of(MODES, machine):
        lines += [(_EQUAL, 0, 1, number), _PRETENDED]
    for number in _of(HIDING if truncation else HIDING | OPENING_HIDDEN, machine):
        lines += [(_EQUAL, 0, 1, number), _ABSENT]  # libraries go back to the older call
    for number in _of(TO_ITSELF, machine):
        lines += _when(number, [_load(0), (_EQUAL, 0, 1, pid), _ALLOWED, _REFUSED])
    for number in _of(OF_ITSELF, machine):
        lines += _when(number, [_load(0), (_EQUAL, 1, 0, 0), (_EQUAL, 0, 1, pid), _ALLOWED, _REFUSED])
    for *numbers, place, commands in COMMANDS.values():
        unlike = [line for command in commands for line in ((_EQUAL, 0, 1, command), _REFUSED)]
        lines += _when(numbers[machine.column], [_load(place), *unlike, _ALLOWED])
    if not truncation:
        lines += _no_truncation(machine)
    (clone,) = _of(_CLONE, machine)
    lines += _when(clone, [_load(0), (_ANY_BIT, 0, 1, _THREAD), _ALLOWED, _REFUSED])
    return [*lines, _ALLOWED]


def _no_truncation(machine: Machine) -> list[Line]:
    """A file that is opened to be read, and emptied by that, passes for one that is read."""
    lines: list[Line] = []
    for *numbers, place in OPENING.values():
        number = numbers[machine.column]
        if number is not None:
            judged = [(_AND, 0, 0, _TRUNCATES | _ACCESS_MODE), (_EQUAL, 0, 1, _TRUNCATES | _ONLY_READS), _REFUSED]
            lines += _when(number, [_load(place), *judged, _ALLOWED])
    return lines


def _of(numbers: Numbers, machine: Machine) -> list[int]:
    found = (row[machine.column] for row in numbers.values())
    return [number for number in found if number is not None]


def _when(number: int, judged: list[Line]) -> list[Line]:
    return [(_EQUAL, 0, len(judged), number), *judged]


def _load(place: int) -> Line:
    """The low half of an argument: as much as a number of a process or a command has."""
    return (_LOAD, 0, 0, _ARGUMENTS + 8 * place)


def _checked(returned: int, call: str) -> None:
    if returned != 0:
        raise OSError(ctypes.get_errno(), f"{call} failed: {os.strerror(ctypes.get_errno())}")
