"""Workers that a file has taken over: they reach nothing, and the parent reports a failed file."""

from __future__ import annotations

import contextlib
import os
import platform
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from takeover import (
    ATTACKS,
    MEMORY,
    REPLIES,
    Sibling,
    Surroundings,
    Target,
    Unloadable,
    escape,
    escape_from_layer,
    escape_unconfined,
    host_short_of_processes,
    host_that_ends_once,
    host_that_loses_its_filter,
    host_without_filter,
    look_around,
    process_number,
    reply_with,
    secrets_in_reach,
)
from test_videos import small_video

from eaglenet.core.errors import UsageError
from eaglenet.core.process import child_command, start_child
from eaglenet.indexing.decoding import (
    ClipFailure,
    ClipFrames,
    ClipRequest,
    DecodedClips,
    check_decoded,
    decode_ahead,
)
from eaglenet.indexing.files import CandidateFile
from eaglenet.indexing.inspection import Inspection, check_inspection
from eaglenet.video import confinement, worker_channel, worker_host
from eaglenet.video import worker as workers
from eaglenet.video.images import decoding_needs_threads
from eaglenet.video.input_file import share_file
from eaglenet.video.messages import MessageError, Receiver, layout_of, unpack
from eaglenet.video.pool import Access, Budget, Failure, Success, map_ahead
from eaglenet.video.worker import IsolatedProcess, start_worker
from eaglenet.video.worker_host import Host
from processes import descendants

needs_confinement = pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() not in ("x86_64", "aarch64"),
    reason="workers are confined on Linux on x86-64 and arm64",
)
pytestmark = needs_confinement
SECRET = "correct-horse-battery-staple"


@pytest.fixture(scope="module")
def missing() -> tuple[str, ...]:
    """Parts of the confinement that this kernel lacks."""
    worker = start_worker(escape)
    worker.read_ready()
    worker.end()
    return worker.missing


@pytest.fixture
def target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Target]:
    """A folder with a secret and a video, a token in the environment, and a listening socket."""
    monkeypatch.setenv("EAGLENET_TOKEN", SECRET)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    (tmp_path / "secret").write_text(SECRET)
    (tmp_path / "own.mp4").write_bytes(bytes(1000))
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        yield Target("", str(tmp_path / "own.mp4"), str(tmp_path), os.getpid(), port)


def with_attack(target: Target, name: str) -> Target:
    return Target(name, target.path, target.folder, target.parent, target.port)


ACCESS: Access[Target, str] = Access(share=lambda target: share_file(target.path))


@pytest.mark.usefixtures("real_hosts")
def test_a_taken_over_worker_reaches_nothing(target: Target, missing: tuple[str, ...]) -> None:
    if missing:
        pytest.skip(f"this kernel does not confine: {missing}")
    before = sorted(os.listdir(target.folder))
    attacks = [with_attack(target, name) for name in ATTACKS]
    budget: Budget[Target] = Budget(MEMORY, lambda target: "", lambda target: 60.0)
    results = {
        outcome.request.attack: outcome.result if isinstance(outcome, Success) else outcome.reason
        for outcome in map_ahead(escape, attacks, workers=1, budget=budget, access=ACCESS)
    }
    allowed = [name for name, result in results.items() if not result.startswith("refused")]
    # The decoder of HEIC starts a thread; it is as confined as the process.
    assert allowed == (["start_thread"] if decoding_needs_threads() else [])
    assert len(results) == len(ATTACKS) > 30
    assert sorted(os.listdir(target.folder)) == before


@pytest.mark.parametrize("layer", ["files", "calls"])
def test_each_layer_holds_alone(target: Target, missing: tuple[str, ...], layer: str) -> None:
    """A hole in one of the two mechanisms of the kernel is not a hole in the sandbox."""
    if missing:
        pytest.skip(f"this kernel does not confine: {missing}")
    names = ["read_other_file", "write_file", "list_folder", "read_parent_environment"]
    if layer == "calls" or confinement.landlock_version() >= 4:
        names.append("connect")
    child = start_child(escape_from_layer, layer, [with_attack(target, name) for name in names])
    results = child.connection.recv()
    child.process.join()
    assert [result[:7] for result in results] == ["refused"] * len(names), results


def test_the_attacks_work_where_nothing_confines(target: Target) -> None:
    """Otherwise their refusal would say nothing."""
    names = [
        "read_other_file", "read_parent_environment", "signal_parent", "list_folder",
        "look_at_file", "look_at_file_like_a_descriptor", "take_private_memory",
        "take_shared_memory", "take_memory_of_a_stack", "take_addresses", "write_file",
        "write_own_file",
        "make_folder", "make_link", "change_mode",
        "fork", "fork_by_number", "start_thread", "connect", "listen", "unix_socket",
        "socket_pair", "run_own_code", "make_memory_file", "remove_file",
    ]  # fmt: skip
    child = start_child(escape_unconfined, [with_attack(target, name) for name in names])
    results = dict(zip(names, child.connection.recv(), strict=True))
    child.process.join()
    assert {name: result for name, result in results.items() if result != "allowed"} == {}


@pytest.mark.usefixtures("real_hosts")
def test_a_worker_sees_no_secret(target: Target) -> None:
    (outcome,) = map_ahead(secrets_in_reach, [target], workers=1, access=ACCESS)
    assert isinstance(outcome, Success)
    assert not any(SECRET in line for line in outcome.result)
    names = {line.partition("=")[0] for line in outcome.result if "=" in line}
    assert names <= {
        "LANG", "LANGUAGE", "TZ", "LD_LIBRARY_PATH", "PYTHONSAFEPATH", "OMP_NUM_THREADS",
        "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "ORT_DISABLE_TELEMETRY",
        *(n for n in os.environ if n[:3] == "LC_"),
    }  # fmt: skip
    # Standard streams are /dev/null; then its connection and its file.
    kinds = [line.split()[1] for line in outcome.result if "=" not in line]
    assert sorted(kinds) == [*"-" * (1 + num_open_libraries()), "c", "c", "c", "s"]


def num_open_libraries() -> int:
    """Count the libraries that keep their own file open, as libffi 3.5 of Debian does."""
    links = (Path("/proc/self/fd", name) for name in os.listdir("/proc/self/fd"))
    return sum(".so" in os.readlink(link) for link in links if link.is_symlink())


def test_every_file_gets_a_process_of_its_own(tmp_path: Path) -> None:
    """Code that stays in a worker meets no other file."""
    paths = [tmp_path / name for name in ("a", "a", "b", "a")]
    for path in paths:
        path.write_text("x")
    access: Access[Path, int] = Access(share=share_file)
    numbers = [
        outcome.result
        for outcome in map_ahead(process_number, paths, workers=1, access=access)
        if isinstance(outcome, Success)
    ]
    assert numbers[0] == numbers[1]
    assert len(set(numbers)) == 3


@pytest.mark.parametrize("change", ["replaced", "written", "removed"])
def test_another_file_at_the_same_path_gets_a_process_of_its_own(
    tmp_path: Path, change: str
) -> None:
    """Whoever owns a file may put another one in its place while it is decoded."""
    path = tmp_path / "a"
    path.write_text("x")

    def requests() -> Iterator[Path]:
        yield path
        yield path
        assert is_first_done.wait(60)
        if change != "written":
            path.unlink()
        if change != "removed":
            path.write_text("y")
        yield path

    is_first_done = threading.Event()
    access: Access[Path, int] = Access(share=share_file)
    numbers = []
    for outcome in map_ahead(process_number, requests(), workers=1, access=access, prefetch=9):
        assert isinstance(outcome, Success)
        numbers.append(outcome.result)
        if len(numbers) == 2:
            is_first_done.set()
    assert numbers[0] == numbers[1] != numbers[2]


@pytest.mark.parametrize("has_filter", [True, False])
def test_processes_of_one_host_reach_neither_each_other_nor_its_connections(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_filter: bool
) -> None:
    if not has_filter:
        if confinement.landlock_version() < 6:
            pytest.skip("this kernel's Landlock does not limit signals")
        monkeypatch.setattr(worker_host, "_host", host_without_filter)
    for name in ("first", "second"):
        (tmp_path / name).write_text("x")
    seen: list[Surroundings] = []
    is_first_done = threading.Event()
    host = Host(look_around, MEMORY)
    access: Access[Sibling, Surroundings] = Access(lambda each: share_file(each.path), host=host)

    def requests() -> Iterator[Sibling]:
        """Run a second pool while the process of the first one's file is alive."""
        yield Sibling(tmp_path / "first")
        assert is_first_done.wait(60)
        second = [Sibling(tmp_path / "second", seen[0].process)]
        seen.extend(
            result_of(each) for each in map_ahead(look_around, second, workers=1, access=access)
        )

    for outcome in map_ahead(look_around, requests(), workers=1, access=access):
        seen.append(result_of(outcome))
        is_first_done.set()
    host.close()
    first, second = seen
    assert first.host == second.host
    assert first.process != second.process
    assert (first.can_signal, second.can_signal) == (not has_filter, False)
    # Standard streams, the connection to the parent, and the file.
    assert len(first.descriptors) == len(second.descriptors) == 5 + num_open_libraries()
    assert not {first.host, first.process, second.process} & set(descendants(os.getpid()))


def test_a_process_that_cannot_be_forked_leaves_no_connection_to_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other processes would inherit it, and could reply for its file."""
    monkeypatch.setattr(worker_host, "_host", host_short_of_processes)
    (tmp_path / "a").write_text("x")
    budget: Budget[Sibling] = Budget(MEMORY, lambda each: each.path, lambda each: 20.0)
    with contextlib.closing(Host(look_around, MEMORY)) as host:
        access: Access[Sibling, Surroundings] = Access(
            lambda each: share_file(each.path), host=host
        )
        requests = [Sibling(tmp_path / "a")]
        (outcome,) = map_ahead(look_around, requests, workers=1, budget=budget, access=access)
    assert len(result_of(outcome).descriptors) == 5 + num_open_libraries()


def test_a_process_without_the_filter_reads_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: tuple[str, ...]
) -> None:
    if missing:
        pytest.skip(f"this kernel does not confine: {missing}")
    monkeypatch.setattr(worker_host, "_host", host_that_loses_its_filter)
    (tmp_path / "a").write_text("x")
    access: Access[Path, int] = Access(share=share_file)
    (outcome,) = map_ahead(process_number, [tmp_path / "a"], workers=1, access=access)
    assert isinstance(outcome, Failure)
    assert "exit code 1" in outcome.reason


def test_a_host_that_ends_as_it_starts_counts_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many workers have been waiting for it."""
    monkeypatch.setattr(worker_host, "_host", host_that_ends_once)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a").write_text("x")
    with contextlib.closing(Host(process_number, MEMORY)) as host:
        access: Access[Path, int] = Access(share=share_file, host=host)
        outcomes = list(map_ahead(process_number, [tmp_path / "a"] * 9, workers=4, access=access))
    assert [type(outcome) for outcome in outcomes] == [Success] * 9


@pytest.mark.parametrize("is_closed", [True, False])
def test_a_worker_that_does_not_start_leaves_the_host_to_others(
    tmp_path: Path, is_closed: bool
) -> None:
    """Its pool has closed it meanwhile, or its work cannot be loaded."""
    (tmp_path / "a").write_text("x")
    with contextlib.closing(Host(process_number, MEMORY)) as host:
        worker = start_worker(process_number, host=host)
        worker.read_ready()
        os.kill(worker.process.pid, signal.SIGSTOP)
        work: Any = process_number if is_closed else Unloadable()
        child = host.connect(work, threads=False)
        if is_closed:
            child.connection.close()
        os.kill(worker.process.pid, signal.SIGCONT)
        if not is_closed:
            with pytest.raises(EOFError):
                child.connection.recv_bytes()
        file = share_file(tmp_path / "a")
        worker.send(tmp_path / "a", file)
        file.close()
        assert worker.connection.poll(20)
        reply = worker.receive()
        assert reply is not None
        assert reply.result != worker.process.pid
        worker.end()


def test_a_host_does_not_wait_for_a_process_on_a_bad_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel ends a process only after its read, and the host serves other files, too."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(writer)
        os.read(reader, 1)
        os._exit(0)
    with monkeypatch.context() as context:
        context.setattr(os, "kill", lambda *arguments: None)
        began = time.monotonic()
        assert worker_host._end_child(child) == -signal.SIGKILL
        assert time.monotonic() - began < 10
    assert worker_host._ending == [child]
    os.close(writer)
    while worker_host._ending:
        worker_host._end_child(None)
    os.close(reader)


def result_of(outcome: Success[Sibling, Surroundings] | Failure[Sibling]) -> Surroundings:
    assert isinstance(outcome, Success), outcome
    return outcome.result


# Replies


def fast_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_channel, "MESSAGE_SECONDS", 1.5)


def test_a_hostile_reply_fails_its_own_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever one request brings, the one before and the one after it succeed."""
    fast_messages(monkeypatch)
    budget: Budget[str] = Budget(2**30, lambda request: request, lambda request: 20.0)
    attacks = [*REPLIES, "drip", "endless"]
    requests = ["good", *(name for attack in attacks for name in (attack, "good"))]
    access: Access[str, object] = Access(max_bytes=2**28)
    began, count = time.monotonic(), 0
    peak_before = peak_mebibytes()  # Of all tests that this process has run.
    for outcome in map_ahead(reply_with, requests, workers=1, budget=budget, access=access):
        name, count = requests[count], count + 1
        assert outcome.request == name
        assert isinstance(outcome, Success if name == "good" else Failure), name
        if isinstance(outcome, Failure):
            told = ("the decoder sent an invalid", "the decoder process died")
            assert outcome.reason.startswith(told), (name, outcome.reason)
        # The time of the first reply includes the start of the worker.
        assert count == 1 or time.monotonic() - began < 15, name
        began = time.monotonic()
    assert count == len(requests)
    assert peak_mebibytes() - peak_before < 1000


def peak_mebibytes() -> float:
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def test_a_worker_that_never_answers_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    budget: Budget[str] = Budget(
        2**30, lambda request: request, lambda request: 60.0 if request == "good" else 1.0
    )
    first, second = map_ahead(reply_with, ["unread requests", "good"], workers=1, budget=budget)
    assert isinstance(first, Failure)
    assert "the limit" in first.reason
    assert isinstance(second, Success)


def test_isolated_process_survives_hostile_replies(monkeypatch: pytest.MonkeyPatch) -> None:
    fast_messages(monkeypatch)
    process = IsolatedProcess(reply_with, 2**30, 5.0)
    try:
        for attack in ("a pickle", "a huge array", "drip", "nothing"):
            with pytest.raises(UsageError):
                process(attack)
            assert np.array_equal(process("good"), np.arange(6000, dtype=np.uint8))
    finally:
        process.close()


def test_an_isolated_process_that_starts_while_it_is_closed_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A service that stops does not wait for an upload that has just come."""
    process = IsolatedProcess(reply_with, 2**30, 60.0)
    closing, start = threading.Thread(target=process.close), workers.start_worker

    def start_late(*arguments: Any, **options: Any) -> workers.Worker:
        closing.start()
        assert process._closed.wait(60)
        time.sleep(0.1)  # Now it waits for the end of the call.
        return start(*arguments, **options)

    monkeypatch.setattr(workers, "start_worker", start_late)
    began = time.monotonic()
    with pytest.raises(UsageError, match="shutting down"):
        process("unread requests")
    closing.join()
    assert time.monotonic() - began < 30


def test_random_messages_are_values_or_errors() -> None:
    """5,000 damaged bodies of the largest reply: never another exception, never a long time."""
    generator = np.random.default_rng(0)
    layout = layout_of(DecodedClips)
    clip = ClipFrames(
        ("c" * 32, 1), "/a.mp4", (0.0, 1.0), np.zeros((2, 3, 4, 4), np.uint8),
        np.ones(2, np.bool_), np.zeros(2, np.float32), b"\xff\xd8",
    )  # fmt: skip
    from eaglenet.video.messages import pack

    (content,) = pack(layout, DecodedClips((clip, ClipFailure(("c" * 32, 2), "broken")), 0.0))
    body = np.frombuffer(bytes(content)[16:], np.uint8)
    read = 0
    for _ in range(5_000):
        damaged = body.copy()
        positions = generator.integers(0, len(body), generator.integers(1, 6))
        damaged[positions] = generator.integers(0, 256, len(positions))
        damaged = (
            damaged[: generator.integers(0, len(body) + 1)] if positions[0] % 3 == 0 else damaged
        )
        try:
            unpack(layout, [damaged])
            read += 1
        except MessageError:
            pass
    assert read > 100


def test_a_claimed_size_is_not_allocated() -> None:
    content = struct.pack("<4sIQ", b"eng1", 1, 10) + struct.pack("<Q", 900 * 2**20)
    rest = memoryview(content)

    def read(buffer: memoryview) -> int:
        nonlocal rest
        if not len(rest):
            raise BlockingIOError
        count = min(len(buffer), len(rest))
        buffer[:count] = rest[:count]
        rest = rest[count:]
        return count

    before = Path("/proc/self/statm").read_text().split()[1]
    receiver = Receiver(read)
    for _ in range(2):  # The header, and the sizes of the arrays.
        receiver.advance()
    with pytest.raises(BlockingIOError):
        receiver.advance()
    after = Path("/proc/self/statm").read_text().split()[1]
    assert (int(after) - int(before)) * 4096 < 50 * 2**20


def forged_clip(request: ClipRequest, **changes: object) -> DecodedClips:
    values: dict[str, object] = {
        "key": (request.content, request.numbers[0]),
        "path": request.path,
        "window": request.windows[0],
        "pixels": np.zeros((3, 3, 16, 16), np.uint8),
        "is_real": np.ones(3, np.bool_),
        "times": np.zeros(3, np.float32),
        "thumbnail": b"\xff\xd8\xff",
        **changes,
    }
    return DecodedClips((ClipFrames(**values),), 0.0)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "changes",
    [
        {"key": ("0" * 32, 0)},
        {"key": ("a" * 32, 7)},
        {"path": "/etc/passwd"},
        {"window": (0.0, 9.0)},
        {"pixels": np.zeros((3, 3, 16, 17), np.uint8)},
        {"is_real": np.zeros(3, np.bool_)},
        {"times": np.full(3, np.nan, np.float32)},
        {"thumbnail": b"<script>"},
        {"thumbnail": b"\xff\xd8" + bytes(2**21)},
    ],
    ids=str,
)
def test_clips_of_other_files_are_refused(changes: dict[str, object]) -> None:
    from hostile_work import SPEC

    request = ClipRequest("a" * 32, "/a.mp4", (0,), ((0.0, 1.0),))
    check_decoded(request, forged_clip(request), SPEC)
    with pytest.raises(ValueError, match=r"."):
        check_decoded(request, forged_clip(request, **changes), SPEC)


def test_inspections_of_other_files_are_refused() -> None:
    file = CandidateFile("/a.mp4", 10, 20)
    check_inspection(file, Inspection(file, "a" * 32, 3.0, windows=((0.0, 3.0),)))
    for wrong in (
        Inspection(CandidateFile("/b.mp4", 10, 20)),
        Inspection(file, "../../up"),
        Inspection(file, duration=float("inf")),
        Inspection(file, windows=((2.0, 1.0),)),
        Inspection(file, windows=((float("nan"), 1.0),)),
        Inspection(file, width=-1),
    ):
        with pytest.raises(ValueError, match=r"."):
            check_inspection(file, wrong)


# Decoding while confined


def test_confined_decoding_gives_the_same_clips(tmp_path: Path) -> None:
    from hostile_work import SPEC

    path = str(small_video(tmp_path / "a.mp4", 60))
    request = ClipRequest("a" * 32, path, (0, 1), ((0.0, 1.2), (1.2, 2.4)), None, 2.4)
    here = list(decode_ahead([request], SPEC, 0))
    there = list(decode_ahead([request], SPEC, 1))
    assert len(here) == len(there) == 2
    for one, other in zip(here, there, strict=True):
        assert isinstance(one, ClipFrames)
        assert isinstance(other, ClipFrames)
        assert np.array_equal(one.pixels, other.pixels)
        assert one.thumbnail == other.thumbnail


def test_the_stream_encoder_is_confined(tmp_path: Path, missing: tuple[str, ...]) -> None:
    """Its system calls are filtered while it writes an MP4 with several threads."""
    if missing:
        pytest.skip(f"this kernel does not confine: {missing}")
    path = tmp_path / "a.avi"
    from eaglenet.video.decoding import write_video

    frames = np.random.default_rng(0).integers(0, 256, (120, 240, 320, 3), dtype=np.uint8)
    write_video(path, frames, 25, codec="mpeg4")
    descriptor = os.open(path, os.O_RDONLY)
    command = child_command("eaglenet.video.streaming", str(descriptor), "0", str(os.getpid()))
    process = subprocess.Popen(command, pass_fds=(descriptor,), stdout=subprocess.PIPE)
    os.close(descriptor)
    assert process.stdout is not None
    line = process.stdout.readline()
    status = Path(f"/proc/{process.pid}/status").read_text()
    rest = process.stdout.read()
    assert process.wait(60) == 0
    assert b'"convert"' in line
    assert b"moof" in rest
    assert "Seccomp:\t2" in status
    assert "NoNewPrivs:\t1" in status
    assert "CapEff:\t0000000000000000" in status


def status_of(pid: int) -> str:
    """What Linux tells of a process; empty for one that is gone."""
    try:
        return Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return ""


@pytest.mark.usefixtures("real_hosts")
def test_hosts_and_workers_have_no_privileges(missing: tuple[str, ...]) -> None:
    if missing:
        pytest.skip(f"this kernel does not confine: {missing}")
    budget: Budget[str] = Budget(2**30, lambda request: request, lambda request: 60.0)
    outcomes = map_ahead(reply_with, ["good", "unread requests"], workers=1, budget=budget)
    next(outcomes)
    own_child = f"PPid:\t{os.getpid()}\n"
    host = [pid for pid in descendants(os.getpid()) if own_child in status_of(pid)][-1]
    deadline = time.monotonic() + 60
    while not (below := descendants(host)) or "Seccomp:\t2" not in status_of(below[-1]):
        assert time.monotonic() < deadline, "no process has confined itself"
    for pid, filtered in ((host, 0), (below[-1], 2)):
        status = status_of(pid)
        assert f"Seccomp:\t{filtered}" in status
        assert "NoNewPrivs:\t1" in status
        assert "CapEff:\t0000000000000000" in status
        assert "Threads:\t1\n" in status
    outcomes.close()  # type: ignore[attr-defined]


def test_the_status_of_a_descriptor_is_that_of_python(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    for path in (tmp_path / "a", tmp_path, Path(os.devnull)):
        descriptor = os.open(path, os.O_RDONLY)
        status, expected = confinement.descriptor_status(descriptor), os.fstat(descriptor)
        os.close(descriptor)
        assert status._asdict() == {name: getattr(expected, name) for name in status._fields}
        with pytest.raises(OSError, match=os.strerror(9)):
            confinement.descriptor_status(descriptor)
