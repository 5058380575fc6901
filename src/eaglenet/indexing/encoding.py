"""From clips of files to rows of the store: decode ahead, encode in batches."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator

import numpy as np
import torch

from eaglenet.core.errors import NonFiniteError
from eaglenet.core.hardware import autocast_for
from eaglenet.core.types import Clips
from eaglenet.indexing.decoding import ClipFailure, ClipFrames, ClipRequest, Damage, decode_ahead
from eaglenet.methods.base import Method
from eaglenet.search.reranking import prepare_for_store
from eaglenet.search.store.manifest import Manifest
from eaglenet.search.store.tables import ClipRows
from eaglenet.video.limits import Limits

logger = logging.getLogger(__name__)

FIRST_FRAMES, BATCH_FRAMES = 24, 192
"""Frames encoded at once on a CPU: of the first batch, and at most. Two cores are as fast with 24,
but a batch encodes what neighbouring clips share once, and the next one does not know of it."""
LEAST_CLIPS = 4
"""Of later batches: of 12 frames a clip shares two with the one before, so that batches of four
clips encode 5% more frames than one batch of all would, and single clips 20%."""
BATCH_SECONDS = 4.0
"""What a batch should take a CPU: between two a run says how far it is, and can be interrupted."""
GPU_BATCH_FRAMES = 1536


class ClipEncoding:
    """Encodes requested clips with one model."""

    def __init__(
        self,
        method: Method,
        manifest: Manifest,
        workers: int,
        limits: Limits | None = None,
        precision: str = "fp32",
    ) -> None:
        self.limits = limits
        self.precision = precision
        self.method = method
        self.manifest = manifest
        self.workers = workers
        num_frames = manifest.frame_spec.num_frames
        self.is_paced = method.device.type != "cuda"
        frames = BATCH_FRAMES if self.is_paced else GPU_BATCH_FRAMES
        self.most_clips = max(1, frames // num_frames)
        first = max(1, FIRST_FRAMES // num_frames)
        self.batch_size = min(first, self.most_clips) if self.is_paced else self.most_clips

    def run(self, requests: Iterable[ClipRequest]) -> Iterator[ClipRows | ClipFailure | Damage]:
        """Rows, failures and damage as they come; clips of one file may be flatten_outcomes over batches."""
        spec, step = self.manifest.frame_spec, self.manifest.splitting.frame_step
        return self.encode(decode_ahead(requests, spec, self.workers, self.limits, step))

    def encode(
        self, decoded: Iterable[ClipFrames | ClipFailure | Damage]
    ) -> Iterator[ClipRows | ClipFailure | Damage]:
        """:meth:`run` for clips that are decoded already."""
        batch: list[ClipFrames] = []
        try:
            for item in decoded:
                if not isinstance(item, ClipFrames):
                    yield item
                    continue
                batch.append(item)
                if len(batch) == self.batch_size:
                    began = time.perf_counter()
                    rows, batch = self._encode(batch), []
                    self._pace(time.perf_counter() - began)
                    yield rows
            if batch:
                rows, batch = self._encode(batch), []
                yield rows
        except KeyboardInterrupt:
            # Decoding took long: what is decoded is not thrown away.
            if batch:
                told = "stopping when the clips in hand (%d) are done; Ctrl-C again stops at once"
                logger.warning(told, len(batch))
                yield self._encode(batch)
            raise

    def _pace(self, seconds: float) -> None:
        """Choose how many clips a batch has by what the last took; only where that differs much."""
        wanted = round(self.batch_size * BATCH_SECONDS / max(seconds, 1e-3))
        if self.is_paced and not 2 / 3 < wanted / self.batch_size < 3 / 2:
            self.batch_size = min(max(LEAST_CLIPS, wanted), self.most_clips)

    @torch.inference_mode()
    def _encode(self, batch: list[ClipFrames]) -> ClipRows:
        seconds = torch.stack([clip.seconds for clip in batch]).float()
        clips = Clips(
            torch.stack([clip.frames for clip in batch]),
            torch.stack([clip.mask for clip in batch]),
            seconds,
        )
        device = self.method.device
        with autocast_for(device, self.precision):
            features = self.method.encode_video(clips.to(device))
        if self.precision != "fp32":
            # What follows (pooling, packing, preparing) is cheap and stays exact.
            features = features.to(device, torch.float32)
        coarse = self.method.coarse_vectors(features).float().cpu().numpy()
        if not np.isfinite(coarse).all():
            raise NonFiniteError(
                f"the model gave vectors that are not finite for {batch[0].path}; its weights are "
                "damaged or of another model"
            )
        layout = self.manifest.layout
        prepared = prepare_for_store(self.method, features) if layout.has_prepared else None
        return ClipRows(
            keys=[clip.key for clip in batch],
            paths=[clip.path for clip in batch],
            starts=np.array([clip.window[0] for clip in batch], np.float64),
            ends=np.array([clip.window[1] for clip in batch], np.float64),
            coarse=coarse,
            records=layout.pack(features, seconds, prepared),
            thumbnails=[clip.thumbnail for clip in batch],
        )
