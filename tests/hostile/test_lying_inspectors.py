"""Index runs over files that have taken over their inspectors, whose replies keep the layout."""

from __future__ import annotations

import hashlib
import time
from pathlib import Path

import numpy as np
import pytest
from takeover import LIES, inspect_with_lies
from test_videos import small_video

from eaglenet.core.frame_spec import Splitting
from eaglenet.indexing import inspection
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
    options = IndexOptions(splitting=Splitting(), workers=1, precision="fp32")
    began = time.monotonic()
    for _ in range(2):  # The second run finds what the first one stored.
        report = index_videos([videos], store, "bag", options=options, method=BagMethod())
    assert time.monotonic() - began < 60
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
