"""Features of the system, and behaviour without them."""

from __future__ import annotations

import json
import ntpath
import os
import posixpath
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import processes
from eaglenet.core import platform
from eaglenet.core.errors import shell_quote
from eaglenet.core.platform import is_below, split_below
from eaglenet.core.process import start_child
from eaglenet.search.options import path_matcher
from eaglenet.store.object_storage import is_inside, is_object_url, select_inside
from eaglenet.video.decoding import write_video
from platform_children import (
    SlowArgument,
    burn,
    limit_under_limits,
    start_allocating,
    start_grandchild,
    tell_handler,
)
from sampling import one_in
from small_model import save_small_model

TESTS = Path(__file__).parent


@pytest.fixture(scope="module")
def videos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import numpy as np

    folder = tmp_path_factory.mktemp("videos")
    for number, name in enumerate(("one.mp4", "two.mkv", "three.avi")):
        frames = np.zeros((24, 24, 40, 3), np.uint8)
        frames[..., number] = 200
        write_video(folder / name, frames, 4)
    return folder


def run_hidden(level: str, log: Path, *arguments: str) -> str:
    command = [sys.executable, "-P", str(TESTS / "hidden_features.py"), level, str(log), *arguments]
    paths = os.pathsep.join(entry for entry in sys.path if os.path.isabs(entry))
    environment = {**os.environ, "PYTHONPATH": paths, "PYTHONWARNINGS": "ignore"}
    result = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
    assert result.returncode == 0, result.stderr
    assert "Traceback" not in result.stderr
    return result.stdout


@pytest.mark.parametrize(
    ("level", "needs_torch"), one_in(3, [("bare", False), ("bare", True), ("macos", True)])
)
def test_indexes_and_searches_without_features_of_linux(
    level: str, needs_torch: bool, videos: Path, tmp_path: Path
) -> None:
    options = ["--device", "cpu", "--precision", "fp32", "--workers", "1"]
    if needs_torch:
        options = ["--model", str(save_small_model(tmp_path / "model"))]
    store, log = tmp_path / "store", tmp_path / "log"
    run_hidden(level, log, "index", str(videos), "--store", str(store), *options)
    assert len(log.read_text().split()) > 1, "the features were hidden in no worker"
    answer = json.loads(run_hidden(level, log, "search", "red", "--store", str(store), "--json"))
    paths = {Path(hit["path"]).name for hit in answer["hits"]}
    assert paths == {"one.mp4", "two.mkv", "three.avi"}
    # On a case-insensitive disk, names that differ only in case are one file.
    names = [str(path).casefold() for path in store.rglob("*")]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(("is_proc_hidden", "code"), [(False, 7), (True, 120)])
def test_memory_is_limited(is_proc_hidden: bool, code: int) -> None:
    child = start_child(start_allocating, is_proc_hidden)
    assert child.connection.recv() == (True, code)
    child.process.join(60)


@pytest.mark.skipif(sys.platform != "linux", reason="limits of Linux")
def test_lower_limits_stay() -> None:
    child = start_child(limit_under_limits)
    assert child.connection.recv() == [2**32, 2**32]
    child.process.join(60)


def test_cpu_time_is_limited_without_resource() -> None:
    child = start_child(burn)
    assert child.connection.recv() is False  # No memory limit there.
    child.process.join(600)
    assert child.process.exitcode == platform.WATCHDOG_EXIT_CODE


@pytest.mark.parametrize("is_prctl_hidden", [False, True])
def test_process_ends_with_its_parent(is_prctl_hidden: bool) -> None:
    child = start_child(start_grandchild, is_prctl_hidden)
    grandchild = child.connection.recv()
    os.kill(grandchild, 0)
    child.process.kill()
    child.process.join()
    deadline = time.monotonic() + 20
    while processes.is_running(grandchild):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_kill_process_ignores_one_that_has_ended() -> None:
    process = subprocess.Popen([sys.executable, "-c", "pass"])
    process.wait()
    platform.kill_process(process.pid)


@pytest.fixture(params=["parts", "checked"])
def opens_parts(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Open files part by part, and as on systems without ``dir_fd``."""
    if request.param == "checked":
        monkeypatch.setattr(os, "supports_dir_fd", set())


@pytest.mark.usefixtures("opens_parts")
def test_open_beneath_follows_no_link(tmp_path: Path) -> None:
    (tmp_path / "root/inner").mkdir(parents=True)
    (tmp_path / "root/inner/a.mp4").write_text("a")
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret/a.mp4").write_text("secret")
    (tmp_path / "root/link").symlink_to(tmp_path / "secret")
    (tmp_path / "root/inner/link.mp4").symlink_to(tmp_path / "secret/a.mp4")
    root = str(tmp_path / "root")
    descriptor = platform.open_beneath(root, ["inner", "a.mp4"])
    assert platform.read_at(descriptor, 10, 0) == b"a"
    os.close(descriptor)
    for parts in (["link", "a.mp4"], ["inner", "link.mp4"]):
        with pytest.raises(OSError, match=r"symbolic links|Not a directory"):
            platform.open_beneath(root, parts)


def test_reads_at_an_offset_without_pread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_bytes(b"0123456789")
    for name in ("preadv", "pread"):
        with (tmp_path / "a").open("rb") as file:
            buffer = bytearray(4)
            assert platform.read_into(file.fileno(), memoryview(buffer), 3) == 4
            assert bytes(buffer) == b"3456"
            assert platform.read_into(file.fileno(), memoryview(buffer), 8) == 2
            assert platform.read_at(file.fileno(), 3, 1) == b"123"
        monkeypatch.delattr(os, name)
    assert platform.read_at(os.open(tmp_path / "a", os.O_RDONLY), 3, 1) == b"123"


def test_replace_waits_for_a_file_in_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on Windows, where a scanner may have the target open."""
    source, target = tmp_path / "new", tmp_path / "old"
    source.write_text("new")
    target.write_text("old")
    failures = [PermissionError(13, "in use")] * 3
    original = Path.replace

    def refuse(self: Path, other: Path) -> Path:
        if failures:
            raise failures.pop()
        return original(self, other)

    monkeypatch.setattr(Path, "replace", refuse)
    with pytest.raises(PermissionError):
        platform.replace(source, target)
    monkeypatch.setattr(platform.os, "name", "nt")
    platform.replace(source, target)
    monkeypatch.undo()
    assert target.read_text() == "new"


def test_mps_falls_back_to_the_cpu_on_apple_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTORCH_ENABLE_MPS_FALLBACK", raising=False)
    platform.enable_mps_fallback("linux")
    assert "PYTORCH_ENABLE_MPS_FALLBACK" not in os.environ
    platform.enable_mps_fallback("darwin")
    assert os.environ.pop("PYTORCH_ENABLE_MPS_FALLBACK") == "1"


@pytest.mark.parametrize(
    ("path", "root", "parts"),
    [
        (r"C:\Videos\a.mp4", r"C:\Videos", ["a.mp4"]),
        (r"C:\Videos\a.mp4", "C:\\", ["Videos", "a.mp4"]),
        (r"c:\videos\Trip\a.mp4", r"C:\Videos", ["Trip", "a.mp4"]),
        ("C:/Videos/a.mp4", r"C:\Videos", ["a.mp4"]),
        (r"\\server\share\a.mp4", r"\\server\share", ["a.mp4"]),
        (r"\\SERVER\share\trip\a.mp4", r"\\server\share" + "\\", ["trip", "a.mp4"]),
        (r"C:\Videos2\a.mp4", r"C:\Videos", None),
        (r"D:\Videos\a.mp4", r"C:\Videos", None),
        (r"\\server\other\a.mp4", r"\\server\share", None),
    ],
)
def test_windows_paths_below_a_folder(path: str, root: str, parts: list[str] | None) -> None:
    assert is_below(path, root, ntpath) == (parts is not None)
    if parts is not None:
        assert split_below(path, root, ntpath) == parts


def test_posix_paths_below_a_folder() -> None:
    assert is_below("/", "/", posixpath) is True
    assert is_below("/Videos/a", "/videos", posixpath) is False
    assert is_below("/videos\\a", "/videos", posixpath) is False
    assert split_below("/videos/trip/a.mp4", "/videos", posixpath) == ["trip", "a.mp4"]


def test_drive_letters_are_not_urls() -> None:
    for path in (r"C:\Videos", "C:/Videos", r"\\server\share", "s3:", "S3/bucket"):
        assert not is_object_url(path)
    assert is_inside("s3://bucket/videos/a.mp4", "s3://bucket/videos")
    assert is_inside("s3://bucket/videos", "s3://bucket/videos")
    assert not is_inside("s3://bucket/videos2/a.mp4", "s3://bucket/videos")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (r"C:\Videos\store", r"C:\Videos\store"),
        (r"C:\My Videos\store", r'"C:\My Videos\store"'),
        (r"\\server\my share", r'"\\server\my share"'),
    ],
)
def test_windows_paths_in_commands(value: str, expected: str) -> None:
    assert shell_quote(value, is_windows=True) == expected


@pytest.mark.parametrize("pattern", ["trip/*", r"trip\*", "*.MP4", "videos/trip", r"videos\trip"])
def test_path_filters_match_windows_paths(pattern: str) -> None:
    matches = path_matcher(pattern, separator="\\")
    assert matches(r"C:\Videos\Trip\a.mp4")
    assert not matches(r"C:\Videos\Other\a.mkv")
    assert matches(r"\\server\share\Videos\Trip\b.mp4")


@pytest.mark.skipif(sys.platform == "win32", reason="no such signals")
def test_a_child_that_is_starting_ignores_ctrl_c(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    child = start_child(tell_handler, SlowArgument(tmp_path / "fifo"))
    os.kill(child.process.pid, signal.SIGINT)  # before its interpreter can have a handler
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())
    writer = os.open(tmp_path / "fifo", os.O_RDWR)  # does not wait for the child, as O_WRONLY would
    assert child.connection.recv() is True
    os.close(writer)
    child.process.join(60)
    assert child.process.exitcode == 0


def test_files_are_selected_below_thousands_of_roots_at_once() -> None:
    """``eaglenet index *.mp4`` has as many roots as files; one by one they would take minutes."""
    names = [f"/videos/{number}.mp4" for number in range(10_000)]
    start = time.perf_counter()
    assert select_inside([*names, "/videos/1.mp", "/videos"], names) == names
    assert time.perf_counter() - start < 30
    roots = ["/videos", "/a.mp4", "s3://bucket/june"]
    inside = ["/videos", "/videos/a/b.mp4", "/a.mp4", "s3://bucket/june/c.mp4"]
    outside = ["/videos2/a.mp4", "/a.mp4b", "s3://bucket/june2/c.mp4", "/"]
    assert select_inside([*inside, *outside], roots) == inside
    assert select_inside([*inside, *outside], ["/"]) == [*inside[:3], *outside[:2], "/"]
    assert select_inside(inside, []) == []
