"""Which pairs a training step counts as right."""

import pytest
import torch

from eaglenet.encoders.features import FeatureConfig, FeatureEncoder
from eaglenet.methods.base import METHODS
from eaglenet.training.distributed import World
from eaglenet.training.step import StepOptions, training_losses
from eaglenet.types import PairBatch, TextFeatures, VideoFeatures

PAIRS, FRAMES, DIM = 4, 3, 8
SAME_VIDEO = [[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]


@pytest.mark.parametrize(
    ("positives", "expected"),
    [("same_video", torch.tensor(SAME_VIDEO).bool()), ("own_pair", torch.eye(PAIRS).bool())],
)
def test_two_captions_of_a_video_are_both_right_unless_the_released_way_is_asked_for(
    positives, expected, monkeypatch
):
    spec = METHODS["clip4clip"]
    encoder = FeatureEncoder(FeatureConfig(DIM, DIM, DIM))
    method = spec.build(spec.config_class(num_frames=FRAMES), encoder)
    generator = torch.Generator().manual_seed(0)
    batch = PairBatch(
        TextFeatures(torch.randn(PAIRS, DIM, generator=generator)),
        VideoFeatures(
            torch.randn(PAIRS, FRAMES, DIM, generator=generator),
            torch.ones(PAIRS, FRAMES, dtype=torch.bool),
        ),
        torch.tensor([7, 7, 2, 5]),
    )
    seen = []
    original = method.losses

    def watched(text, video, right):
        seen.append(right)
        return original(text, video, right)

    monkeypatch.setattr(method, "losses", watched)
    training_losses(method, batch, StepOptions(positives=positives), World())
    assert torch.equal(seen[0], expected)
