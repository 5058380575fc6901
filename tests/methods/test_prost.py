"""ProST equals loops over prototypes."""

from __future__ import annotations

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

from eaglenet.layers.prototypes import local_mask
from eaglenet.methods import METHODS
from eaglenet.methods.prost import ProST
from reference import prost as reference
from reference.arithmetic import contrastive, weights_of

SIZE, OBJECTS = 24, 5


def make() -> ProST:
    torch.manual_seed(0)
    spec = METHODS["prost"]
    config = spec.config_class(num_frames=6, num_phrases=7, num_objects=OBJECTS)
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
    found = [
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
            for events, objects in found
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


def test_the_query_of_a_frame_sees_its_objects_and_a_fifth_of_all() -> None:
    mask = torch.ones(1, 10, dtype=torch.bool)
    near = local_mask(mask, 3)[0]
    assert near.sum(dim=1).tolist() == [3 + 6] * 10
    assert near[0].nonzero()[:, 0].tolist() == list(range(9))
    assert near[4].nonzero()[:, 0].tolist() == list(range(12, 21))
    assert near[9].nonzero()[:, 0].tolist() == list(range(21, 30))  # shifted left at the end
