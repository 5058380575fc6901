"""Everything that differs between Linux, macOS and Windows.

No other module imports ``fcntl``, ``resource``, ``ctypes`` or ``msvcrt``, reads ``/proc``, or uses
a name of ``os`` that some systems lack; the sandbox of Linux is in
:mod:`eaglenet.video.confinement`. Each function works on every system; its docstring says what
happens where a feature is missing. Importing this module loads only the standard library.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

PROC = Path("/proc")
CONTROL_GROUPS = Path("/sys/fs/cgroup")
THREADS_VARIABLE = "OMP_NUM_THREADS"
STORE_VARIABLE = "EAGLENET_STORE"
"""Environment variable that names the default store."""
CACHE_VARIABLE = "EAGLENET_CACHE"
PURGE_DELAY_MS = 1000
WATCHDOG_SECONDS = 0.2
WATCHDOG_EXIT_CODE = 120
"""Exit code of a process that a watchdog ended."""
REPLACE_SECONDS = 2.0
"""Seconds for which a rename waits for programs that have the target open (Windows)."""


def read_proc(name: str) -> str | None:
    """Return the text of ``/proc/NAME``; None on systems without it."""
    try:
        return (PROC / name).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None


def _import_resource() -> ModuleType | None:
    try:
        import resource
    except ImportError:  # Windows
        return None
    return resource


@functools.cache
def _libc_function(name: str) -> Any | None:
    """Return a function of the C library; None if it does not have it."""
    try:
        return getattr(ctypes.CDLL(None, use_errno=True), name, None)
    except (OSError, TypeError):  # Windows
        return None


# Processors


def num_cores() -> int:
    """Return the number of processors that this process may keep busy, at least 1.

    Respects ``taskset`` and the CPU quota of a container (``docker run --cpus 2``). On systems
    without them, all processors of the machine count.
    """
    if hasattr(os, "sched_getaffinity"):
        count = len(os.sched_getaffinity(0))
    else:
        count = os.cpu_count() or 1
    return max(1, math.ceil(min(count, cpu_quota())))


def cpu_quota() -> float:
    """Return the CPU seconds per second that control groups allow; infinite without a quota."""
    groups = (read_proc("self/cgroup") or "").splitlines()
    quotas = (_group_quota(*line.split(":", 2)) for line in groups if line.count(":") > 1)
    return min(quotas, default=math.inf)


def _group_quota(_: str, controllers: str, group: str) -> float:
    """Return the smallest quota of a group and its parent groups."""
    if not controllers:
        root, files = CONTROL_GROUPS, ["cpu.max"]
    elif "cpu" in controllers.split(","):
        root, files = CONTROL_GROUPS / controllers, ["cpu.cfs_quota_us", "cpu.cfs_period_us"]
        if not root.is_dir():
            root = CONTROL_GROUPS / "cpu"
    else:
        return math.inf
    # In a container, the name may be a path in the host's tree, while the container sees its own
    # subtree as the root. Folders that do not exist set no limit.
    inner = root / group.strip("/")
    folders = [inner, *inner.parents][: len(inner.parts) - len(root.parts) + 1]
    return min(_read_quota(folder, files) for folder in folders)


def _read_quota(folder: Path, names: Sequence[str]) -> float:
    """Return quota / period of a group; "max" and -1 mean no limit."""
    try:
        values = [v for name in names for v in (folder / name).read_text(encoding="ascii").split()]
    except (OSError, ValueError):
        return math.inf
    if len(values) != 2 or not all(value.isdecimal() for value in values):
        return math.inf
    quota, period = (int(value) for value in values)
    return quota / period if quota and period else math.inf


# Settings that torch reads when it is imported


def limit_threads() -> None:
    """Limit torch's threads to the CPU quota, unless ``OMP_NUM_THREADS`` is set.

    Torch respects ``taskset`` but not quotas. Call before importing torch.
    """
    if cpu_quota() < math.inf:
        os.environ.setdefault(THREADS_VARIABLE, str(num_cores()))


def keep_freed_memory() -> None:
    """Let torch's allocator reuse freed memory for a second before returning it to the system.

    By default mimalloc returns memory after 10 ms. An encoder frees and requests the same megabytes
    in every step, and the system clears them page by page, which takes 10% of the encoding time of
    `small` in int8 (``benchmarks/film.py``). Child processes inherit the setting; a value set by
    the user stays. Call before importing torch.
    """
    os.environ.setdefault("MIMALLOC_PURGE_DELAY", str(PURGE_DELAY_MS))


def enable_mps_fallback(system: str = sys.platform) -> None:
    """Let torch run operators that Metal lacks on the CPU. Call before importing torch."""
    if system == "darwin":
        os.environ.setdefault("PYTORCH_ENABLE_MPS_FALLBACK", "1")


# Limits of this process


ADDRESSES = 64 * 2**30
"""Bytes of address space beyond the memory limit, for what allocators and threads reserve. Its page
tables take up to a 512th of it, even if it is never written, and count as memory of no process."""


def limit_memory(extra: int, *, limits_addresses: bool = True) -> bool:
    """Limit this process to ``extra`` bytes more than it uses now; False if it is not limited.

    Linux: allocations beyond the limit fail. macOS and other Unix systems: a watchdog ends the
    process. Windows: no limit.

    limits_addresses: limit address space, too; False for GPU drivers, which reserve terabytes.
    """
    resource = _import_resource()
    if resource is None:
        return False
    statm = read_proc("self/statm")
    if statm is not None:
        addresses, *_, data, _ = (int(pages) * resource.getpagesize() for pages in statm.split())
        _lower_limit(resource, resource.RLIMIT_DATA, data + extra)
        if limits_addresses:
            _lower_limit(resource, resource.RLIMIT_AS, addresses + extra + ADDRESSES)
        return True
    limit = _peak_resident_bytes(resource) + extra
    _exit_when(lambda: _peak_resident_bytes(resource) > limit)
    return True


def _lower_limit(resource: ModuleType, kind: int, value: int) -> None:
    """Set a hard limit, unless it is lower already."""
    hard = resource.getrlimit(kind)[1]
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(kind, (value, value))


def _peak_resident_bytes(resource: ModuleType) -> int:
    unit = 1 if sys.platform == "darwin" else 1024
    return int(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) * unit


MAX_DESCRIPTORS = 64
"""Open files of a decoder process: sockets, those of libraries, and a few readers of a video."""


def limit_process(
    *,
    can_start: bool = True,
    cpu_seconds: int | None = None,
    descriptors: int = MAX_DESCRIPTORS,
) -> None:
    """Forbid writing files and dumping memory, and limit open descriptors. Windows: no effect.

    can_start: False refuses new processes and threads, except to root.
    cpu_seconds: CPU time after which the process is killed (Windows: by a watchdog).
    """
    resource = _import_resource()
    if resource is None:
        if cpu_seconds is not None:
            _exit_when(lambda: time.process_time() > cpu_seconds)
        return
    limits = {"FSIZE": 0, "CORE": 0, "NOFILE": descriptors}
    if not can_start:
        limits["NPROC"] = 0
    if cpu_seconds is not None:
        limits["CPU"] = cpu_seconds
    for name, value in limits.items():
        kind = getattr(resource, f"RLIMIT_{name}", None)
        if kind is not None:
            _lower_limit(resource, kind, value)


def raise_descriptor_limit() -> int:
    """Raise the limit on open descriptors as far as the system allows, and return it."""
    resource = _import_resource()
    if resource is None:
        return 65_536
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    target = 65_536 if hard == resource.RLIM_INFINITY else hard
    if soft != resource.RLIM_INFINITY and soft < target:
        resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))
        return int(target)
    return 65_536 if soft == resource.RLIM_INFINITY else int(soft)


def lower_priority() -> None:
    """Give other processes precedence. Windows: no effect."""
    if hasattr(os, "nice"):
        os.nice(5)


def exit_with_parent(parent: int) -> None:
    """End this process when the process ``parent`` ends, even if it is killed.

    Linux: the kernel kills this process when the *thread* that started it ends. Other systems: a
    watchdog ends it within a fraction of a second.
    """
    prctl = _libc_function("prctl") if sys.platform == "linux" else None
    if prctl is None or prctl(1, _KILL) != 0:  # 1: PR_SET_PDEATHSIG
        _exit_when(_parent_check(parent))
    elif os.getppid() != parent:  # The parent ended before prctl.
        os._exit(1)


def _parent_check(parent: int) -> Callable[[], bool]:
    if sys.platform == "win32":
        # getppid() returns the number of a parent that has ended, too, so watch its handle.
        kernel = ctypes.WinDLL("kernel32")
        kernel.OpenProcess.restype = ctypes.c_void_p
        handle = kernel.OpenProcess(0x0010_0000, False, parent)  # SYNCHRONIZE
        if not handle:
            return lambda: True
        return lambda: kernel.WaitForSingleObject(ctypes.c_void_p(handle), 0) == 0
    return lambda: os.getppid() != parent


def _exit_when(is_over: Callable[[], bool]) -> None:
    """Start a watchdog thread that ends this process once ``is_over()`` is true."""

    def watch() -> None:
        while not is_over():
            time.sleep(WATCHDOG_SECONDS)
        os._exit(WATCHDOG_EXIT_CODE)

    threading.Thread(target=watch, name="watchdog", daemon=True).start()


# Other processes

_KILL = getattr(signal, "SIGKILL", signal.SIGTERM)
"""On Windows, SIGTERM ends a process at once."""


def kill_process(pid: int) -> None:
    """End a process at once; no effect if it has ended already."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, _KILL)


def inheriting(handles: Sequence[int]) -> dict[str, Any]:
    """Return the options of ``subprocess.Popen`` that let a child inherit ``handles``.

    Handles are file descriptors; on Windows, handles of the system.
    """
    if sys.platform == "win32":
        import subprocess

        for handle in handles:
            os.set_handle_inheritable(handle, True)
        startup = subprocess.STARTUPINFO()
        startup.lpAttributeList = {"handle_list": list(handles)}
        return {"startupinfo": startup}
    return {"pass_fds": tuple(handles)}


def descriptor_to_handle(descriptor: int) -> int:
    """Return the handle of an open file, for a child process that inherits it."""
    if sys.platform == "win32":
        import msvcrt

        return msvcrt.get_osfhandle(descriptor)
    return descriptor


def handle_to_descriptor(handle: int) -> int:
    """Return the descriptor of an inherited file; inverse of :func:`descriptor_to_handle`."""
    if sys.platform == "win32":
        import msvcrt

        return msvcrt.open_osfhandle(handle, os.O_RDONLY)
    return handle


# Files

_OPEN_FLAGS = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
_NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0)
# Without O_NONBLOCK, opening a fifo waits for a writer.
_READ_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | _OPEN_FLAGS


def open_for_reading(path: str | Path) -> int:
    """Open a file and return its descriptor; does not block on a fifo."""
    return os.open(path, _READ_FLAGS)


def open_for_locking(path: Path, *, mode: int = 0o644, create: bool = True) -> int:
    """Open a lock file for reading and writing. Windows: may be a symbolic link."""
    return os.open(path, os.O_RDWR | (os.O_CREAT if create else 0) | _NO_FOLLOW | _OPEN_FLAGS, mode)


def open_beneath(root: str, parts: Sequence[str]) -> int:
    """Open ``root/part/part/...`` for reading without following a symbolic link.

    Linux and macOS: opens part by part, so a part replaced by a link meanwhile is an error.
    Windows: checks the path again after opening.
    """
    folder_flag = getattr(os, "O_DIRECTORY", 0)
    if not (folder_flag and _NO_FOLLOW and os.open in os.supports_dir_fd):
        return _open_and_check(root, parts)
    flags = _READ_FLAGS | _NO_FOLLOW
    descriptor = os.open(root, flags | (folder_flag if parts else 0))
    for number, part in enumerate(parts, 1):
        above = descriptor
        try:
            is_folder = number < len(parts)
            descriptor = os.open(part, flags | (folder_flag if is_folder else 0), dir_fd=above)
        finally:
            os.close(above)
    return descriptor


def _open_and_check(root: str, parts: Sequence[str]) -> int:
    path = os.path.join(root, *parts)
    descriptor = os.open(path, _READ_FLAGS)
    try:
        steps = (os.path.join(root, *parts[:count]) for count in range(1, len(parts) + 1))
        if any(os.path.islink(step) for step in steps):
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
        if not os.path.samestat(os.fstat(descriptor), os.stat(path)):
            raise OSError(errno.ESTALE, "changed while it was opened", path)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def opened_path(descriptor: int, path: str) -> str:
    """Return the real path of a file that was opened as ``path``.

    Linux: the path of the descriptor. Other systems: ``path`` is resolved again; if it now leads to
    another file, the result is empty.
    """
    try:
        return os.readlink(PROC / "self" / "fd" / str(descriptor))
    except OSError:
        real = os.path.realpath(path)
        try:
            is_same = os.path.samestat(os.stat(real), os.fstat(descriptor))
        except OSError:
            is_same = False
        return real if is_same else ""


def read_at(descriptor: int, size: int, offset: int) -> bytes:
    """Return up to ``size`` bytes at ``offset``; safe to call from several threads."""
    if hasattr(os, "pread"):
        return os.pread(descriptor, size, offset)
    with _POSITION_LOCK:
        os.lseek(descriptor, offset, os.SEEK_SET)
        return os.read(descriptor, size)


def read_into(descriptor: int, buffer: memoryview, offset: int) -> int:
    """Read bytes at ``offset`` into ``buffer`` and return their number."""
    if hasattr(os, "preadv"):
        return os.preadv(descriptor, [buffer], offset)
    content = read_at(descriptor, len(buffer), offset)
    buffer[: len(content)] = content
    return len(content)


_POSITION_LOCK = threading.Lock()


def disk_bytes(status: os.stat_result) -> int:
    """Return the bytes that a file takes on disk. Windows: its length."""
    blocks = getattr(status, "st_blocks", None)
    return status.st_size if blocks is None else blocks * 512


def is_own_file(status: os.stat_result) -> bool:
    """Return whether the current user owns a file. Windows: always true."""
    return not hasattr(os, "getuid") or status.st_uid == os.getuid()


def sync(path: Path) -> None:
    """Flush a file, or the entries of a folder, to the disk. Windows: folders need no sync."""
    if sys.platform == "win32":
        if path.is_dir():
            return
        descriptor = os.open(path, os.O_RDWR | _OPEN_FLAGS)
    else:
        descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace(source: Path, target: Path) -> None:
    """Rename ``source`` to ``target``, atomically replacing a file of that name.

    Windows: refused while a program, such as a virus scanner, has the target open; retried for
    ``REPLACE_SECONDS``.
    """
    deadline = time.monotonic() + REPLACE_SECONDS
    while True:
        try:
            source.replace(target)
            return
        except PermissionError:
            if os.name != "nt" or time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def swap_folders(first: Path, second: Path) -> None:
    """Exchange two folders. Linux: atomically. Other systems: with three renames."""
    exchange = _libc_function("renameat2")
    here = -100  # AT_FDCWD
    names = (here, os.fsencode(first), here, os.fsencode(second))
    if exchange is not None:
        if exchange(*names, 2) == 0:  # RENAME_EXCHANGE
            return
        code = ctypes.get_errno()
        if code not in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP):
            raise OSError(code, os.strerror(code), str(first))
    aside = second.with_name(f".{second.name}.{os.getpid()}.aside")
    replace(second, aside)
    replace(first, second)
    replace(aside, first)


# Paths


def is_below(path: str, root: str, flavour: Any = os.path) -> bool:
    r"""Return whether ``path`` lies inside the folder ``root``; both absolute.

    flavour: ``posixpath`` or ``ntpath``; the latter ignores case.

    >>> is_below("/videos/a.mp4", "/videos"), is_below("/videos2/a.mp4", "/videos")
    (True, False)
    """
    path, root = flavour.normcase(path), flavour.normcase(root)
    return bool(path.startswith(root.rstrip(flavour.sep) + flavour.sep))


def split_below(path: str, root: str, flavour: Any = os.path) -> list[str]:
    """Return the parts of ``path`` that follow ``root``; see :func:`is_below`."""
    tail = path[len(root) :].replace(flavour.altsep or flavour.sep, flavour.sep)
    return [part for part in tail.split(flavour.sep) if part]


def data_folder() -> Path:
    """Return the user's data folder for this program; it may not exist yet."""
    from platformdirs import user_data_path

    return user_data_path("eaglenet", appauthor=False)


def cache_folder() -> Path:
    """Return the folder for copies of remote files; its content may be removed at any time."""
    folder = os.environ.get(CACHE_VARIABLE)
    return Path(os.path.expanduser(folder)) if folder else data_folder() / "cache"


def default_store() -> str:
    """Return the default store: ``EAGLENET_STORE``, or ``store`` in the data folder."""
    return os.environ.get(STORE_VARIABLE) or str(data_folder() / "store")
