"""Index a folder of small videos, and look at what came of it."""

from __future__ import annotations

from pathlib import Path

from synthetic_store import BagMethod

from eaglenet.indexing.index import IndexOptions, index_videos
from eaglenet.indexing.report import IndexReport
from eaglenet.search.engine import Engine
from eaglenet.search.store.base import open_store
from eaglenet.search.store.manifest import Splitting
from eaglenet.search.store.tables import ClipStore

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


def tables_of(videos: Path) -> ClipStore:
    return open_store(videos.parent / "store").tables()
