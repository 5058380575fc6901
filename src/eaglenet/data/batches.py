"""Where the pairs of a batch come from: stored features, cached frames, or files decoded now."""

from __future__ import annotations

import hashlib
import logging
import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeVar

import torch
from jaxtyping import Int
from torch import Tensor

from eaglenet.data.features import FeatureSplit
from eaglenet.data.frame_cache import FrameCache
from eaglenet.data.frame_journal import pad_frames
from eaglenet.data.records import Split, VideoRecord
from eaglenet.data.sampler import PairSampler
from eaglenet.errors import DatasetError, VideoDecodeError
from eaglenet.types import Clips, FrameSpec, PairBatch, Tokens

__all__ = [
    "CachedPairs",
    "DecodedPairs",
    "FeaturePairs",
    "PairSampler",
    "PairSource",
    "decode_record",
    "prefetch",
]

logger = logging.getLogger(__name__)

Tokenizer = Callable[..., Tokens]
"""``tokenizer(texts, max_length=...)``."""
Item = TypeVar("Item")
# A replacement is looked for this many times before the dataset counts as lost.
MAX_REPLACEMENTS = 256


class PairSource(Protocol):
    """Gives the pairs of text indices ``0 .. len(video_of_text) - 1``."""

    video_of_text: Int[Tensor, "texts"]

    @property
    def skipped(self) -> dict[str, str]:
        """Video id -> reason, of every video that could not be used so far."""
        ...

    def pairs(self, indices: Sequence[int] | Tensor) -> PairBatch: ...


class FeaturePairs:
    """Pairs of stored features, gathered on the device that holds them."""

    def __init__(self, split: FeatureSplit) -> None:
        self.split = split
        self.video_of_text = split.video_of_text

    @property
    def skipped(self) -> dict[str, str]:
        return {}

    def pairs(self, indices: Sequence[int] | Tensor) -> PairBatch:
        chosen = torch.as_tensor(indices, dtype=torch.int64, device=self.split.device)
        owners = self.split.video_of_text[chosen]
        return PairBatch(self.split.text_batch(chosen), self.split.video_batch(owners), owners)


class CachedPairs:
    """Pairs of cached frames. Videos that the cache had to skip are left out, and counted, here."""

    def __init__(
        self, split: Split, cache: FrameCache, tokenizer: Tokenizer, *, max_words: int = 32
    ) -> None:
        self.cache = cache.bound_to(split)
        present = self.cache.available
        if not present.any():
            raise DatasetError(
                f"{cache.folder}: none of the {len(split)} videos of {split.dataset} {split.name} "
                "is in the cache; build it for this split"
            )
        usable = [video.video_id for video, here in zip(split.videos, present, strict=True) if here]
        self.skipped_before = {
            video.video_id: self.cache.skipped.get(video.video_id, "not in the frame cache")
            for video, here in zip(split.videos, present, strict=True)
            if not here
        }
        if self.skipped_before:
            logger.warning(
                "%s %s: %d of %d videos are in the frame cache",
                split.dataset,
                split.name,
                len(usable),
                len(split),
            )
            split = split.only(usable, "not in the frame cache")
            self.cache = self.cache.bound_to(split)
        self.split = split
        self.tokenizer = tokenizer
        self.max_words = max_words
        self.video_of_text = split.video_of_text

    @property
    def skipped(self) -> dict[str, str]:
        return dict(self.skipped_before)

    def pairs(self, indices: Sequence[int] | Tensor) -> PairBatch:
        chosen = torch.as_tensor(indices, dtype=torch.int64)
        owners = self.video_of_text[chosen]
        texts = [self.split.texts[index] for index in chosen.tolist()]
        tokens = self.tokenizer(texts, max_length=self.max_words)
        return PairBatch(tokens, self.cache.clips(owners), owners)


class DecodedPairs:
    """Pairs decoded from files at each use, for data seen once or too large for a cache.

    A video that is gone or broken is logged and counted once, and another pair takes its place:
    the walk to it depends on the text index alone, so every run makes the same choice.
    """

    def __init__(
        self,
        split: Split,
        spec: FrameSpec,
        tokenizer: Tokenizer,
        *,
        max_words: int = 32,
        threads: int = 2,
    ) -> None:
        self.split = split.present()
        self.spec = spec
        self.tokenizer = tokenizer
        self.max_words = max_words
        self.video_of_text = self.split.video_of_text
        self._skipped = {video.video_id: "no file found" for video in split.missing}
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="decode")

    @property
    def skipped(self) -> dict[str, str]:
        return dict(self._skipped)

    def pairs(self, indices: Sequence[int] | Tensor) -> PairBatch:
        wanted = torch.as_tensor(indices, dtype=torch.int64).tolist()
        owners = {int(self.video_of_text[index]) for index in wanted}
        # Two captions of one video share one decoding.
        order = sorted(owners)
        clips: dict[int, Clips] = {
            owner: clip
            for owner, clip in zip(order, self._pool.map(self._clip, order), strict=True)
            if clip is not None
        }
        used = {index for index in wanted if int(self.video_of_text[index]) in clips}
        chosen = []
        for index in wanted:
            if index not in used:
                index = self._replacement(index, used, clips)
                used.add(index)
            chosen.append(index)
        rows = self.video_of_text[chosen]
        tokens = self.tokenizer(
            [self.split.texts[index] for index in chosen], max_length=self.max_words
        )
        videos = Clips.concatenate([clips[owner] for owner in rows.tolist()])
        return PairBatch(tokens, videos, rows)

    def _clip(self, owner: int) -> Clips | None:
        record = self.split.videos[owner]
        if record.video_id in self._skipped:
            return None
        try:
            return decode_record(record, self.spec)
        except VideoDecodeError as error:
            reason = error.cause
        except Exception as error:
            # Nothing that one file does may end a run over all the others.
            reason = f"{type(error).__name__}: {error}"
        self._skipped[record.video_id] = reason
        logger.warning(
            "left out %s (%s); %d videos skipped so far",
            record.video_id,
            reason,
            len(self._skipped),
        )
        return None

    def _replacement(self, index: int, used: set[int], clips: dict[int, Clips]) -> int:
        for attempt in range(MAX_REPLACEMENTS):
            digest = hashlib.sha256(f"replace:{index}:{attempt}".encode()).digest()
            candidate = int.from_bytes(digest[:8], "big") % len(self.video_of_text)
            if candidate in used:
                continue
            owner = int(self.video_of_text[candidate])
            if owner not in clips:
                clip = self._clip(owner)
                if clip is None:
                    continue
                clips[owner] = clip
            return candidate
        raise DatasetError(
            f"{self.split.dataset} {self.split.name}: {len(self._skipped)} of {len(self.split)} "
            "videos cannot be read; is the video folder still there? Resume when it is"
        )


def decode_record(record: VideoRecord, spec: FrameSpec) -> Clips:
    """The frames of one video as a batch of one, padded to ``spec.num_frames``."""
    from eaglenet.data.decoding import decode

    if record.path is None:
        raise VideoDecodeError(record.video_id, "no file found")
    video = decode(record.path, spec, window=record.window)
    frames, mask, seconds = pad_frames(video.frames, video.mask, video.seconds, spec.num_frames)
    return Clips(frames[None], mask[None], seconds[None])


def prefetch(items: Iterable[Item], depth: int = 2) -> Iterator[Item]:
    """The same items in the same order, made ahead in a thread; its errors are raised here."""
    ready: queue.Queue[tuple[Item | None, BaseException | None, bool]] = queue.Queue(depth)
    stopped = threading.Event()

    def give(item: Item | None, error: BaseException | None, is_last: bool) -> None:
        while not stopped.is_set():
            try:
                ready.put((item, error, is_last), timeout=0.1)
                return
            except queue.Full:
                continue

    def work() -> None:
        try:
            for item in items:
                give(item, None, False)
                if stopped.is_set():
                    return
            give(None, None, True)
        except BaseException as error:
            give(None, error, True)

    thread = threading.Thread(target=work, name="prefetch", daemon=True)
    thread.start()
    try:
        while True:
            item, error, is_last = ready.get()
            if error is not None:
                raise error
            if is_last:
                return
            yield item  # type: ignore[misc]
    finally:
        stopped.set()
        thread.join(timeout=5)
