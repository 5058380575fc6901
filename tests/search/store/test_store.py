import dataclasses
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from synthetic_store import (
    DIM,
    FRAMES,
    BagMethod,
    add_file,
    content_of,
    make_manifest,
    make_store,
)
from torch.nn import functional as F

from eaglenet.errors import StoreError, UsageError
from eaglenet.search import shortlist
from eaglenet.search.engine import Engine
from eaglenet.search.models import model_identity
from eaglenet.search.shortlist import exact_shortlists
from eaglenet.search.store import publishing, snapshot
from eaglenet.search.store.folder import StoreFolder
from eaglenet.search.store.layout import FeatureLayout
from eaglenet.search.store.manifest import Splitting
from eaglenet.search.upkeep import build_index, recall, repair
from eaglenet.types import FrameSpec, VideoFeatures


def random_frames(clips: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return F.normalize(torch.randn(clips, FRAMES, DIM, generator=generator), dim=-1)


def test_records_give_back_every_field_of_the_features() -> None:
    generator = torch.Generator().manual_seed(0)
    features = VideoFeatures(
        frames=torch.randn(3, 5, 8, generator=generator),
        mask=torch.rand(3, 5, generator=generator) > 0.5,
        tokens=torch.randn(3, 7, 8, generator=generator),
        tokens_mask=torch.rand(3, 7, generator=generator) > 0.5,
    )
    layout = FeatureLayout.of(features)
    layout = FeatureLayout.from_json(json.loads(json.dumps(layout.to_json())))
    seconds = torch.rand(3, 5, generator=generator)
    stored = layout.unpack(layout.pack(features, seconds))
    for name in ("frames", "tokens"):
        # Kept in half precision: 11 bits.
        expected = getattr(features, name)
        torch.testing.assert_close(getattr(stored.features, name), expected, rtol=1e-3, atol=1e-4)
    assert torch.equal(stored.features.mask, features.mask)
    assert stored.features.tokens_mask is not None
    assert torch.equal(stored.features.tokens_mask, features.tokens_mask)
    assert torch.equal(stored.seconds, seconds)
    with pytest.raises(StoreError, match="new store"):
        layout.pack(
            dataclasses.replace(features, tokens=features.tokens[:, :6], tokens_mask=None), seconds
        )


def test_the_identity_of_a_model_follows_its_weights_and_configuration(bag: BagMethod) -> None:
    assert model_identity(BagMethod()) == model_identity(bag)
    assert model_identity(BagMethod(seed=1)) != model_identity(bag)
    other = BagMethod()
    other.config = dataclasses.replace(other.config, sharpness=2.0)
    assert model_identity(other) != model_identity(bag)


def test_a_manifest_survives_writing_and_refuses_to_mix(bag: BagMethod, tmp_path: Path) -> None:
    manifest = make_manifest(bag, roots=("/videos",))
    StoreFolder(tmp_path, manifest).write_manifest()
    assert StoreFolder.open(tmp_path).manifest == manifest
    for other, words in (
        (make_manifest(BagMethod(seed=1), model="other"), "model 'bag'"),
        (dataclasses.replace(manifest, splitting=Splitting(5.0)), "clip_seconds 10.0 .now 5.0"),
        (dataclasses.replace(manifest, frame_spec=FrameSpec(num_frames=4)), "num_frames"),
    ):
        with pytest.raises(StoreError, match=words) as caught:
            manifest.require_same(other, "here")
        assert "--store" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"format": 99}', "newer eaglenet"),
        ('{"format": 1}', "damaged"),
        ("[]", "damaged"),
        ("{", "cannot be read"),
        ('{"model": "x"}', "no store format"),
    ],
)
def test_a_manifest_that_is_not_ours_is_refused_politely(
    text: str, words: str, tmp_path: Path
) -> None:
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(StoreError, match=words):
        Engine.open(tmp_path)


def test_a_folder_without_a_store_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="eaglenet index"):
        Engine.open(tmp_path / "nothing")


def test_the_shortlist_is_the_exact_one_with_filters_and_removed_clips(
    bag: BagMethod, tmp_path: Path
) -> None:
    store, tables = make_store(tmp_path, bag, num_files=9, clips_each=4)
    tables.remove_files(["/videos/3.mp4", "/videos/7.mp4"])
    store.publish(tables)
    snapshot = store.snapshot()
    assert len(snapshot) == 7 * 4
    assert not snapshot.is_dense
    vectors = snapshot.vectors[torch.from_numpy(snapshot.columns["slot"])]
    queries = F.normalize(torch.randn(3, DIM, generator=torch.Generator().manual_seed(3)), dim=-1)
    generator = np.random.default_rng(0)
    for allowed in (None, generator.random(28) < 0.8, generator.random(28) < 0.15):
        together = exact_shortlists(snapshot, queries, 5, allowed)
        for query, found in zip(queries, together, strict=True):
            scores = vectors @ query
            if allowed is not None:
                scores[~torch.from_numpy(allowed)] = -torch.inf
            size = 5 if allowed is None else min(5, int(allowed.sum()))
            expected = scores.topk(size)
            assert found.rows.tolist() == expected.indices.tolist()
            torch.testing.assert_close(torch.from_numpy(found.cosines), expected.values)
            alone = exact_shortlists(snapshot, query[None], 5, allowed)[0]
            assert alone.rows.tolist() == found.rows.tolist()


def test_readers_keep_their_version_and_then_see_the_next(bag: BagMethod, tmp_path: Path) -> None:
    store, tables = make_store(tmp_path, bag, num_files=2)
    engine = Engine.open(tmp_path, bag)
    held = engine.snapshot
    before = held.records(np.arange(len(held))).copy()
    pictures = [held.thumbnail(row) for row in range(len(held))]
    tables.remove_files(["/videos/0.mp4"])
    add_file(tables, store.manifest, bag, "/videos/new.mp4", content_of(11), random_frames(4, 7))
    store.publish(tables)
    add_file(tables, store.manifest, bag, "/videos/newer.mp4", content_of(12), random_frames(2, 8))
    store.publish(tables)
    assert np.array_equal(held.records(np.arange(len(held))), before)
    assert [held.thumbnail(row) for row in range(len(held))] == pictures
    assert engine.info()["clips"] == 3 + 4 + 2
    paths = {hit.path for hit in engine.search("red car", k=50)}
    assert paths == {"/videos/1.mp4", "/videos/new.mp4", "/videos/newer.mp4"}
    assert engine.thumbnail(f"{content_of(12)[:16]}-1") == f"{content_of(12)}1".encode()


def test_clips_of_unfinished_files_are_not_shown(bag: BagMethod, tmp_path: Path) -> None:
    store, tables = make_store(tmp_path, bag, num_files=1)
    add_file(
        tables,
        store.manifest,
        bag,
        "/videos/bad.mp4",
        content_of(5),
        random_frames(2, 1),
        status="failed",
    )
    assert store.publish(tables) == 3
    assert len(tables.clip_keys()) == 5


def test_files_are_written_anew_when_most_slots_are_dead(
    bag: BagMethod, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publishing, "CHUNK", 2)
    store, tables = make_store(tmp_path, bag, num_files=5)
    old = store.snapshot()
    tables.remove_files([f"/videos/{number}.mp4" for number in range(4)])
    store.publish(tables)
    new = store.snapshot()
    assert (new.num_slots, new.generation) == (3, old.generation + 1)
    assert np.array_equal(new.records(np.arange(3)), old.records(np.arange(12, 15)))
    assert [new.clip_id(row) for row in range(3)] == [old.clip_id(row) for row in range(12, 15)]


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


@pytest.mark.parametrize("table", ["clips", "files"])
def test_repairing_from_damaged_tables_keeps_what_can_be_searched(
    table: str, bag: BagMethod, tmp_path: Path
) -> None:
    make_store(tmp_path, bag, num_files=2)
    expected = [hit.clip_id for hit in Engine.open(tmp_path, bag).search("red car")]
    for path in (tmp_path / f"{table}.lance" / "data").iterdir():
        path.write_bytes(b"garbage")
    with pytest.raises(StoreError, match=r"tables of .* are damaged"):
        repair(tmp_path)
    assert [hit.clip_id for hit in Engine.open(tmp_path, bag).search("red car")] == expected


@pytest.mark.parametrize("is_emptied", [False, True], ids=["gone", "emptied"])
@pytest.mark.parametrize("table", ["clips", "files"])
def test_a_lost_table_is_told_and_not_made_anew(
    table: str, is_emptied: bool, bag: BagMethod, tmp_path: Path
) -> None:
    store, _ = make_store(tmp_path, bag, num_files=2)
    shutil.rmtree(tmp_path / f"{table}.lance")
    if is_emptied:
        (tmp_path / f"{table}.lance").mkdir()
    for write in (repair, build_index):
        with pytest.raises(StoreError, match=rf"lost {table}\.lance; what can be searched"):
            write(tmp_path)
    assert len(Engine.open(tmp_path, bag).search("red car", k=50)) == 6
    shutil.rmtree(tmp_path / "snapshot")
    with pytest.raises(StoreError, match=rf"lost {table}\.lance\. Restore"):
        store.tables()


def test_a_store_that_was_hardly_begun_is_made_whole(bag: BagMethod, tmp_path: Path) -> None:
    store = StoreFolder(tmp_path, make_manifest(bag))
    store.tables()
    shutil.rmtree(tmp_path / "files.lance")
    assert store.tables().files() == []


def test_repairing_never_leaves_less_than_can_be_searched(bag: BagMethod, tmp_path: Path) -> None:
    _, tables = make_store(tmp_path, bag, num_files=2)
    tables.remove_contents([content_of(0)])
    with pytest.raises(StoreError, match="lack 3 clips of 1 files"):
        repair(tmp_path)
    tables.remove_files(["/videos/0.mp4"])
    with pytest.raises(StoreError, match="hold 3 clips, but 6 can be searched"):
        repair(tmp_path)
    assert len(Engine.open(tmp_path, bag).search("red car", k=50)) == 6


def test_a_snapshot_written_anew_keeps_clips_that_the_table_lost(
    bag: BagMethod, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publishing, "CHUNK", 2)
    store, tables = make_store(tmp_path, bag, num_files=5)
    tables.remove_contents([content_of(4)])
    tables.remove_files([f"/videos/{number}.mp4" for number in range(4)])
    assert store.publish(tables) == 3


def test_a_snapshot_that_may_not_be_read_says_so(
    bag: BagMethod, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_store(tmp_path, bag, num_files=2)

    def refuse(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(snapshot, "open_for_reading", refuse)
    with pytest.raises(StoreError, match="Permission denied"):
        Engine.open(tmp_path, bag)


def test_large_stores_use_an_index_whose_recall_can_be_measured(
    bag: BagMethod, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_store(tmp_path, bag, num_files=20, clips_each=15)
    exact = Engine.open(tmp_path, bag)
    assert exact.info()["index"] == "exact scan"
    assert recall(tmp_path, k=10, num_queries=3).recall == 1.0
    expected = [hit.clip_id for hit in exact.search("red car", k=5)]
    kind = build_index(tmp_path)
    monkeypatch.setattr(shortlist, "EXACT_BYTES", 0)
    engine = Engine.open(tmp_path, bag)
    assert engine.info()["index"] == kind
    assert "IVF" in kind.upper()
    # All partitions are looked into here, so the index finds everything.
    assert [hit.clip_id for hit in engine.search("red car", k=5)] == expected
    measured = recall(tmp_path, k=10, num_queries=7)
    assert (measured.index, measured.queries) == (kind, 7)
    assert measured.recall > 0.9


def test_clip_ids_that_do_not_exist_are_told(engine: Engine) -> None:
    for clip_id in ("", "nope", "../../etc/passwd", "0" * 5000):
        with pytest.raises(UsageError, match="no clip"):
            engine.thumbnail(clip_id)
        with pytest.raises(UsageError):
            engine.file_of(clip_id)
        assert clip_id not in engine
