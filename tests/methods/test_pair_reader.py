"""PairReader against a loop over pairs that is written from its equation."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from eaglenet.core.errors import ConfigError
from eaglenet.core.types import TextFeatures, VideoFeatures
from eaglenet.encoders.features import FeatureConfig, FeatureEncoder
from eaglenet.methods.pair_reader import PairReader, PairReaderConfig, nearest

TEXTS, VIDEOS, FRAMES, WORDS, DIM = 3, 5, 4, 7, 16


def make(gain: float = 1.0, **changes: float) -> PairReader:
    torch.manual_seed(0)
    sizes = {"num_frames": 6, "num_words": 9, "hidden_dim": 20, "num_layers": 2, "num_heads": 2}
    encoder = FeatureEncoder(FeatureConfig(text_dim=9, frame_dim=11, dim=DIM), seed=1)
    method = PairReader.build(PairReaderConfig(**{**sizes, **changes}), encoder).eval()  # type: ignore[arg-type]
    with torch.no_grad():
        method.output.weight.mul_(gain)
    return method


def features() -> tuple[TextFeatures, VideoFeatures]:
    generator = torch.Generator().manual_seed(2)
    # The last column is padding of all texts, as where a longer text was in the same batch.
    words_mask = torch.ones(TEXTS, WORDS + 1, dtype=torch.bool)
    words_mask[:, -1] = False
    words_mask[0, -3:] = False
    mask = torch.ones(VIDEOS, FRAMES, dtype=torch.bool)
    mask[1, 2:] = False
    text = TextFeatures(
        torch.randn(TEXTS, DIM, generator=generator),
        torch.randn(TEXTS, WORDS + 1, DIM, generator=generator),
        words_mask,
    )
    return text, VideoFeatures(torch.randn(VIDEOS, FRAMES, DIM, generator=generator), mask)


def read_one(method: PairReader, sentence: Tensor, words: Tensor, frames: Tensor) -> Tensor:
    """One pair without padding: every token is real, every step is written out."""
    positions = method.stack.positions

    def text_token(vector: Tensor, position: Tensor) -> Tensor:
        return method.text_norm(method.text_map(vector / vector.norm()) + position)

    first_word = 1 + method.config.num_frames
    tokens = [text_token(sentence, positions[0])]
    for number, frame in enumerate(frames):
        token = method.frame_map(frame / frame.norm())
        tokens.append(method.frame_norm(token + positions[1 + number]))
    for number, word in enumerate(words):
        tokens.append(text_token(word, positions[first_word + number]))
    states = torch.stack(tokens)
    for block in method.stack.blocks:
        heads = method.config.num_heads
        query, key, value = block.in_projection(block.ln_1(states)).chunk(3, dim=-1)
        outputs = []
        for q, k, v in zip(*(x.chunk(heads, dim=-1) for x in (query, key, value)), strict=True):
            outputs.append((q @ k.T / math.sqrt(q.shape[-1])).softmax(dim=-1) @ v)
        states = states + block.out_projection(torch.cat(outputs, dim=-1))
        hidden_states = block.expand(block.ln_2(states))
        states = states + block.contract(hidden_states * torch.sigmoid(1.702 * hidden_states))
    hidden_states = method.hidden(method.norm(states[0]))
    logit = method.output(hidden_states * torch.sigmoid(1.702 * hidden_states))[0]
    unit = F.normalize(F.normalize(frames, dim=-1).mean(dim=0), dim=0)
    return F.normalize(sentence, dim=0) @ unit + logit


@pytest.mark.parametrize("pairs_at_once", [1, 4, 1024])
@torch.no_grad()
def test_scores_equal_a_loop_over_pairs(pairs_at_once: int) -> None:
    # As after training: at the start reading adds next to nothing.
    method = make(100.0, pairs_at_once=pairs_at_once).double()
    text, video = features()
    text = TextFeatures(text.sentence.double(), text.words.double(), text.words_mask)
    video = VideoFeatures(video.frames.double(), video.mask)
    expected = torch.stack(
        [
            torch.stack(
                [
                    read_one(method, sentence, words[real], frames[mask])
                    for frames, mask in zip(video.frames, video.mask, strict=True)
                ]
            )
            for sentence, words, real in zip(
                text.sentence, text.words, text.words_mask, strict=True
            )
        ]
    )
    scores = method.score(text, video)
    torch.testing.assert_close(scores, expected, rtol=1e-9, atol=1e-10)
    coarse = F.normalize(text.sentence, dim=-1) @ method.coarse_vectors(video).T
    assert (scores - coarse).std() > 0.01, "reading counts"
    torch.testing.assert_close(make().double().score(text, video), coarse, rtol=0, atol=0.01)


def test_training_reads_the_right_and_the_nearest_pairs() -> None:
    scores = torch.tensor([[0.9, 0.1, 0.5, 0.7], [0.2, 0.8, 0.3, 0.1]])
    positives = torch.tensor([[False, True, False, False], [True, False, False, True]])
    assert nearest(scores, positives, 2).tolist()[0] == [1, 0]
    assert set(nearest(scores, positives, 3).tolist()[1]) == {0, 3, 1}
    assert nearest(scores, positives, 9).shape == (2, 4)


@pytest.mark.slow
def test_learns_an_order_that_cosines_cannot_tell() -> None:
    """Two videos of the same frames, one in reverse: their mean frames are equal."""
    method = make(num_negatives=1, num_layers=1, dropout=0.0).train()
    generator = torch.Generator().manual_seed(3)
    a, b = torch.randn(2, 11, generator=generator)
    video = VideoFeatures(
        torch.stack([torch.stack([a, b]), torch.stack([b, a])]), torch.ones(2, 2) > 0
    )
    text = TextFeatures(torch.randn(2, 9, generator=generator))
    positives = torch.eye(2) > 0
    optimizer = torch.optim.Adam(method.parameters(), lr=3e-3)
    for _ in range(80):
        optimizer.zero_grad()
        losses = method.losses(method.encode_text(text), method.encode_video(video), positives)
        losses.total.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    coarse = method.coarse_vectors(method.encode_video(video))
    torch.testing.assert_close(coarse[0], coarse[1])
    scores = method.similarity(text, video)
    assert (scores.diagonal() - scores.flip(1).diagonal()).min() > 0.01


def test_default_has_thirty_million_weights() -> None:
    with torch.device("meta"):
        encoder = FeatureEncoder(FeatureConfig(text_dim=512, frame_dim=512, dim=512))
        method = PairReader(encoder, PairReaderConfig())
    own = sum(p.numel() for name, p in method.named_parameters() if not name.startswith("encoder."))
    assert 28e6 < own < 32e6


def test_impossible_sizes_are_refused() -> None:
    text, video = features()
    with pytest.raises(ConfigError, match="increase num_words"):
        make(num_words=WORDS - 1).score(text, video)
    with pytest.raises(ConfigError, match="built for 3"):
        make(num_frames=3).score(text, video)
    with pytest.raises(ConfigError, match="do not divide"):
        make(num_heads=3)
    with pytest.raises(ConfigError, match="num_layers is 0"):
        make(num_layers=0)
