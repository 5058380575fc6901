"""ProST equals loops over prototypes."""

from __future__ import annotations

import dataclasses
from typing import Any

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

from eaglenet.layers.late_interaction import token_similarities
from eaglenet.methods import METHODS
from eaglenet.methods.prost import ProST, SparsePrototypes, local_mask
from reference import prost as reference
from reference.arithmetic import contrastive, weights_of

SIZE, OBJECTS = 24, 5


def make(**changes: Any) -> ProST:
    torch.manual_seed(0)
    spec = METHODS["prost"]
    config = spec.config_class(num_frames=6, num_phrases=7, num_objects=OBJECTS, **changes)
    method = shake(spec.build(config, small_clip(image_size=SIZE, layers=3)))
    assert isinstance(method, ProST)
    return method


@torch.no_grad()
def test_scores_and_losses_equal_the_loops() -> None:
    method = make()
    text = texts(VIDEOS)
    clips = small_clips(VIDEOS, FRAMES, SIZE)
    clips.mask[1, 2:] = False
    plain = method.encoder.encode_video(clips, patches=True)
    assert plain.patches is not None
    weights = weights_of(method)
    prototypes = [
        reference.prototypes(
            [[token.numpy() for token in frame] for frame in frames[mask]],
            weights,
            num_layers=2,
            reach=0.2,
        )
        for frames, mask in zip(plain.patches, plain.mask, strict=True)
    ]
    pairs = [
        [
            reference.similarities(sentence, words, events, objects, weights, num_objects=OBJECTS)
            for events, objects in prototypes
        ]
        for sentence, words in zip(sentences_of(text), words_of(text), strict=True)
    ]
    by_event = matrix([[pair[0] for pair in row] for row in pairs])
    by_object = matrix([[pair[1] for pair in row] for row in pairs])
    video = method.encode_video(clips)
    torch.testing.assert_close(method.score(text, video), by_event + by_object, **EXACT)
    losses = method.losses(text, video, torch.eye(VIDEOS, dtype=torch.bool))
    scale = float(method.loss.scale())
    expected = [contrastive(part.numpy(), scale) for part in (by_event, by_object)]
    torch.testing.assert_close(losses.total.item(), sum(expected) / 2)


def test_the_query_of_a_frame_attends_to_its_objects_and_a_fifth_of_all() -> None:
    mask = torch.ones(1, 10, dtype=torch.bool)
    near = local_mask(mask, 3)[0]
    assert near.sum(dim=1).tolist() == [3 + 6] * 7 + [10] * 3
    assert near[0].nonzero()[:, 0].tolist() == list(range(9))
    assert near[4].nonzero()[:, 0].tolist() == list(range(12, 21))
    assert near[9].nonzero()[:, 0].tolist() == list(range(20, 30))  # one longer at the end


def test_padded_frames_shorten_the_runs() -> None:
    mask = torch.tensor([[True, False, True, True]])
    real = local_mask(torch.ones(1, 3, dtype=torch.bool), 2)[0]
    near = local_mask(mask, 2)[0]
    assert torch.equal(near[[0, 2, 3]][:, [0, 1, 4, 5, 6, 7]], real)
    assert not near[:, 2:4].any()


@torch.no_grad()
def test_official_padding_counts_padded_words_and_frames() -> None:
    text, clips = texts(VIDEOS), small_clips(VIDEOS, FRAMES, SIZE)
    clips.mask[1, 2:] = False
    masked, official = make(), make(padding="official")
    official.load_state_dict(masked.state_dict())
    blank = [round(255 * channel) for channel in official.encoder.config.pixel_mean]
    clips.frames[1, 2:] = torch.tensor(blank).byte()[:, None, None]
    every = dataclasses.replace(clips, mask=torch.ones_like(clips.mask))
    assert text.words_mask is not None
    whole = dataclasses.replace(text, words_mask=torch.ones_like(text.words_mask))
    expected = masked.similarities(whole, masked.encode_video(every))
    for ours, theirs in zip(
        official.similarities(text, official.encode_video(clips)), expected, strict=True
    ):
        torch.testing.assert_close(ours, theirs, **EXACT)


def test_a_prototype_of_zeros_trains_in_half_precision() -> None:
    """The ReLU may choose no patch of a frame at all; ProST's authors train in float16."""
    torch.manual_seed(0)
    objects = SparsePrototypes(8, count=2)
    with torch.no_grad():
        objects.network[-1].bias[0] = -1e3  # type: ignore[index]
    patches = torch.randn(3, 4, 8, requires_grad=True)
    with torch.autocast("cpu", torch.float16):
        sums = objects(patches)
    assert not sums[:, 0].any()
    token_similarities(torch.randn(2, 5, 8), sums.float()).sum().backward()
    assert patches.grad is not None
    assert patches.grad.isfinite().all()
