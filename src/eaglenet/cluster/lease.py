"""Lease of a store on object storage: a small object that the one writer keeps renewing.

No clock of another machine is trusted. A process that finds a lease watches it. If it is not
renewed for ``LEASE_SECONDS``, it is taken over by a conditional write, which fails if the holder
was faster. A holder that could not renew it for half that time stops writing.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from eaglenet.core.errors import StoreError
from eaglenet.core.object_storage import (
    ChangedObjectError,
    MissingObjectError,
    ObjectError,
    ObjectFolder,
)

logger = logging.getLogger(__name__)

LEASE = "writer.lease"
LEASE_SECONDS = 30.0


class Lease:
    """Held by this process until it is released, or taken over by another."""

    def __init__(self, folder: ObjectFolder) -> None:
        self.folder = folder
        self._holder = f"process {os.getpid()} on {socket.gethostname()}"
        self._tag = ""
        self._renewal_time = 0.0
        self._stop = threading.Event()

    def take(self) -> None:
        """Take the lease, or raise an error that names its holder."""
        first_tag: str | None = None
        since = 0.0
        while True:
            tag: str | None
            try:
                content, tag = self.folder.read(LEASE)
            except MissingObjectError:
                content, tag = b"", None
            if tag is not None and tag != first_tag:
                if first_tag is not None:
                    raise self._held_error(content)  # It was renewed while we watched.
                first_tag, since = tag, time.monotonic()
                logger.warning(
                    "%s: checking whether %s is alive", self.folder.url, _holder(content)
                )
            if tag is None or time.monotonic() - since >= LEASE_SECONDS:
                break
            time.sleep(min(1.0, LEASE_SECONDS / 20))
        self._renewal_time = time.monotonic()
        try:
            self._tag = self.folder.write_if(LEASE, self._content(), tag)
        except ChangedObjectError:
            raise self._held_error(self.folder.read(LEASE)[0]) from None
        threading.Thread(target=self._keep, name="lease", daemon=True).start()

    def _held_error(self, content: bytes) -> StoreError:
        return StoreError(
            f"{self.folder.url} is being written to by {_holder(content)}; wait for it to finish. "
            "Searching still works"
        )

    def _content(self) -> bytes:
        # Never the same twice: see ObjectFolder.write_if.
        return json.dumps({"holder": self._holder, "nonce": secrets.token_hex(8)}).encode()

    def _keep(self) -> None:
        while not self._stop.wait(LEASE_SECONDS / 6):
            start = time.monotonic()
            try:
                self._tag = self.folder.write_if(LEASE, self._content(), self._tag)
                self._renewal_time = start
            except (ChangedObjectError, MissingObjectError):
                self._renewal_time = -LEASE_SECONDS
                logger.warning("%s: another writer took the lease", self.folder.url)
                return
            except ObjectError as error:
                logger.warning("%s; the lease is renewed later", error)

    def require(self) -> None:
        """Raise an error unless this process certainly holds the lease."""
        if time.monotonic() - self._renewal_time > LEASE_SECONDS / 2:
            raise StoreError(
                f"{self.folder.url}/{LEASE} could not be renewed, or another writer took it; what "
                "was reported as done is safe. Run the same command again to continue"
            )

    def release(self) -> None:
        """Let other writers in at once."""
        self._stop.set()
        try:
            if self.folder.tag(LEASE) == self._tag:
                self.folder.remove([LEASE])
        except ObjectError as error:
            logger.warning("%s; the next writer will wait %.0f s", error, LEASE_SECONDS)


def _holder(content: bytes) -> str:
    try:
        return f"another eaglenet ({json.loads(content)['holder']})"
    except (ValueError, KeyError, TypeError):
        return "another eaglenet"


@contextmanager
def hold_lease(folder: ObjectFolder) -> Iterator[Lease]:
    """Hold a store for writing."""
    lease = Lease(folder)
    lease.take()
    try:
        yield lease
    finally:
        lease.release()
