"""Decoding of frames of indexed files, for larger thumbnails and for assistants."""

from __future__ import annotations

from collections import OrderedDict

import anyio
import anyio.to_thread

from eaglenet.core.errors import UsageError
from eaglenet.serve.media import VideoFiles
from eaglenet.serve.problems import Problem
from eaglenet.video.frame_images import FramesRequest, check_frame_images, read_frame_images
from eaglenet.video.images import pixels_to_jpeg
from eaglenet.video.input_file import SharedFile
from eaglenet.video.worker import IsolatedProcess

DECODERS = 2
"""Simultaneous decoders; each uses one core."""
DECODER_MEMORY = 2 * 2**30
MAX_WAITING = 32
"""Thumbnails that may wait for a decoder; further requests get 503."""
CACHE_BYTES = 64 * 2**20


class FrameDecoders:
    """Sandboxed processes that decode frames; started on demand, at most :data:`DECODERS`."""

    def __init__(self, videos: VideoFiles, timeout: float) -> None:
        self.videos, self.timeout = videos, timeout
        self._decoders: list[IsolatedProcess] = []
        self._free = anyio.Semaphore(DECODERS)
        self._num_waiting = 0
        self._cache: OrderedDict[tuple[str, int], bytes] = OrderedDict()
        self._cached_bytes = 0

    async def read(
        self, clip_id: str, suffix: str, seconds: tuple[float, ...], side: int
    ) -> list[bytes]:
        """Return JPEG frames of the file of a clip.

        suffix: file extension, with its dot. seconds: times in the file. side: longer side of the
        frames in pixels. Cancelling the call stops the decoder.
        """
        async with self._free:
            video = await self.videos.open(clip_id)
            shared_file = SharedFile(f"{clip_id}{suffix}", video.descriptor)
            decoder = self._decoders.pop() if self._decoders else self._new_decoder()
            request = FramesRequest(shared_file.path, seconds, side)
            try:
                frames = await anyio.to_thread.run_sync(
                    decoder, request, shared_file, abandon_on_cancel=True
                )
            except BaseException:
                with anyio.CancelScope(shield=True):
                    await anyio.to_thread.run_sync(decoder.close)
                raise
            finally:
                shared_file.close()
            self._decoders.append(decoder)
        return [pixels_to_jpeg(frame) for frame in frames]

    async def thumbnail(self, clip_id: str, suffix: str, second: float, side: int) -> bytes:
        """Return one JPEG frame of a clip, from the cache if it was decoded before."""
        key = clip_id, side
        if key in self._cache:
            self._cache.move_to_end(key)
            return self._cache[key]
        if self._num_waiting >= MAX_WAITING:
            message = f"{MAX_WAITING} frames are already waiting for a decoder, which is the limit"
            raise Problem(503, message, headers={"Retry-After": "5"})
        self._num_waiting += 1
        try:
            (frame,) = await self.read(clip_id, suffix, (second,), side)
        except UsageError as error:
            # The message contains the clip id instead of the path.
            raise Problem(415, str(error), code="unplayable") from None
        finally:
            self._num_waiting -= 1
        if key not in self._cache:
            self._cache[key] = frame
            self._cached_bytes += len(frame)
        while self._cached_bytes > CACHE_BYTES and len(self._cache) > 1:
            self._cached_bytes -= len(self._cache.popitem(last=False)[1])
        return frame

    def close(self) -> None:
        """End the processes; a later call starts new ones."""
        while self._decoders:
            self._decoders.pop().close()

    def _new_decoder(self) -> IsolatedProcess:
        return IsolatedProcess(read_frame_images, DECODER_MEMORY, self.timeout, check_frame_images)
