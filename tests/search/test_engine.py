"""Searching: shortlist, exact ranking, moments, grouping, filters."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import eaglenet
from eaglenet.core.errors import EagleNetError, ModelNotFoundError, StoreError, UsageError
from eaglenet.core.types import VideoFeatures
from eaglenet.search.engine import Engine
from eaglenet.search.options import Filters, SearchOptions
from eaglenet.search.query import Query
from eaglenet.search.reranking import NEGATIVE_WEIGHT
from eaglenet.search.shortlist import make_shortlists
from eaglenet.store.manifest import video_features
from eaglenet.store.records import Changes, IndexedFile
from eaglenet.store.store import LocalStore
from synthetic_store import BagMethod, clip_batch, content_of, make_manifest, make_store


def all_features(engine: Engine) -> VideoFeatures:
    snapshot = engine.snapshot
    records = snapshot.features_at(np.arange(len(snapshot)))
    return video_features(engine.manifest.layout.unpack(records))[0]


def ids_of(engine: Engine, rows: list[int]) -> list[str]:
    return [clip.id for clip in engine.snapshot.clips(rows)]


def test_ranks_the_shortlist_by_exact_score(engine: Engine, bag: BagMethod) -> None:
    text = bag.encode_text(["red car"])
    exact = bag.score(text, all_features(engine))[0]
    hits = engine.search("red car", k=4, shortlist=18, keep_duplicates=True)
    best = exact.topk(4)
    assert [hit.rank for hit in hits] == [1, 2, 3, 4]
    assert [hit.clip_id for hit in hits] == ids_of(engine, best.indices.tolist())
    torch.testing.assert_close(torch.tensor([hit.score for hit in hits]), best.values)
    coarse = engine.search("red car", k=4, rerank=False, keep_duplicates=True)
    assert [hit.score for hit in coarse] == [hit.coarse_score for hit in coarse]
    assert coarse[0].score >= coarse[1].score
    # The shortlist bounds what can be found, and k widens it.
    narrow = engine.search("red car", k=4, shortlist=1, keep_duplicates=True)
    assert {hit.clip_id for hit in narrow} == {hit.clip_id for hit in coarse}


def test_search_many_equals_separate_searches(engine: Engine) -> None:
    queries = ["red car", "blue dog sleeps", "green"]
    together = engine.search_many(queries, k=3)
    for query, hits in zip(queries, together, strict=True):
        alone = engine.search(query, k=3)
        assert [hit.clip_id for hit in alone] == [hit.clip_id for hit in hits]
    assert engine.search_many([]) == []


def test_moment_is_in_the_clip_at_its_best_frame(engine: Engine) -> None:
    for hit in engine.search("red ball", k=9):
        start, end = engine.span_of(hit.clip_id)
        assert start <= hit.moment.start <= hit.moment.best <= hit.moment.end <= end
        explained = engine.explain("red ball", hit.clip_id)
        assert explained.moment == hit.moment
        assert explained.score == pytest.approx(hit.score, abs=1e-6)
        assert explained.coarse_score == pytest.approx(hit.coarse_score, abs=1e-6)
        best = max(explained.frames, key=lambda frame: frame[1])
        assert best[0] == pytest.approx(hit.moment.best)
        assert hit.duration == 30


def test_negatives_lower_the_score(engine: Engine, bag: BagMethod) -> None:
    text = bag.encode_text(["red car", "dog", "slow"])
    scores = bag.score(text, all_features(engine))
    expected = scores[0] - NEGATIVE_WEIGHT * (scores[1] + scores[2]) / 2
    hits = engine.search(Query("red car", negatives=("dog", "slow")), k=18, keep_duplicates=True)
    torch.testing.assert_close(
        torch.tensor([hit.score for hit in hits]), expected.sort(descending=True).values
    )


def test_groups_hits_by_file(engine: Engine) -> None:
    plain = engine.search("red car", k=18)
    grouped = engine.search("red car", k=6, group_files=True)
    assert len({hit.path for hit in grouped}) == 6
    first_of_file = {}
    for hit in plain:
        first_of_file.setdefault(hit.path, hit.clip_id)
    assert [hit.clip_id for hit in grouped] == list(first_of_file.values())
    assert all(len(hit.metadata["more"]) == 2 for hit in grouped)


def test_filters_hits(engine: Engine) -> None:
    hits = engine.search("red car", k=18, filters=Filters(tags=("odd",)), keep_duplicates=True)
    assert {hit.path for hit in hits} == {"/videos/1.mp4", "/videos/3.mp4", "/videos/5.mp4"}
    assert len(hits) == 9
    assert engine.search("red car", filters=Filters(path="nowhere")) == []
    hits = engine.search("red", filters=Filters(path="*/5.mp4"), keep_duplicates=True)
    assert [hit.path for hit in hits] == ["/videos/5.mp4"] * 3


def test_hits_of_a_clip_are_in_other_files(engine: Engine) -> None:
    clip_id = f"{content_of(2)[:16]}-1"
    for query in (Query(clip_id=clip_id), f'clip:{clip_id} + "red"'):
        hits = engine.search(query, k=18, keep_duplicates=True)
        assert len(hits) == 15
        assert "/videos/2.mp4" not in {hit.path for hit in hits}
        assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)


def test_hits_of_a_clip_are_in_its_file_if_no_other_is_searched(engine: Engine) -> None:
    clip_id = f"{content_of(2)[:16]}-1"
    hits = engine.search(Query(clip_id=clip_id), k=18, path="*/2.mp4", keep_duplicates=True)
    assert {hit.clip_id for hit in hits} == {f"{content_of(2)[:16]}-{n}" for n in (0, 2)}


@pytest.mark.parametrize("k", [1, 4])
def test_clip_query_returns_k_other_clips(engine: Engine, k: int) -> None:
    clip_id = f"{content_of(2)[:16]}-1"
    # The clips of its file take no place on a shortlist that is just long enough.
    hits = engine.search(Query(clip_id=clip_id), k, shortlist=k, keep_duplicates=True)
    vectors = engine.snapshot.vectors_at(np.array([engine.snapshot.row(clip_id)]))
    (wide,) = make_shortlists(engine.snapshot, vectors, 18, None)
    own = {f"{content_of(2)[:16]}-{number}" for number in range(3)}
    others = [each for each in ids_of(engine, wide.rows.tolist()) if each not in own]
    assert {hit.clip_id for hit in hits} == set(others[:k])


def test_ranks_captions_for_a_clip(engine: Engine, bag: BagMethod) -> None:
    captions = ["red car", "dog sleeps", "blue ball jumps", "slow"]
    clip_id = f"{content_of(0)[:16]}-0"
    row = engine.snapshot.row(clip_id)
    scores = bag.score(bag.encode_text(captions), all_features(engine)[row])[:, 0]
    ranked = engine.best_captions(Query(clip_id=clip_id), captions, k=3)
    order = scores.sort(descending=True).indices[:3].tolist()
    assert [hit.caption for hit in ranked] == [captions[number] for number in order]
    with pytest.raises(UsageError, match="at least one"):
        engine.best_captions(Query(clip_id=clip_id), [])
    with pytest.raises(UsageError, match="a list of texts"):
        engine.best_captions(Query(clip_id=clip_id), "red car")
    with pytest.raises(UsageError, match="expected Query"):
        engine.best_captions("red car", captions)  # type: ignore[arg-type]


def test_refuses_another_model(store_folder: Path) -> None:
    with pytest.raises(StoreError, match="another model"):
        Engine.open(store_folder, BagMethod(seed=5)).search("red")


def test_reports_a_moved_model(bag: BagMethod, tmp_path: Path) -> None:
    with LocalStore.write(tmp_path / "store", make_manifest(bag, model=str(tmp_path / "gone"))):
        pass
    with pytest.raises(StoreError, match="--model FOLDER"):
        Engine.open(tmp_path / "store").search("red")
    with pytest.raises(ModelNotFoundError, match="/no/such/model") as caught:
        Engine.open(tmp_path / "store", "/no/such/model").search("red")
    assert "was in" not in str(caught.value)


def test_empty_store_has_no_hits(bag: BagMethod, tmp_path: Path) -> None:
    make_store(tmp_path, bag, num_files=0)
    engine = Engine.open(tmp_path, bag)
    engine.warm_up()
    assert engine.search("red car", filters=Filters(path="x")) == []
    assert engine.search_many(["red", "car"], group_files=True) == [[], []]
    assert engine.info()["clips"] == 0


def test_package_opens_stores(store_folder: Path, bag: BagMethod) -> None:
    engine = eaglenet.open(store_folder, model=bag)
    info = engine.info()
    assert (info["clips"], info["files"], info["model"]) == (18, 6, "bag")
    assert info["hours"] == pytest.approx(6 * 30 / 3600)
    assert len(engine.search("red car", k=2)) == 2


@pytest.mark.parametrize("k", [0, -1, 10**9, 1.5, "3", None])
def test_refuses_impossible_numbers_of_results(engine: Engine, k: object) -> None:
    with pytest.raises(UsageError, match="k must be"):
        engine.search("red", k=k)


@pytest.mark.parametrize("shortlist", [0, 2.5, None])
def test_refuses_impossible_shortlists(engine: Engine, shortlist: object) -> None:
    with pytest.raises(UsageError, match="shortlist must be"):
        engine.search("red", shortlist=shortlist)


@pytest.mark.parametrize("name", ["missing.mp4", "broken.mp4", "broken.png"])
def test_reports_unreadable_query_files(engine: Engine, tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    if name.startswith("broken"):
        path.write_bytes(b"\x00\x01 not media")
    query = Query(image=path) if name.endswith("png") else Query(video=path)
    with pytest.raises(EagleNetError, match=name):
        engine.search(query)


def test_unknown_clip_ids_are_an_error(engine: Engine) -> None:
    for clip_id in ("", "nope", "../../etc/passwd", "0" * 5000):
        with pytest.raises(UsageError, match="no clip"):
            engine.thumbnail(clip_id)
        with pytest.raises(UsageError):
            engine.file_of(clip_id)
        assert clip_id not in engine


def test_a_folder_without_a_store_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.mp4").touch()
    for location, message in (
        (tmp_path / "nothing", "create one with: eaglenet index"),
        ("~of-nobody/store", r"~of-nobody/store: .*home"),
        (tmp_path, "is not a store; name the folder of a store"),
        (tmp_path / "a.mp4", "is a file"),
    ):
        with pytest.raises(StoreError, match=message):
            Engine.open(location)


def test_damaged_features_are_an_error_and_not_a_ranking(bag: BagMethod, tmp_path: Path) -> None:
    make_store(tmp_path, bag, num_files=2)
    (path,) = (tmp_path / "segments").glob("*.features")
    path.write_bytes(bytes(path.stat().st_size))
    with pytest.raises(StoreError, match=rf"{path.name} .* repair --store {tmp_path}"):
        Engine.open(tmp_path, bag).search("red car")


def test_scores_that_are_not_numbers_are_an_error(bag: BagMethod, tmp_path: Path) -> None:
    with LocalStore.write(tmp_path, make_manifest(bag)) as writer:
        frames = torch.randn(2, 5, 24)
        batch = clip_batch(bag, writer.manifest.layout, content_of(0), frames)
        batch.features["frames"] = np.nan
        file = IndexedFile("/videos/0.mp4", 1, 1, content_of(0), "done", num_clips=2)
        writer.commit(Changes([batch], [file]))
    with pytest.raises(StoreError, match="scores are not finite"):
        Engine.open(tmp_path, bag).search("red car")


def test_replaced_clips_are_not_counted_as_searched(bag: BagMethod, tmp_path: Path) -> None:
    with LocalStore.write(tmp_path, make_manifest(bag)) as writer:
        frames = torch.nn.functional.normalize(torch.randn(2, 5, 24), dim=-1)
        exact = clip_batch(bag, writer.manifest.layout, content_of(0), frames)
        quick = dataclasses.replace(exact, keyframe_keys=frozenset(exact.keys))
        file = IndexedFile("/videos/0.mp4", 1, 1, content_of(0), "done", num_clips=2)
        writer.commit(Changes([quick], [file]))
        writer.commit(Changes([exact], [file]))
    engine = Engine.open(tmp_path, bag)
    assert engine.snapshot.num_rows == 4
    for filters in (Filters(), Filters(path="*.mp4")):
        assert engine.num_searched(Query("red car"), SearchOptions(filters=filters)) == 2


def test_searching_a_store_imports_nothing_heavy() -> None:
    code = (
        "import sys, eaglenet.search.engine, eaglenet.store.store\n"
        "heavy = ('torch', 'lancedb', 'pyarrow', 'av', 'cv2', 'PIL')\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"
