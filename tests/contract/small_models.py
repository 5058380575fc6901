"""Every registered method in small, on a small tower and on frozen features."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import torch

from eaglenet.encoders.clip import ClipEncoder
from eaglenet.encoders.config import ClipConfig, TextConfig, VisionConfig
from eaglenet.encoders.features import FeatureConfig, FeatureEncoder
from eaglenet.errors import ConfigError
from eaglenet.methods import METHODS, Method
from eaglenet.types import Clips, TextFeatures, Tokens, VideoFeatures

# No two axes share a size. The model has room for more frames than the clips bring.
TEXTS, VIDEOS, FRAMES, ROOM, WORDS, DIM = 3, 5, 4, 6, 7, 16

CONFIGS: dict[str, dict[str, dict[str, Any]]] = {
    "clip4clip": {
        "mean": {},
        "lstm": {"head": "lstm"},
        "transformer": {"head": "transformer", "num_layers": 2},
        "tight": {"head": "tight", "num_layers": 2, "pairs_at_once": 4},
    },
    "xpool": {"default": {}, "no-dropout": {"dropout": 0.0}},
    "tmass": {
        "default": {},
        "normal": {"prior": "normal", "support_weight": 0.0, "num_candidates": 2},
    },
    "ts2net": {
        "default": {"num_layers": 2, "num_samples": 50},
        "one-block": {"num_layers": 1, "num_shifted_blocks": 1, "num_tokens": 2, "num_heads": 1},
        "sampled": {"num_layers": 1, "num_samples": 7, "sigma": 0.5, "hard_selection": False},
    },
    "clipvip": {"default": {}, "two-proxies": {"num_proxies": 2, "num_positions": 3}},
    "tvproxynet": {
        "theta": {},
        "linear": {"dash": "linear", "num_read": 1, "text_sign": -1.0, "leader_sign": -1.0},
    },
    "video_colbert": {
        "default": {"num_layers": 2},
        "no-query-expansion": {"num_layers": 1, "num_query_tokens": 0, "num_expansion_tokens": 1},
    },
    "drl": {
        "default": {"num_layers": 2},
        "no-decorrelation": {"num_layers": 1, "decorrelation": 0.0},
    },
    "eaglenet": {
        "paper": {"langevin_steps": 2},
        "recipe": {"langevin_steps": 2, "support": "elementwise"},
        "released": {"preset": "released", "langevin_steps": 2},
    },
}
"""A method that is not named here is tried with its default configuration."""


@dataclass(frozen=True)
class Case:
    method: str
    variant: str
    encoder: str

    def __str__(self) -> str:
        return f"{self.method}-{self.variant}-{self.encoder}"


def clip_config(frame_positions: int = 0) -> ClipConfig:
    return ClipConfig(
        dim=DIM,
        vision=VisionConfig(
            image_size=32,
            patch_size=8,
            width=24,
            layers=3,
            heads=2,
            mlp_width=48,
            frame_positions=frame_positions,
        ),
        text=TextConfig(
            vocabulary_size=100, context_length=40, width=DIM, layers=2, heads=2, mlp_width=64
        ),
    )


def make_encoder(kind: str) -> ClipEncoder | FeatureEncoder:
    """``clip``; ``placed``, towers with frame positions as the demo's have; or ``features``."""
    if kind == "clip":
        return ClipEncoder(clip_config(), seed=1)
    if kind == "placed":
        return ClipEncoder(clip_config(frame_positions=ROOM), seed=1)
    return FeatureEncoder(FeatureConfig(text_dim=9, frame_dim=11, dim=DIM), seed=1)


def make_config(name: str, variant: str) -> Any:
    changes = dict(CONFIGS.get(name, {}).get(variant, {}))
    config_class = METHODS[name].config_class
    maker = getattr(config_class, changes.pop("preset", ""), config_class)
    fields = {field.name for field in dataclasses.fields(config_class)}
    for field, value in (("dim", DIM), ("num_frames", ROOM)):
        if field in fields:
            changes.setdefault(field, value)
    return maker(**changes)


def make_method(case: Case) -> Method:
    torch.manual_seed(0)
    spec = METHODS[case.method]
    return spec.build(make_config(case.method, case.variant), make_encoder(case.encoder)).eval()


def runs_on_features(name: str, variant: str) -> bool:
    try:
        make_method(Case(name, variant, "features"))
    except ConfigError:
        return False
    return True


def all_cases() -> list[Case]:
    cases = []
    for name in METHODS:
        for variant in CONFIGS.get(name, {"default": {}}):
            cases.append(Case(name, variant, "clip"))
            if runs_on_features(name, variant):
                cases.append(Case(name, variant, "features"))
    return cases


def make_texts(
    kind: str, count: int = TEXTS, seed: int = 2, *, words: bool = False
) -> Tokens | TextFeatures:
    """The first text is one word shorter than the others; ``words`` gives features words too."""
    generator = torch.Generator().manual_seed(seed)
    if kind == "features":
        sentence = torch.randn(count, 9, generator=generator)
        if not words:
            return TextFeatures(sentence)
        mask = torch.ones(count, WORDS, dtype=torch.bool)
        mask[0, -1] = False
        return TextFeatures(sentence, torch.randn(count, WORDS, 9, generator=generator), mask)
    ids = torch.randint(1, 99, (count, WORDS), generator=generator)
    mask = torch.ones(count, WORDS, dtype=torch.bool)
    ids[:, -1] = 99  # the end token has the largest id
    ids[0, -2:] = torch.tensor([99, 0])
    mask[0, -1] = False
    return Tokens(ids, mask)


def make_videos(kind: str, count: int = VIDEOS, seed: int = 3) -> Clips | VideoFeatures:
    """The second video has two real frames, all others four."""
    generator = torch.Generator().manual_seed(seed)
    mask = torch.ones(count, FRAMES, dtype=torch.bool)
    mask[1, 2:] = False
    if kind == "features":
        return VideoFeatures(torch.randn(count, FRAMES, 11, generator=generator), mask)
    frames = torch.randint(
        0, 256, (count, FRAMES, 3, 32, 32), dtype=torch.uint8, generator=generator
    )
    return Clips(frames, mask, torch.arange(FRAMES).float().repeat(count, 1))


def pad_videos(videos: Clips | VideoFeatures, extra: int) -> Clips | VideoFeatures:
    """The same videos with noise in every padded frame and ``extra`` more of such frames."""
    generator = torch.Generator().manual_seed(4)
    count = len(videos)
    frames = torch.cat([videos.frames, videos.frames[:, :extra]], dim=1)
    if frames.is_floating_point():
        noise = 10 * torch.randn(frames.shape, generator=generator)
    else:
        noise = torch.randint(0, 256, frames.shape, dtype=torch.uint8, generator=generator)
    mask = torch.cat([videos.mask, torch.zeros(count, extra, dtype=torch.bool)], dim=1)
    shape = (*mask.shape, *[1] * (frames.dim() - 2))
    frames = torch.where(mask.reshape(shape), frames, noise)
    if isinstance(videos, VideoFeatures):
        return VideoFeatures(frames, mask)
    seconds = torch.cat([videos.seconds, torch.zeros(count, extra)], dim=1)
    return Clips(frames, mask, seconds)


def pad_texts(texts: Tokens | TextFeatures, extra: int) -> Tokens | TextFeatures:
    """The same texts with ``extra`` more pads; padded word features hold noise."""
    pad = torch.nn.functional.pad
    if isinstance(texts, TextFeatures):
        if texts.words is None or texts.words_mask is None:
            return texts
        words, mask = pad(texts.words, (0, 0, 0, extra)), pad(texts.words_mask, (0, extra))
        noise = 10 * torch.randn(words.shape, generator=torch.Generator().manual_seed(6))
        return TextFeatures(texts.sentence, torch.where(mask[..., None], words, noise), mask)
    return Tokens(pad(texts.ids, (0, extra)), pad(texts.mask, (0, extra)))
