"""A short index run, as a program: commits file by file and reports each afterwards.

python tests/store/index_run.py STORE FILES [REPORT]
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
from made_store import CLIPS, changes_of, content_of, make_batch, make_file, make_manifest, path_of

from eaglenet.store.records import Changes, LineQuery
from eaglenet.store.store import LocalStore


def index(folder: Path, files: int, report: list[str] | None = None) -> None:
    """Bring a store up to date; goes on where another run was interrupted."""
    with LocalStore.write(folder, make_manifest()) as writer:
        finished_paths = {file.path for file in writer.files() if file.status == "done"}
        incomplete = writer.incomplete_contents()
        sources = {key[0] for key in writer.sources()}
        for number in range(files):
            content = content_of(number)
            is_complete = path_of(number) in finished_paths and content not in incomplete
            if is_complete and content in sources:
                continue
            changes = changes_of(number)
            if not is_complete:
                # Half of a file first: an interrupted run leaves such clips.
                writer.commit(Changes([make_batch(number, range(CLIPS // 2))]))
            writer.commit(changes)
            if report is not None:
                report.append(path_of(number))
        removed_paths = [
            path for path in finished_paths if path not in {path_of(n) for n in range(files)}
        ]
        writer.commit(Changes(removed_files=removed_paths))
        writer.finish()


def found(folder: Path) -> set[str]:
    """Paths of all files whose clips are found and correct."""
    store = LocalStore.open(folder)
    snapshot = store.snapshot()
    if not len(snapshot):
        return set()
    rows = np.arange(snapshot.num_rows)
    rows = rows if snapshot.visible is None else rows[snapshot.visible]
    clips = snapshot.clips(rows)
    vectors, features = snapshot.vectors_at(rows), snapshot.features_at(rows)
    files = snapshot.files(sorted({clip.content_id for clip in clips}))
    paths = set()
    for paths_of_content, content in zip(files.paths, files.contents, strict=True):
        number = int(Path(paths_of_content[0]).stem)
        batch, places = make_batch(number), [clip.content == content for clip in clips]
        assert np.array_equal(vectors[places], batch.vectors)
        assert (features[places] == batch.features).all()
        images = [snapshot.thumbnail(clip.row) for clip in clips if clip.content == content]
        assert images == batch.thumbnails
        lines = snapshot.find_lines(LineQuery((str(number),)), 9, [files.ids[0]])
        assert all(hit.line.text.endswith(str(number)) for hit in lines)
        paths.update(paths_of_content)
    return paths


class Report(list[str]):
    """Writes each path to a file, in one call."""

    def __init__(self, path: str) -> None:
        self.descriptor = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)

    def append(self, path: str) -> None:
        os.write(self.descriptor, f"{path}\n".encode())


if __name__ == "__main__":
    index(Path(sys.argv[1]), int(sys.argv[2]), Report(sys.argv[3]) if sys.argv[3:] else None)
    assert make_file(0).status == "done"
