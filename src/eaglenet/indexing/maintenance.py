"""Remove files from a store; replace it with a store of the same files and another model."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from eaglenet.core.errors import StoreError, UsageError, shell_quote, store_option
from eaglenet.core.object_storage import absolute_location, is_inside
from eaglenet.core.platform import swap_folders
from eaglenet.indexing.files import tags_of
from eaglenet.indexing.options import IndexOptions
from eaglenet.store.kinds import kind_of, open_store
from eaglenet.store.records import Changes


def remove(location: str | Path, paths: Sequence[str | Path]) -> list[str]:
    """Remove files, or all files in folders, from a store; returns the removed paths.

    The files themselves stay. Clips stay if another path has the same content.
    """
    locations = [absolute_location(path) for path in paths]
    with kind_of(location).write(str(location)) as writer:
        removed_paths = [
            file.path
            for file in writer.files()
            if any(is_inside(file.path, location) for location in locations)
        ]
        if not removed_paths:
            raise UsageError(
                f"{location} has no file {' or '.join(map(str, paths))}; list its files with: "
                f"eaglenet store files{store_option(location)}"
            )
        writer.commit(Changes(removed_files=removed_paths))
        writer.finish()
    return removed_paths


def options_like(store: str | Path, options: IndexOptions) -> tuple[tuple[str, ...], IndexOptions]:
    """Roots of ``store``, and ``options`` with its clips, frames, transcripts and hubness bank."""
    old_store = open_store(store)
    manifest = old_store.manifest
    if not manifest.roots:
        raise StoreError(
            f"{store} does not record its folders; name them: eaglenet index FOLDER ..."
        )
    new_options = dataclasses.replace(
        options,
        splitting=manifest.splitting,
        fast=manifest.frame_spec.fast,
        transcripts_from=str(store),
    )
    bank = old_store.snapshot().hubness_bank if options.hubness is None else None
    if bank is not None and bank.texts:
        # Its vectors belong to the old model; the new one encodes the texts again.
        new_options = dataclasses.replace(new_options, hubness=bank.texts)
    return manifest.roots, new_options


def tags_like(
    store: str | Path, new_tags: Mapping[str, tuple[str, ...]]
) -> dict[str, tuple[str, ...]]:
    """Tags of the files of ``store``, except files in ``new_tags``, by path or bare name."""
    files = open_store(store).snapshot().files()
    return {
        path: tuple(tags)
        for paths, tags in zip(files.paths, files.tags, strict=True)
        for path in paths
        if tags and tags_of(path, new_tags) is None
    }


def require_distinct_stores(new: str | Path, old: str | Path) -> None:
    """Raise an error if the new store would overwrite the one in use."""
    if Path(new).expanduser().resolve() == Path(old).expanduser().resolve():
        raise UsageError(
            f"--store and --like are both {old}; use a new folder for --store, which --swap "
            "exchanges with it when it is complete"
        )


def require_complete(new: str | Path, old: str | Path, failed_paths: Iterable[str] = ()) -> None:
    """Raise an error if a new store lacks files of the one it should replace.

    Otherwise an unmounted disk could replace a full store. Files in ``failed_paths`` were tried and
    reported.
    """
    old_paths, new_paths = (
        {path for paths in open_store(store).snapshot().files().paths for path in paths}
        for store in (old, new)
    )
    lacking = sorted(old_paths - new_paths - set(failed_paths))
    if lacking or (old_paths and not new_paths):
        names = ", ".join(lacking[:3]) + (", ..." if len(lacking) > 3 else "")
        raise StoreError(
            f"not swapped: {new} lacks {len(lacking or old_paths)} of the {len(old_paths)} files "
            f"of {old}"
            + (f" ({names})" if names else "")
            + "; run the same command again when they are back, or drop them with: "
            f"eaglenet store remove PATH --store {shell_quote(old)}"
        )


def swap_stores(new: str | Path, old: str | Path) -> None:
    """Exchange the folders of two stores.

    Atomic if the file system supports it, so that there is a store under both names at every
    moment. Running services use the new one from their next query on.
    """
    for store in (new, old):
        kind = kind_of(store)
        if "://" in str(store) or not kind.exists(str(store)):
            raise StoreError(f"{store} is not a store in a local folder and cannot be swapped")
    first, second = (Path(store).expanduser().resolve() for store in (new, old))
    swap_folders(first, second)
