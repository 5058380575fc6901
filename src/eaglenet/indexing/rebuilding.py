"""Another model for a store: its files indexed again beside it, then one step to change over."""

from __future__ import annotations

import ctypes
import dataclasses
import errno
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from eaglenet.core.errors import StoreError, UsageError, shell_quote
from eaglenet.indexing.files import tags_of
from eaglenet.indexing.run import IndexOptions
from eaglenet.search.store.base import kind_of, open_store

AT_FDCWD, RENAME_EXCHANGE = -100, 2


def options_like(store: str | Path, options: IndexOptions) -> tuple[tuple[str, ...], IndexOptions]:
    """Files and folders that ``store`` was made of, and ``options`` with its clips, frames and
    words."""
    opened = open_store(store)
    manifest = opened.manifest
    if not manifest.roots:
        raise StoreError(f"{store} does not record the folders it was made from; name them")
    changed = dataclasses.replace(
        options,
        splitting=manifest.splitting,
        fast=manifest.frame_spec.fast,
        transcripts_from=str(store),
    )
    bank = opened.bank() if options.hubness is None else None
    if bank is not None and bank.texts:
        # Its vectors are the old model's; the new one makes its own of the sentences.
        changed = dataclasses.replace(changed, hubness=bank.texts)
    return manifest.roots, changed


def tags_like(
    store: str | Path, given: Mapping[str, tuple[str, ...]]
) -> dict[str, tuple[str, ...]]:
    """Tags of the files of ``store``, but of those that ``given`` names, by path or bare name."""
    files = open_store(store).snapshot().files
    return {
        path: tuple(tags)
        for paths, tags in zip(files.paths, files.tags, strict=True)
        for path in paths
        if tags and tags_of(path, given) is None
    }


def require_distinct_stores(new: str | Path, old: str | Path) -> None:
    """Refuse to build a store on top of the one that has to answer meanwhile."""
    if Path(new).expanduser().resolve() == Path(old).expanduser().resolve():
        raise UsageError(
            f"--store and --like both name {old}; give --store a new folder, which --swap puts in "
            "its place when it is complete"
        )


def require_complete(new: str | Path, old: str | Path, failed: Iterable[str] = ()) -> None:
    """Refuse to swap in a store that lacks files of the one it replaces.

    A disk that is not there, or a part of the folders, would else take the place of all. ``failed``
    were tried and told of.
    """
    kept, made = (
        {path for paths in open_store(store).snapshot().files.paths for path in paths}
        for store in (old, new)
    )
    lacking = sorted(kept - made - set(failed))
    if lacking or (kept and not made):
        named = ", ".join(lacking[:3]) + (", ..." if len(lacking) > 3 else "")
        raise StoreError(
            f"not swapped: {new} lacks {len(lacking or kept)} of the {len(kept)} files of {old}"
            + (f" ({named})" if named else "")
            + "; run the same command again when they are there; those that are gone for good are "
            f"forgotten with `eaglenet store remove PATH --store {shell_quote(old)}`"
        )


def swap_stores(new: str | Path, old: str | Path) -> None:
    """Exchange two folders of stores: who opens ``old`` from now on finds the new one.

    One step of the file system where it knows how, so that at every moment there is a store under
    both names. Services that are running see it at their next question.
    """
    for store in (new, old):
        kind = kind_of(store)
        if "://" in str(store) or not kind.exists(str(store)):
            raise StoreError(f"{store}: not a store in a folder, so it cannot be swapped")
    first, second = (Path(store).expanduser().resolve() for store in (new, old))
    if not _exchange(first, second):
        aside = second.with_name(f".{second.name}.{os.getpid()}.aside")
        second.rename(aside)
        first.rename(second)
        aside.rename(first)


def _exchange(first: Path, second: Path) -> bool:
    """``renameat2`` of Linux; False where the system or the file system has none."""
    function = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if function is None:
        return False
    arguments = (AT_FDCWD, os.fsencode(first), AT_FDCWD, os.fsencode(second), RENAME_EXCHANGE)
    if function(*arguments) == 0:
        return True
    error = ctypes.get_errno()
    if error in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP):
        return False
    raise OSError(error, os.strerror(error), str(first))
