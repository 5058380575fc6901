"""An executor may work in any order and more than once; what is stored is the same."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pytest
from index_cases import stored_clips
from ledger_cases import candidate

from eaglenet.core.errors import UnknownNameError
from eaglenet.core.frame_spec import Splitting
from eaglenet.indexing import encoding, executor
from eaglenet.indexing.decoding import ClipRequest
from eaglenet.indexing.executor import (
    EXECUTORS,
    ClipOutcome,
    ExecutorSettings,
    LocalExecutor,
    num_workers,
)
from eaglenet.indexing.files import CandidateFile
from eaglenet.indexing.index import IndexOptions, index_videos
from eaglenet.indexing.inspection import Inspection
from eaglenet.indexing.report import IndexReport
from small_videos import colour_video
from synthetic_store import BagMethod


class ClusterOptions:
    """Gives outcomes late, in a random order, and some of them twice, as a cluster may."""

    def __init__(self, setting: ExecutorSettings) -> None:
        self.local = LocalExecutor(setting)

    def inspect(
        self, files: Sequence[CandidateFile], known_contents: frozenset[str]
    ) -> Iterator[Inspection]:
        outcomes = list(self.local.inspect(files, known_contents))
        random.Random(3).shuffle(outcomes)
        yield from outcomes

    def encode(self, requests: Iterable[ClipRequest]) -> Iterator[ClipOutcome]:
        outcomes = list(self.local.encode(requests))
        outcomes += outcomes[::2]
        random.Random(5).shuffle(outcomes)
        yield from outcomes


@pytest.fixture(scope="module")
def videos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three films of several clips, a copy, and one that is broken."""
    folder = tmp_path_factory.mktemp("videos")
    for number, colours in enumerate((["red", "green", "blue"], ["blue"] * 4, ["green", "red"])):
        colour_video(folder / f"{number}.mp4", colours)
    shutil.copy(folder / "0.mp4", folder / "copy.mp4")
    (folder / "broken.mp4").write_bytes(b"\x00\x00\x00\x18ftypmp42" + bytes(50))
    return folder


def run(videos: Path, store: Path, bag: BagMethod, executor: str) -> IndexReport:
    """Index with clips of three seconds, one in a batch."""
    options = IndexOptions(splitting=Splitting(3.0, 1.0), workers=0, executor=executor)
    return index_videos([videos], store, "bag", method=bag, options=options)


def test_late_shuffled_and_repeated_outcomes_give_the_same_rows(
    videos: Path, bag: BagMethod, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoding, "BATCH_FRAMES", 1)
    monkeypatch.setitem(EXECUTORS._entries, "cluster", ClusterOptions)
    reports = {name: run(videos, tmp_path / name, bag, name) for name in ("local", "cluster")}
    for name in ("indexed", "aliases", "unchanged", "clips"):
        assert getattr(reports["cluster"], name) == getattr(reports["local"], name), name
    assert reports["local"].aliases == 1
    clips = stored_clips(tmp_path / "local")
    assert len(clips) == reports["local"].clips == 13
    assert stored_clips(tmp_path / "cluster") == clips
    assert run(videos, tmp_path / "cluster", bag, "cluster").unchanged == 4


def test_unknown_executor_is_an_error_before_anything_is_written(
    videos: Path, bag: BagMethod, tmp_path: Path
) -> None:
    with pytest.raises(UnknownNameError, match=r"executor 'moon'.*known: local, ray"):
        run(videos, tmp_path / "store", bag, "moon")
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize(
    ("wanted", "files", "size", "expected"),
    [
        (None, 3, 100, 1),
        (None, 3, 2**30, 2),
        (None, 64, 100, 2),
        (500, 5, 100, 5),
        (500, 1, 100, 2),
        (0, 64, 2**30, 0),
        (-3, 1, 100, 0),
    ],
)
def test_number_of_workers_depends_on_the_work(
    wanted: int | None, files: int, size: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor, "num_cores", lambda: 2)
    todo = [candidate(f"/{number}.mp4", size=size) for number in range(files)]
    assert num_workers(todo, wanted) == expected
