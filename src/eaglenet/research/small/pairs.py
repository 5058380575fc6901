"""Pairs of texts and frames in device memory: random batches, views and evaluation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor

from eaglenet.core.errors import DatasetError
from eaglenet.core.types import Tokens
from eaglenet.encoders.compact import CompactEncoder
from eaglenet.research.data.frame_folder import FrameFolder, FrameItem
from eaglenet.research.evaluation.metrics import Metrics, retrieval_metrics

MAX_WORDS = 32


@dataclass(frozen=True)
class PairData:
    """Items with the frames and the texts of all of them in common tensors.

    people, machine: range of rows of an item's texts, by who wrote them: start and end per item.
    """

    items: tuple[FrameItem, ...]
    frames: UInt8[Tensor, "frames 3 height width"]
    first_frame: Int[Tensor, "items"]
    num_frames: Int[Tensor, "items"]
    texts: tuple[str, ...]
    ids: Int[Tensor, "texts words"]
    people: Int[Tensor, "items 2"]
    machine: Int[Tensor, "items 2"]

    @property
    def device(self) -> torch.device:
        return self.frames.device

    @property
    def is_video(self) -> Bool[Tensor, "items"]:
        """Mask of items with several frames."""
        return self.num_frames > 1

    def tokens(self, rows: Int[Tensor, "texts"]) -> Tokens:
        ids = self.ids[rows]
        return Tokens(ids, ids != 0)

    def draw_texts(
        self, items: Int[Tensor, "items"], machine_share: float, generator: torch.Generator
    ) -> Int[Tensor, "items"]:
        """Draw a text per item: a captioner's with probability ``machine_share``.

        If an item has texts of one kind only, one of these is drawn.
        """
        draws = torch.rand(2, len(items), generator=generator, device=self.device)
        people, machine = self.people[items], self.machine[items]
        has_people, has_machine = (kind[:, 1] > kind[:, 0] for kind in (people, machine))
        is_machine = has_machine & ((draws[0] < machine_share) | ~has_people)
        spans = torch.where(is_machine[:, None], machine, people)
        count = (spans[:, 1] - spans[:, 0]).float()
        return spans[:, 0] + (draws[1] * count).long().clamp(max=count.long() - 1)

    def draw_frames(
        self, items: Int[Tensor, "items"], number: int, generator: torch.Generator
    ) -> Int[Tensor, "items number"]:
        """Draw rows of frames, one from each of ``number`` equal parts of each item."""
        draws = torch.rand(len(items), number, generator=generator, device=self.device)
        fractions = (torch.arange(number, device=self.device) + draws) / number
        count = self.num_frames[items, None]
        return self.first_frame[items, None] + (fractions * count).long().clamp(max=count - 1)


def load_pairs(
    folders: Sequence[Path],
    split: str,
    tokenize: Callable[[Sequence[str]], Tokens],
    *,
    size: int,
    device: torch.device | str,
    threads: int = 8,
) -> PairData:
    """Read all items of ``split`` that have a text, from all folders."""
    frame_tensors, items = [], []
    for path in folders:
        folder = FrameFolder.open(path)
        captioned_items = [
            item
            for item in folder.items
            if item.split == split and (item.captions.get("people") or item.captions.get("machine"))
        ]
        if captioned_items:
            frames, _ = folder.read_frames(captioned_items, size, threads=threads)
            frame_tensors.append(frames.to(device).contiguous())
            items += captioned_items
    if not items:
        names = ", ".join(map(str, folders))
        raise DatasetError(f"no item of split {split!r} with a text in {names}")
    texts: list[str] = []
    spans: dict[str, list[tuple[int, int]]] = {"people": [], "machine": []}
    for item in items:
        for kind, rows in spans.items():
            start = len(texts)
            texts += item.captions.get(kind, [])
            rows.append((start, len(texts)))
    counts = torch.tensor([item.frames for item in items])
    return PairData(
        items=tuple(items),
        frames=torch.cat(frame_tensors),
        first_frame=(counts.cumsum(0) - counts).to(device),
        num_frames=counts.to(device),
        texts=tuple(texts),
        ids=_token_ids(texts, tokenize).to(device),
        people=torch.tensor(spans["people"]).to(device),
        machine=torch.tensor(spans["machine"]).to(device),
    )


def join_pairs(first: PairData, second: PairData) -> PairData:
    frames, texts = len(first.frames), len(first.texts)
    return PairData(
        items=first.items + second.items,
        frames=torch.cat([first.frames, second.frames]),
        first_frame=torch.cat([first.first_frame, second.first_frame + frames]),
        num_frames=torch.cat([first.num_frames, second.num_frames]),
        texts=first.texts + second.texts,
        ids=torch.cat([first.ids, second.ids]),
        people=torch.cat([first.people, second.people + texts]),
        machine=torch.cat([first.machine, second.machine + texts]),
    )


def open_frames(
    folders: Sequence[Path], *, size: int, device: torch.device | str
) -> UInt8[Tensor, "frames 3 size size"]:
    """Read the training frames of folders, without captions and labels."""
    frames = []
    for path in folders:
        folder = FrameFolder.open(path)
        train = [item for item in folder.items if item.split == "train"]
        if not train:
            raise DatasetError(f"no training item in {path}")
        frames.append(folder.read_frames(train, size)[0].to(device).contiguous())
    return torch.cat(frames)


def _token_ids(
    texts: Sequence[str], tokenize: Callable[[Sequence[str]], Tokens]
) -> Int[Tensor, "texts words"]:
    all_ids = torch.zeros(len(texts), MAX_WORDS, dtype=torch.long)
    for start in range(0, len(texts), 10000):
        ids = tokenize(texts[start : start + 10000]).ids[:, :MAX_WORDS]
        all_ids[start : start + len(ids), : ids.shape[1]] = ids
    return all_ids


def random_views(
    frames: UInt8[Tensor, "images 3 height width"],
    size: int,
    crop: float,
    generator: torch.Generator,
) -> Float[Tensor, "images 3 size size"]:
    """Crop, mirror, and change brightness and contrast at random; values from 0 to 255."""
    count, device = len(frames), frames.device

    def draw(low: float, high: float) -> Tensor:
        return low + (high - low) * torch.rand(count, generator=generator, device=device)

    area, ratio = draw(crop, 1.0).sqrt(), torch.exp(draw(-0.25, 0.25))
    width, height = (area * ratio).clamp(max=1.0), (area / ratio).clamp(max=1.0)
    middle_x, middle_y = draw(-1.0, 1.0) * (1 - width), draw(-1.0, 1.0) * (1 - height)
    mirror = torch.where(draw(0.0, 1.0) < 0.5, -1.0, 1.0)
    zero = torch.zeros_like(width)
    transform = torch.stack(
        [
            torch.stack([width * mirror, zero, middle_x], dim=-1),
            torch.stack([zero, height, middle_y], dim=-1),
        ],
        dim=1,
    )
    grid = torch.nn.functional.affine_grid(transform, [count, 3, size, size], align_corners=False)
    views = torch.nn.functional.grid_sample(
        frames.float(), grid, align_corners=False, padding_mode="reflection"
    )
    contrast, brightness = draw(0.7, 1.3), draw(-25.0, 25.0)
    mean = views.mean(dim=(1, 2, 3), keepdim=True)
    views = (views - mean) * contrast[:, None, None, None] + mean + brightness[:, None, None, None]
    return views.clamp(0.0, 255.0)


def plain_views(
    frames: UInt8[Tensor, "images 3 height width"], size: int
) -> Float[Tensor, "images 3 size size"]:
    """Scale whole images, as an index run does; values from 0 to 255."""
    if frames.shape[-1] == size:
        return frames.float()
    return torch.nn.functional.interpolate(
        frames.float(), (size, size), mode="bicubic", antialias=True
    ).clamp(0.0, 255.0)


MAX_FRAMES = 12
"""Frames per item in an evaluation."""


@torch.no_grad()
def item_vectors(encoder: CompactEncoder, data: PairData) -> Float[Tensor, "items dim"]:
    """Encode items: the normalised mean of the normalised vectors of evenly spaced frames."""
    vision, size = encoder.vision, encoder.config.vision.image_size
    batches = [
        vision(vision.normalise(plain_views(batch, size)))[:, 0].float()
        for batch in data.frames.split(512)
    ]
    frames = torch.cat(batches)
    vectors = []
    for first, count in zip(data.first_frame.tolist(), data.num_frames.tolist(), strict=True):
        rows = torch.linspace(0, count - 1, min(count, MAX_FRAMES)).round().long()
        vectors.append(F.normalize(frames[first + rows.to(frames.device)], dim=-1).mean(dim=0))
    return F.normalize(torch.stack(vectors), dim=-1)


@torch.no_grad()
def evaluate_pairs(encoder: CompactEncoder, data: PairData) -> Metrics:
    """Compute metrics with all texts by people as queries over all items."""
    spans = [tuple(span) for span in data.people.tolist()]
    rows = torch.cat([torch.arange(start, stop) for start, stop in spans]).to(data.device)
    item_of_text = torch.cat(
        [torch.full((stop - start,), item) for item, (start, stop) in enumerate(spans)]
    )
    texts = torch.cat(
        [encoder.encode_text(data.tokens(batch)).sentence.float() for batch in rows.split(4096)]
    )
    scores = F.normalize(texts, dim=-1) @ item_vectors(encoder, data).T
    return retrieval_metrics(scores.cpu(), item_of_text)


def evaluate_all(encoder: CompactEncoder, folders: Mapping[str, PairData]) -> dict[str, Metrics]:
    return {name: evaluate_pairs(encoder, data) for name, data in folders.items()}


def recall_sum(results: Mapping[str, Metrics]) -> float:
    """Return text-to-video R@1 + R@5 + R@10, averaged over folders; runs are compared by it."""
    sums = [metrics.t2v.recall_sum for metrics in results.values()]
    return sum(sums) / max(len(sums), 1)
