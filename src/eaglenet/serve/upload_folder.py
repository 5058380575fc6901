"""Temporary folder of uploads, and the processes that decode them."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from eaglenet.core.files import try_lock
from eaglenet.core.frame_spec import FrameSpec
from eaglenet.core.platform import is_own_file, open_for_locking
from eaglenet.serve.problems import Problem
from eaglenet.video.decoding import DecodedVideo, QueryRequest, check_frames, decode_query
from eaglenet.video.input_file import share_file
from eaglenet.video.worker import IsolatedProcess

PREFIX = "eaglenet-uploads-"
LOCK = "lock"
MAX_UPLOADS = 4
"""Simultaneous uploads, each with its own decoder process."""
MAX_UPLOADS_PER_CLIENT = 2
"""Less than ``MAX_UPLOADS``, so that one client cannot use all decoders."""
MEMORY = 2 * 2**30
"""Bytes per decoder process."""
RETRY = {"Retry-After": "5"}


@dataclass(frozen=True)
class Upload:
    """Temporary file of an upload, and the process that decodes it."""

    file: IO[bytes]
    path: str
    decoder: IsolatedProcess

    def decode(self, spec: FrameSpec, *, is_image: bool) -> DecodedVideo:
        """Decode the received file; raise ``UsageError`` if that is not possible."""
        shared_file = share_file(self.path)
        try:
            video: DecodedVideo = self.decoder(QueryRequest(self.path, spec, is_image), shared_file)
        finally:
            shared_file.close()
        return video


class UploadFolder:
    """Upload folder of one running service; removes those of services that were killed."""

    def __init__(self, seconds: float, parent: Path | None = None) -> None:
        self.parent = parent or Path(tempfile.gettempdir())
        _remove_stale_folders(self.parent)
        self.folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=self.parent))
        self._lock = open_for_locking(self.folder / LOCK, mode=0o600)
        try_lock(self._lock)
        self.is_stopping = False
        self._decoders = [
            IsolatedProcess(decode_query, MEMORY, seconds, _check) for _ in range(MAX_UPLOADS)
        ]
        self._free_decoders = list(self._decoders)
        self._num_of_client: Counter[str] = Counter()

    @contextmanager
    def receive(self, client: str = "") -> Iterator[Upload]:
        """Yield a temporary file and a decoder; the file is removed after the block."""
        if not self._free_decoders or self._num_of_client[client] >= MAX_UPLOADS_PER_CLIENT:
            raise Problem(503, "too many uploads at once", headers=RETRY)
        # The most recently used one: its process is already running.
        decoder = self._free_decoders.pop()
        self._num_of_client[client] += 1
        try:
            with tempfile.NamedTemporaryFile(dir=self.folder) as file:
                yield Upload(file.file, file.name, decoder)
        finally:
            self._free_decoders.append(decoder)
            self._num_of_client[client] -= 1
            if not self._num_of_client[client]:
                del self._num_of_client[client]

    def stop(self) -> None:
        """End all decoding immediately; uploads in progress fail."""
        self.is_stopping = True
        for decoder in self._decoders:
            decoder.close()

    def close(self) -> None:
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)
        os.close(self._lock)


def _check(request: QueryRequest, video: DecodedVideo) -> None:
    check_frames(video, request.spec)


def _remove_stale_folders(parent: Path) -> None:
    """Remove the folders of killed services: those whose lock is free."""
    for folder in parent.glob(f"{PREFIX}*"):
        try:
            if folder.is_symlink() or not is_own_file(folder.stat()):
                continue
            descriptor = open_for_locking(folder / LOCK, create=False)
        except OSError:
            continue
        if try_lock(descriptor):
            shutil.rmtree(folder, ignore_errors=True)
        os.close(descriptor)
