"""Every registered method in small, on a small tower and on frozen features."""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass
from typing import Any

import torch

from eaglenet.core.errors import ConfigError
from eaglenet.core.types import Clips, Expert, TextFeatures, Tokens, VideoFeatures
from eaglenet.encoders.clip import ClipEncoder
from eaglenet.encoders.clip_config import ClipConfig, TextConfig, VisionConfig
from eaglenet.encoders.compact import (
    CompactConfig,
    CompactEncoder,
    CompactTextConfig,
    CompactVisionConfig,
)
from eaglenet.encoders.features import ExpertConfig, ExpertEncoder, FeatureConfig, FeatureEncoder
from eaglenet.methods import METHODS, Method
from eaglenet.research.data.role_graphs import role_graphs
from eaglenet.research.recipes.recipe import INSIDE_PATCHES

# No two axes share a size. The model has room for more frames than the clips bring.
TEXTS, VIDEOS, FRAMES, ROOM, WORDS, DIM = 3, 5, 4, 6, 7, 16
EXPERTS = {"colour": 6, "frames": 11, "sound": 8}
EXPERT_TOKENS = {"colour": 3, "frames": FRAMES, "sound": 2}
MISSING = {"colour": (2, 4), "sound": (0, 2)}
"""Expert -> videos that miss it; the third video has frames alone."""

CONFIGS: dict[str, dict[str, dict[str, Any]]] = {
    "clip4clip": {
        "mean": {},
        "lstm": {"head": "lstm"},
        "transformer": {"head": "transformer", "num_layers": 2},
        "tight": {"head": "tight", "num_layers": 2, "pairs_at_once": 4},
        "three-frame-stem": {"stem": "3d"},
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
        "official": {"num_layers": 1, "padding": "official"},
    },
    "ce": {
        "default": {"text_centres": 3},
        "sequential": {"text_centres": 2, "text_ghosts": 0, "sequential": True},
        "official": {"text_centres": 2, "sequential": True, "padding": "official"},
    },
    "mmt": {
        "default": {"num_layers": 2, "hidden_dim": 20},
        "official": {"num_layers": 1, "hidden_dim": 20, "padding": "official"},
        "left-out": {"num_layers": 1, "hidden_dim": 20, "keep_missing": False, "text_layers": 1},
    },
    # At its own temperature of 0.01 small random models choose one entry alone.
    "ucofia": {
        "default": {"num_layers": 2, "num_samples": 50, "temperature": 0.5},
        "sampled": {
            "num_layers": 1,
            "num_tokens": 2,
            "num_samples": 7,
            "hard_selection": False,
            "temperature": 1.0,
        },
    },
    "tempme": {
        "default": {"rank": 2},
        "trained-towers": {"rank": 3, "frozen": False, "groups": (6,)},
    },
    "rap": {
        "default": {"rank": 2, "num_kept": 3, "num_asynchronous": 2},
        "trained-towers": {"rank": 1, "frozen": False, "num_kept": 2},
    },
    "tfvl": {
        "default": {},
        "trained-towers": {"frozen": False, "num_joint": 1, "num_prompts": 1},
    },
    "shenet": {"default": {"num_selected": 3, "num_regions": 5}},
    "prost": {
        "default": {"num_phrases": 9, "num_objects": 5},
        "one-layer": {"num_layers": 1, "num_events": 2, "num_objects": 3, "dropout": 0.0},
    },
    "glscl": {
        "default": {"num_layers": 2, "feed_forward": 20},
        "local": {
            "num_layers": 1,
            "num_concepts": 2,
            "feed_forward": 12,
            "local_at_inference": True,
        },
    },
    "t2vlad": {
        "default": {"num_centres": 3},
        "official": {"num_centres": 2, "padding": "official"},
    },
    "hit": {
        "default": {"num_layers": 2, "text_layers": 1, "hidden_dim": 20, "bank_size": 9},
        "one-level": {"num_layers": 1, "hidden_dim": 20, "bank_size": 3, "feature_weight": 0.5},
    },
    "teachtext": {
        "default": {"student_config": {"text_centres": 2}},
        "mean": {"student": "clip4clip"},
    },
    "hgr": {"default": {"word_dropout": 0.0, "graph_dropout": 0.0, "frame_dropout": 0.0}},
    "frozen": {"default": {}, "released-start": {"time_start": "released"}},
    "bridgeformer": {"default": {}},
    "tvmm": {"default": {"num_prototypes": 3}},
    "clipbert": {
        "default": {"num_layers": 1, "num_heads": 2, "hidden_dim": 20, "pairs_at_once": 4},
        "one-frame": {"num_layers": 1, "num_heads": 1, "hidden_dim": 12, "frames_per_clip": 1},
    },
    "supportset": {
        "default": {"hidden_dim": 20, "vocabulary_size": 100, "decoder_layers": 1},
        "words": {"hidden_dim": 12, "vocabulary_size": 100, "text_layers": 1, "support": "full"},
    },
    "wordframe": {
        "default": {},
        "interaction": {"coarse": False, "num_layers": 0, "weighted": False},
    },
    "pair_reader": {
        "default": {"num_layers": 2, "num_heads": 2, "hidden_dim": 20, "pairs_at_once": 4},
        "one-layer": {"num_layers": 1, "num_heads": 1, "hidden_dim": 12, "num_negatives": 1},
    },
    "eaglenet": {
        "paper": {"langevin_steps": 2},
        "recipe": {"langevin_steps": 2, "support": "elementwise"},
        "released": {"preset": "for_script", "langevin_steps": 2},
    },
}
"""A method that is not named here is tried with its default configuration."""
ASLEEP = {"frozen": "space_time.time.", "wordframe": ("temporal.", "word_", "frame_weights.")}
"""Method -> weights that a zero after them keeps from learning in the very first step."""


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


def make_encoder(kind: str) -> ClipEncoder | CompactEncoder | FeatureEncoder | ExpertEncoder:
    """``clip``; ``placed``, towers with frame positions as the demo's have; ``compact`` towers; or
    stored features."""
    if kind == "experts":
        return ExpertEncoder(ExpertConfig(EXPERTS, "frames", text_dim=9, words_dim=10, dim=DIM))
    if kind == "clip":
        return ClipEncoder(clip_config(), seed=1)
    if kind == "placed":
        return ClipEncoder(clip_config(frame_positions=ROOM), seed=1)
    if kind == "compact":
        vision = CompactVisionConfig(32, 8, 24, 3, 2, 48)
        text = CompactTextConfig(100, 40, DIM, 2, 2, 64)
        return CompactEncoder(CompactConfig(DIM, vision, text), seed=1)
    return FeatureEncoder(FeatureConfig(text_dim=9, frame_dim=11, dim=DIM), seed=1)


def make_config(name: str, variant: str) -> Any:
    changes = dict(CONFIGS.get(name, {}).get(variant, {}))
    config_class = METHODS[name].config_class
    preset = changes.pop("preset", None)
    maker = config_class if preset is None else getattr(config_class, preset)
    fields = {field.name for field in dataclasses.fields(config_class)}
    for field, value in (("dim", DIM), ("num_frames", ROOM)):
        if field in fields:
            changes.setdefault(field, value)
    return maker(**changes)


def make_method(case: Case) -> Method:
    torch.manual_seed(0)
    spec = METHODS[case.method]
    return spec.build(make_config(case.method, case.variant), make_encoder(case.encoder)).eval()


@functools.cache
def method_of(case: Case) -> Method:
    """Shared between tests, none of which may change it."""
    return make_method(case)


def runs_on(name: str, variant: str, kind: str) -> bool:
    if kind == "features" and name == "supportset":
        return False  # it reads token ids, which these features do not have
    if kind == "experts" and not METHODS[name].reads_experts:
        return False
    try:
        method_of(Case(name, variant, kind))
    except ConfigError:
        return False
    return True


def runs_on_features(name: str, variant: str) -> bool:
    return runs_on(name, variant, "features")


def all_cases() -> list[Case]:
    cases = []
    for name in METHODS:
        for variant in CONFIGS.get(name, {"default": {}}):
            cases += [
                Case(name, variant, kind)
                for kind in ("clip", "features", "experts")
                if runs_on(name, variant, kind)
            ]
    # Every method runs on compact towers; these work inside them.
    return cases + [Case(name, "default", "compact") for name in sorted(INSIDE_PATCHES)]


def make_texts(
    kind: str, count: int = TEXTS, seed: int = 2, *, words: bool = False
) -> Tokens | TextFeatures:
    """The first text is one word shorter than the others; ``words`` gives features words too."""
    generator = torch.Generator().manual_seed(seed)
    if kind == "experts":
        return expert_texts(count, generator)
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
    if kind == "experts":
        return expert_videos(count, mask, generator)
    if kind == "features":
        return VideoFeatures(torch.randn(count, FRAMES, 11, generator=generator), mask)
    frames = torch.randint(
        0, 256, (count, FRAMES, 3, 32, 32), dtype=torch.uint8, generator=generator
    )
    return Clips(frames, mask, torch.arange(FRAMES).float().repeat(count, 1))


def expert_texts(count: int, generator: torch.Generator) -> TextFeatures:
    """Sentences and words; the first text is one word shorter."""
    mask = torch.ones(count, WORDS, dtype=torch.bool)
    mask[0, -1] = False
    words = torch.randn(count, WORDS, 10, generator=generator) * mask[..., None]
    graph = role_graphs([["a", "man", "rides", "his", "horse", "quickly", "home"]] * count, WORDS)
    ids = torch.randint(1, 99, (count, WORDS), generator=generator) * mask
    return TextFeatures(
        torch.randn(count, 9, generator=generator),
        words,
        mask,
        tokens=Tokens(ids, mask),
        graph=graph,
    )


def expert_videos(
    count: int, frames_mask: torch.Tensor, generator: torch.Generator
) -> VideoFeatures:
    """Three experts, of which some videos miss one or two."""
    experts = {}
    for name, width in EXPERTS.items():
        mask = torch.ones(count, EXPERT_TOKENS[name], dtype=torch.bool)
        mask[[video for video in MISSING.get(name, ()) if video < count]] = False
        mask = frames_mask if name == "frames" else mask
        values = torch.randn(*mask.shape, width, generator=generator) * mask[..., None]
        seconds = torch.arange(mask.shape[1]).float().repeat(count, 1).masked_fill(~mask, -1.0)
        experts[name] = Expert(values, mask, seconds)
    return VideoFeatures(experts["frames"].values, frames_mask, experts=experts)


def pad_expert(expert: Expert, extra: int, generator: torch.Generator) -> Expert:
    """Noise wherever nothing is real: in padding, and in the tokens of a missing expert."""
    pad = torch.nn.functional.pad
    mask = pad(expert.mask, (0, extra))
    noise = 10 * torch.randn(*mask.shape, expert.values.shape[-1], generator=generator)
    values = torch.where(mask[..., None], pad(expert.values, (0, 0, 0, extra)), noise)
    assert expert.seconds is not None
    return Expert(values, mask, pad(expert.seconds, (0, extra), value=5.0))


def pad_videos(videos: Clips | VideoFeatures, extra: int) -> Clips | VideoFeatures:
    """The same videos with noise in every padded frame and ``extra`` more of such frames."""
    generator = torch.Generator().manual_seed(4)
    if isinstance(videos, VideoFeatures) and videos.experts is not None:
        experts = {
            name: pad_expert(expert, extra, generator) for name, expert in videos.experts.items()
        }
        own = experts["frames"]
        return VideoFeatures(own.values, own.mask, experts=experts)
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
        padded = torch.where(mask[..., None], words, noise)
        return dataclasses.replace(texts, words=padded, words_mask=mask)
    return Tokens(pad(texts.ids, (0, extra)), pad(texts.mask, (0, extra)))
