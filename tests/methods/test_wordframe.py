"""WordFrame: loops, its start as mean pooling, its switches, and its fast form."""

from __future__ import annotations

import pytest
import torch
from double_precision import EXACT, build, frames_of, matrix, sentences_of, texts, videos, words_of

from eaglenet.core.errors import ConfigError
from eaglenet.core.types import TextFeatures, VideoFeatures
from eaglenet.encoders.features import FeatureConfig, FeatureEncoder
from eaglenet.methods import METHODS
from eaglenet.methods.wordframe import WordFrame, WordFrameConfig
from eaglenet.scoring import score_all
from reference import wordframe as reference
from reference.arithmetic import part, temporal, weights_of

SHAPE = {"num_heads": 2, "num_layers": 2}


@pytest.mark.parametrize("both_ways", [False, True])
@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("layers", [0, 2])
@pytest.mark.parametrize("changes", [True, False])
@torch.no_grad()
def test_the_score_equals_the_loops(
    changes: bool, weighted: bool, layers: int, both_ways: bool
) -> None:
    method = build(
        "wordframe",
        num_heads=2,
        num_layers=layers,
        changes=changes,
        weighted=weighted,
        both_ways=both_ways,
    )
    assert isinstance(method, WordFrame)
    assert method.bank is not None
    assert method.gate is not None
    method.bank.double().add(torch.randn(9, method.encoder.dim))
    method.gate += 0.05  # from 0, where the interaction does not count yet
    text, video = texts(), videos()
    weights = weights_of(method)
    tokens = frames_of(video)
    if layers:
        stack = part(weights, "temporal.stack")
        tokens = [temporal(frames, stack, **SHAPE) for frames in tokens]  # type: ignore[arg-type]
    if changes:
        pairs = zip(frames_of(video), tokens, strict=True)
        tokens = [reference.changed(frames, is_real, weights) for frames, is_real in pairs]
    expected = [
        [
            reference.similarity(sentence, words, frames, is_real, weights, both_ways=both_ways)
            for frames, is_real in zip(frames_of(video), tokens, strict=True)
        ]
        for sentence, words in zip(sentences_of(text), words_of(text), strict=True)
    ]
    torch.testing.assert_close(method.score(text, video), matrix(expected), **EXACT)


@torch.no_grad()
def test_it_begins_as_mean_pooling_to_the_bit() -> None:
    """Whatever the towers know is not lost at the start."""
    encoder = FeatureEncoder(FeatureConfig(8, 8, 8, identity=True))
    text, video = texts().to("cpu", torch.float32), videos().to("cpu", torch.float32)
    ours = METHODS["wordframe"].build(WordFrameConfig(), encoder).eval()
    mean = METHODS["clip4clip"].build(METHODS["clip4clip"].config_class(), encoder).eval()
    assert torch.equal(ours.score(text, video), mean.score(text, video))
    assert isinstance(ours, WordFrame)
    assert ours.gate is not None
    ours.gate += 0.01
    assert not torch.equal(ours.score(text, video), mean.score(text, video))


@torch.no_grad()
def test_without_the_coarse_part_it_is_the_interaction_alone() -> None:
    method = build("wordframe", coarse=False, num_layers=0, changes=False)
    text, video = texts(), videos()
    expected = [
        [reference.interaction(words, frames, weights_of(method)) for frames in frames_of(video)]
        for words in words_of(text)
    ]
    torch.testing.assert_close(method.score(text, video), matrix(expected), **EXACT)


@torch.no_grad()
def test_more_frames_of_the_same_cost_nothing() -> None:
    """The same frame once more is found as before; only where frames look for words it counts."""
    text, video = texts(), videos()
    frames = torch.cat([video.frames, video.frames[:, :1]], dim=1)
    longer = VideoFeatures(frames, torch.cat([video.mask, video.mask[:, :1]], dim=1))
    for both_ways in (False, True):
        parts = {"coarse": False, "num_layers": 0, "changes": False, "bank": 0}
        method = build("wordframe", **parts, both_ways=both_ways)
        same = torch.allclose(method.score(text, video), method.score(text, longer), atol=1e-12)
        assert same is not both_ways


@torch.no_grad()
def test_only_changes_tell_a_clip_from_itself_played_backwards() -> None:
    """Without blocks a set of frames has no order; the law for which the part exists."""
    text, video = texts(), videos(1)
    backwards = VideoFeatures(video.frames.flip(1), video.mask)
    for changes in (True, False):
        method = build("wordframe", num_layers=0, coarse=False, bank=0, changes=changes)
        same = torch.allclose(method.score(text, video), method.score(text, backwards), atol=1e-12)
        assert same is not changes


@torch.no_grad()
def test_a_still_picture_has_no_changes() -> None:
    video = videos(1)
    still = VideoFeatures(video.frames[:, :1].expand_as(video.frames), video.mask)
    method = build("wordframe", num_layers=0)
    assert isinstance(method, WordFrame)
    assert torch.equal(method.frame_tokens(still), still.frames)


@torch.no_grad()
def test_a_sentence_without_words_is_its_only_word() -> None:
    method = build("wordframe", **SHAPE)
    text, video = texts(), videos()
    mask = torch.ones(len(text), 1, dtype=torch.bool)
    as_word = TextFeatures(text.sentence, text.sentence[:, None], mask)
    lone = TextFeatures(text.sentence)
    torch.testing.assert_close(method.score(lone, video), method.score(as_word, video), **EXACT)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"coarse": False},
        {"changes": False},
        {"weighted": False},
        {"both_ways": True},
        {"interaction": False},
    ],
)
@pytest.mark.parametrize("has_words", [True, False])
@torch.no_grad()
def test_the_fast_form_gives_the_same_scores(changes: dict[str, bool], has_words: bool) -> None:
    """Tiles that do not divide the texts, and words cut to the longest of a tile."""
    method = build("wordframe", **SHAPE, **changes).float()
    assert isinstance(method, WordFrame)
    assert method.bank is not None
    method.bank.add(torch.randn(9, method.encoder.dim))
    text, video = texts(7).to("cpu", torch.float32), videos(5).to("cpu", torch.float32)
    if not has_words:
        text = TextFeatures(text.sentence)
    plain = score_all(method, text, video, backend="reference")
    fast = score_all(method, text, video, backend="factorised", tile_texts=3, tile_videos=2)
    torch.testing.assert_close(fast, plain, rtol=0, atol=1e-5)
    rough = score_all(method, text, video, backend="factorised", precision="bf16")
    torch.testing.assert_close(rough, plain, rtol=0, atol=0.2)


@pytest.mark.parametrize("changes", [{}, {"both_ways": True}, {"weighted": False}])
@pytest.mark.parametrize("is_empty", [False, True])
@torch.no_grad()
def test_the_fast_form_reads_masks_with_gaps(changes: dict[str, bool], is_empty: bool) -> None:
    """Features of other models may leave out their first token."""
    method = build("wordframe", **SHAPE, **changes, coarse=False).float()
    text, video = texts(3).to("cpu", torch.float32), videos(5).to("cpu", torch.float32)
    generator = torch.Generator().manual_seed(0)
    for mask in (text.words_mask, video.mask):
        assert mask is not None
        mask[:] = torch.rand(mask.shape, generator=generator) < 0.5
        mask[:, :2] = False
        mask[:, -1] = True
        mask[0] &= not is_empty
    plain = score_all(method, text, video, backend="reference")
    fast = score_all(method, text, video, backend="factorised")
    torch.testing.assert_close(fast, plain, rtol=0, atol=1e-5)


def test_training_fills_the_bank_and_does_not_see_it() -> None:
    method = build("wordframe", num_layers=0, bank=5)
    assert isinstance(method, WordFrame)
    assert method.bank is not None
    text, video = texts(3), videos(3)
    positives = torch.eye(3, dtype=torch.bool)
    method.eval()
    before = method.losses(text, video, positives).total
    assert int(method.bank.count) == 0
    method.train()
    method.losses(text, video, positives)
    assert int(method.bank.count) == 3
    method.eval()
    torch.testing.assert_close(method.losses(text, video, positives).total, before)
    assert bool((method.score(text, video) != method.match(text, video)).all())


@pytest.mark.parametrize(
    "change", [{"num_layers": -1}, {"bank": -1}, {"coarse": False, "interaction": False}]
)
def test_impossible_settings_are_refused(change: dict[str, int]) -> None:
    with pytest.raises(ConfigError):
        WordFrameConfig(**change)
