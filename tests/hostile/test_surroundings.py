"""Hostile surroundings: clocks that jump, links that change, other users, other folders, shards."""

from __future__ import annotations

import itertools
import os
import shutil
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from takeover import reply_with, steal_as_moment, steal_as_query

from eaglenet.cluster import log as leases
from eaglenet.cluster.shard_front import RemoteShard, ShardFailureError, ShardQuery
from eaglenet.core import registry as plugins
from eaglenet.core.errors import UsageError, VideoDecodeError
from eaglenet.core.files import atomic_write
from eaglenet.core.frame_spec import FrameSpec
from eaglenet.core.process import forget_current_folder
from eaglenet.indexing import watch as watching
from eaglenet.indexing.alerts import RETRY_SECONDS, ActionError, AlertDatabase, Sender
from eaglenet.indexing.options import IndexOptions
from eaglenet.store.object_storage import MissingObjectError
from eaglenet.video import frame_images, saving
from eaglenet.video.input_file import share_file
from eaglenet.video.pool import Budget, Failure, map_ahead
from processes import kill, start, wait

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="confinement is for Linux")


@pytest.fixture
def jumping_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock of the machine jumps between 1970 and 2100 each time it is read."""
    jumps = itertools.cycle((0.0, 4.1e9, 1.8e9))
    monkeypatch.setattr(time, "time", lambda: next(jumps))


# Clocks


def test_alerts_are_sent_after_the_clock_was_set_back(tmp_path: Path) -> None:
    memory, now, calls = AlertDatabase(tmp_path / "alerts.db"), 4.1e9, 0

    def act(moment: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise ActionError("not yet")

    sender = Sender(memory, act, clock=lambda: now)
    memory.add(memory.begin("a dog", []), "content", [{"id": "one"}])
    assert sender.send_next() == 0.0
    assert 0 < sender.send_next() <= RETRY_SECONDS[0]
    now = 1.8e9
    assert sender.send_next() == 0.0
    assert calls == 2
    assert memory.next_pending() is None
    memory.close()


@pytest.mark.usefixtures("jumping_clock")
def test_budgets_hold_while_the_clock_jumps() -> None:
    budget: Budget[str] = Budget(2**30, lambda request: request, lambda request: 1.0)
    (outcome,) = map_ahead(reply_with, ["unread requests"], workers=1, budget=budget)
    assert isinstance(outcome, Failure)
    assert "the limit" in outcome.reason


class OneObject:
    """Object storage with the lease alone."""

    url = "s3://bucket/store"

    def __init__(self) -> None:
        self.content: bytes | None = None

    def read(self, name: str) -> tuple[bytes, str]:
        if self.content is None:
            raise MissingObjectError(name)
        return self.content, str(hash(self.content))

    def write_if(self, name: str, content: bytes, tag: str | None) -> str:
        self.content = content
        return str(hash(content))

    def tag(self, name: str) -> str:
        return self.read(name)[1]

    def remove(self, names: list[str]) -> None:
        self.content = None


@pytest.mark.usefixtures("jumping_clock")
def test_a_lease_holds_while_the_clock_jumps() -> None:
    folder: Any = OneObject()
    with leases.hold_lease(folder) as lease:
        for _ in range(6):
            lease.require()
    assert folder.content is None


# Links and many files


@pytest.mark.usefixtures("jumping_clock")
def test_watching_survives_links_that_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """300 files, and a folder that a process exchanges with a link to the outside."""
    root, outside = tmp_path / "videos", tmp_path / "outside"
    (root / "sub").mkdir(parents=True)
    outside.mkdir()
    (outside / "private.mp4").write_bytes(bytes(7777))
    for number in range(300):
        (root / f"{number}.mp4").touch()
    (root / "loop").symlink_to(root)
    (root / "linked.mp4").symlink_to(outside / "private.mp4")

    def exchange() -> None:
        while True:
            (root / "sub").rename(tmp_path / "aside")
            (root / "sub").symlink_to(outside)
            (root / "sub").unlink()
            (tmp_path / "aside").rename(root / "sub")

    runs: list[int] = []
    monkeypatch.setattr(watching, "index_videos", lambda *given, **options: runs.append(1))
    child = start(exchange)
    try:
        waits = iter([True] * 4 + [False])
        list(
            watching.watch(
                [root], tmp_path / "store", method=object(), wait=lambda seconds: next(waits)
            )
        )
        state = watching.scan([root], tmp_path / "store", IndexOptions())
    finally:
        kill(child)
        wait(child)
    assert runs
    assert state is not None
    assert state[str(root / "linked.mp4")] == (0, 0)  # Reported, not read.
    assert len([path for path in state if Path(path).parent == root]) >= 301


# Other users of the machine


def test_what_alerts_remember_is_private(tmp_path: Path) -> None:
    before = os.umask(0o000)
    try:
        AlertDatabase(tmp_path / "alerts.db").close()
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "alerts.db").stat().st_mode) == 0o600


def test_temporary_names_cannot_be_guessed(tmp_path: Path) -> None:
    """Another user has put links where a file is going to be written."""
    own = tmp_path / "own"
    own.write_text("precious")
    for name in (f".out.{os.getpid()}.partial.mp4", ".out.partial.mp4", "out.mp4"):
        (tmp_path / name).symlink_to(own)
    names = set()
    for _ in range(3):
        with atomic_write(tmp_path / "out.mp4") as partial:
            names.add(partial.name)
            partial.write_bytes(b"new")
    assert len(names) == 3
    assert own.read_text() == "precious"
    assert (tmp_path / "out.mp4").read_bytes() == b"new"


# Modules


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A current folder with a package that has an entry point, and an optional dependency."""
    folder = tmp_path / "videos"
    info = folder / "evil-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: evil\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[eaglenet.plugins]\nevil = evil_plugin\n")
    for name in ("evil_plugin", "optional_extra"):
        (folder / f"{name}.py").write_text("raise SystemExit('planted code ran')\n")
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    monkeypatch.setattr(plugins, "_loaded_groups", set())
    monkeypatch.chdir(folder)
    yield folder
    sys.modules.pop("installed_plugin", None)


def test_entry_points_in_the_current_folder_are_not_loaded(
    planted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONSAFEPATH", "")
    forget_current_folder()
    plugins.load_installed()
    assert "evil_plugin" not in sys.modules


def test_an_installed_plugin_imports_nothing_from_the_current_folder(
    planted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site/installed_plugin.py").write_text(
        "try:\n    import optional_extra\nexcept ImportError:\n    optional_extra = None\n"
    )
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site"), *sys.path[1:]])
    monkeypatch.setattr(plugins, "_imported_modules", [])
    plugins.import_plugin("installed_plugin")
    assert sys.modules["installed_plugin"].optional_extra is None
    assert str(planted) not in sys.path


# Between a front and its shards


@pytest.fixture
def lying_shard() -> Iterator[tuple[str, list[bytes]]]:
    """Answers every connection with two responses; keeps what it receives."""
    received: list[bytes] = []
    body = b'{"lists": [{"a": "1"}]}'
    first = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
    smuggled = first.replace(b"1", b"2").replace(b"HTTP/2.2 200", b"HTTP/1.1 200")
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            with connection:
                connection.settimeout(30)
                content = b""
                try:
                    while chunk := connection.recv(2**16):
                        content += chunk
                        if b"num_shards" in content:
                            break
                except OSError:
                    pass
                received.append(content)
                connection.sendall(first + smuggled)

    threading.Thread(target=serve, daemon=True).start()
    yield f"http://127.0.0.1:{server.getsockname()[1]}", received
    server.shutdown(socket.SHUT_RDWR)
    server.close()


def test_a_second_response_is_not_taken_for_the_next_query(
    lying_shard: tuple[str, list[bytes]],
) -> None:
    """Nor does a text in a query add a header or a request."""
    url, received = lying_shard
    shard = RemoteShard(url, (1, 1), "token", 60.0)
    evil = 'x"}\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /admin HTTP/1.1\r\n\r\n'
    query: ShardQuery[str] = ShardQuery(
        "/api/shortlists", {"path": evil}, 1, 10, lambda each, number: each["a"]
    )
    assert [shard.answer(query) for _ in range(2)] == [["1"], ["1"]]
    shard.close()
    assert len(received) == 2
    for content in received:
        head, _, body = content.partition(b"\r\n\r\n")
        assert b"ransfer-" not in head
        assert b"\r\n" not in body
        length = next(line for line in head.split(b"\r\n") if line.startswith(b"Content-Length"))
        assert int(length.partition(b":")[2]) == len(body)
    with pytest.raises((ShardFailureError, UsageError)):
        RemoteShard(f"{url}/\r\nX: 1", (1, 1), "token", 1.0).answer(
            ShardQuery("/a b\r\nX: 1", {}, 1, 1, lambda each, number: each)
        )


# Files that are decoded for one command


@LINUX
def test_a_query_that_takes_over_its_decoder_reads_no_other_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "query.jpg").write_bytes(b"x")
    monkeypatch.setattr(frame_images, "decode_query", steal_as_query)
    decoder = frame_images.QueryDecoder()
    try:
        with pytest.raises(UsageError, match=r"query\.jpg: Operation not permitted"):
            decoder.decode_image(tmp_path / "query.jpg", FrameSpec(num_frames=2, size=16))
    finally:
        decoder.close()


@LINUX
def test_a_moment_that_takes_over_its_encoder_reads_no_other_file(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "film.mp4").write_bytes(b"x")
    with (
        saving.MomentSaver(steal_as_moment) as saver,
        pytest.raises(VideoDecodeError, match="Operation not permitted"),
    ):
        saver.save(share_file(tmp_path / "film.mp4"), tmp_path / "clip.mp4", 0.0, 1.0)
    assert sorted(os.listdir(tmp_path)) == ["film.mp4", "secret"]


WITHOUT_SHARED_MEMORY = """
import sys
sys.path[:0] = sys.argv[1:]
from takeover import reply_with
from eaglenet.video.pool import map_ahead
print([type(outcome).__name__ for outcome in map_ahead(reply_with, ["good"] * 3, workers=2)])
"""


@LINUX
def test_workers_need_no_shared_memory() -> None:
    """With a full /dev/shm of 4 KiB, as in small containers."""
    mount = "mount -t tmpfs -o size=4k none /dev/shm && head -c 9999 /dev/zero > /dev/shm/full; "
    source = str(Path(frame_images.__file__).parents[2])
    command = [sys.executable, "-c", WITHOUT_SHARED_MEMORY, source, str(Path(__file__).parent)]
    if shutil.which("unshare") is None or os.geteuid() != 0:
        pytest.skip("needs unshare and root")
    result = subprocess.run(
        ["unshare", "-m", "sh", "-c", f'{mount} exec "$@"', "sh", *command],
        capture_output=True,
        text=True,
        timeout=100,
    )
    if "unshare" in result.stderr or "mount:" in result.stderr:
        pytest.skip("this machine does not allow mounts")
    assert result.stdout == "['Success', 'Success', 'Success']\n", result.stderr


def test_decoded_frames_are_those_of_the_parent(tmp_path: Path) -> None:
    from PIL import Image

    from eaglenet.video.inputs import clips_of_image

    path, spec = tmp_path / "a.png", FrameSpec(num_frames=2, size=16)
    Image.effect_noise((40, 30), 50).convert("RGB").save(path)
    decoder = frame_images.QueryDecoder()
    try:
        there, here = decoder.decode_image(path, spec), clips_of_image(path, spec)
        frame = decoder.read_frame(path, 0.0, 20)
        for broken, name in ((b"", "empty.png"), (b"no image", "text.png")):
            (tmp_path / name).write_bytes(broken)
            with pytest.raises(UsageError, match=name):
                decoder.decode_image(tmp_path / name, spec)
        with pytest.raises(UsageError, match="no such image file"):
            decoder.decode_image(tmp_path / "missing.png", spec)
        with pytest.raises(VideoDecodeError, match=r"missing\.mp4"):
            decoder.decode_video(tmp_path / "missing.mp4", spec)
    finally:
        decoder.close()
    assert min(frame.shape[1:]) == 20
    for name in ("frames", "mask", "seconds"):
        assert np.array_equal(getattr(there, name), getattr(here, name))


@pytest.mark.usefixtures("real_hosts")
def test_every_colour_mode_is_decoded_in_a_worker(tmp_path: Path) -> None:
    """Pillow imports modules for some, which a confined process cannot."""
    from PIL import Image

    from eaglenet.video.inputs import clips_of_image

    spec, noise = FrameSpec(num_frames=1, size=16), Image.effect_noise((40, 30), 50)
    decoder = frame_images.QueryDecoder()
    try:
        for mode in ("1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr", "LAB", "I", "F", "I;16"):
            image = noise.convert("RGB" if mode in ("LAB", "CMYK", "YCbCr") else "L").convert(mode)
            path = tmp_path / f"{mode}.tif"
            image.save(path)
            there, here = decoder.decode_image(path, spec), clips_of_image(path, spec)
            assert np.array_equal(there.frames, here.frames), mode
    finally:
        decoder.close()
