"""The demo world as several experts see it, each blind to something, and often missing.

- ``scene``: the frames; sees that something is there, where and how bright, never what. Never
  missing.
- ``colour``: which colours are there, a token for each eighth of the clip.
- ``shape``: shapes and sizes, a token for each quarter.
- ``motion``: what moves how, a token for each half.
- ``sound``: a tone for each kind of motion, heard a third of the time; mostly missing.

No expert can answer a sentence alone, and a video misses each of the last four with a chance of
``missing`` (``sound`` twice that). Words are fixed random vectors, of two kinds, so that teachers
can read other words than their student.
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
        raise UsageError(f"missing is {missing}; expected a share from 0 to 0.5")
    records = demo_split(split, **{split: count}, seed=seed)
    draw = np.random.default_rng([seed, count, len(split)])
    experts = {name: _look(name, records.scenes, missing, draw) for name in WIDTHS}
    sentences = [text.split() for text in records.texts]
    words = {name: _words(name, sentences) for name in WORDS}
    values, mask = words["glove"]
    sentence = (values * mask[..., None]).sum(dim=1) / mask.sum(dim=1, keepdim=True)
    scene = experts.pop(FRAMES_EXPERT)
    # 0 is padding, 1 and 2 begin and end a sentence. The whole world's words: one id in any split.
    ids = {word: 3 + number for number, word in enumerate(sorted(vocabulary()))}
    save_feature_folder(
        folder,
        TextFeatures(sentence),
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
        raise AssertionError("every expert of the demo world knows the time")
    add_experts(
        folder,
        experts,
        models=dict.fromkeys((*WIDTHS, *WORDS), MODEL),
        frames=FRAMES_EXPERT,
        frames_model=MODEL,
        frame_seconds=scene.seconds[scene.mask],
        words=words,
        token_ids=[[1, *(ids[word] for word in words), 2] for words in sentences],
        graphs=role_graphs(sentences, mask.shape[1]),
        graph_words="glove",
    )
    return records


def _look(name: str, scenes: Sequence[Scene], missing: float, draw: np.random.Generator) -> Expert:
    """What an expert sees: for each span of the clip the sum of what is there, and noise."""
    tokens, width = TOKENS[name], WIDTHS[name]
    values = np.zeros((len(scenes), tokens, width), np.float32)
    for number, scene in enumerate(scenes):
        for token in range(tokens):
            values[number, token] = _token(name, scene, (token + 0.5) / tokens)
    values += NOISE * draw.normal(size=values.shape).astype(np.float32)
    chance = {FRAMES_EXPERT: 0.0, "sound": 2 * missing}.get(name, missing)
    present = torch.from_numpy(draw.random(len(scenes)) >= chance)
    mask = present[:, None].expand(-1, tokens).contiguous()
    middles = (torch.arange(tokens) + 0.5) / tokens * NUM_FRAMES / FRAMES_PER_SECOND
    seconds = middles.expand(len(scenes), -1).masked_fill(~mask, -1.0)
    return Expert(torch.from_numpy(values) * mask[..., None], mask, seconds)


def _token(name: str, scene: Scene, moment: float) -> Array:
    total = np.zeros(WIDTHS[name], np.float32)
    for event, (start, end) in zip(scene.drawn, scene.spans(), strict=True):
        # Motion is seen over half the clip, so that its tokens tell the halves apart.
        if start <= moment < end or name == "scene":
            for fact in _facts(name, event):
                total += _direction(fact, WIDTHS[name])
    return total


def _facts(name: str, event: Event) -> tuple[str, ...]:
    """What an expert can tell of an event."""
    return {
        "scene": (f"at {event.path[0][0]:.1f} {event.path[0][1]:.1f}",),
        "colour": (event.colour,),
        "shape": (event.shape, f"size {event.size}"),
        "motion": (event.motion,),
        "sound": (f"tone {event.motion}",),
    }[name]


def _words(name: str, sentences: Sequence[Sequence[str]]) -> tuple[Tensor, Tensor]:
    longest = max(len(words) for words in sentences)
    values = torch.zeros(len(sentences), longest, WORDS[name])
    mask = torch.zeros(len(sentences), longest, dtype=torch.bool)
    vectors = {
        word: torch.from_numpy(_direction(f"{name} {word}", WORDS[name]))
        for word in {word for words in sentences for word in words}
    }
    for number, words in enumerate(sentences):
        values[number, : len(words)] = torch.stack([vectors[word] for word in words])
        mask[number, : len(words)] = True
    return values, mask


@functools.cache
def _direction(fact: str, width: int) -> Array:
    """A random vector that is the same for a fact on every machine."""
    seed = int.from_bytes(hashlib.sha256(fact.encode()).digest()[:8], "big")
    vector: Array = np.random.default_rng(seed).normal(size=width).astype(np.float32)
    return vector
