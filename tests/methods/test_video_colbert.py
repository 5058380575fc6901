"""Video-ColBERT: mean-max similarity at two levels, and its sigmoid losses."""

from __future__ import annotations

import torch
from double_precision import EXACT, VIDEOS, build, frames_of, matrix, texts, videos, words_of
from small_towers import small_clip, small_clips

from eaglenet.core.types import TextFeatures, Tokens, VideoFeatures
from eaglenet.layers.late_interaction import mean_max_similarity
from eaglenet.methods import METHODS
from eaglenet.methods.video_colbert import VideoColBERT
from reference import video_colbert as reference
from reference.arithmetic import weights_of

SHAPE = {"num_heads": 2, "num_layers": 2}


def loops(
    method: VideoColBERT, text: TextFeatures, video: VideoFeatures
) -> tuple[list[list[float]], list[list[float]]]:
    weights = weights_of(method)
    by_frames, by_tokens = [], []
    for words in words_of(text):
        by_frames.append([reference.mean_max(words, frames) for frames in frames_of(video)])
        by_tokens.append(
            [
                reference.mean_max(words, reference.video_tokens(frames, weights, **SHAPE))
                for frames in frames_of(video)
            ]
        )
    return by_frames, by_tokens


@torch.no_grad()
def test_the_score_equals_the_loops() -> None:
    method = build("video_colbert", **SHAPE)
    assert isinstance(method, VideoColBERT)
    text, video = texts(), videos()
    by_frames, by_tokens = loops(method, text, video)
    expected = matrix(by_frames) + matrix(by_tokens)
    torch.testing.assert_close(method.score(text, video), expected, **EXACT)
    assert method.encode_video(video).tokens.shape[1] == 4 + 2  # type: ignore[union-attr]


@torch.no_grad()
def test_both_sigmoid_losses_equal_the_loops_and_share_temperature_and_bias() -> None:
    method = build("video_colbert", **SHAPE)
    assert isinstance(method, VideoColBERT)
    text, video = texts(VIDEOS), videos()
    losses = method.losses(text, video, torch.eye(VIDEOS, dtype=torch.bool))
    temperature, bias = float(method.loss.temperature), float(method.loss.bias)
    for name, scores in zip(("frames", "video"), loops(method, text, video), strict=True):
        expected = reference.sigmoid_loss(scores, temperature, bias)
        torch.testing.assert_close(losses.terms[name].item(), expected)
    assert [name for name, _ in method.loss.named_parameters()] == ["temperature", "bias"]


def test_mean_max_similarity_by_hand() -> None:
    words = torch.tensor([[[2.0, 0.0], [0.0, 1.0], [5.0, 5.0]]])
    tokens = torch.tensor([[[1.0, 0.0], [3.0, 4.0], [0.0, 9.0]]])
    words_mask = torch.tensor([[True, True, False]])
    tokens_mask = torch.tensor([[True, True, False]])
    # Word one finds 1 (against .6), word two .8 (against 0); the mean of both.
    score = mean_max_similarity(words, words_mask, tokens, tokens_mask)
    torch.testing.assert_close(score, torch.tensor([[0.9]]))


def expanding(**changes: object) -> VideoColBERT:
    spec = METHODS["video_colbert"]
    method = spec.build(spec.config_class(num_layers=1, **changes), small_clip()).eval()
    assert isinstance(method, VideoColBERT)
    return method


TOKENS = Tokens(
    torch.tensor([[5, 7, 59, 0], [5, 7, 9, 59]]),
    torch.tensor([[True, True, True, False], [True] * 4]),
)


@torch.no_grad()
def test_queries_are_expanded_to_one_length_whatever_padding_they_came_with() -> None:
    method = expanding()
    features = method.encode_text(TOKENS)
    assert features.words_mask.shape == (2, 32)  # type: ignore[union-attr]
    assert features.words_mask.all()  # type: ignore[union-attr]
    pad = torch.nn.functional.pad
    wider = method.encode_text(Tokens(pad(TOKENS.ids, (0, 33)), pad(TOKENS.mask, (0, 33))))
    assert wider.words_mask.sum(dim=1).tolist() == [32, 32]  # type: ignore[union-attr]
    torch.testing.assert_close(wider.words[:, :32], features.words)  # type: ignore[index]
    torch.testing.assert_close(wider.sentence, features.sentence)
    video = method.encode_video(small_clips(3, 5))
    torch.testing.assert_close(method.score(wider, video), method.score(features, video))


@torch.no_grad()
def test_batches_of_longer_texts_are_as_wide_as_each_other() -> None:
    """Evaluation joins the features of batches: their width must not follow the longest text."""
    method = expanding(num_query_tokens=3)
    short = Tokens(torch.tensor([[5, 7, 59, 0]]), torch.tensor([[True, True, True, False]]))
    parts = [method.encode_text(short), method.encode_text(TOKENS)]
    texts_together = TextFeatures.concatenate(parts)
    assert texts_together.words_mask.sum(dim=1).tolist() == [3, 3, 4]  # type: ignore[union-attr]


@torch.no_grad()
def test_a_text_longer_than_the_query_keeps_all_its_words() -> None:
    features = expanding(num_query_tokens=3).encode_text(TOKENS)
    assert features.words_mask.tolist() == [[True, True, True, False], [True] * 4]  # type: ignore[union-attr]


@torch.no_grad()
def test_without_expansion_only_real_words_count() -> None:
    features = expanding(num_query_tokens=0).encode_text(TOKENS)
    assert torch.equal(features.words_mask, TOKENS.mask)  # type: ignore[arg-type]


@torch.no_grad()
def test_a_short_text_tower_bounds_the_expansion() -> None:
    assert expanding(num_query_tokens=64).encode_text(TOKENS).words.shape[1] == 40  # type: ignore[union-attr]
