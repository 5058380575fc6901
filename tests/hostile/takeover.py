"""Code that a hostile file could run in its worker, after the worker has been confined."""

from __future__ import annotations

import ctypes
import math
import mmap
import os
import pickle
import platform
import socket
import stat
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eaglenet.core.frame_spec import Splitting
from eaglenet.indexing.files import CandidateFile
from eaglenet.indexing.inspection import EmbeddedSubtitles, Inspection, inspect
from eaglenet.indexing.recognition import AudioChunk, ChunkRequest
from eaglenet.transcripts.lines import TranscriptLine
from eaglenet.transcripts.ocr import DistinctFrame
from eaglenet.video import confinement, worker_host
from eaglenet.video.decoding import DecodedVideo, QueryRequest, decode_query
from eaglenet.video.messages import HEADER, MAGIC
from eaglenet.video.recording import Recording
from eaglenet.video.saving import MomentRequest

libc = ctypes.CDLL(None, use_errno=True)
IS_ARM = platform.machine() == "aarch64"
MEMORY = 2**30
"""Limit of the worker that is taken over."""


@dataclass(frozen=True)
class Target:
    """What the code is after: its name, and a folder with secrets."""

    attack: str
    path: str
    """The worker's own file."""
    folder: str
    parent: int
    port: int


def call(x86: int, arm: int, *arguments: object) -> int:
    """Make a system call by its number."""
    result = int(libc.syscall(arm if IS_ARM else x86, *arguments))
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def read_other_file(target: Target) -> None:
    Path(target.folder, "secret").read_bytes()


def read_by_descriptor_path(target: Target) -> None:
    """The worker's own file again, through ``/proc``."""
    for descriptor in range(3, 64):
        if os.path.lexists(f"/proc/self/fd/{descriptor}"):
            os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY)
    raise PermissionError("nothing there")


def read_parent_environment(target: Target) -> None:
    Path(f"/proc/{target.parent}/environ").read_bytes()


def read_parent_memory(target: Target) -> None:
    buffer = ctypes.create_string_buffer(8)
    local = struct.pack("QQ", ctypes.addressof(buffer), 8)
    call(310, 270, target.parent, local, 1, local, 1, 0)


def attach_to_parent(target: Target) -> None:
    call(101, 117, 16, target.parent, 0, 0)  # PTRACE_ATTACH


def signal_parent(target: Target) -> None:
    os.kill(target.parent, 0)


def signal_by_owner(target: Target) -> None:
    import fcntl

    for descriptor in sockets():
        fcntl.fcntl(descriptor, fcntl.F_SETOWN, target.parent)


def list_folder(target: Target) -> None:
    os.listdir(target.folder)


def look_at_file(target: Target) -> None:
    os.stat(Path(target.folder, "secret"))


def look_at_file_like_a_descriptor(target: Target) -> None:
    """The way of glibc 2.33 to 2.38 to ask for the status of a descriptor, with a path instead."""
    path = os.fsencode(Path(target.folder, "secret"))
    call(262, 79, -100, path, ctypes.create_string_buffer(256), 0x1000)  # AT_EMPTY_PATH


def take_memory(flags: int) -> None:
    """Map twice the memory of the limit, without touching it."""
    libc.mmap.restype = ctypes.c_void_p
    readable_and_writable = 3
    arguments = (readable_and_writable, flags | mmap.MAP_ANON, -1, ctypes.c_long(0))
    address = libc.mmap(None, ctypes.c_size_t(2 * MEMORY), *arguments)
    if address == ctypes.c_void_p(-1).value:
        raise OSError(ctypes.get_errno(), "no memory")
    libc.munmap(ctypes.c_void_p(address), ctypes.c_size_t(2 * MEMORY))


def take_private_memory(target: Target) -> None:
    take_memory(mmap.MAP_PRIVATE)


def take_shared_memory(target: Target) -> None:
    take_memory(mmap.MAP_SHARED)


def take_memory_of_a_stack(target: Target) -> None:
    take_memory(mmap.MAP_PRIVATE | 0x100)  # MAP_GROWSDOWN


def take_addresses(target: Target) -> None:
    """Reading them takes tables of pages, which do not count as memory."""
    libc.mmap.restype = ctypes.c_void_p
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANON | 0x4000  # MAP_NORESERVE
    size = ctypes.c_size_t(2**41)
    address = libc.mmap(None, size, mmap.PROT_READ, flags, -1, ctypes.c_long(0))
    if address == ctypes.c_void_p(-1).value:
        raise OSError(ctypes.get_errno(), "no addresses")
    libc.munmap(ctypes.c_void_p(address), size)


def write_file(target: Target) -> None:
    Path(target.folder, "written").write_bytes(b"x")


def write_own_file(target: Target) -> None:
    os.open(target.path, os.O_WRONLY)


def remove_file(target: Target) -> None:
    os.unlink(Path(target.folder, "secret"))


def make_folder(target: Target) -> None:
    os.mkdir(Path(target.folder, "made"))


def make_link(target: Target) -> None:
    os.symlink("/etc/passwd", Path(target.folder, "link"))


def change_mode(target: Target) -> None:
    os.chmod(Path(target.folder, "secret"), 0o777)


def run_program(target: Target) -> None:
    os.execv("/bin/true", ["true"])


def fork(target: Target) -> None:
    if os.fork() == 0:
        os._exit(0)


def fork_by_number(target: Target) -> None:
    if call(57, 220, 17, 0, 0, 0, 0) == 0:  # fork, or clone with SIGCHLD
        os._exit(0)


def clone3(target: Target) -> None:
    call(435, 435, struct.pack("11Q", *[0] * 4, 17, *[0] * 6), 88)


def start_thread(target: Target) -> None:
    threading.Thread(target=time.sleep, args=(0,)).start()


def connect(target: Target) -> None:
    socket.create_connection(("127.0.0.1", target.port), 2)


def listen(target: Target) -> None:
    socket.create_server(("127.0.0.1", 0))


def unix_socket(target: Target) -> None:
    socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)


def socket_pair(target: Target) -> None:
    socket.socketpair()


def send_datagram(target: Target) -> None:
    for descriptor in sockets():
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, fileno=os.dup(descriptor)) as own:
            own.sendto(b"", "\0abstract")


def send_descriptor(target: Target) -> None:
    for descriptor in sockets():
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, fileno=os.dup(descriptor)) as own:
            socket.send_fds(own, [b"x"], [0])


def run_own_code(target: Target) -> None:
    mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)


def make_memory_file(target: Target) -> None:
    os.memfd_create("program")


def new_namespace(target: Target) -> None:
    call(272, 97, 0x1000_0000)  # unshare(CLONE_NEWUSER)


def submit_to_ring(target: Target) -> None:
    call(425, 425, 1, bytes(120))


def raise_limits(target: Target) -> None:
    call(302, 261, 0, 7, struct.pack("QQ", 4096, 4096), 0)  # RLIMIT_NOFILE


def regain_privileges(target: Target) -> None:
    call(126, 91, struct.pack("Ii", 0x2008_0522, 0), b"\xff" * 24)


def type_into_terminal(target: Target) -> None:
    import fcntl

    fcntl.ioctl(0, 0x5412, b"x")  # TIOCSTI


ATTACKS: dict[str, Callable[[Target], None]] = {
    function.__name__: function
    for function in (
        read_other_file, read_by_descriptor_path, read_parent_environment, read_parent_memory,
        attach_to_parent, signal_parent, signal_by_owner, list_folder, look_at_file,
        look_at_file_like_a_descriptor, take_private_memory, take_shared_memory,
        take_memory_of_a_stack, take_addresses, write_file, write_own_file, remove_file,
        make_folder, make_link, change_mode, run_program, fork, fork_by_number, clone3,
        start_thread, connect, listen, unix_socket, socket_pair, send_datagram, send_descriptor,
        run_own_code, make_memory_file, new_namespace, submit_to_ring, raise_limits,
        regain_privileges, type_into_terminal,
    )
}  # fmt: skip


def escape(target: Target) -> str:
    """Try to get out; return what stopped it."""
    try:
        ATTACKS[target.attack](target)
    except (OSError, RuntimeError) as error:  # RuntimeError: no thread can be started.
        return f"refused: {error}"
    return "allowed"


def secrets_in_reach(target: Target) -> list[str]:
    """Environment variables and open descriptors other than the standard ones."""
    kinds = []
    for descriptor in range(64):
        try:
            mode = confinement.descriptor_status(descriptor).st_mode
        except OSError:
            continue
        kinds.append(f"{descriptor} {stat.filemode(mode)[0]}")
    return [*sorted(f"{name}={value}" for name, value in os.environ.items()), *kinds]


def sockets() -> list[int]:
    """Descriptors of the worker's connection: high ones if its parent has many open files."""
    return [number for number in range(3, 4096) if is_socket(number)]


def is_socket(descriptor: int) -> bool:
    try:
        os.get_inheritable(descriptor)  # Refuses thousands of free numbers in a millisecond.
        return stat.S_ISSOCK(confinement.descriptor_status(descriptor).st_mode)
    except OSError:
        return False


def escape_from_layer(connection: Connection, layer: str, targets: list[Target]) -> None:
    "".encode("idna")  # Imported before, as in a worker.
    if layer == "files":
        assert confinement.restrict_files() is None
    else:
        assert confinement.restrict_system_calls(threads=False) is None
    connection.send([escape(target) for target in targets])


def escape_unconfined(connection: Connection, targets: list[Target]) -> None:
    connection.send([escape(target) for target in targets])


def process_number(path: Path) -> int:
    return os.getpid()


@dataclass(frozen=True)
class Sibling:
    """A file, and the process of another one."""

    path: Path
    process: int = 0


@dataclass(frozen=True)
class Surroundings:
    """A process, the host that forked it, and what it can reach."""

    process: int
    host: int
    can_signal: bool
    descriptors: tuple[int, ...]


def look_around(sibling: Sibling) -> Surroundings:
    """Signal another process, and count open descriptors."""
    can_signal = True
    try:
        os.kill(sibling.process or os.getpid(), 0)
    except PermissionError:
        can_signal = False
    return Surroundings(os.getpid(), os.getppid(), can_signal, tuple(filter(is_open, range(64))))


def is_open(descriptor: int) -> bool:
    try:
        os.get_inheritable(descriptor)
    except OSError:
        return False
    return True


def host_without_filter(control: Connection, *arguments: Any) -> None:
    """Confine the processes of files by Landlock alone."""
    confinement.restrict_system_calls = lambda **options: None  # type: ignore[assignment]
    worker_host._host(control, *arguments)


def host_short_of_processes(control: Connection, *arguments: Any) -> None:
    """Refuse to fork the first process of a file."""
    fork, forked = os.fork, []

    def fork_unless_first() -> int:
        forked.append(fork() if len(forked) != 1 else 0)
        if len(forked) == 2:  # The first one tries the filter.
            raise BlockingIOError(11, os.strerror(11))
        return forked[-1]

    os.fork = fork_unless_first
    worker_host._host(control, *arguments)


def host_that_loses_its_filter(control: Connection, *arguments: Any) -> None:
    """Accept the filter when the host tries it, and refuse it in the processes of files."""
    worker_host._filter_problems = list
    confinement.restrict_system_calls = lambda **options: "no memory"  # type: ignore[assignment]
    worker_host._host(control, *arguments)


class Unloadable:
    """Cannot be unpickled."""

    def __reduce__(self) -> tuple[object, ...]:
        return os.stat, ("/missing",)


def host_that_ends_once(control: Connection, *arguments: Any) -> None:
    """End before the first worker is ready; the next host, in the same folder, stays."""
    try:
        Path("ended").touch(exist_ok=False)
    except FileExistsError:
        worker_host._host(control, *arguments)


# Replies that a worker must not be able to do harm with.


class Harmful:
    """Runs code in a process that unpickles it."""

    def __reduce__(self) -> tuple[object, ...]:
        return os._exit, (42,)


def header(count: int, length: int, *sizes: int) -> bytes:
    return HEADER.pack(MAGIC, count, length) + struct.pack(f"<{len(sizes)}Q", *sizes)


def framed(content: bytes) -> bytes:
    return struct.pack("!i", len(content)) + content


REPLIES: dict[str, bytes] = {
    "a pickle": pickle.dumps(Harmful()),
    "a framed pickle": framed(pickle.dumps(Harmful())),
    "another magic": b"none" + bytes(60),
    "a huge body": header(0, 2**62),
    "a large body": header(0, 2**29),
    "too many arrays": header(2**31, 10),
    "a huge array": header(1, 10, 2**62),
    "an empty array": header(1, 1, 0) + b"\0",
    "an unknown status": header(0, 1) + b"\7",
    "a body that is too short": header(0, 3) + b"\0\1\2",
    "a text that is not UTF-8": header(0, 7) + b"\1\2\0\0\0\xff\xfe",
    "a text that is too long": header(0, 9) + b"\1\xff\xff\xff\xff1234",
    "bytes after the value": header(0, 9) + b"\1\1\0\0\0xyyy",
    "an array of another size": header(1, 10, 9000) + struct.pack("<BBQ", 0, 1, 9001) + bytes(9000),
    "dimensions that overflow": header(0, 2 + 40) + b"\0\5" + struct.pack("<5Q", *[2**63] * 5),
    "no array": header(0, 10) + b"\0\1" + struct.pack("<Q", 2**20),
    "half a message": header(0, 100) + bytes(50),
    "nothing": b"",
    "a flood": bytes(3 * 2**20),
}  # fmt: skip


def reply_with(attack: str) -> NDArray[np.uint8]:
    """Write a reply by hand, then end or wait; ``good`` returns an array."""
    if attack == "good":
        return np.arange(6000, dtype=np.uint8)
    (connection,) = sockets()
    if attack == "drip":
        for byte in header(0, 50) + bytes(100):
            os.write(connection, bytes([byte]))
            time.sleep(0.05)
    elif attack == "endless":
        while True:
            os.write(connection, b"eng1" * 2**16)
    elif attack == "unread requests":
        time.sleep(600)
    else:
        os.write(connection, REPLIES[attack])
    if attack in ("half a message", "nothing"):
        os._exit(3)
    time.sleep(600)
    raise AssertionError


def steal_as_query(request: QueryRequest) -> DecodedVideo:
    """Read a file beside the query before decoding it."""
    Path(request.path).with_name("secret").read_bytes()
    return decode_query(request)


def steal_as_moment(request: MomentRequest) -> NDArray[np.uint8]:
    """Return a file beside the video as the saved moment."""
    return np.frombuffer(Path(request.path).with_name("secret").read_bytes(), np.uint8)


# Inspections with which a file that has taken over its worker harms the run or other files.

LONG_TEXT = "x" * 3_000_000
MAX_CLIPS = 2**12
"""Maximum clips of a file, lowered so that more of them are sent and read quickly."""
LIES: dict[str, dict[str, object]] = {
    "no hash": {"content": ""},
    "no clips": {"windows": ()},
    "no video": {"is_video": False},
    "endless": {"duration": 1e300},
    "far away": {"windows": ((0.0, 1e300),)},
    "too many clips": {"windows": ((0.0, 1.0),) * (MAX_CLIPS + 1)},
    "no Unicode": {"problem": "\x1b[2J\ud800" * 2000},
    "long line": {"subtitles": EmbeddedSubtitles((TranscriptLine(0.0, 1.0, LONG_TEXT),))},
    "odd lines": {
        "subtitles": EmbeddedSubtitles(
            (
                TranscriptLine(math.nan, 1e300, "never"),
                TranscriptLine(0.0, 1e300, "\x1b]0;title\x07\ud800", "\x1b[2J\ud800"),
            ),
            "\ud800" * 5000,
        )
    },
    "no date": {"recording": 2.0**52},
}
"""Changes to an honest inspection, by the name of the file."""


def inspect_with_lies(
    file: CandidateFile, splitting: Splitting, known_contents: frozenset[str]
) -> Inspection:
    """Inspect a file, and change the result as its name says."""
    result = inspect(file, splitting, known_contents)
    changes = dict(LIES.get(Path(file.path).stem, {}))
    if "recording" in changes:
        recording = Recording()
        object.__setattr__(recording, "recorded", changes.pop("recording"))
        result = replace(result, recording=recording)
    _, _, content = Path(file.path).stem.partition(" of ")
    if content:
        # Passing for a copy is possible; putting words into another video is not.
        changes["content"] = content
        changes["subtitles"] = EmbeddedSubtitles((TranscriptLine(0.0, 1.0, "forged"),))
    return replace(result, **changes)  # type: ignore[arg-type]


def hear_elsewhere(request: ChunkRequest) -> AudioChunk | None:
    """Audio of a time before the beginning of the world; chunks from there on have no end."""
    return AudioChunk(np.ones(16_000, np.float32), -1e300, -1e300)


def see_elsewhere(request: ChunkRequest) -> list[DistinctFrame]:
    return [DistinctFrame(-1e300, request.end, np.full((3, 64, 64), 200, np.uint8))]
