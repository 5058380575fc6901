"""What searching reads: damage is told, and mended by repairing."""

from __future__ import annotations

from pathlib import Path

import pytest
from synthetic_store import (
    BagMethod,
    make_store,
)

from eaglenet.core.errors import StoreError, UsageError
from eaglenet.indexing.maintenance import repair
from eaglenet.search.engine import Engine
from eaglenet.search.store import snapshot


@pytest.mark.parametrize("rest", [b"{", b"PK", b""], ids=["text", "zip", "empty"])
@pytest.mark.parametrize("damage", ["current.json", "vectors-1.f32", "rows-1.npz"])
def test_a_damaged_snapshot_says_so_and_is_repaired(
    damage: str, rest: bytes, bag: BagMethod, tmp_path: Path
) -> None:
    make_store(tmp_path, bag, num_files=2)
    expected = [hit.clip_id for hit in Engine.open(tmp_path, bag).search("red car")]
    (tmp_path / "snapshot" / damage).write_bytes(rest)
    with pytest.raises(StoreError, match="eaglenet store repair"):
        Engine.open(tmp_path, bag)
    assert repair(tmp_path) == 6
    assert [hit.clip_id for hit in Engine.open(tmp_path, bag).search("red car")] == expected


def test_damaged_features_are_an_error_and_not_a_ranking(bag: BagMethod, tmp_path: Path) -> None:
    make_store(tmp_path, bag, num_files=2)
    records = tmp_path / "snapshot" / "records-1.bin"
    # All bits set are NaN in half precision.
    records.write_bytes(b"\xff" * records.stat().st_size)
    with pytest.raises(StoreError, match=f"repair --store {tmp_path}"):
        Engine.open(tmp_path, bag).search("red car")
    assert repair(tmp_path) == 6
    assert Engine.open(tmp_path, bag).search("red car")
    assert len(list((tmp_path / "snapshot").glob("records-*.bin"))) == 1


def test_a_snapshot_that_may_not_be_read_says_so(
    bag: BagMethod, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_store(tmp_path, bag, num_files=2)

    def refuse(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(snapshot, "LocalBytes", refuse)
    with pytest.raises(StoreError, match="Permission denied"):
        Engine.open(tmp_path, bag)


def test_clip_ids_that_do_not_exist_are_told(engine: Engine) -> None:
    for clip_id in ("", "nope", "../../etc/passwd", "0" * 5000):
        with pytest.raises(UsageError, match="no clip"):
            engine.thumbnail(clip_id)
        with pytest.raises(UsageError):
            engine.file_of(clip_id)
        assert clip_id not in engine
