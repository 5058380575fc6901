"""Export of selected moments as timelines for editors, players and spreadsheets."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import anyio
import anyio.to_thread

from eaglenet.core.errors import UsageError
from eaglenet.core.hits import Hit
from eaglenet.search.timelines import (
    Media,
    check_media_values,
    format_timeline,
    make_cuts,
    read_media_values,
)
from eaglenet.serve.media import VideoFiles
from eaglenet.serve.problems import Problem
from eaglenet.video.input_file import SharedFile
from eaglenet.video.worker import IsolatedProcess

READER_MEMORY = 2 * 2**30
MEDIA_TYPES = {
    "csv": "text/csv; charset=utf-8",
    "edl": "text/plain; charset=utf-8",
    "fcpxml": "application/xml",
    "xml": "application/xml",
    "otio": "application/json",
    "m3u8": "application/vnd.apple.mpegurl",
    "srt": "application/x-subrip",
}
"""Media type by format; the format is also the file extension."""


class TimelineExports:
    """Writer of timelines; reads frame rates and timecodes in one sandboxed process."""

    def __init__(self, videos: VideoFiles, timeout: float) -> None:
        self.videos, self.timeout = videos, timeout
        self._reader: IsolatedProcess | None = None
        self._lock = anyio.Lock()

    async def write(self, hits: Sequence[Hit], title: str, kind: str) -> bytes:
        """Return a timeline in UTF-8 that refers to files by the paths of ``hits``."""
        sources: dict[str, Media] = {}
        for hit in hits:
            if hit.duration and hit.path not in sources:
                sources[hit.path] = await self._read(hit)
        cuts = make_cuts(hits, title, read=lambda hit: sources[hit.path])
        # Lone surrogates, as in some file names, become "?".
        return format_timeline(cuts, title, kind).encode("utf-8", errors="replace")

    async def _read(self, hit: Hit) -> Media:
        async with self._lock:
            video = await self.videos.open(hit.clip_id)
            shared_file = SharedFile(f"{hit.clip_id}{Path(hit.path).suffix}", video.descriptor)
            try:
                if self._reader is None:
                    self._reader = IsolatedProcess(
                        read_media_values, READER_MEMORY, self.timeout, check_media_values
                    )
                values = await anyio.to_thread.run_sync(self._reader, shared_file.path, shared_file)
            except UsageError as error:
                # The message contains the clip id instead of the path.
                raise Problem(415, str(error), code="unplayable") from None
            finally:
                shared_file.close()
        return values.media(hit.path)  # type: ignore[no-any-return]

    def close(self) -> None:
        """End the process; a later export starts a new one."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None
