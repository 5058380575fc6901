"""Keep a store up to date with folders while they change.

Folders are looked through now and then, and at once where the system tells of changes. Network
mounts never tell, so they are only looked through. A mount that went away looks like an empty
folder: nothing is forgotten while a folder is missing, on another device than it was, or empty
although it held videos.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from eaglenet.indexing.files import find_videos
from eaglenet.indexing.index import index_videos
from eaglenet.indexing.report import IndexReport
from eaglenet.indexing.run import IndexOptions
from eaglenet.methods.base import Method
from eaglenet.search.model import load_model, model_of, put_on
from eaglenet.video.containers import looks_like_video

logger = logging.getLogger(__name__)

PATIENCE = 60.0
"""Seconds after which what has come to rest is indexed although other files still change."""
SELDOM = 300.0
"""Seconds between two looks where the system tells of changes; it may miss some."""
NETWORK = ("nfs", "cifs", "smb", "9p", "afs", "ceph", "gluster", "fuse", "vbox", "drvfs", "ncp")
"""How the names of file systems begin that do not tell what others change."""
State = dict[str, tuple[int, int]]
"""Path -> size and time of each file."""
Wait = Callable[[float], bool]
"""Waits so many seconds, or less if something changed; False where watching is to end."""


def watch(
    paths: Sequence[Path],
    store: str | Path,
    model: str | None = None,
    *,
    options: IndexOptions | None = None,
    interval: float = 10.0,
    method: Method | None = None,
    wait: Wait | None = None,
) -> Iterator[IndexReport]:
    """Index now, and then whenever files have changed and come to rest; a report of each run."""
    options = dataclasses.replace(options or IndexOptions(), drop_missing=False)
    roots = [path.expanduser() for path in paths]
    model = model if model is not None else model_of(store)
    if method is None:
        method = put_on(load_model(model), options.device)
    wait = wait or waiter(roots, interval)
    guard = MountGuard(roots)
    done: State | None = None
    before: State | None = None
    changed_at = time.monotonic()
    while True:
        now = look(roots, store, options.exclude) if guard.is_safe() else None
        if now is not None:
            changed_at = changed_at if now != done else time.monotonic()
            is_at_rest = now == before or done is None
            is_late = time.monotonic() - changed_at > PATIENCE
            if now != done and guard.holds(len(now)) and (is_at_rest or is_late):
                chosen = dataclasses.replace(options, drop_missing=done is not None)
                yield index_videos(roots, store, model, options=chosen, method=method)
                done, changed_at = now, time.monotonic()
        before = now
        # What has just changed is looked at again soon, to see whether it is at rest.
        if not wait(interval if now == done else min(interval, 2.0)):
            return


def look(roots: Sequence[Path], store: str | Path, exclude: Sequence[str] = ()) -> State | None:
    """The files that would be indexed; None where a folder went away meanwhile."""
    leave_out = Path(store).expanduser()
    try:
        found = find_videos(roots, looks_like_video, leave_out=leave_out, exclude=exclude)
        return {file.path: (file.size, file.modified_ns) for file in found}
    except OSError as error:
        logger.warning("%s; looking again later", error)
        return None


class MountGuard:
    """Whether folders are what they were when watching began."""

    def __init__(self, roots: Sequence[Path]) -> None:
        self.roots = roots
        self.devices = [os.stat(root).st_dev for root in roots]
        self.most = 0
        self._is_told = False

    def is_safe(self) -> bool:
        """False while a folder is missing or another file system is in its place."""
        for root, device in zip(self.roots, self.devices, strict=True):
            try:
                is_same = os.stat(root).st_dev == device
            except OSError:
                is_same = False
            if not is_same:
                self._tell(f"{root} is not there, or not what it was")
                return False
        self._is_told = False
        return True

    def holds(self, count: int) -> bool:
        """Whether ``count`` files are believed: none at all, after some, is a mount that went."""
        self.most = max(self.most, count)
        if count or not self.most:
            return True
        self._tell("all videos are gone at once")
        return False

    def _tell(self, what: str) -> None:
        if not self._is_told:
            logger.warning("%s; nothing is forgotten, looking again later", what)
            self._is_told = True


def waiter(roots: Sequence[Path], interval: float) -> Wait:
    """Wakes at changes where the system tells of them (and ``watchfiles`` is installed)."""
    try:
        from watchfiles import watch as changes
    except ImportError:
        logger.info("watchfiles is not installed: folders are scanned at intervals")
        return _sleep
    if any(is_network(root) for root in roots):
        return _sleep
    waking = changes(
        *roots,
        rust_timeout=int(interval * 1000),
        yield_on_timeout=True,
        raise_interrupt=True,
        ignore_permission_denied=True,
    )
    quiet_since = time.monotonic()

    def wait(seconds: float) -> bool:
        nonlocal quiet_since
        if seconds < interval:
            return _sleep(seconds)
        # Each turn without news takes ``interval``; now and then a look is due without any.
        while not next(waking):
            if time.monotonic() - quiet_since > SELDOM:
                break
        quiet_since = time.monotonic()
        return True

    return wait


def _sleep(seconds: float) -> bool:
    time.sleep(seconds)
    return True


def is_network(path: Path, mounts: str | None = None) -> bool:
    """Whether a folder is on a file system of another machine; ``mounts``: as /proc/mounts has it.

    >>> is_network(Path("/media/films"), "tank:/films /media nfs4 rw 0 0")
    True
    """
    if mounts is None:
        if sys.platform == "darwin":
            return str(path.resolve()).startswith("/Volumes/")
        try:
            mounts = Path("/proc/mounts").read_text("utf-8", errors="replace")
        except OSError:
            return False
    here, kind, depth = os.path.realpath(path), "", -1
    for line in mounts.splitlines():
        _, mount, name, *_ = line.split(" ")
        mount = mount.replace("\\040", " ")
        if (here + "/").startswith(mount.rstrip("/") + "/") and len(mount) >= depth:
            kind, depth = name, len(mount)
    return kind.startswith(NETWORK)
