"""A store made without videos, and a model that needs no weights to speak of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from eaglenet.core.types import Clips, FrameSpec, Losses, TextFeatures, Tokens, VideoFeatures
from eaglenet.encoders.base import BaseEncoder
from eaglenet.encoders.features import FeatureConfig
from eaglenet.methods.base import Method
from eaglenet.methods.configs import MethodConfig
from eaglenet.search.torch_model import model_identity
from eaglenet.store.base import Writer
from eaglenet.store.manifest import Layout, Manifest, feature_arrays
from eaglenet.store.records import Changes, ClipBatch, IndexedFile
from eaglenet.store.store import LocalStore

FRAMES, DIM, SIZE = 5, 24, 16
WORDS = ["red", "green", "blue", "car", "dog", "ball", "runs", "jumps", "sleeps", "fast", "slow"]


class WordTokenizer:
    """One id a known word, 1 for every other word."""

    def __call__(self, texts: Sequence[str], max_length: int = 7) -> Tokens:
        rows = [[2 + WORDS.index(w) if w in WORDS else 1 for w in t.split()] for t in texts]
        ids = torch.zeros(len(rows), max_length, dtype=torch.int64)
        for number, row in enumerate(rows):
            ids[number, : len(row[:max_length])] = torch.tensor(row[:max_length])
        return Tokens(ids, ids > 0)

    def save(self, folder: str | Path) -> None:
        """Nothing to keep: the words are above."""


class BagEncoder(BaseEncoder):
    """Texts: sum of word vectors. Videos: each frame's mean colour through one linear map."""

    family = "features"
    config = FeatureConfig(text_dim=DIM, frame_dim=3, dim=DIM)
    logit_scale = torch.zeros(())  # type: ignore[assignment]

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self.dim = DIM
        generator = torch.Generator().manual_seed(seed)
        self.words = nn.Parameter(torch.randn(2 + len(WORDS), DIM, generator=generator))
        self.colour = nn.Parameter(torch.randn(3, DIM, generator=generator))
        with torch.no_grad():
            self.colour.copy_(self.words[2:5])

    def encode_text(self, texts: Any, *, words: bool = False) -> TextFeatures:
        return TextFeatures((self.words[texts.ids] * texts.mask[..., None]).sum(dim=1))

    def encode_video(self, videos: Any, *, patches: bool = False) -> VideoFeatures:
        colours = videos.frames.float().mean(dim=(-1, -2)) / 255 + 1e-3
        return VideoFeatures(colours @ self.colour, videos.mask)


@dataclass(frozen=True)
class BagConfig(MethodConfig):
    num_frames: int = FRAMES
    sharpness: float = 1.0


class BagMethod(Method):
    """Best frame instead of mean frame, so that re-ranking differs from the shortlist."""

    name = "bag"

    def __init__(self, seed: int = 0) -> None:
        super().__init__(BagEncoder(seed), BagConfig())
        self.frame_spec = FrameSpec(num_frames=FRAMES, size=SIZE)
        self.tokenizer = WordTokenizer()
        self.eval()

    def score(self, text: TextFeatures, video: VideoFeatures) -> Tensor:
        return self.frame_scores(text, video).amax(dim=-1)

    def losses(self, text: TextFeatures, video: VideoFeatures, positives: Tensor) -> Losses:
        return Losses({"none": self.score(text, video).sum()})


def make_manifest(method: Method, **changes: Any) -> Manifest:
    spec = method.frame_spec
    frames = torch.zeros(1, spec.num_frames, 3, spec.size, spec.size, dtype=torch.uint8)
    mask = torch.ones(1, spec.num_frames, dtype=torch.bool)
    seconds = torch.zeros(1, spec.num_frames)
    features = method.encode_video(Clips(frames, mask, seconds))
    values = {
        "model": "bag",
        "identity": model_identity(method),
        "method": method.name,
        "dim": features.frames.shape[-1],
        "layout": Layout.of(feature_arrays(features, seconds)),
        "frame_spec": spec,
    }
    return Manifest(**{**values, **changes})


def clip_batch(method: Method, layout: Layout, content: str, frames: Tensor) -> ClipBatch:
    """Clips with given frame vectors ``[clips, frames, dim]``, ten seconds each."""
    mask = torch.ones(frames.shape[:2], dtype=torch.bool)
    features = VideoFeatures(frames, mask)
    count = len(frames)
    starts = 10.0 * np.arange(count)
    seconds = torch.from_numpy(starts)[:, None] + torch.arange(frames.shape[1]) * 2.0 + 1
    return ClipBatch(
        keys=[(content, number) for number in range(count)],
        starts=starts,
        ends=starts + 10,
        vectors=method.coarse_vectors(features).detach().numpy().astype(np.float32),
        features=layout.pack(feature_arrays(features, seconds)),
        thumbnails=[f"{content}{number}".encode() for number in range(count)],
    )


def make_store(
    folder: Path, method: Method, num_files: int = 6, clips_each: int = 3, seed: int = 1
) -> LocalStore:
    """Store of files ``/videos/<n>.mp4`` with random features."""
    generator = torch.Generator().manual_seed(seed)
    with LocalStore.write(folder, make_manifest(method)) as writer:
        for number in range(num_files):
            frames = torch.randn(clips_each, FRAMES, DIM, generator=generator)
            frames = F.normalize(frames, dim=-1)
            add_file(writer, method, f"/videos/{number}.mp4", content_of(number), frames)
        writer.finish()
    return LocalStore.open(folder)


def content_of(number: int) -> str:
    return f"{number:016x}{'f' * 16}"


def add_file(
    writer: Writer, method: Method, path: str, content: str, frames: Tensor, **changes: Any
) -> None:
    """Commit a file with clips of these frame vectors."""
    number = int(content[:16], 16)
    values = {
        "path": path,
        "size": 1000 + number,
        "modified_ns": number * 86_400 * 10**9,
        "content": content,
        "status": "done",
        "duration": 10.0 * len(frames),
        "width": 320,
        "height": 240,
        "num_clips": len(frames),
        "tags": ("even" if number % 2 == 0 else "Odd",),
    }
    clips = clip_batch(method, writer.manifest.layout, content, frames)
    writer.commit(Changes([clips], [IndexedFile(**{**values, **changes})]))
