"""Index a folder of small videos, and look at what came of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from eaglenet.core.frame_spec import Splitting
from eaglenet.indexing.index import IndexOptions, index_videos
from eaglenet.indexing.report import IndexReport
from eaglenet.search.engine import Engine
from eaglenet.store.records import ClipKey, IndexedFile
from eaglenet.store.store import LocalStore
from synthetic_store import BagMethod

SPLITTING = Splitting(clip_seconds=6.0, overlap=1.0)


def run(
    videos: Path, method: BagMethod, store: Path | None = None, **options: object
) -> IndexReport:
    changes = {"splitting": SPLITTING, "workers": 0, **options}
    store = store or videos.parent / "store"
    return index_videos([videos], store, "bag", method=method, options=IndexOptions(**changes))


def found(videos: Path, method: BagMethod, query: str = "red") -> list[tuple[str, float]]:
    engine = Engine.open(videos.parent / "store", method)
    hits = engine.search(query, k=100, keep_duplicates=True)
    return [(Path(hit.path).name, round(hit.score, 3)) for hit in hits]


def stored_files(videos: Path) -> list[IndexedFile]:
    return LocalStore.open(videos.parent / "store").files()


def clip_keys(store: Path) -> list[ClipKey]:
    """Clips of a store in order, those of unfinished files included."""
    return LocalStore.open(store).database.rows(
        "SELECT hash, number FROM clips JOIN contents ON contents.id = content_id ORDER BY 1, 2"
    )


def stored_clips(store: Path) -> dict[ClipKey, tuple[bytes, bytes, bytes]]:
    """Vector, features and thumbnail of each clip that can be found."""
    snapshot = LocalStore.open(store).snapshot()
    rows = np.arange(snapshot.num_rows)
    rows = rows if snapshot.visible is None else rows[snapshot.visible]
    vectors, features = snapshot.vectors_at(rows), snapshot.features_at(rows)
    return {
        (clip.content, clip.number): (
            vectors[index].tobytes(),
            features[index].tobytes(),
            snapshot.thumbnail(clip.row),
        )
        for index, clip in enumerate(snapshot.clips(rows))
    }
