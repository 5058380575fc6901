"""Files that become links between being found and being opened."""

from __future__ import annotations

import base64
import contextlib
import io
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import av
import pytest
from hostile_work import SPLITTING
from PIL import Image
from test_videos import small_video

from eaglenet.cli.results import SavedMoments, save_hits
from eaglenet.core.errors import VideoDecodeError
from eaglenet.indexing import decoding
from eaglenet.indexing.files import LEADS_OUT, find_videos
from eaglenet.indexing.index import index_videos
from eaglenet.indexing.inspection import Inspection, inspect_ahead
from eaglenet.indexing.options import IndexOptions
from eaglenet.indexing.watch import watch
from eaglenet.research.data.checks import decode_files, probe_all
from eaglenet.research.data.records import VideoRecord
from eaglenet.search.engine import Engine
from eaglenet.search.export import read_cuts, write_contact_sheet, write_reel
from eaglenet.search.hits import SearchResult
from eaglenet.search.query import Query
from eaglenet.store.records import LineQuery
from eaglenet.store.store import LocalStore
from eaglenet.transcripts.subtitles import SubtitleFile, SubtitleFinder
from eaglenet.video.input_file import CHANGED
from processes import kill, start, wait
from small_videos import colour_video
from stand_in_chat import image_of, serve_chat
from synthetic_store import BagMethod


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """An indexed folder with a video in a subfolder, and a secret one of the same size and time."""
    indexed, secret = tmp_path / "indexed", tmp_path / "secret"
    (indexed / "sub").mkdir(parents=True)
    secret.mkdir()
    small_video(secret / "film.mp4", 30)
    copy = indexed / "sub/film.mp4"
    copy.write_bytes((secret / "film.mp4").read_bytes()[::-1])
    for path in (copy, secret / "film.mp4"):
        os.utime(path, ns=(10**18, 10**18))
    return indexed, secret


def inspect_after(indexed: Path, exchange: object) -> Inspection:
    files = list(find_videos([indexed], skip_folder=indexed / "store"))
    assert len(files) == 1
    assert callable(exchange)
    exchange()
    (inspection,) = inspect_ahead(files, SPLITTING, frozenset(), workers=1)
    return inspection


def test_a_file_that_becomes_a_link_is_not_read(folders: tuple[Path, Path]) -> None:
    indexed, secret = folders

    def exchange() -> None:
        (indexed / "sub/film.mp4").unlink()
        (indexed / "sub/film.mp4").symlink_to(secret / "film.mp4")

    inspection = inspect_after(indexed, exchange)
    assert inspection.problem == LEADS_OUT
    assert not inspection.content
    assert not inspection.windows


def test_a_folder_that_becomes_a_link_is_not_read(folders: tuple[Path, Path]) -> None:
    indexed, secret = folders

    def exchange() -> None:
        (indexed / "sub").rename(indexed / "aside")
        (indexed / "sub").symlink_to(secret)

    assert inspect_after(indexed, exchange).problem == LEADS_OUT


def test_links_that_change_all_the_time_leak_nothing(folders: tuple[Path, Path]) -> None:
    """A process exchanges the folder and a link to the secret one while files are inspected."""
    indexed, secret = folders
    (indexed / "link").symlink_to(secret)

    def exchange() -> None:
        while True:
            for first, second in (("sub", "aside"), ("link", "sub"), ("sub", "link")):
                (indexed / first).rename(indexed / second)
            (indexed / "aside").rename(indexed / "sub")

    child = start(exchange)
    try:
        windows = 0
        for _ in range(2):
            files = []
            for _ in range(30):
                files += find_videos([indexed], skip_folder=indexed / "store")
            for inspection in inspect_ahead(files, SPLITTING, frozenset(), workers=1):
                windows += len(inspection.windows)
    finally:
        kill(child)
        wait(child)
    # The file of the folder itself is not a video: only the secret one has clips.
    assert windows == 0


@pytest.fixture
def exchange(tmp_path: Path) -> Iterator[tuple[Engine, Path, Path]]:
    """An engine of a folder with a red video, and a private blue one of the same size and time."""
    indexed, private = tmp_path / "indexed/sub/film.mp4", tmp_path / "private.mp4"
    indexed.parent.mkdir(parents=True)
    for path, colour in ((indexed, "red"), (private, "blue")):
        colour_video(path, [colour] * 2)
    size = max(path.stat().st_size for path in (indexed, private))
    for path in (indexed, private):
        with path.open("ab") as stream:
            stream.write(bytes(size - path.stat().st_size))
        os.utime(path, ns=(10**18, 10**18))
    options = IndexOptions(splitting=SPLITTING, workers=0, precision="fp32")
    index_videos(
        [tmp_path / "indexed"], tmp_path / "store", "bag", options=options, method=BagMethod()
    )
    with Engine.open(tmp_path / "store", model=BagMethod()) as engine:
        yield engine, indexed, private


def is_red(jpeg: bytes) -> bool:
    with Image.open(io.BytesIO(jpeg)) as image:
        red, _, blue = image.convert("RGB").resize((1, 1)).getpixel((0, 0))
    return red > blue


def save_all(engine: Engine, folder: Path) -> tuple[list[Path], list[str]]:
    """Save a hit in every way; return the files and the problems."""
    hits = engine.search("red", k=1)
    saved, results = SavedMoments(), [SearchResult(Query("red"), hits)]
    save_hits(engine, results, folder, saved, padding=0.0, form="sheet")
    problems = list(saved.problems)
    try:
        write_reel(engine, folder / "reel.mp4", hits, 0.0)
    except VideoDecodeError as error:
        problems.append(str(error))
    return sorted(folder.iterdir()), problems


def test_a_hit_whose_file_is_unchanged_is_saved_and_shown(
    exchange: tuple[Engine, Path, Path], tmp_path: Path
) -> None:
    engine, indexed, _ = exchange
    (hit,) = engine.search("red", k=1)
    assert "<video" in str(hit._repr_html_())
    files, problems = save_all(engine, tmp_path / "saved")
    assert (len(files), problems) == (2, [])
    # Another time and the same bytes, also behind a link: it is still the indexed content.
    indexed.rename(tmp_path / "moved.mp4")
    os.utime(tmp_path / "moved.mp4")
    indexed.symlink_to(tmp_path / "moved.mp4")
    with contextlib.closing(engine.open_file(hit.clip_id)) as file:
        assert file.error is None
        assert file.path == str(indexed)


def test_nothing_is_decoded_in_this_process(
    exchange: tuple[Engine, Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every way to show, save and check files: FFmpeg runs in confined processes."""
    engine, indexed, private = exchange

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("decoded outside of a confined process")

    monkeypatch.setattr(av, "open", refuse)
    hits = engine.search("red", k=1)
    results = [SearchResult(Query("red"), hits)]
    files, problems = save_all(engine, tmp_path / "saved")
    assert (len(files), problems) == (2, [])
    assert is_red(engine.frame(hits[0].clip_id, 0.5))
    assert "<video" in str(hits[0]._repr_html_())
    write_contact_sheet(tmp_path / "sheet.png", engine, results)
    (cut,), _ = read_cuts(engine, results, 0.0)
    assert (cut.media.path, cut.media.width) == (str(indexed), 40)
    assert engine.search(Query(video=private), k=1)
    assert engine.search(Query(image=tmp_path / "sheet.png"), k=1)
    broken = tmp_path / "broken.mp4"
    broken.write_bytes(b"no video")
    records = {(path, None): VideoRecord(path.stem, ("text",), path) for path in (private, broken)}
    for check in (probe_all, decode_files):
        reasons = dict(check(records, 0))
        assert reasons[private, None] is None
        assert reasons[broken, None]


@pytest.mark.parametrize("kind", ["link", "link inside", "linked folder", "file", "fifo"])
def test_another_file_in_the_place_of_an_indexed_one_is_never_shown_or_exported(
    exchange: tuple[Engine, Path, Path], tmp_path: Path, kind: str
) -> None:
    """Its size and modification time are those of the indexed file."""
    engine, indexed, private = exchange
    (hit,) = engine.search("red", k=1)
    if kind == "linked folder":
        indexed.parent.rename(tmp_path / "aside")
        (tmp_path / "others").mkdir()
        private.rename(tmp_path / "others/film.mp4")
        indexed.parent.symlink_to(tmp_path / "others")
    else:
        indexed.unlink()
    if kind == "link":
        indexed.symlink_to(private)
    elif kind == "link inside":
        private.rename(indexed.parent / "other.mp4")
        indexed.symlink_to("other.mp4")
    elif kind == "file":
        private.rename(indexed)
        os.utime(indexed, ns=(10**18 + 10**9, 10**18 + 10**9))
    elif kind == "fifo":
        os.mkfifo(indexed)
    assert is_red(engine.frame(hit.clip_id, 0.5)), "the thumbnail"
    page = str(hit._repr_html_())
    assert "<video" not in page
    assert "<img" in page
    write_contact_sheet(tmp_path / "sheet.png", engine, [SearchResult(Query("red"), [hit])])
    assert is_red((tmp_path / "sheet.png").read_bytes())
    files, problems = save_all(engine, tmp_path / "saved")
    assert files == []
    assert [problem.count("has changed since it was indexed") for problem in problems] == [1, 1]
    with serve_chat(lambda question, handler: '{"match": 5}') as chat:
        engine.search("red", k=1, judge=chat.url)
    assert chat.questions
    for question in chat.questions:
        assert is_red(base64.b64decode(image_of(question).partition(",")[2]))


def test_clips_are_not_described_from_another_file(
    exchange: tuple[Engine, Path, Path], tmp_path: Path
) -> None:
    """Frames of a private video must not be sent to a chat server."""
    _, indexed, private = exchange
    indexed.unlink()
    indexed.symlink_to(private)
    with serve_chat(lambda question, handler: '{"sentences": ["A colour."]}') as chat:
        options = IndexOptions(
            splitting=SPLITTING, workers=1, precision="fp32", describe=f"{chat.url}#m"
        )
        report = index_videos(
            [tmp_path / "indexed"], tmp_path / "store", "bag", options=options, method=BagMethod()
        )
    assert chat.questions == []
    assert any(CHANGED in problem.reason for problem in report.problems)


def test_subtitles_that_become_a_link_after_they_were_listed_are_not_read(
    exchange: tuple[Engine, Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, indexed, private = exchange
    subtitles = "1\n00:00:00,000 --> 00:00:01,000\n{}\n"
    indexed.with_suffix(".srt").write_text(subtitles.format("an open word"))
    private.with_suffix(".srt").write_text(subtitles.format("the secret"))
    beside = SubtitleFinder.beside

    def list_and_exchange(self: SubtitleFinder, path: str) -> list[SubtitleFile]:
        files = beside(self, path)
        indexed.with_suffix(".srt").unlink()
        indexed.with_suffix(".srt").symlink_to(private.with_suffix(".srt"))
        return files

    monkeypatch.setattr(SubtitleFinder, "beside", list_and_exchange)
    store = index_watched(tmp_path / "indexed", tmp_path / "store", workers=0)
    assert not has_line(store, "secret")


NAMES = [f"{number}.mp4" for number in range(6)]
SECRET_LINE = "the secret of the other folder"


def fill(folder: Path, colour: str, line: str) -> None:
    """Write a long and some short videos, with subtitles."""
    folder.mkdir(parents=True)
    for number, name in enumerate(NAMES):
        colour_video(folder / name, [colour] * (20 if number == 0 else 1 + number))
        subtitles = f"1\n00:00:01,000 --> 00:00:02,000\n{line}\n"
        (folder / name).with_suffix(".srt").write_text(subtitles)


def index_watched(root: Path, store: Path, workers: int) -> LocalStore:
    """Watch a folder until it has been indexed once."""
    options = IndexOptions(splitting=SPLITTING, workers=workers, precision="fp32")
    reports = watch([root], store, "bag", options=options, method=BagMethod(), wait=lambda _: True)
    next(reports)
    return LocalStore.open(store)


def has_line(store: LocalStore, term: str) -> bool:
    return bool(store.snapshot().find_lines(LineQuery((term,)), 10))


def thumbnails_of(store: LocalStore) -> set[bytes]:
    snapshot = store.snapshot()
    return {snapshot.thumbnail(int(row)) for row in snapshot.visible_rows()}


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="links are exchanged as Linux does it")
def test_links_that_change_while_a_watched_folder_is_indexed_leak_nothing(tmp_path: Path) -> None:
    """Folder, files and subtitles are exchanged with links while real runs read them."""
    root, secret = tmp_path / "videos", tmp_path / "secret"
    fill(root / "sub", "red", "an open word")
    fill(secret, "blue", SECRET_LINE)
    private = index_watched(secret, tmp_path / "private", workers=0)
    assert len(private.files()) == len(NAMES)
    assert has_line(private, "secret")
    over = threading.Event()
    exchanges = 0

    def exchange() -> None:
        nonlocal exchanges
        aside, link = tmp_path / "aside", tmp_path / "link"
        while not over.is_set():
            (root / "sub").rename(aside)
            (root / "sub").symlink_to(secret)
            (root / "sub").unlink()
            aside.rename(root / "sub")
            for name in (NAMES[0], "0.srt", "3.mp4", "3.srt"):
                (root / "sub" / name).rename(aside)
                link.symlink_to(secret / name)
                link.rename(root / "sub" / name)
                aside.rename(root / "sub" / name)
            exchanges += 1

    thread = threading.Thread(target=exchange)
    thread.start()
    try:
        stores = [
            index_watched(root, tmp_path / f"store {number}", workers=2) for number in range(3)
        ]
    finally:
        over.set()
        thread.join()
    assert exchanges > 10
    secrets = {file.content for file in private.files()}
    for store in stores:
        assert secrets.isdisjoint(file.content for file in store.files())
        assert thumbnails_of(store).isdisjoint(thumbnails_of(private))
        assert not has_line(store, "secret")
    # When nothing changes any more, all files of the folder itself are indexed.
    store = index_watched(root, tmp_path / "store 0", workers=0)
    failures = {file.path: file.reason for file in store.files() if file.status != "done"}
    assert failures == {}
    assert {Path(file.path).name for file in store.files()} == set(NAMES)
    assert has_line(store, "open")


def test_a_file_that_was_exchanged_and_put_back_is_indexed_by_the_next_run(
    exchange: tuple[Engine, Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, indexed, _ = exchange
    with monkeypatch.context() as patch:
        version = (0, 0, 0, 0)
        patch.setattr(decoding, "current_version", lambda path: version)
        store = index_watched(indexed.parent, tmp_path / "other", workers=0)
    assert [file for file in store.files() if file.status == "done"] == []
    store = index_watched(indexed.parent, tmp_path / "other", workers=0)
    assert [file.status for file in store.files()] == ["done"]
