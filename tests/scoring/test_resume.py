"""A killed run goes on where it stopped, and never with somebody else's blocks."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from scoring_cases import largest_difference, model, texts, videos

from eaglenet.core.errors import UsageError
from eaglenet.core.types import TextFeatures, VideoFeatures
from eaglenet.scoring import score_all
from eaglenet.scoring.eaglenet.scorers import FactorisedScorer

TILES = {"tile_texts": 2, "tile_videos": 3}


class KilledError(Exception):
    pass


@pytest.fixture
def count(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Counts scored tiles; ``left`` of them are allowed before the run dies."""
    state = {"tiles": 0, "left": 10**6}
    plain = FactorisedScorer.score

    def score(self: FactorisedScorer, text: Any, prepared: Any) -> Any:
        if state["tiles"] >= state["left"]:
            raise KilledError
        state["tiles"] += 1
        return plain(self, text, prepared)

    monkeypatch.setattr(FactorisedScorer, "score", score)
    return state


@pytest.mark.parametrize("top_k", [None, 4])
@pytest.mark.parametrize("tiles_before", [0, 2, 5, 7])
def test_a_killed_run_goes_on_and_gives_the_same(
    tmp_path: Path, count: dict[str, int], top_k: int | None, tiles_before: int
) -> None:
    method, text, video = model(), texts(5), videos(10)  # 3 tiles of texts x 4 blocks of videos
    how: dict[str, Any] = {**TILES, "top_k": top_k}
    expected = score_all(method, text, video, **how)
    count.update(tiles=0, left=tiles_before)
    with pytest.raises(KilledError):
        score_all(method, text, video, resume=tmp_path / "run", **how)
    count.update(tiles=0, left=10**6)
    scores = score_all(method, text, video, resume=tmp_path / "run", **how)
    assert count["tiles"] == 12 - 3 * (tiles_before // 3)
    if top_k is None:
        assert torch.equal(scores, expected)
    else:
        assert torch.equal(scores.videos, expected.videos)
        assert torch.equal(scores.scores, expected.scores)


@pytest.mark.parametrize("top_k", [None, 4])
def test_a_finished_run_is_read_back(
    tmp_path: Path, count: dict[str, int], top_k: int | None
) -> None:
    method, text, video = model(), texts(5), videos(10)
    how: dict[str, Any] = {**TILES, "top_k": top_k, "resume": tmp_path}
    first = score_all(method, text, video, **how)
    count.update(tiles=0)
    second = score_all(method, text, video, **how)
    assert count["tiles"] == 0
    left, right = (first, second) if top_k is None else (first.scores, second.scores)
    assert largest_difference(left, right) == 0.0


def test_blocks_of_other_features_weights_or_settings_are_refused(tmp_path: Path) -> None:
    method, text, video = model(), texts(5), videos(10)
    score_all(method, text, video, resume=tmp_path, **TILES)
    fewer_real = video.mask.clone()
    fewer_real[0, 4] = False
    order = torch.arange(9, -1, -1)
    other: list[tuple[Any, Any, Any, dict[str, Any]]] = [
        (method, texts(5, seed=9), video, {}),
        (method, text, videos(10, seed=9), {}),
        (method, text, video[order], {}),  # the same numbers in another order
        (method, text, VideoFeatures(video.frames, fewer_real), {}),
        (model(seed=9), text, video, {}),
        (method, text, video, {"top_k": 2}),
        (method, text, video, {"precision": "bf16"}),
        (method, text, video, {"backend": "reference"}),
        (method, text, video, {"tile_videos": 4}),
    ]
    for one, queries, gallery, changes in other:
        with pytest.raises(UsageError, match="holds scores of other features, weights or settings"):
            score_all(one, queries, gallery, resume=tmp_path, **{**TILES, **changes})


def test_another_noise_bank_is_another_model(tmp_path: Path) -> None:
    method, text, video = model(), texts(5), videos(10)
    score_all(method, text, video, resume=tmp_path, **TILES)
    method.reseed(7)
    with pytest.raises(UsageError, match="holds scores of other"):
        score_all(method, text, video, resume=tmp_path, **TILES)


def test_texts_may_be_cut_otherwise_when_going_on(tmp_path: Path, count: dict[str, int]) -> None:
    method, text, video = model(), texts(5), videos(10)
    expected = score_all(method, text, video, top_k=3, tile_videos=3, tile_texts=5)
    count.update(tiles=0, left=5)
    with pytest.raises(KilledError):
        score_all(method, text, video, top_k=3, resume=tmp_path, tile_videos=3, tile_texts=3)
    count.update(tiles=0, left=10**6)
    best = score_all(method, text, video, top_k=3, resume=tmp_path, tile_videos=3, tile_texts=2)
    assert torch.equal(best.videos, expected.videos)


@pytest.mark.parametrize(
    "changes",
    [{"mask_frames": False}, {"edge_direction": "frame_to_text"}, {"negative_slope": 0.6}],
)
def test_a_model_of_the_same_weights_and_another_configuration_is_refused(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    text, video = texts(5), videos(10)
    one, other = model(edge_weights="activated"), model(edge_weights="activated", **changes)
    for name, value in one.state_dict().items():
        assert torch.equal(other.state_dict()[name], value)
    score_all(one, text, video, resume=tmp_path, **TILES)
    with pytest.raises(UsageError, match="holds scores of other"):
        score_all(other, text, video, resume=tmp_path, **TILES)


def test_every_row_and_entry_counts(tmp_path: Path) -> None:
    method, text, video = model(), texts(1030), videos(2)
    score_all(method, text, video, resume=tmp_path)
    last = text.sentence.clone()
    last[-1, -1] += 1
    with pytest.raises(UsageError, match="holds scores of other"):
        score_all(method, TextFeatures(last), video, resume=tmp_path)
    with torch.no_grad():
        method.pooling.output_norm.bias[-1] += 1
    with pytest.raises(UsageError, match="holds scores of other"):
        score_all(method, text, video, resume=tmp_path)


def test_another_top_k_is_another_run(tmp_path: Path) -> None:
    method, text, video = model(), texts(5), videos(10)
    score_all(method, text, video, top_k=2, resume=tmp_path, **TILES)
    with pytest.raises(UsageError, match="holds scores of other"):
        score_all(method, text, video, top_k=4, resume=tmp_path, **TILES)


def test_what_a_caller_does_with_the_scores_stays_with_the_caller(tmp_path: Path) -> None:
    method, text, video = model(), texts(5), videos(10)
    scores = score_all(method, text, video, resume=tmp_path, **TILES)
    expected = scores.clone()
    scores.mul_(100)
    assert torch.equal(score_all(method, text, video, resume=str(tmp_path), **TILES), expected)


@pytest.mark.parametrize("broken", ["progress.json", "scores.npy"])
def test_a_broken_folder_says_what_to_do(tmp_path: Path, broken: str) -> None:
    method, text, video = model(), texts(5), videos(10)
    score_all(method, text, video, resume=tmp_path, **TILES)
    (tmp_path / broken).write_bytes(b"")
    with pytest.raises(UsageError, match=r"cannot be read .* delete it"):
        score_all(method, text, video, resume=tmp_path, **TILES)


def test_a_kill_between_the_scores_and_the_journal_loses_one_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    method, text, video = model(), texts(5), videos(10)
    expected = score_all(method, text, video, top_k=3, **TILES)
    replace, journals = os.replace, 0

    def dying(source: Path, target: Path) -> None:
        nonlocal journals
        journals += Path(target).name == "progress.json"
        if journals == 3:
            raise KilledError
        replace(source, target)

    monkeypatch.setattr(os, "replace", dying)
    with pytest.raises(KilledError):
        score_all(method, text, video, top_k=3, resume=tmp_path, **TILES)
    monkeypatch.undo()
    best = score_all(method, text, video, top_k=3, resume=tmp_path, **TILES)
    assert torch.equal(best.videos, expected.videos)
    assert torch.equal(best.scores, expected.scores)
