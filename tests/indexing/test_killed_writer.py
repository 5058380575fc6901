"""A writer that is killed loses nothing it had reported, and the next one goes on."""

import random
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from eaglenet.core.errors import StoreError
from eaglenet.core.frame_spec import Splitting
from eaglenet.indexing import encoding
from eaglenet.indexing import run as commit
from eaglenet.indexing.index import IndexOptions, index_videos
from eaglenet.indexing.report import IndexProgress
from eaglenet.search.engine import Engine
from eaglenet.store.store import LocalStore
from processes import kill, start_printing, wait
from small_videos import colour_video
from synthetic_store import BagMethod

NAMES = [f"video{number}.mp4" for number in range(8)]
NUM_CLIPS = 8 * 4
"""Nine seconds in clips of three that overlap by one."""


@pytest.fixture(scope="module")
def videos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Enough videos that a run can be killed between any two."""
    folder = tmp_path_factory.mktemp("videos")
    for number, name in enumerate(NAMES):
        colours = [["red", "green", "blue"][(number + step) % 3] for step in range(3)]
        # A colour more or less makes every content its own.
        colour_video(folder / name, colours, seconds_each=3)
        (folder / name).write_bytes((folder / name).read_bytes() + bytes([0, 0, 0, 8]) + b"free")
        (folder / name).write_bytes((folder / name).read_bytes() + bytes(number))
    return folder


def kill_after(videos: Path, store: Path, lines: int, delay: float) -> list[str]:
    """Start a writer, kill it some time after it reported so much; names it reported as done."""

    def report(progress: IndexProgress) -> None:
        if progress.path:
            print(progress.num_done, progress.path)

    def index_clip_by_clip() -> None:
        commit.COMMIT_CLIPS, commit.PAUSE_FACTOR = 1, 0.0
        encoding.BATCH_FRAMES = 1
        options = IndexOptions(splitting=Splitting(3.0, 1.0), workers=0)
        index_videos(
            [videos], store, "bag", method=BagMethod(), options=options, on_progress=report
        )

    writer, output = start_printing(index_clip_by_clip)
    with output:
        reported = [output.readline() for _ in range(lines)]
        time.sleep(delay)
        kill(writer)
        wait(writer)
        reported += output.readlines()
    whole = [line for line in reported if line.endswith("\n")]
    return [Path(line.split(" ", 1)[1].strip()).name for line in whole]


def check_and_continue(videos: Path, store: Path, done: list[str], bag: BagMethod) -> None:
    if done:
        engine = Engine.open(store, bag)
        shown = {Path(hit.path).name for hit in engine.search("red", k=100, keep_duplicates=True)}
        assert set(done) <= shown
    options = IndexOptions(splitting=Splitting(3.0, 1.0), workers=0)
    report = index_videos([videos], store, "bag", method=bag, options=options)
    # On a slow machine the first pass reads keyframes only; the exact frames may be missing still.
    assert report.unchanged + report.completed >= len(set(done))
    assert report.clips == NUM_CLIPS
    hits = Engine.open(store, bag).search("red", k=100, keep_duplicates=True)
    assert len(hits) == len({hit.clip_id for hit in hits}) == NUM_CLIPS
    assert {Path(hit.path).name for hit in hits} == set(NAMES)


def test_killed_writer_loses_nothing_it_reported(
    videos: Path, bag: BagMethod, tmp_path: Path
) -> None:
    done = kill_after(videos, tmp_path / "store", lines=2, delay=0.05)
    assert len(done) >= 2
    check_and_continue(videos, tmp_path / "store", done, bag)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_writers_killed_at_any_moment_lose_nothing_they_reported(
    seed: int, videos: Path, bag: BagMethod, tmp_path: Path
) -> None:
    generator = random.Random(seed)
    store = tmp_path / "store"
    done: set[str] = set()
    for _ in range(2):
        lines = generator.choice([0, 0, 1, 2, 4])
        delay = generator.uniform(0, 1.5) if lines == 0 else generator.uniform(0, 0.3)
        remaining = len(NAMES) - len(done)
        done |= set(kill_after(videos, store, min(lines, remaining), delay))
        if LocalStore.exists(store):
            shown = {
                Path(hit.path).name
                for hit in Engine.open(store, bag).search("red", k=100, keep_duplicates=True)
            }
            assert done <= shown
    check_and_continue(videos, store, sorted(done), bag)
    shutil.rmtree(store)


@pytest.mark.slow
@pytest.mark.parametrize("room", [0, 30, 60, 90])
def test_full_disk_leaves_a_readable_store(
    room: int, videos: Path, bag: BagMethod, tmp_path: Path
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=600k", "tmpfs", str(disk)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("needs the right to mount a small disk")
    try:
        store, options = disk / "store", IndexOptions(splitting=Splitting(3.0, 1.0), workers=0)
        first = tmp_path / "first"
        first.mkdir()
        shutil.copy(videos / NAMES[0], first)
        index_videos([first], store, "bag", method=bag, options=options)
        free = shutil.disk_usage(disk).free - room * 1024
        (disk / "filler").write_bytes(bytes(free))
        with pytest.raises(StoreError, match="full"):
            index_videos([videos], store, "bag", method=bag, options=options)
        hits = Engine.open(store, bag).search("red", k=100, keep_duplicates=True)
        assert len(hits) >= 4
        (disk / "filler").unlink()
        subprocess.run(["mount", "-o", "remount,size=20m", str(disk)], check=True)
        report = index_videos([videos], store, "bag", method=bag, options=options)
        assert report.clips == NUM_CLIPS
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=False)
