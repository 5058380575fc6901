"""Confinement of the current process, so that a vulnerability in a decoder has no effect (Linux).

    problems = [
        drop_capabilities(),
        restrict_files(),                       # Landlock: no file, no network, no signals
        restrict_system_calls(threads=False),   # seccomp: a list of allowed system calls
    ]

A confined process can compute, use the descriptors that it has, and exit. It cannot open a file,
not even by a path in ``/proc``, or start a program, process or connection. Each function returns
None, or the reason why the kernel does not provide it, and needs no root. Import all modules first,
and start no thread before: Landlock confines only the thread that calls it and its children.

System call numbers are from the kernel's ``unistd.h`` of x86-64 and of arm64.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import os
import platform
import stat
import struct
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple


def is_supported() -> bool:
    """Return whether this system has the interfaces used here; the kernel may still lack some."""
    if sys.platform != "linux" or not hasattr(os, "fork"):
        return False
    return hasattr(ctypes.CDLL(None), "prctl")


# Landlock: include/uapi/linux/landlock.h

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_PATH_BENEATH = 1
_WRITE_FILE, _READ_FILE, _READ_FOLDER, _DEVICE_COMMANDS = 1 << 1, 1 << 2, 1 << 3, 1 << 15
_ABI_VERSION = 1
_FILE_RIGHTS = {1: 13, 2: 14, 3: 15, 5: 16}
"""Number of file access rights, by the first version that has as many."""
_NETWORK_SINCE, _SCOPE_SINCE = 4, 6


def landlock_version() -> int:
    """Return the kernel's version of Landlock; 0 if it has none."""
    if sys.platform != "linux":
        return 0
    version = _system_call(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(_ABI_VERSION))
    return max(int(version), 0)


class FileStatus(NamedTuple):
    """Part of the status of a file, with the names of ``os.stat_result``."""

    st_dev: int
    st_ino: int
    st_mode: int
    st_size: int
    st_mtime_ns: int
    st_ctime_ns: int


def descriptor_status(descriptor: int) -> FileStatus:
    """Return the status of an open file, in confined processes, too.

    ``fstat`` of glibc 2.33 to 2.38 makes a system call that takes a path, so it can inspect any
    file. A confined process may not make it.
    """
    table = _TABLES.get(platform.machine())
    if sys.platform != "linux" or table is None:
        status = os.fstat(descriptor)
        return FileStatus(*(getattr(status, name) for name in FileStatus._fields))
    content = ctypes.create_string_buffer(256)
    if _system_call(table.numbers["fstat"], descriptor, content) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    device, inode = struct.unpack_from("=2Q", content)
    (mode,) = struct.unpack_from("=I", content, table.mode_offset)
    (size,) = struct.unpack_from("=q", content, 48)
    times = struct.unpack_from("=6q", content, 72)  # Accessed, modified, changed.
    mtime, ctime = (seconds * 10**9 + rest for seconds, rest in (times[2:4], times[4:6]))
    return FileStatus(device, inode, mode, size, mtime, ctime)


def restrict_files(*, readable: Sequence[str] = (), devices: Sequence[str] = ()) -> str | None:
    """Forbid opening files, TCP connections, and signals to other processes.

    Files and folders in ``readable`` can still be read, and ``devices`` used; missing ones are
    ignored. Rights that newer versions of Landlock add stay allowed.
    """
    version = landlock_version()
    if not version:
        return "the kernel has no Landlock (Linux 5.13 or newer, listed in its lsm= setting)"
    rights = max(count for since, count in _FILE_RIGHTS.items() if since <= version)
    attributes = [(1 << rights) - 1]
    if version >= _NETWORK_SINCE:
        attributes.append(0b11)  # Bind and connect TCP.
    if version >= _SCOPE_SINCE:
        attributes.append(0b11)  # Abstract Unix sockets and signals.
    content = struct.pack(f"={len(attributes)}Q", *attributes)
    ruleset = _system_call(
        _CREATE_RULESET, content, ctypes.c_size_t(len(content)), ctypes.c_uint32(0)
    )
    if ruleset < 0:
        return f"Landlock refused the rules ({_error()})"
    try:
        for path in readable:
            _allow(ruleset, path, _READ_FILE | _READ_FOLDER)
        commands = _DEVICE_COMMANDS & attributes[0]
        for path in devices:
            _allow(ruleset, path, _READ_FILE | _WRITE_FILE | commands)
        if _forbid_new_privileges() or _system_call(_RESTRICT_SELF, ruleset, 0) != 0:
            return f"Landlock could not be applied ({_error()})"
    finally:
        os.close(ruleset)
    return None


def _allow(ruleset: int, path: str, rights: int) -> None:
    """Allow access to a file, or to all files below a folder."""
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
            rights &= ~_READ_FOLDER
        rule = struct.pack("=Qi", rights, descriptor)
        _system_call(_ADD_RULE, ruleset, _PATH_BENEATH, rule, 0)
    finally:
        os.close(descriptor)


def drop_capabilities() -> str | None:
    """Drop the capabilities of root, if the process has them."""
    table = _TABLES.get(platform.machine())
    if sys.platform != "linux" or table is None:
        return "capabilities cannot be dropped on this system"
    header = struct.pack("=Ii", 0x2008_0522, 0)  # _LINUX_CAPABILITY_VERSION_3, this process
    if _system_call(table.numbers["capset"], header, bytes(24)) != 0:
        return f"capabilities could not be dropped ({_error()})"
    return None


# seccomp: include/uapi/linux/seccomp.h and filter.h


class _Table(NamedTuple):
    """System call numbers of a processor architecture."""

    architecture: int
    numbers: dict[str, int]
    mode_offset: int
    """Bytes before the mode in the kernel's ``struct stat``."""


_CALLS = """
read 0 63, pread64 17 67, futex 202 98, write 1 64, mmap 9 222, munmap 11 215,
madvise 28 233, mprotect 10 226, brk 12 214, lseek 8 62, readv 19 65, writev 20 66,
preadv 295 69, preadv2 327 286, mremap 25 216, recvmsg 47 212, recvfrom 45 207,
sendto 44 206, poll 7 -1, ppoll 271 73, select 23 -1, pselect6 270 72, close 3 57, dup 32 23,
fcntl 72 25, fstat 5 80, rt_sigaction 13 134, rt_sigprocmask 14 135,
rt_sigreturn 15 139, sigaltstack 131 132, restart_syscall 219 128, sched_yield 24 124,
sched_getaffinity 204 123, getcpu 309 168, membarrier 324 283, rseq 334 293,
clock_gettime 228 113, clock_getres 229 114, clock_nanosleep 230 115, nanosleep 35 101,
gettimeofday 96 169, times 100 153, getrusage 98 165, getrandom 318 278, getpid 39 172,
getppid 110 173, gettid 186 178, getuid 102 174, geteuid 107 175, getgid 104 176,
getegid 108 177, uname 63 160, sysinfo 99 179, prctl 157 167, prlimit64 302 261, ioctl 16 29,
tgkill 234 131, clone 56 220, clone3 435 435, set_robust_list 273 99, exit 60 93,
exit_group 231 94, capset 126 91, seccomp 317 277
"""
"""Allowed calls with their numbers on x86-64 and arm64; -1 if there is none. Frequent calls come
first, since the filter compares one after the other. The last two are refused."""

_DEVICE_CALLS = """
openat 257 56, open 2 -1, access 21 -1, faccessat 269 48, readlink 89 -1, readlinkat 267 78,
stat 4 -1, lstat 6 -1, statx 332 291, getdents64 217 61, eventfd2 290 19, pipe2 293 59,
mlock 149 228, munlock 150 229, memfd_create 319 279, ftruncate 77 46, mbind 237 235,
get_mempolicy 239 236, set_mempolicy 238 237, sched_setaffinity 203 122, socketpair 53 199,
fadvise64 221 223, newfstatat 262 79
"""
"""Further calls of a driver that opens devices. Landlock limits the files that the calling thread
may open; threads started earlier may open any file of the user, but create none."""


def _numbers(column: int, calls: str = _CALLS) -> dict[str, int]:
    rows = (row.split() for row in calls.split(","))
    return {row[0]: int(row[column]) for row in rows}


_TABLES = {
    "x86_64": _Table(0xC000_003E, _numbers(1), 24),
    "aarch64": _Table(0xC000_00B7, _numbers(2), 16),
}
"""Tables by ``platform.machine()``, with the kernel's AUDIT_ARCH number."""

_ALLOW, _KILL, _ERRNO = 0x7FFF_0000, 0x8000_0000, 0x0005_0000
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _MASK, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06
_X32_BIT = 0x4000_0000
_PROT_EXEC = 4
_MAP_PRIVATE, _MAP_GROWSDOWN = 0x02, 0x100
_MAP_KIND = 0x0F | _MAP_GROWSDOWN
"""mmap: RLIMIT_DATA does not count shared memory and growing stacks."""
_FILE_COMMANDS = (0, 1, 2, 3, 4, 1030)
"""fcntl: duplicate, and read or set flags. F_SETOWN could signal other processes."""
_THREAD_FLAGS = 0x0001_0D00
"""CLONE_THREAD, CLONE_SIGHAND, CLONE_FILES and CLONE_VM, which make a thread, not a process."""
_PR_SET_NAME = 15
_O_CREAT, _O_TRUNC, _O_TMPFILE = 0o100, 0o1000, 0o20000000
_TYPE_INTO_TERMINAL, _SOCKET_COMMANDS = 0x5412, 0x8900
"""ioctl: TIOCSTI, and the group SIOC..., which reads and changes network settings."""

_THIS_PROCESS = 0x7FFF_FFFF
"""Stands for the number of the confined process, which may not exist yet; none has this number."""

_INSTRUCTION = struct.Struct("=HBBI")
Instruction = tuple[int, int, int, int]
"""Code, jump if true, jump if false, operand. Jumps count instructions."""


def _argument(number: int, *, high: bool = False) -> Instruction:
    """Load half of a system call argument; both architectures are little-endian."""
    return (_LOAD, 0, 0, 16 + 8 * number + 4 * high)


def _refusal(code: int) -> Instruction:
    return (_RETURN, 0, 0, _ERRNO | code)


_REFUSE_OR_ALLOW = [_refusal(errno.EPERM), (_RETURN, 0, 0, _ALLOW)]
"""End of a condition: a jump over the first instruction allows the call."""


def _only_if(number: int, values: Sequence[int]) -> list[Instruction]:
    """Allow the call if the low half of an argument has one of these values."""
    tests = [(_EQUAL, len(values) - index, 0, value) for index, value in enumerate(values)]
    return [_argument(number), *tests, *_REFUSE_OR_ALLOW]


def _is_null(number: int) -> list[Instruction]:
    """Allow the call if a pointer is null."""
    return [
        _argument(number),
        (_EQUAL, 0, 2, 0),
        _argument(number, high=True),
        (_EQUAL, 1, 0, 0),
        *_REFUSE_OR_ALLOW,
    ]


def _keeps_files(number: int) -> list[Instruction]:
    """Allow the call if its flags neither create nor empty a file."""
    return [
        _argument(number),
        (_ANY_BIT, 0, 1, _O_CREAT | _O_TRUNC | _O_TMPFILE),
        *_REFUSE_OR_ALLOW,
    ]


def build_filter(machine: str, *, threads: bool, devices: bool = False) -> list[Instruction]:
    """Return the filter of system calls; ``machine`` as in ``platform.machine()``."""
    architecture, numbers, _ = _TABLES[machine]
    not_executable = [_argument(2), (_ANY_BIT, 0, 1, _PROT_EXEC), *_REFUSE_OR_ALLOW]
    private_memory = [
        *not_executable[:-1],
        _argument(3),
        (_MASK, 0, 0, _MAP_KIND),
        (_EQUAL, 1, 0, _MAP_PRIVATE),
        *_REFUSE_OR_ALLOW,
    ]
    no_stack = [
        *not_executable[:-1],
        _argument(3),
        (_ANY_BIT, 0, 1, _MAP_GROWSDOWN),
        *_REFUSE_OR_ALLOW,
    ]
    new_thread = [
        _argument(0),
        (_MASK, 0, 0, _THREAD_FLAGS),
        (_EQUAL, 1, 0, _THREAD_FLAGS),
        *_REFUSE_OR_ALLOW,
    ]
    conditions = {
        # A driver shares memory with its device, and uses other shared memory.
        "mmap": no_stack if devices else private_memory,
        "mprotect": not_executable,
        "fcntl": _only_if(1, _FILE_COMMANDS),
        "sendto": _is_null(4),  # No address: only sockets that are connected already.
        "prlimit64": _is_null(2),  # Reading limits.
        "prctl": _only_if(0, [_PR_SET_NAME]),
        "tgkill": _only_if(0, [_THIS_PROCESS]),  # abort() signals the process itself.
        "ioctl": [_refusal(errno.ENOTTY)],
        "clone": new_thread if threads else [_refusal(errno.EPERM)],
        # A filter cannot see its flags, which are in memory. C libraries then call clone.
        "clone3": [_refusal(errno.ENOSYS)],
        "capset": [_refusal(errno.EPERM)],
        "seccomp": [_refusal(errno.EPERM)],
    }
    if devices:
        conditions["ioctl"] = [
            _argument(1),
            (_EQUAL, 2, 0, _TYPE_INTO_TERMINAL),
            (_MASK, 0, 0, 0xFF00),
            (_EQUAL, 0, 1, _SOCKET_COMMANDS),
            _refusal(errno.ENOTTY),
            (_RETURN, 0, 0, _ALLOW),
        ]
        conditions["openat"], conditions["open"] = _keeps_files(2), _keeps_files(1)
        numbers = {**numbers, **_numbers(1 if machine == "x86_64" else 2, _DEVICE_CALLS)}
    program: list[Instruction] = [
        (_LOAD, 0, 0, 4),
        (_EQUAL, 1, 0, architecture),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, 0),
    ]
    if machine == "x86_64":
        # The same calls under other numbers, with 32-bit pointers.
        program += [(_AT_LEAST, 0, 1, _X32_BIT), _refusal(errno.EPERM)]
    for name, number in numbers.items():
        if number >= 0:
            body = conditions.get(name, [(_RETURN, 0, 0, _ALLOW)])
            program += [(_EQUAL, 0, len(body), number), *body]
    return [*program, _refusal(errno.EPERM)]


@functools.cache
def pack_filter(*, threads: bool, devices: bool = False) -> bytes | None:
    """Return a filter for any process, or None if there is no list of system calls.

    Called before a fork, it saves the forked process a part of the millisecond that this takes.
    """
    machine = platform.machine()
    if sys.platform != "linux" or machine not in _TABLES:
        return None
    instructions = build_filter(machine, threads=threads, devices=devices)
    return b"".join(_INSTRUCTION.pack(*each) for each in instructions)


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


_SET_FILTER = 1
_ALL_THREADS = 1
_KEEP_SPECULATION = 4
"""Without it, kernels before 5.16 disable speculative stores, which slows decoding down."""


def restrict_system_calls(*, threads: bool, devices: bool = False) -> str | None:
    """Allow only the system calls that computing needs, in all threads.

    threads: allow new threads. devices: allow the further calls of a driver that opens devices.
    """
    content = pack_filter(threads=threads, devices=devices)
    if content is None:
        return f"no list of system calls for {sys.platform} on {platform.machine()}"
    content = content.replace(struct.pack("=I", _THIS_PROCESS), struct.pack("=I", os.getpid()))
    program = _Program(len(content) // _INSTRUCTION.size, content)
    if _forbid_new_privileges():
        return f"new privileges could not be forbidden ({_error()})"
    number = _TABLES[platform.machine()].numbers["seccomp"]
    for flags in (_ALL_THREADS | _KEEP_SPECULATION, _ALL_THREADS):
        if _system_call(number, _SET_FILTER, flags, ctypes.byref(program)) == 0:
            return None
    return f"the kernel refused the seccomp filter ({_error()})"


def confine() -> None:
    """Confine this process as far as the kernel allows; it may still start threads."""
    drop_capabilities()
    restrict_files()
    restrict_system_calls(threads=True)


def _forbid_new_privileges() -> int:
    """Forbid new privileges to this process and its children, as both mechanisms require."""
    return int(_libc().prctl(38, 1, 0, 0, 0))  # PR_SET_NO_NEW_PRIVS


@functools.cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _system_call(number: int, *arguments: Any) -> int:
    call = _libc().syscall
    call.restype = ctypes.c_long
    return int(call(ctypes.c_long(number), *arguments))


def _error() -> str:
    return os.strerror(ctypes.get_errno())
