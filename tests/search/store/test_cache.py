"""The local copy of a store on object storage stays within its bound, version after version."""

from __future__ import annotations

from pathlib import Path

import pytest

from eaglenet.core.errors import StoreError
from eaglenet.core.object_storage import ObjectFolder
from eaglenet.search.store import pieces
from eaglenet.search.store.cache import BYTES_VARIABLE, SnapshotCache
from eaglenet.search.store.pieces import Pieces

ROWS_BYTES = 1000


@pytest.fixture
def remote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ObjectFolder:
    """Object storage in memory."""
    memory = pytest.importorskip("obstore.store").MemoryStore()
    monkeypatch.setenv("EAGLENET_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    folder = ObjectFolder("s3://bucket/store")
    monkeypatch.setattr(folder, "_store", memory)
    return folder


class Versions:
    """A store that is published again and again."""

    def __init__(self, remote: ObjectFolder) -> None:
        self.remote = remote
        self.version = 0
        self.files: dict[str, Pieces] = dict.fromkeys(("vectors-1.f32", "records-1.bin"), ())

    def publish(self) -> None:
        self.version += 1
        for name, found in self.files.items():
            self.files[name] = pieces.add(self.remote, name, found, bytes(100))
        for name in self.small:
            self.remote.write(f"snapshot/{name}", bytes(ROWS_BYTES))

    @property
    def small(self) -> list[str]:
        return [f"rows-{self.version}.npz", f"files-{self.version}.json"]

    def fill(self) -> dict[str, int]:
        """Sizes of the files of the copy that a reader has then."""
        small = {name: f"snapshot/{name}" for name in self.small}
        with SnapshotCache(self.remote).filled({"version": self.version}, self.files, small) as at:
            return {path.name: path.stat().st_size for path in at.iterdir()}


def test_of_old_versions_the_rows_of_one_are_kept(remote: ObjectFolder) -> None:
    store = Versions(remote)
    for number in range(1, 12):
        store.publish()
        found = store.fill()
        rows = {f"rows-{version}.npz" for version in (number - 1, number) if version}
        assert (
            set(found) == {"vectors-1.f32", f"files-{number}.json", "current.json", "lock"} | rows
        )
        assert found["vectors-1.f32"] == 100 * number


def test_all_files_count_towards_the_bound(
    remote: ObjectFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Versions(remote)
    for _ in range(2):
        store.publish()
        size = sum(store.fill().values())
    assert size > 3 * ROWS_BYTES + 200
    for bound, kept in ((size, size), (size - 1, size - ROWS_BYTES)):
        monkeypatch.setenv(BYTES_VARIABLE, str(bound))
        assert sum(store.fill().values()) == kept
    monkeypatch.setenv(BYTES_VARIABLE, str(size - ROWS_BYTES - 1))
    with pytest.raises(StoreError, match=rf"set {BYTES_VARIABLE} to more$"):
        store.fill()


def test_copies_of_other_stores_make_room_for_all_files_of_one(
    remote: ObjectFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Versions(remote)
    store.publish()
    size = sum(store.fill().values())
    other = tmp_path / "cache" / "stores" / "other"
    for bound, stays in ((size + 8192, True), (size + 4000, False)):
        other.mkdir(exist_ok=True)
        (other / "vectors-1.f32").write_bytes(bytes(4096))
        monkeypatch.setenv(BYTES_VARIABLE, str(bound))
        store.fill()
        assert other.exists() is stays
