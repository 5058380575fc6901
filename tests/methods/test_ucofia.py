"""UCoFiA equals loops over words, patches and frames."""

from __future__ import annotations

import pytest
import torch
from double_precision import (
    EXACT,
    FRAMES,
    VIDEOS,
    matrix,
    sentences_of,
    shake,
    texts,
    words_of,
)
from small_towers import small_clip, small_clips

from eaglenet.core.errors import ConfigError, UsageError
from eaglenet.core.types import TextFeatures, Tokens, VideoFeatures
from eaglenet.methods import METHODS
from eaglenet.methods.ucofia import UCoFiA
from eaglenet.research.evaluation.evaluate import evaluate, level_scores
from eaglenet.research.evaluation.metrics import retrieval_metrics
from eaglenet.research.evaluation.postprocessing import sinkhorn_levels
from reference import ucofia as reference
from reference.arithmetic import contrastive, weights_of

SIZE = 24


def make(**changes: object) -> UCoFiA:
    torch.manual_seed(0)
    spec = METHODS["ucofia"]
    config = spec.config_class(num_frames=6, num_layers=2, num_heads=2, num_tokens=2, **changes)
    method = shake(spec.build(config, small_clip(image_size=SIZE, layers=3)))
    assert isinstance(method, UCoFiA)
    return method


def test_keeping_more_patches_than_there_are_is_refused() -> None:
    spec = METHODS["ucofia"]
    with pytest.raises(ConfigError, match="num_tokens is 10, but a frame has 9 patches"):
        spec.build(spec.config_class(num_tokens=10), small_clip(image_size=SIZE, layers=3))


def encode_videos(method: UCoFiA) -> tuple[VideoFeatures, list[list[list[object]]]]:
    """Features, and the tokens of each real frame; the second video has two real frames."""
    clips = small_clips(VIDEOS, FRAMES, SIZE)
    clips.mask[1, 2:] = False
    plain = method.encoder.encode_video(clips, patches=True)
    assert plain.patches is not None
    frames = [
        [[token.numpy() for token in frame] for frame in video[mask]]
        for video, mask in zip(plain.patches, plain.mask, strict=True)
    ]
    return method.encode_video(clips), frames


def expected_scores(
    method: UCoFiA, text: TextFeatures, frames: list[list[list[object]]]
) -> torch.Tensor:
    return matrix(
        [
            [
                reference.similarity(
                    sentence,
                    words,
                    video,  # type: ignore[arg-type]
                    weights_of(method),
                    count=2,
                    num_heads=2,
                    num_layers=2,
                    temperature=method.config.temperature,
                    scale=float(method.loss.scale()),
                )
                for video in frames
            ]
            for sentence, words in zip(sentences_of(text), words_of(text), strict=True)
        ]
    )


@pytest.mark.parametrize("temperature", [0.01, 0.5])
@torch.no_grad()
def test_the_score_equals_the_loops(temperature: float) -> None:
    method = make(temperature=temperature)
    text, (video, frames) = texts(), encode_videos(method)
    torch.testing.assert_close(
        method.score(text, video), expected_scores(method, text, frames), **EXACT
    )


@torch.no_grad()
def test_the_loss_is_that_of_the_three_logits_over_three() -> None:
    method = make(temperature=0.5)
    text, (video, frames) = texts(VIDEOS), encode_videos(method)
    losses = method.losses(text, video, torch.eye(VIDEOS, dtype=torch.bool))
    scale = float(method.loss.scale())
    expected = contrastive(expected_scores(method, text, frames).numpy(), scale)
    torch.testing.assert_close(losses.total.item(), expected)


@torch.no_grad()
def test_words_past_the_last_that_counts_are_cut_off() -> None:
    method = make(num_words=3)
    text, (video, _) = texts(), encode_videos(method)
    assert text.words is not None
    assert text.words_mask is not None
    cut = TextFeatures(text.sentence, text.words[:, :3], text.words_mask[:, :3])
    torch.testing.assert_close(method.score(text, video), method.score(cut, video), **EXACT)


def test_an_evaluation_ranks_with_sinkhorn_offsets_of_each_level() -> None:
    """The offsets of videos come from training texts, those of texts from training videos."""
    method = make().float()
    text, bank_text = small_texts(5, seed=1), small_texts(7, seed=2)
    clips, bank_clips = small_clips(5, FRAMES, SIZE, seed=3), small_clips(6, FRAMES, SIZE, seed=4)
    owners = torch.arange(5)
    result = evaluate(method, text, clips, owners, "toy", sinkhorn_bank=([bank_text], [bank_clips]))
    encoded_text, encoded_bank = method.encode_text(text), method.encode_text(bank_text)
    video, bank_video = method.encode_video(clips), method.encode_video(bank_clips)
    with torch.no_grad():
        levels = method.levels(encoded_text, video)
        t2v = sinkhorn_levels(levels, method.levels(encoded_bank, video))
        v2t = sinkhorn_levels(
            levels, method.levels(encoded_text, bank_video), direction="video_to_text"
        )
    assert result.sinkhorn is not None
    assert result.sinkhorn.t2v == retrieval_metrics(t2v, owners).t2v
    assert result.sinkhorn.v2t == retrieval_metrics(v2t, owners).v2t
    assert "with Sinkhorn offsets [toy]  v2t R@1" in str(result)
    assert set(result.to_dict()["sinkhorn"]) == {"t2v", "v2t", "Rsum"}


def test_levels_in_tiles_are_the_levels(monkeypatch: pytest.MonkeyPatch) -> None:
    method = make().float()
    text = method.encode_text(small_texts(5, seed=1))
    video = method.encode_video(small_clips(3, FRAMES, SIZE))
    whole = level_scores(method, text, video)
    monkeypatch.setattr(UCoFiA, "score_tile", (2, 2))
    for tiled, level in zip(level_scores(method, text, video), whole, strict=True):
        torch.testing.assert_close(tiled, level, rtol=1e-5, atol=1e-5)  # computed in float32


def test_methods_without_levels_have_no_sinkhorn_offsets_of_levels() -> None:
    spec = METHODS["clip4clip"]
    method = spec.build(spec.config_class(num_frames=FRAMES), small_clip(image_size=SIZE))
    text, clips = small_texts(2, seed=1), small_clips(2, FRAMES, SIZE)
    with pytest.raises(UsageError, match="clip4clip has no levels of similarity"):
        evaluate(method, text, clips, torch.arange(2), "toy", sinkhorn_bank=([text], [clips]))


def small_texts(count: int, seed: int) -> Tokens:
    ids = torch.randint(3, 58, (count, 6), generator=torch.Generator().manual_seed(seed))
    return Tokens(ids, torch.ones(count, 6, dtype=torch.bool))
