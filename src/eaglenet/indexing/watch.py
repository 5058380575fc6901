"""Keep a store up to date with folders while they change.

Folders are scanned at intervals, and at once if the system reports a change. Network mounts report
none, so they are only scanned. An unmounted disk looks like an empty folder: nothing is dropped
while a folder is missing, on another device than before, or empty although it had videos, or while
a disk that was mounted below it is not. Files that were never there, such as those of a disk that
was not mounted at the start, are not dropped either.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

from eaglenet.core.errors import StoreLockedError, UsageError
from eaglenet.core.files import expand_home
from eaglenet.indexing.files import find_videos
from eaglenet.indexing.index import index_videos
from eaglenet.indexing.model import ModelSource
from eaglenet.indexing.options import IndexOptions
from eaglenet.indexing.report import IndexReport, OnProgress
from eaglenet.store.disk import is_network_disk
from eaglenet.transcripts.subtitles import SUFFIXES

if TYPE_CHECKING:
    from eaglenet.methods.base import Method

logger = logging.getLogger(__name__)

MAX_DELAY = 60.0
"""Seconds after which changes are indexed even if other files are still changing."""
MAX_QUIET = 300.0
"""Seconds between scans if the system reports changes; it may miss some."""
State = dict[str, tuple[int, int]]
"""Size and modification time of each file, by path."""
Wait = Callable[[float], bool]
"""Waits some seconds, or less if something changed; returns False to stop watching."""


def watch(
    paths: Sequence[str | Path],
    store: str | Path,
    model: str | None = None,
    *,
    options: IndexOptions | None = None,
    interval: float = 10.0,
    method: Method | None = None,
    wait: Wait | None = None,
    on_progress: OnProgress | None = None,
) -> Iterator[IndexReport]:
    """Index now, and again whenever files have changed and are complete; yield each report.

    The first run drops missing files only if ``options`` say so, later runs always do.
    """
    options = options or IndexOptions()
    roots = [expand_home(path) for path in paths]
    source = ModelSource(store, model, options, method)
    wait = wait or make_waiter(roots, interval)
    guard = MountGuard(roots)
    seen_paths: set[str] = set()
    indexed_state: State | None = None
    previous: State | None = None
    changed_at = time.monotonic()
    is_locked = False
    while True:
        current = scan(roots, store, options) if guard.is_safe() else None
        if current is not None:
            num_videos = len(current)
            seen_paths.update(current)
            if options.subtitles:
                current = current | scan_subtitles(current)
            changed_at = changed_at if current != indexed_state else time.monotonic()
            is_settled = current == previous or indexed_state is None
            is_late = time.monotonic() - changed_at > MAX_DELAY
            if (
                current != indexed_state
                and guard.is_plausible(num_videos)
                and (is_settled or is_late)
            ):
                drop_missing = options.drop_missing or indexed_state is not None
                drop_missing = drop_missing and guard.has_all_mounts()
                run_options = dataclasses.replace(options, drop_missing=drop_missing)
                try:
                    report = index_videos(
                        roots,
                        store,
                        model,
                        options=run_options,
                        source=source,
                        droppable=None if options.drop_missing else seen_paths,
                        on_progress=on_progress,
                    )
                except StoreLockedError as error:
                    if not is_locked:
                        logger.warning("%s; waiting until then", error)
                    is_locked = True
                else:
                    is_locked = False
                    guard.add_mounts(current)
                    yield report
                    indexed_state, changed_at = current, time.monotonic()
        previous = current
        # After a change, scan again soon to see whether it has settled.
        if not wait(interval if current == indexed_state else min(interval, 2.0)):
            return


def scan(roots: Sequence[Path], store: str | Path, options: IndexOptions) -> State | None:
    """Return the files that would be indexed; None if a folder disappeared during the scan."""
    try:
        files = find_videos(
            roots,
            skip_folder=expand_home(store),
            exclude=options.exclude,
            follow_links=options.follow_links,
        )
        return {file.path: (file.size, file.modified_ns) for file in files}
    except (OSError, UsageError) as error:
        logger.warning("%s; scanning again later", error)
        return None


def scan_subtitles(videos: Iterable[str]) -> State:
    """Return the subtitle files in the folders of videos."""
    state: State = {}
    for folder in {os.path.dirname(path) for path in videos}:
        with suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                if PurePath(entry.name).suffix.lower() in SUFFIXES and entry.is_file():
                    status = entry.stat()
                    state[entry.path] = status.st_size, status.st_mtime_ns
    return state


class MountGuard:
    """Checks that folders are still the ones that were there at the start."""

    def __init__(self, roots: Sequence[Path]) -> None:
        self.roots = roots
        self.devices = [os.stat(root).st_dev for root in roots]
        self.max_files = 0
        self.mounts: set[str] = set()
        """Folders below the roots on which other disks are mounted."""
        self._has_warned = False
        self._lost_mounts: list[str] = []

    def is_safe(self) -> bool:
        """Return whether every folder exists, on the device where it was at the start."""
        for root, device in zip(self.roots, self.devices, strict=True):
            try:
                is_same = os.stat(root).st_dev == device
            except OSError:
                is_same = False
            if not is_same:
                self._warn(f"{root} is missing or on another disk")
                return False
        self._has_warned = False
        return True

    def is_plausible(self, num_files: int) -> bool:
        """Return False if all files have disappeared, probably with an unmounted disk."""
        self.max_files = max(self.max_files, num_files)
        if num_files or not self.max_files:
            return True
        self._warn("all videos disappeared at once")
        return False

    def add_mounts(self, paths: Iterable[str]) -> None:
        """Remember the folders on the way to some files where another disk begins."""
        roots = {os.path.abspath(root) for root in self.roots}
        known_folders = set(roots)
        for path in paths:
            folder = os.path.dirname(path)
            while folder not in known_folders and folder != os.path.dirname(folder):
                known_folders.add(folder)
                if _is_mounted(folder):
                    self.mounts.add(folder)
                folder = os.path.dirname(folder)

    def has_all_mounts(self) -> bool:
        """Return whether all disks that were mounted below the folders still are."""
        lost_mounts = sorted(folder for folder in self.mounts if not _is_mounted(folder))
        if lost_mounts and lost_mounts != self._lost_mounts:
            logger.warning(
                "%s: no disk is mounted there any more; dropping nothing until it is back",
                lost_mounts[0],
            )
        self._lost_mounts = lost_mounts
        return not lost_mounts

    def _warn(self, problem: str) -> None:
        if not self._has_warned:
            logger.warning("%s; dropping nothing, scanning again later", problem)
            self._has_warned = True


def _device(folder: str) -> int:
    return os.stat(folder).st_dev


def _is_mounted(folder: str) -> bool:
    """Return whether a folder is on another disk than the one that contains it."""
    try:
        return _device(folder) != _device(os.path.dirname(folder))
    except OSError:
        return False


def make_waiter(roots: Sequence[Path], interval: float) -> Wait:
    """Return a wait that ends early at changes, if ``watchfiles`` is installed; else a sleep."""
    try:
        from watchfiles import watch as watch_changes
    except ImportError:
        logger.info("watchfiles is not installed: folders are scanned at intervals")
        return _sleep
    if any(map(is_network_disk, roots)):  # It reports no changes made by other machines.
        return _sleep
    changes = watch_changes(
        *roots,
        rust_timeout=int(interval * 1000),
        yield_on_timeout=True,
        raise_interrupt=True,
        ignore_permission_denied=True,
    )
    last_scan = time.monotonic()

    def wait(seconds: float) -> bool:
        nonlocal last_scan
        if seconds < interval:
            return _sleep(seconds)
        # Empty after each interval without changes.
        while not next(changes):
            if time.monotonic() - last_scan > MAX_QUIET:
                break
        last_scan = time.monotonic()
        return True

    return wait


def _sleep(seconds: float) -> bool:
    time.sleep(seconds)
    return True
