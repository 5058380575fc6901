"""Watched folders: new files are indexed, deleted ones dropped, but not those of a lost mount."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from index_cases import SPLITTING, run
from typer.testing import CliRunner

from eaglenet.cli.main import app
from eaglenet.core.errors import StoreLockedError
from eaglenet.indexing import watch
from eaglenet.indexing.options import IndexOptions
from eaglenet.indexing.report import IndexProgress, IndexReport, OnProgress
from eaglenet.store.store import LocalStore
from small_videos import colour_video
from synthetic_store import BagMethod


class Script:
    """Changes made to a folder, one at each wait; watching ends after the last."""

    def __init__(self, *steps: object) -> None:
        self.steps = list(steps)

    def __call__(self, seconds: float) -> bool:
        if not self.steps:
            return False
        step = self.steps.pop(0)
        if callable(step):
            step()
        return True


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[IndexOptions]:
    """The options of each index run; nothing is encoded."""
    seen: list[IndexOptions] = []

    def index(*given: object, options: IndexOptions, **rest: object) -> IndexReport:
        seen.append(options)
        return IndexReport(0, 0, 0, 0, 0, 0, 0.0, 0.0, (), ())

    monkeypatch.setattr(watch, "index_videos", index)
    return seen


def watched(folder: Path, *steps: object) -> int:
    """How many index runs the steps cause."""
    reports = watch.watch([folder], folder / "store", "model", method=object(), wait=Script(*steps))
    return len(list(reports))


def test_indexes_changes_once_files_have_settled(tmp_path: Path, runs: list[IndexOptions]) -> None:
    """A growing file waits, a deleted one is dropped, and without changes there is no run."""
    film = tmp_path / "a.mp4"
    film.write_bytes(b"1")
    grow = [lambda: film.write_bytes(b"12"), lambda: film.write_bytes(b"123")]
    other = tmp_path / "b.mp4"
    steps = [None, *grow, None, None, other.touch, None, other.unlink, None, None]
    assert watched(tmp_path, *steps) == 4
    # The first run may be on a folder that is half there; later ones know what went.
    assert [options.drop_missing for options in runs] == [False, True, True, True]


def test_indexes_subtitles_that_are_added_later(tmp_path: Path, runs: list[IndexOptions]) -> None:
    (tmp_path / "a.mp4").touch()
    subtitles = tmp_path / "a.en.srt"
    steps = [None, lambda: subtitles.write_bytes(b"1"), None, None, subtitles.unlink, None, None]
    assert watched(tmp_path, *steps) == 3
    options = IndexOptions(subtitles=False)
    script = Script(None, subtitles.touch, None, None)
    arguments = {"method": object(), "options": options, "wait": script}
    assert len(list(watch.watch([tmp_path], tmp_path / "store", "model", **arguments))) == 1


def test_waits_while_another_process_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An index run of someone else on the same store does not end a watch and its alerts."""
    (tmp_path / "a.mp4").touch()
    calls = iter([True, True, False])

    def index(*paths: object, **rest: object) -> IndexReport:
        if next(calls):
            raise StoreLockedError("the store is being written to")
        return IndexReport(0, 0, 0, 0, 0, 0, 0.0, 0.0, (), ())

    monkeypatch.setattr(watch, "index_videos", index)
    assert watched(tmp_path, None, None, None, None) == 1
    assert caplog.text.count("the store is being written to; waiting") == 1


def test_drops_nothing_when_a_mount_disappears(tmp_path: Path, runs: list[IndexOptions]) -> None:
    """The folder gone, or empty at once, is not a hundred deleted films."""
    folder = tmp_path / "films"
    folder.mkdir()
    (folder / "a.mp4").touch()

    def back() -> None:
        folder.mkdir(exist_ok=True)
        (folder / "a.mp4").touch()

    steps = [lambda: shutil.rmtree(folder), None, None, folder.mkdir, None, None, None]
    assert watched(folder, *steps) == 1
    back()
    assert watched(folder, (folder / "a.mp4").unlink, None, None, back, None, None) == 2


def test_drops_nothing_while_a_disk_below_the_folder_is_not_mounted(
    tmp_path: Path,
    runs: list[IndexOptions],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    film, disk = tmp_path / "a.mp4", tmp_path / "disks" / "usb"
    disk.mkdir(parents=True)
    for path in (film, tmp_path / "c.mp4"):
        path.touch()
    (disk / "year").mkdir()
    (disk / "year" / "b.mp4").touch()

    def device(folder: str) -> int:
        is_on_disk = (disk / "year").exists() and Path(folder).is_relative_to(disk)
        return 2 if is_on_disk else Path(folder).stat().st_dev

    def mount() -> None:
        (disk / "year").mkdir(parents=True)
        (disk / "year" / "b.mp4").touch()

    monkeypatch.setattr(watch, "_device", device)
    unmount = [lambda: shutil.rmtree(disk / "year"), None, None]
    delete = [film.unlink, None, None]
    assert watched(tmp_path, None, *unmount, *delete, mount, None, None) == 4
    # Runs with the disk gone drop nothing, not even the other file; the last one does.
    assert [options.drop_missing for options in runs] == [False, False, False, True]
    assert caplog.text.count("no disk is mounted there any more") == 1
    assert str(disk) in caplog.text


def test_command_names_new_files_and_ends_with_code_0_on_interrupt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[IndexOptions] = []

    def reports(
        *arguments: object, options: IndexOptions, on_progress: OnProgress, **rest: object
    ) -> Iterator[IndexReport]:
        calls.append(options)
        on_progress(IndexProgress("", 2, 1, 0, 0.1, 9, 5, 60.0, 3))
        yield IndexReport(1, 0, 0, 0, 0, 4, 0.1, 2.0, (), (), new_files=("/films/a\x1b.mp4",))
        raise KeyboardInterrupt

    monkeypatch.setattr("eaglenet.indexing.index.check_request", lambda *arguments: None)
    monkeypatch.setattr("eaglenet.core.progress.LINE_SECONDS", 0.0)
    monkeypatch.setattr(watch, "watch", reports)
    command = ["watch", str(tmp_path), "--store", str(tmp_path / "store")]
    result = CliRunner().invoke(
        app, [*command, "--read-text", "--listen", "tiny", "--follow-links"]
    )
    assert result.exit_code == 0, result.output
    # The first report may take minutes.
    before, _, _ = result.output.partition("1/2 files, 3 clips")
    assert before.startswith(f"watching {tmp_path} for the store {tmp_path / 'store'}; stop with")
    assert "new store with the model small" in before
    assert before.endswith("looking for videos\n")
    assert "1/2 files, 3 clips" in result.output
    assert "indexed /films/a\\x1b.mp4\n" in result.output
    assert result.output.endswith("has everything indexed so far\n")
    (options,) = calls
    assert (options.read_text, options.listen, options.follow_links) == (True, "tiny", True)


@pytest.mark.slow
def test_interrupted_processes_end_quickly(tmp_path: Path) -> None:
    """``watch`` with code 0, ``index`` with code 130; both within seconds."""
    videos, empty = tmp_path / "videos", tmp_path / "empty"
    for folder in (videos, empty):
        folder.mkdir()
    for number in range(6):
        colour_video(videos / f"{number}.mp4", ["red", "green", "blue"] * (60 + number))
    for command, folder, code in (("index", videos, 130), ("watch", empty, 0)):
        store = tmp_path / command
        process = subprocess.Popen(
            [sys.executable, "-m", "eaglenet", command, str(folder), "--store", str(store)],
            stderr=subprocess.PIPE,
            text=True,
            # A parent that ignores the signal passes that on.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )
        assert process.stderr is not None
        if command == "watch":
            assert any("waiting" in line for line in process.stderr)
        while command == "index" and not list(store.glob("*")):
            assert process.poll() is None
            time.sleep(0.01)
        start = time.monotonic()
        process.send_signal(signal.SIGINT)
        messages = process.stderr.read()
        # Killed by SIGINT while Python ends: a shell calls that 130, too.
        assert process.wait() in (code, -signal.SIGINT if code else 0), messages
        assert "Traceback" not in messages
        assert time.monotonic() - start < 10  # 1 s on an idle machine.


def test_model_is_loaded_once_and_only_when_there_is_work(
    videos: Path, bag: BagMethod, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(videos, bag)
    loaded: list[str] = []
    monkeypatch.setattr("eaglenet.models.folder.load", lambda name: loaded.append(name) or bag)
    steps = [
        lambda: colour_video(videos / "new.mp4", ["blue", "red"]),
        None,
        lambda: colour_video(videos / "newer.mp4", ["red", "blue"]),
        None,
    ]
    options = IndexOptions(splitting=SPLITTING, workers=0)
    reports = watch.watch([videos], videos.parent / "store", options=options, wait=Script(*steps))
    counts = [(report.indexed, len(loaded)) for report in reports]
    assert counts == [(0, 0), (1, 1), (1, 1)]


def test_files_that_were_missing_at_the_start_are_not_dropped(videos: Path, bag: BagMethod) -> None:
    """Such as those of a disk that is mounted only later."""
    disk, later, store = videos / "disk", videos.parent / "later", videos.parent / "store"
    disk.mkdir()
    for name in ("old.mp4", "older.mp4"):
        colour_video(disk / name, ["red", "green"] if name == "old.mp4" else ["green", "red"])
    run(videos, bag)
    disk.rename(later)

    def names() -> set[str]:
        return {Path(file.path).name for file in LocalStore.open(store).files()}

    steps = [
        lambda: colour_video(videos / "new.mp4", ["blue", "red"]),
        None,
        None,
        lambda: later.rename(disk),
        None,
        None,
        (disk / "old.mp4").unlink,
        None,
        None,
    ]
    options = IndexOptions(splitting=SPLITTING, workers=0)
    reports = watch.watch([videos], store, method=bag, options=options, wait=Script(*steps))
    found = [(report.missing, report.dropped, names() >= {"old.mp4"}) for report in reports]
    assert found == [(2, 0, True), (2, 0, True), (0, 0, True), (0, 1, False)]
    assert "older.mp4" in names()
