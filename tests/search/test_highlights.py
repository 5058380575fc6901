"""Unusual moments, on stores with one planted odd clip."""

import io
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn import functional as F
from typer.testing import CliRunner

from eaglenet.cli.main import app
from eaglenet.core.errors import UsageError
from eaglenet.search import highlights
from eaglenet.search.engine import Engine
from eaglenet.search.highlights import find_highlights
from eaglenet.search.options import Filters
from eaglenet.store.store import LocalStore
from synthetic_store import DIM, FRAMES, BagMethod, add_file, content_of, make_manifest

NUM_FILES, CLIPS_EACH = 8, 12
ODD_FILE, ODD_CLIP = 5, 7


def usual_frames(seed: int) -> torch.Tensor:
    """Two kinds of scenes that all files show, with some noise."""
    generator = torch.Generator().manual_seed(seed)
    scenes = torch.eye(DIM)[[0, 1]].repeat(CLIPS_EACH // 2, 1)[:, None]
    noise = 0.1 * torch.randn(CLIPS_EACH, FRAMES, DIM, generator=generator)
    return F.normalize(scenes + noise, dim=-1)


@pytest.fixture(scope="module")
def odd_store(bag: BagMethod, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of two kinds of scenes; one clip shows something else, and one half of it."""
    folder = tmp_path_factory.mktemp("odd") / "store"
    with LocalStore.write(folder, make_manifest(bag)) as writer:
        for number in range(NUM_FILES):
            frames = usual_frames(number)
            if number == ODD_FILE:
                frames[ODD_CLIP] = torch.eye(DIM)[9]
                frames[1] = F.normalize(torch.eye(DIM)[1] + torch.eye(DIM)[9], dim=-1)
            add_file(writer, bag, f"/videos/{number % 2}/{number}.mp4", content_of(number), frames)
        writer.finish()
    return folder


def test_the_planted_clip_is_first_and_every_file_has_its_turn(
    odd_store: Path, bag: BagMethod
) -> None:
    engine = Engine.open(odd_store, bag)
    hits = find_highlights(engine, k=NUM_FILES + 1)
    odd = f"{content_of(ODD_FILE)[:16]}-{ODD_CLIP}"
    assert hits[0].clip_id == odd
    assert hits[0].score > 0.8
    assert hits[0].moment.start == 10.0 * ODD_CLIP
    assert [hit.rank for hit in hits] == list(range(1, NUM_FILES + 2))
    assert sorted({hit.path for hit in hits}) == sorted(
        f"/videos/{number % 2}/{number}.mp4" for number in range(NUM_FILES)
    )
    # The file with two odd clips is the only one that is there twice.
    second = [hit for hit in hits[1:] if hit.path.endswith("5.mp4")]
    assert len(second) <= 1
    scores = [hit.score for hit in hits]
    assert scores == sorted(scores, reverse=True)
    assert scores[0] > 4 * scores[-1]


def test_the_score_is_one_minus_the_mean_cosine_of_the_nearest(
    odd_store: Path, bag: BagMethod, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against a loop written from the equation."""
    monkeypatch.setattr(highlights, "BLOCK", 7)
    snapshot = Engine.open(odd_store, bag).snapshot
    rows = np.arange(snapshot.num_rows)
    scores = highlights.measure_unusualness(snapshot, rows, rows)
    vectors, contents = snapshot.vectors_at(rows), snapshot.content_ids
    for row in (0, 13, ODD_FILE * CLIPS_EACH + ODD_CLIP):
        others = [
            float(vectors[row] @ vectors[other])
            for other in rows
            if contents[other] != contents[row] or abs(row - other) > highlights.NUM_BESIDE
        ]
        expected = 1 - np.mean(sorted(others)[-highlights.NEIGHBOURS :])
        assert scores[row] == pytest.approx(expected, abs=1e-5)


def test_filters_choose_files_but_the_whole_store_is_compared(
    odd_store: Path, bag: BagMethod
) -> None:
    engine = Engine.open(odd_store, bag)
    everywhere = find_highlights(engine, k=1)[0]
    hits = find_highlights(engine, k=3, filters=Filters(path="/videos/1/*"))
    assert hits[0] == everywhere
    assert all(hit.path.startswith("/videos/1/") for hit in hits)
    assert find_highlights(engine, filters=Filters(path="nowhere")) == []
    with pytest.raises(UsageError, match="k must be"):
        find_highlights(engine, k=0)


def test_highlights_of_one_file_are_apart_and_sampled_stores_are_bounded(
    odd_store: Path, bag: BagMethod, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine.open(odd_store, bag)
    hits = find_highlights(engine, k=50, filters=Filters(path="5.mp4"))
    starts = sorted(hit.moment.start for hit in hits)
    assert len(starts) > 1
    assert min(np.diff(starts)) >= highlights.MIN_SECONDS_APART
    monkeypatch.setattr(highlights, "MAX_CLIPS", 10)
    assert len(find_highlights(engine, k=50)) <= 10


def test_a_store_of_one_clip_or_none_has_nothing_unusual(bag: BagMethod, tmp_path: Path) -> None:
    with LocalStore.write(tmp_path / "one", make_manifest(bag)) as writer:
        add_file(writer, bag, "/a.mp4", content_of(0), usual_frames(0)[:1])
        writer.finish()
    [hit] = find_highlights(Engine.open(tmp_path / "one", bag))
    assert hit.score == 0
    with LocalStore.write(tmp_path / "none", make_manifest(bag)) as writer:
        writer.finish()
    assert find_highlights(Engine.open(tmp_path / "none", bag)) == []


def test_plain_thumbnails_are_left_out(
    odd_store: Path, bag: BagMethod, monkeypatch: pytest.MonkeyPatch
) -> None:
    def jpeg(pixels: np.ndarray) -> bytes:
        buffer = io.BytesIO()
        Image.fromarray(pixels).save(buffer, "JPEG")
        return buffer.getvalue()

    black = jpeg(np.zeros((40, 60, 3), np.uint8))
    noise = jpeg(np.random.default_rng(0).integers(0, 255, (40, 60, 3), np.uint8))
    engine = Engine.open(odd_store, bag)
    first = find_highlights(engine, k=1)[0]
    row = engine.snapshot.row(first.clip_id)
    monkeypatch.setattr(
        "eaglenet.store.snapshot.Snapshot.thumbnail",
        lambda self, number: black if number == row else noise,
    )
    assert find_highlights(engine, k=1)[0].clip_id != first.clip_id


def test_damaged_files_are_left_out(bag: BagMethod, tmp_path: Path) -> None:
    """Their test patterns and grey frames resemble nothing else."""
    with LocalStore.write(tmp_path / "store", make_manifest(bag)) as writer:
        for number in range(3):
            frames = usual_frames(number)
            frames[ODD_CLIP] = torch.eye(DIM)[9 + number]
            reason = "damaged: unreadable frames" if number == 1 else ""
            add_file(writer, bag, f"/{number}.mp4", content_of(number), frames, reason=reason)
        writer.finish()
    engine = Engine.open(tmp_path / "store", bag)
    assert {hit.path for hit in find_highlights(engine)} == {"/0.mp4", "/2.mp4"}
    assert find_highlights(engine, filters=Filters(path="1.mp4")) == []
    arguments = ["highlights", "--path", "1.mp4", "--store", str(tmp_path / "store")]
    assert "damaged files" in CliRunner().invoke(app, arguments).output


def test_command_prints_a_table_or_json(odd_store: Path) -> None:
    run = CliRunner().invoke
    result = run(app, ["highlights", "--store", str(odd_store), "-k", "2"])
    assert result.exit_code == 0, result.output
    assert "5.mp4" in result.output
    result = run(app, ["highlights", "/videos/0", "--store", str(odd_store), "--json"])
    hits = json.loads(result.stdout)["hits"]
    assert {hit["path"].split("/")[2] for hit in hits} == {"0"}
    # The videos of this store do not exist, like those of an unplugged disk.
    result = run(app, ["highlights", hits[0]["path"], "--store", str(odd_store), "--json"])
    assert {hit["path"] for hit in json.loads(result.stdout)["hits"]} == {hits[0]["path"]}
    for folder in ("/nowhere", "/videos/0/none.mp4", "/vid"):
        result = run(app, ["highlights", folder, "--store", str(odd_store), "--json"])
        assert isinstance(result.exception, UsageError)
        assert str(result.exception) == f"{folder}: no such file or folder"
    result = run(app, ["highlights", str(odd_store.parent), "--store", str(odd_store)])
    assert isinstance(result.exception, UsageError)
    assert f"eaglenet index {odd_store.parent} --store {odd_store}" in str(result.exception)
    result = run(app, ["highlights", "/a", "--path", "b", "--store", str(odd_store)])
    assert result.exit_code != 0
    assert "cannot be combined" in str(result.exception)
