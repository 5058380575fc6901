"""Features of the demo world by five experts, each of which sees only a part of a clip.

- ``scene``: initial positions of all shapes, one token per sixth of the clip; never missing.
- ``colour``: colours of visible shapes, one token per eighth.
- ``shape``: shapes and sizes, one token per quarter.
- ``motion``: kinds of motion, one token per half.
- ``sound``: a tone per kind of motion, one token per third.

No expert suffices for a caption. Each of the last four is missing for a video with probability
``missing`` (``sound`` with twice that). Token features of texts are fixed random vectors of two
kinds, so that teachers can read other features than their student.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from eaglenet.core.errors import UsageError
from eaglenet.core.types import Expert, FrameSpec, TextFeatures, VideoFeatures
from eaglenet.research.data.demo.dataset import DemoSplit, demo_split
from eaglenet.research.data.demo.world import (
    FRAMES_PER_SECOND,
    NUM_FRAMES,
    Event,
    Scene,
    vocabulary,
)
from eaglenet.research.data.experts import add_experts
from eaglenet.research.data.features import save_feature_folder
from eaglenet.research.data.role_graphs import role_graphs

WIDTHS = {"scene": 12, "colour": 16, "shape": 20, "motion": 18, "sound": 10}
TOKENS = {"scene": 6, "colour": 8, "shape": 4, "motion": 2, "sound": 3}
WORDS = {"glove": 24, "gpt": 32}
FRAMES_EXPERT = "scene"
NOISE = 0.3
MODEL = "the demo world"

Array = NDArray[np.float32]


def write_experts(
    folder: Path | str,
    split: str = "train",
    *,
    count: int = 600,
    seed: int = 0,
    missing: float = 0.3,
) -> DemoSplit:
    """Write ``count`` clips of a split of the demo world as a folder of experts."""
    if not 0 <= missing <= 0.5:
        raise UsageError(f"missing is {missing}; expected a fraction from 0 to 0.5")
    records = demo_split(split, **{split: count}, seed=seed)
    generator = np.random.default_rng([seed, count, len(split)])
    experts = {name: _encode_scenes(name, records.scenes, missing, generator) for name in WIDTHS}
    captions = [text.split() for text in records.texts]
    words = {name: _encode_words(name, captions) for name in WORDS}
    values, mask = words["glove"]
    text_features = (values * mask[..., None]).sum(dim=1) / mask.sum(dim=1, keepdim=True)
    scene = experts.pop(FRAMES_EXPERT)
    # 0 is padding, 1 and 2 begin and end a text. The vocabulary is the same for all splits.
    ids = {word: 3 + number for number, word in enumerate(sorted(vocabulary()))}
    save_feature_folder(
        folder,
        TextFeatures(text_features),
        VideoFeatures(scene.values, scene.mask),
        video_of_text=records.video_of_text,
        video_ids=records.video_ids,
        captions=records.texts,
        frame_spec=FrameSpec(num_frames=TOKENS[FRAMES_EXPERT]),
        model=MODEL,
        dataset="demo",
        split=split,
        protocol=f"demo world seen by {len(WIDTHS)} experts",
    )
    if scene.seconds is None:
        raise AssertionError("all experts of the demo world have times")
    add_experts(
        folder,
        experts,
        models=dict.fromkeys((*WIDTHS, *WORDS), MODEL),
        frames=FRAMES_EXPERT,
        frames_model=MODEL,
        frame_seconds=scene.seconds[scene.mask],
        words=words,
        token_ids=[[1, *(ids[word] for word in caption), 2] for caption in captions],
        graphs=role_graphs(captions, mask.shape[1]),
        graph_words="glove",
    )
    return records


def _encode_scenes(
    name: str, scenes: Sequence[Scene], missing: float, generator: np.random.Generator
) -> Expert:
    """Make the tokens of an expert: the sum of vectors of the facts it sees, with noise."""
    tokens, width = TOKENS[name], WIDTHS[name]
    values = np.zeros((len(scenes), tokens, width), np.float32)
    for number, scene in enumerate(scenes):
        for token in range(tokens):
            values[number, token] = _token(name, scene, (token + 0.5) / tokens)
    values += NOISE * generator.normal(size=values.shape).astype(np.float32)
    probability = {FRAMES_EXPERT: 0.0, "sound": 2 * missing}.get(name, missing)
    is_present = torch.from_numpy(generator.random(len(scenes)) >= probability)
    mask = is_present[:, None].expand(-1, tokens).contiguous()
    middles = (torch.arange(tokens) + 0.5) / tokens * NUM_FRAMES / FRAMES_PER_SECOND
    seconds = middles.expand(len(scenes), -1).masked_fill(~mask, -1.0)
    return Expert(torch.from_numpy(values) * mask[..., None], mask, seconds)


def _token(name: str, scene: Scene, moment: float) -> Array:
    total = np.zeros(WIDTHS[name], np.float32)
    for event, (start, end) in zip(scene.all_events, scene.spans(), strict=True):
        if start <= moment < end or name == "scene":
            for fact in _facts(name, event):
                total += _direction(fact, WIDTHS[name])
    return total


def _facts(name: str, event: Event) -> tuple[str, ...]:
    """Return the facts of an event that an expert sees."""
    return {
        "scene": (f"at {event.path[0][0]:.1f} {event.path[0][1]:.1f}",),
        "colour": (event.colour,),
        "shape": (event.shape, f"size {event.size}"),
        "motion": (event.motion,),
        "sound": (f"tone {event.motion}",),
    }[name]


def _encode_words(name: str, captions: Sequence[Sequence[str]]) -> tuple[Tensor, Tensor]:
    max_length = max(len(caption) for caption in captions)
    values = torch.zeros(len(captions), max_length, WORDS[name])
    mask = torch.zeros(len(captions), max_length, dtype=torch.bool)
    vectors = {
        word: torch.from_numpy(_direction(f"{name} {word}", WORDS[name]))
        for word in {word for caption in captions for word in caption}
    }
    for number, caption in enumerate(captions):
        values[number, : len(caption)] = torch.stack([vectors[word] for word in caption])
        mask[number, : len(caption)] = True
    return values, mask


@functools.cache
def _direction(fact: str, width: int) -> Array:
    """Return the random vector of a fact, the same on every machine."""
    seed = int.from_bytes(hashlib.sha256(fact.encode()).digest()[:8], "big")
    vector: Array = np.random.default_rng(seed).normal(size=width).astype(np.float32)
    return vector
