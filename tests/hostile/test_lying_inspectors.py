"""Index runs over files that have taken over their inspectors, whose replies keep the layout."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from takeover import LIES, MAX_CLIPS, hear_elsewhere, inspect_with_lies, see_elsewhere
from test_videos import small_video

from eaglenet.core.frame_spec import Splitting
from eaglenet.indexing import index, inspection, recognition
from eaglenet.indexing.index import index_videos
from eaglenet.indexing.options import IndexOptions
from eaglenet.search.engine import Engine
from eaglenet.store.store import LocalStore
from subtitled import write_with_subtitles
from synthetic_store import BagMethod

CLEANED = {"no Unicode", "long line", "odd lines"}
"""Lies of which only the text is changed."""


def test_lies_fail_their_own_file_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run ends in time, the store is intact, and nothing of another file changes."""
    videos, store = tmp_path / "videos", tmp_path / "store"
    videos.mkdir()
    good = write_with_subtitles(videos / "a good one.mkv", [(0.0, 1.0, "honest words")])
    content = hashlib.blake2b(good.read_bytes(), digest_size=16).hexdigest()
    for number, name in enumerate([*LIES, f"copy of {content}"]):
        small_video(videos / f"{name}.mp4", frames=20 + number)
    monkeypatch.setattr(inspection, "inspect", inspect_with_lies)
    monkeypatch.setattr(inspection, "MAX_CLIPS", MAX_CLIPS)
    options = IndexOptions(splitting=Splitting(), workers=1, precision="fp32")
    began = time.monotonic()
    for _ in range(2):  # The second run finds what the first one stored.
        report = index_videos([videos], store, "bag", options=options, method=BagMethod())
    assert time.monotonic() - began < 300
    reasons = {Path(problem.path).stem: problem.reason for problem in report.problems}
    assert set(reasons) == {*LIES} - {"long line"}
    for name in {*LIES} - CLEANED:
        assert reasons[name] == "the decoder sent an invalid reply", name
    assert all(len(reason) <= 2000 for reason in reasons.values())
    "".join(reasons.values()).encode()
    opened = LocalStore.open(store)
    opened.verify()
    snapshot = opened.snapshot()
    assert max(clip.end for clip in snapshot.clips(np.arange(snapshot.num_rows))) < 100
    with Engine.open(store, model=BagMethod()) as engine:
        names = {Path(hit.path).stem for hit in engine.search("red", k=50, keep_duplicates=True)}
        assert names - {f"copy of {content}"} == {"a good one", "long line", "odd lines"}
        assert [hit.path for hit in engine.search('"honest words"')] == [str(good)]
        assert not engine.search('"forged"')


class NoReader:
    """Stands for the models that read on-screen text and speech."""

    def __init__(self, *_: object) -> None:
        """Nothing is loaded."""

    @staticmethod
    def require() -> None:
        """Nothing has to be installed."""

    @staticmethod
    def version() -> str:
        return "none"

    def read(self, frames: Sequence[object], deadline: float) -> list[list[object]]:
        return [[] for _ in frames]

    def transcribe(self, samples: object, start: float) -> list[object]:
        return []


def test_lies_about_times_do_not_make_runs_endless(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next chunk, and the next run, begin where the last chunk ended."""
    (tmp_path / "videos").mkdir()
    small_video(tmp_path / "videos" / "a.mp4")
    for module in (index, recognition):
        monkeypatch.setattr(module, "OcrModel", NoReader)
        monkeypatch.setattr(module, "SpeechModel", NoReader)
    monkeypatch.setattr(recognition, "decode_audio_chunk", hear_elsewhere)
    monkeypatch.setattr(recognition, "decode_frame_chunk", see_elsewhere)
    for changes in ({"read_text": True}, {"read_text": True, "retry": True}, {"listen": "none"}):
        options = IndexOptions(workers=1, precision="fp32", **changes)  # type: ignore[arg-type]
        report = index_videos(
            [tmp_path / "videos"], tmp_path / "store", "bag", options=options, method=BagMethod()
        )
        (problem,) = report.problems
        assert problem.reason.endswith(": the decoder sent an invalid reply")
