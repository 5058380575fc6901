"""Small features and methods in float64 for the comparison with the reference loops."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from eaglenet.core.types import TextFeatures, VideoFeatures
from eaglenet.encoders.features import FeatureConfig, FeatureEncoder
from eaglenet.methods import METHODS, Method

TEXTS, VIDEOS, FRAMES, WORDS, DIM = 2, 3, 4, 5, 8
EXACT = {"rtol": 0.0, "atol": 1e-9}


def shake(method: Method, seed: int = 0) -> Method:
    """Random numbers in every weight: identities and zeros would hide a wrong formula."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in method.double().named_parameters():
            if "logit_scale" in name or name.startswith("loss."):
                continue
            parameter += 0.3 * torch.randn(
                parameter.shape, generator=generator, dtype=torch.float64
            )
    return method.eval()


def build(name: str, **changes: Any) -> Method:
    """A method on features that are already as wide as the joint space."""
    torch.manual_seed(0)
    spec = METHODS[name]
    encoder = FeatureEncoder(FeatureConfig(text_dim=DIM, frame_dim=DIM, dim=DIM, identity=True))
    return shake(spec.build(spec.config_class(**{"num_frames": 6, **changes}), encoder))


def random(*shape: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def texts(count: int = TEXTS) -> TextFeatures:
    """The first text has three real words, the others five."""
    mask = torch.ones(count, WORDS, dtype=torch.bool)
    mask[0, 3:] = False
    return TextFeatures(random(count, DIM, seed=1), random(count, WORDS, DIM, seed=2), mask)


def videos(count: int = VIDEOS) -> VideoFeatures:
    """The second video has two real frames, the others four."""
    mask = torch.ones(count, FRAMES, dtype=torch.bool)
    mask[1:2, 2:] = False
    return VideoFeatures(random(count, FRAMES, DIM, seed=3), mask)


def sentences_of(text: TextFeatures) -> list[Any]:
    return [sentence.numpy() for sentence in text.sentence]


def words_of(text: TextFeatures) -> list[list[Any]]:
    """Real words only, as the loops take them."""
    if text.words is None or text.words_mask is None:
        return [[sentence] for sentence in sentences_of(text)]
    return [
        [word.numpy() for word in words[mask]]
        for words, mask in zip(text.words, text.words_mask, strict=True)
    ]


def frames_of(video: VideoFeatures, field: str = "frames") -> list[list[Any]]:
    """Real frames only, as the loops take them."""
    return [
        [frame.numpy() for frame in frames[mask]]
        for frames, mask in zip(getattr(video, field), video.mask, strict=True)
    ]


def matrix(rows: list[list[float]]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)
