"""Small experts and methods over them in float64, for the comparison with the loops."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from eaglenet.core.types import Expert, TextFeatures, TextGraph, Tokens, VideoFeatures
from eaglenet.encoders.features import ExpertConfig, ExpertEncoder
from eaglenet.methods import METHODS, Method

TEXTS, VIDEOS, WORDS, DIM = 2, 3, 5, 8
WIDTHS = {"colour": 6, "scene": 7, "sound": 4}
TOKENS = {"colour": 3, "scene": 4, "sound": 2}
EXACT = {"rtol": 0.0, "atol": 1e-9}


def random(*shape: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def build(name: str, **changes: Any) -> Method:
    """A method in eval mode with random numbers in every weight and running statistic."""
    torch.manual_seed(0)
    spec = METHODS[name]
    encoder = ExpertEncoder(ExpertConfig(WIDTHS, "scene", text_dim=9, words_dim=10, dim=DIM))
    method = spec.build(spec.config_class(**{"dim": DIM, **changes}), encoder).double()
    shake(method)
    return method.eval()


def shake(method: nn.Module) -> None:
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in method.parameters():
            parameter += 0.3 * torch.randn(
                parameter.shape, generator=generator, dtype=torch.float64
            )
        for module in method.modules():
            if isinstance(module, nn.BatchNorm1d):
                assert module.running_mean is not None
                assert module.running_var is not None
                size = module.running_mean.shape
                module.running_mean += 0.3 * torch.randn(size, generator=generator).double()
                module.running_var += torch.rand(size, generator=generator).double()


def texts(count: int = TEXTS) -> TextFeatures:
    """The first text has three real words, the others five."""
    mask = torch.ones(count, WORDS, dtype=torch.bool)
    mask[0, 3:] = False
    ids = torch.randint(3, 12, (count, WORDS), generator=torch.Generator().manual_seed(5))
    return TextFeatures(
        random(count, 9, seed=1),
        random(count, WORDS, 10, seed=2),
        mask,
        tokens=Tokens(ids * mask, mask),
        graph=graphs(count, mask),
    )


def graphs(count: int, mask: Tensor) -> TextGraph:
    """A sentence, a verb (word 1), and two arguments: word 0, and words 2 to the end."""
    spans = torch.zeros(count, 11, WORDS, dtype=torch.bool)
    spans[:, 0] = True
    spans[:, 1, 1] = True
    spans[:, 5, 0] = True
    spans[:, 6, 2:] = True
    roles = torch.zeros(count, 11, dtype=torch.int64)
    roles[:, 5], roles[:, 6] = 1, 2
    edges = torch.zeros(count, 11, 11, dtype=torch.bool)
    for listener, speaker in ((1, 0), (1, 5), (5, 1), (1, 6), (6, 1)):
        edges[:, listener, speaker] = True
    return TextGraph(spans & mask[:, None], roles, edges)


def videos(count: int = VIDEOS) -> VideoFeatures:
    """The second video misses the sound and half of its scene."""
    experts = {}
    for number, (name, width) in enumerate(WIDTHS.items()):
        mask = torch.ones(count, TOKENS[name], dtype=torch.bool)
        if name == "sound":
            mask[1:2] = False
        if name == "scene":
            mask[1:2, 2:] = False
        seconds = (1.3 * torch.arange(mask.shape[1])).repeat(count, 1).masked_fill(~mask, -1.0)
        values = random(*mask.shape, width, seed=10 + number) * mask[..., None]
        experts[name] = Expert(values, mask, seconds.double())
    return VideoFeatures(experts["scene"].values, experts["scene"].mask, experts=experts)


def words_of(text: TextFeatures) -> list[list[Any]]:
    """Real words only, as the loops take them."""
    assert text.words is not None
    assert text.words_mask is not None
    return [
        [word.numpy() for word in words[mask]]
        for words, mask in zip(text.words, text.words_mask, strict=True)
    ]


def experts_of(video: VideoFeatures) -> list[dict[str, list[Any]]]:
    """Real tokens of each video by expert."""
    assert video.experts is not None
    return [
        {
            name: [token.numpy() for token in expert.values[row][expert.mask[row]]]
            for name, expert in video.experts.items()
        }
        for row in range(len(video))
    ]


def matrix(rows: list[list[float]]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)
