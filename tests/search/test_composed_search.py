"""Composed and temporal queries, and confidence, from a text to hits."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from eaglenet.core.errors import UsageError
from eaglenet.search.confidence import Calibration
from eaglenet.search.engine import Engine
from eaglenet.search.grammar import ComposedQuery, Part
from eaglenet.search.options import Filters, SearchOptions
from eaglenet.search.query import Query
from eaglenet.search.retrieval import StoreView
from eaglenet.store.hubness import HubnessBank
from eaglenet.store.store import LocalStore
from synthetic_store import FRAMES, BagMethod, add_file, content_of, make_manifest

SEQUENCES = {"bias": 0.3, "share": 0.5, "lead": 0.0, "score": 1.0, "mean": 2.0, "size": 0.1}
CALIBRATION = {"bias": 0.0, "share": 1.0, "lead": 0.0, "score": 0.0, "mean": 0.0, "size": 0.0}


def words_of(method: BagMethod, *texts: str) -> torch.Tensor:
    """Frames that show these texts: one clip per text."""
    features = method.encode_text(list(texts)).sentence.detach()
    return F.normalize(features, dim=-1)[:, None].expand(-1, FRAMES, -1).clone()


@pytest.fixture
def scenes(tmp_path: Path, bag: BagMethod) -> Engine:
    """Files whose clips show things in different orders."""
    files = [
        ("red car", "dog runs", "blue ball"),
        ("dog runs", "red car", "blue ball"),
        ("red car", "green", "slow", "fast", "dog runs"),
        ("red car", "red car"),
        ("dog runs", "green"),
        ("red dog", "sleeps"),
    ]
    with LocalStore.write(tmp_path / "store", make_manifest(bag)) as writer:
        for number, texts in enumerate(files):
            frames = words_of(bag, *texts)
            add_file(writer, bag, f"/videos/{number}.mp4", content_of(number), frames)
        writer.finish()
    return Engine.open(tmp_path / "store", bag)


def names(hits: list) -> list[str]:
    return [Path(hit.path).stem for hit in hits]


def test_steps_are_found_in_their_order(scenes: Engine) -> None:
    hits = scenes.search('"red car" then "dog runs"', k=3)
    assert set(names(hits)[:2]) == {"0", "2"}
    reverse = scenes.search('"dog runs" then "red car"', k=1)
    assert names(reverse) == ["1"]


def test_within_limits_the_time_between_steps(scenes: Engine) -> None:
    assert names(scenes.search('"red car" then "dog runs" within 15s', k=1)) == ["0"]


def test_three_steps(scenes: Engine) -> None:
    hits = scenes.search('"red car" then "dog runs" then "blue ball"', k=1)
    assert names(hits) == ["0"]
    steps = hits[0].metadata["steps"]
    assert [step["query"] for step in steps] == ['"red car"', '"dog runs"', '"blue ball"']
    times = [step["best"] for step in steps]
    assert times == sorted(times)
    for step, following in pairwise(steps):
        assert step["start"] <= step["best"] <= step["end"] <= following["start"]
    assert hits[0].moment.start == steps[0]["start"]
    assert hits[0].moment.end == steps[-1]["end"]


def test_filters_apply_to_steps(scenes: Engine) -> None:
    hits = scenes.search('"red car" then "dog runs"', k=5, path="*/2.mp4")
    assert names(hits) == ["2"]


def test_parts_are_added_and_subtracted(scenes: Engine) -> None:
    assert names(scenes.search('"red" + "dog"', k=1)) == ["5"]
    ids = [hit.path for hit in scenes.search('"red car" - "2: red"', k=12, keep_duplicates=True)]
    plain = [hit.path for hit in scenes.search("red car", k=12, keep_duplicates=True)]
    assert ids != plain


def test_one_part_ranks_as_the_text_alone(scenes: Engine) -> None:
    plain = scenes.search("red car", k=5)
    composed = scenes.search(ComposedQuery((Part(Query("red car")),)), k=5)
    assert [hit.clip_id for hit in plain] == [hit.clip_id for hit in composed]
    assert [hit.score for hit in plain] == pytest.approx([hit.score for hit in composed])


def test_a_clip_and_a_text_together(scenes: Engine) -> None:
    clip_id = f"{content_of(3)[:16]}-0"
    hits = scenes.search(f'clip:{clip_id} + "3: dog runs"', k=2)
    assert clip_id not in {hit.clip_id for hit in hits}
    assert names(hits)[0] in {"0", "1", "2", "4", "5"}


def test_plain_queries_in_a_list_stay_in_order(scenes: Engine) -> None:
    queries = ["red car", '"red car" then "dog runs"', '"red" + "dog"', "blue ball"]
    together = scenes.search_many(queries, k=1)
    alone = [scenes.search(query, k=1) for query in queries]
    assert [names(hits) for hits in together] == [names(hits) for hits in alone]


def test_a_composed_query_needs_frames(scenes: Engine) -> None:
    with pytest.raises(UsageError, match="frames only"):
        scenes.search('"a" + "b"', modalities="speech")


def test_the_engine_refuses_names_of_files(scenes: Engine) -> None:
    with pytest.raises(UsageError, match="upload"):
        scenes.search('"a" + /etc/picture.jpg')


def test_hits_of_a_model_that_was_not_measured_have_no_confidence(scenes: Engine) -> None:
    assert not scenes.has_confidence
    assert scenes.search("red car", k=1)[0].confidence is None
    with pytest.raises(UsageError, match="not measured"):
        scenes.search("red car", min_confidence=0.5)


@pytest.fixture
def measured(
    tmp_path: Path, bag: BagMethod, scenes: Engine, monkeypatch: pytest.MonkeyPatch
) -> Engine:
    """The same store with hubness offsets and a calibration."""
    location = tmp_path / "measured"
    bank = HubnessBank("test", np.eye(24, dtype=np.float32)[:3], 0.75, 20.0)
    with LocalStore.write(location, make_manifest(bag)) as writer:
        writer.set_hubness(bank)
        for number, texts in enumerate([("red car",), ("dog runs",), ("blue ball", "red car")]):
            frames = words_of(bag, *texts)
            add_file(writer, bag, f"/videos/{number}.mp4", content_of(number), frames)
        writer.finish()
    engine = Engine.open(location, bag)
    calibration = Calibration(
        engine.manifest.identity, str(bank), 30.0, CALIBRATION, sequences=SEQUENCES
    )
    monkeypatch.setattr(Engine, "_load_calibration", lambda self, view: calibration)
    monkeypatch.setattr(Filters, "min_clips", 3)
    assert isinstance(engine.read(lambda view: view), StoreView)
    return engine


def test_confidence_tells_a_single_match_from_two(measured: Engine) -> None:
    one = measured.search("dog runs", k=3)[0]
    two = measured.search("red car", k=3)[0]
    assert one.confidence is not None
    assert two.confidence is not None
    assert one.confidence > two.confidence


def test_another_hubness_bank_was_not_measured(
    measured: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    calibration = Calibration(measured.manifest.identity, "another bank", 30.0, CALIBRATION)
    monkeypatch.setattr(Engine, "_load_calibration", lambda self, view: calibration)
    assert measured.search("dog runs", k=1)[0].confidence is None


def test_low_confidences_can_be_left_out(measured: Engine) -> None:
    everything = measured.search("dog runs", k=3)
    best = everything[0].confidence
    assert best is not None
    hits = measured.search("dog runs", k=3, min_confidence=best)
    assert [hit.clip_id for hit in hits] == [everything[0].clip_id]


def test_queries_that_were_not_measured_have_no_confidence(measured: Engine) -> None:
    assert measured.search(Query("red car", negatives=("dog",)), k=1)[0].confidence is None
    assert measured.search('"red car" + "dog"', k=1)[0].confidence is None


def test_so_few_clips_were_not_measured(measured: Engine) -> None:
    (hit,) = hits = measured.search("dog runs", path="1.mp4")
    assert (hit.confidence, hit.match) == (None, "not measured")
    assert hits.notice == "confidence was not measured for so few clips (1; it needs 3)"
    strict = measured.search("dog runs", path="1.mp4", min_confidence=0.1)
    assert (list(strict), strict.notice) == ([], hits.notice)
    assert measured.search("dog runs").notice == ""
    for query in (Query(clip_id=hit.clip_id), '"dog" + "car"', Query("dog", negatives=("car",))):
        others = measured.search(query, path="2.mp4")
        assert others
        assert others.notice == "", query
    assert measured.search('"blue ball" then "red car"', path="2.mp4").notice.startswith("conf")


def test_the_confidence_of_a_sequence_is_that_of_its_score_among_all_files(
    measured: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = '"blue ball" then "red car"'
    calibration = measured.read(measured._load_calibration)
    assert calibration is not None
    hits = measured.search(query, k=3)
    assert len(hits) == 3
    vectors, offsets = measured.read(lambda view: view.sample)
    texts = measured.model.encode_texts(["blue ball", "red car"]).vectors
    expected = calibration.sequence_confidences(
        2 * np.array([hit.score for hit in hits]),  # Two steps.
        mean=2 * float((vectors @ texts.T - offsets[:, None]).mean()),
        num_files=3,
    )
    assert [hit.confidence for hit in hits] == pytest.approx(expected)
    (first,) = measured.search(query, k=1)
    assert first == hits[0]  # Files that are not shown count, too.
    assert measured.search(query, k=3, min_confidence=first.confidence - 1e-6)[0] == first
    assert measured.search(query, k=3, min_confidence=1.0) == []
    strict = SearchOptions(min_confidence=0.95)
    assert measured.why_empty(strict) == "no moment has a confidence of 95% or more"
    # Images and clips were not measured, nor sequences of models without weights for them.
    with_clip = measured.search(f'clip:{first.clip_id} then "red car"', k=1)
    assert with_clip[0].confidence is None
    monkeypatch.setattr(Engine, "_load_calibration", lambda *_: replace(calibration, sequences={}))
    assert measured.search(query, k=1)[0].confidence is None
    assert measured.search("red car", k=1)[0].confidence is not None


def test_a_sequence_among_few_files_has_no_confidence(measured: Engine) -> None:
    hits = measured.search('"blue ball" then "red car"', k=3, path="[12].mp4")
    assert [hit.confidence for hit in hits] == [None, None]
    assert hits.notice == "confidence was not measured for so few files (2; it needs 3)"
    # Three files, one of them with frames for so many steps.
    query = " then ".join(['"red car"'] * (FRAMES + 1))
    few = measured.search(query, k=3)
    assert [hit.confidence for hit in few] == [None]
    notice = "confidence was not measured: fewer than 3 files have such a sequence"
    assert few.notice == notice
    strict = measured.search(query, k=3, min_confidence=0.5)
    assert (list(strict), strict.notice) == ([], notice)
    assert measured.search("red car", path="[12].mp4")[0].confidence is not None
