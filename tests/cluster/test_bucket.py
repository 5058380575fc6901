"""A store on object storage holds what a local one does, whatever goes wrong in between."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_store import (
    CLIPS,
    changes_of,
    content_of,
    make_batch,
    make_file,
    make_manifest,
    path_of,
)
from object_storage import Gate, at_random

from eaglenet.cluster import bucket, chunks, lease, mirror
from eaglenet.cluster.bucket import BucketStore, BucketWriter
from eaglenet.cluster.chunks import HEAD, Head
from eaglenet.core.errors import StoreError, UnreachableError, UsageError
from eaglenet.core.object_storage import ChangedObjectError, ObjectFolder
from eaglenet.store.hubness import HubnessBank
from eaglenet.store.kinds import open_store
from eaglenet.store.records import Changes, LineQuery
from eaglenet.store.snapshot import OutdatedError, Snapshot
from eaglenet.store.store import LocalStore

FILES = 6
FAULTS = ("overloaded", "slow", "cut", "lost")


def fill(location: object, kind: Any = BucketStore, numbers: range = range(FILES)) -> None:
    with kind.write(str(location), make_manifest()) as writer:
        for number in numbers:
            writer.commit(changes_of(number))
        writer.finish()


def contents_of(store: Any) -> dict[str, Any]:
    """Everything that can be read from a store, in an order that does not depend on its rows."""
    snapshot: Snapshot = store.snapshot()
    rows = np.arange(snapshot.num_rows)
    if snapshot.visible is not None:
        rows = rows[snapshot.visible]
    vectors, features = snapshot.vectors_at(rows), snapshot.features_at(rows)
    offsets = snapshot.hubness_offsets
    clips = {
        clip.id: (
            clip.start,
            clip.end,
            vectors[index].tobytes(),
            features[index].tobytes(),
            snapshot.thumbnail(clip.row),
            None if offsets is None else float(offsets[clip.row]),
        )
        for index, clip in enumerate(snapshot.clips(rows))
    }
    lines = snapshot.find_lines(LineQuery(terms=("red", "dogs", "ticket")), 1000)
    return {
        "clips": clips,
        "files": sorted(store.files(), key=lambda file: file.path),
        "lines": sorted((hit.content, hit.kind, hit.line.text) for hit in lines),
        "bank": snapshot.hubness_bank,
    }


def require_same(location: str, folder: Path) -> None:
    assert contents_of(open_store(location)) == contents_of(LocalStore.open(folder))


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same files in a local store."""
    folder = tmp_path_factory.mktemp("local") / "store"
    fill(folder, LocalStore)
    return folder


def test_a_store_on_object_storage_holds_what_a_local_one_does(
    location: str, local: Path, tmp_path: Path
) -> None:
    assert not BucketStore.exists(location)
    fill(location, numbers=range(2))
    reader = open_store(location)
    before = reader.stamp()
    assert len(reader.snapshot()) == 2 * CLIPS
    fill(location, numbers=range(2, FILES))
    assert reader.stamp() != before
    assert len(reader.snapshot()) == FILES * CLIPS
    require_same(location, local)
    shutil.rmtree(tmp_path / "cache")
    require_same(location, local)
    assert reader.verify().clips == FILES * CLIPS
    assert sum(reader.usage().values()) > FILES * CLIPS * make_manifest().layout.dtype.itemsize
    with BucketStore.write(location) as writer:
        assert {file.path for file in writer.files()} == {path_of(n) for n in range(FILES)}
        assert writer.clip_numbers(content_of(1)) == frozenset(range(CLIPS))
        assert writer.incomplete_contents() == {}
        assert len(writer.sources()) == FILES
