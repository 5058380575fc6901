"""Videos that are listed, and videos on object storage."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from index_cases import clip_keys

from eaglenet.core.errors import UsageError
from eaglenet.core.frame_spec import Splitting
from eaglenet.indexing import fetching
from eaglenet.indexing.fetching import find_listed_files, find_objects, read_list
from eaglenet.indexing.index import IndexOptions, index_videos
from eaglenet.store.object_storage import ObjectEntry, ObjectFolder
from eaglenet.store.store import open_store
from object_storage import MemoryGate
from small_videos import colour_video
from synthetic_store import BagMethod

OPTIONS = IndexOptions(splitting=Splitting(3.0, 1.0), workers=0)


@pytest.fixture
def videos(tmp_path: Path) -> Path:
    """Videos to put into object storage."""
    folder = tmp_path / "videos"
    folder.mkdir()
    colour_video(folder / "one.mp4", ["red", "green"])
    colour_video(folder / "two.mp4", ["blue"])
    colour_video(folder / "other.mp4", ["green"])
    return folder


def test_indexes_a_list_and_reports_its_missing_files(videos: Path, tmp_path: Path) -> None:
    listing = tmp_path / "list.txt"
    names = [str(videos / "one.mp4"), "# a note", "", str(videos / "gone.mp4")]
    listing.write_text("\n".join([*names, str(videos / "two.mp4"), names[0]]) + "\n")
    lines = read_list(listing)
    assert len(lines) == 4
    found = list(find_listed_files(lines))
    assert [Path(file.path).name for file in found] == ["one.mp4", "gone.mp4", "two.mp4"]
    assert [bool(file.problem) for file in found] == [False, True, False]
    store = tmp_path / "store"
    report = index_videos([], store, "bag", method=BagMethod(), options=OPTIONS, files=lines)
    assert report.indexed == 2
    assert [Path(problem.path).name for problem in report.problems] == ["gone.mp4"]
    assert open_store(store).manifest.roots == (str(videos),)
    with pytest.raises(UsageError, match=r"--files .*cannot read it"):
        read_list(tmp_path / "no list")


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Object storage on this machine that holds the videos."""
    pytest.importorskip("obstore")
    gate = MemoryGate().open()
    for name, value in {
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": gate.url,
        "EAGLENET_CACHE": str(tmp_path / "cache"),
    }.items():
        monkeypatch.setenv(name, value)
    fetching._open_bucket.cache_clear()
    yield "s3://bucket/films"
    fetching._open_bucket.cache_clear()
    gate.close()


def test_an_empty_bucket_is_not_a_video(monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers reply to a request for the root of a bucket."""
    pytest.importorskip("obstore")
    root = ObjectEntry("s3://bucket/", 0, datetime.now(UTC), '""')
    monkeypatch.setattr(ObjectFolder, "list", lambda self: iter(()))
    monkeypatch.setattr(ObjectFolder, "entry", lambda self, name: root)
    for url in ("s3://bucket", "s3://bucket/"):
        with pytest.raises(UsageError, match="no video or image"):
            list(find_objects(url))


def test_an_object_that_is_replaced_during_its_download_is_a_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its ranges would be of two files."""
    pytest.importorskip("obstore")
    # Each download asks for the version of the file, and for the tag before and after.
    tags = iter(["old", "old", "new", "new", "new", "new"])
    now = datetime.now(UTC)
    monkeypatch.setattr(fetching, "cache_folder", lambda: tmp_path)
    monkeypatch.setattr(
        ObjectFolder, "entry", lambda self, name: ObjectEntry(f"s3://b/{name}", 4, now, next(tags))
    )
    monkeypatch.setattr(ObjectFolder, "read_ranges", lambda self, name, ranges: [b"mp4!"])
    error = fetching.share("s3://b/a.mp4").error
    assert error is not None
    assert "replaced while" in str(error)
    assert not list((tmp_path / "videos").iterdir())
    file = fetching.share("s3://b/a.mp4")
    file.close()
    assert file.error is None


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_object_storage_gives_the_same_clips_as_files(
    bucket: str, videos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching, "CHUNK", 1000)
    folder = ObjectFolder(bucket)
    for path in videos.iterdir():
        folder.write(f"deep/{path.name}", path.read_bytes())
    folder.write("deep/notes.txt", b"not a video")
    folder.write("deep/broken.mp4", b"\x00\x00\x00\x18ftypmp42" + bytes(50))
    assert len(list(find_objects(bucket))) == 4
    assert len(list(find_objects(f"{bucket}/deep/one.mp4"))) == 1
    with pytest.raises(UsageError, match=f"{bucket}/nothing: no video"):
        list(find_objects(f"{bucket}/nothing"))
    stores = [tmp_path / name for name in ("local", "remote")]
    for store, place in zip(stores, (str(videos), bucket), strict=True):
        report = index_videos([place], store, "bag", method=BagMethod(), options=OPTIONS)
        assert report.indexed == 3
    assert [problem.path for problem in report.problems] == [f"{bucket}/deep/broken.mp4"]
    assert clip_keys(stores[0]) == clip_keys(stores[1])
    paths = open_store(stores[1]).snapshot().files().paths
    assert sorted(map(os.path.basename, (path for each in paths for path in each))) == [
        "one.mp4",
        "other.mp4",
        "two.mp4",
    ]
    folder.remove(["deep/two.mp4"])
    again = index_videos([bucket], stores[1], "bag", method=BagMethod(), options=OPTIONS)
    assert (again.unchanged, again.missing) == (2, 1)
    monkeypatch.setattr(fetching, "CACHE_BYTES", 10)
    monkeypatch.setattr(fetching, "IN_USE_SECONDS", 0.0)
    folder.write("deep/three.mp4", (videos / "two.mp4").read_bytes() + b"\x00\x00\x00\x08free")
    index_videos([bucket], stores[1], "bag", method=BagMethod(), options=OPTIONS)
    assert len(list((tmp_path / "cache" / "videos").iterdir())) <= 2
