"""LSMDC: clips of films, each with the sentence of its audio description."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from eaglenet.research.data.annotation_files import (
    VideoFinder,
    captions_of_entries,
    find_file,
    finder_for,
    read_columns,
)
from eaglenet.research.data.records import (
    DatasetSpec,
    RetrievalProtocol,
    Split,
    check_split_name,
    gather_records,
    make_split,
)
from eaglenet.research.data.sources import add_dataset

FOLDERS = ("lsmdc", "LSMDC", "LSMDC16", "lsmdc2016")
FILES = {
    "train": "LSMDC16_annos_training.csv",
    "val": "LSMDC16_annos_val.csv",
    "test": "LSMDC16_challenge_1000_publictect.csv",  # spelled so by its authors
}
COLUMNS = ("clip", "start", "end", "extracted_start", "extracted_end", "sentence")
SENTENCES = RetrievalProtocol("LSMDC16", "every sentence is ranked against all clips")
PUBLIC_TEST = RetrievalProtocol(
    "LSMDC16 public test", "the 1,000 clips of the retrieval challenge, one sentence each"
)


def load(
    root: Path | str,
    split: str,
    *,
    video_folders: Sequence[Path | str] = (),
    finder: VideoFinder | None = None,
) -> Split:
    """A split of LSMDC 2016, in file order. A clip may have several sentences, on several lines."""
    root = Path(root)
    check_split_name("lsmdc", split, tuple(FILES))
    path = find_file(root, (FILES[split],), FOLDERS)
    rows = read_columns(path, COLUMNS)
    captions = captions_of_entries(
        "lsmdc", path, rows, video="clip", caption="sentence", title="line"
    )
    ids = dict.fromkeys(row["clip"] for _, row in rows)
    find = (finder or finder_for(root, video_folders)).find
    protocol = PUBLIC_TEST if split == "test" else SENTENCES
    return make_split("lsmdc", split, protocol, *gather_records(ids, captions, find))


add_dataset(DatasetSpec("lsmdc", "LSMDC", load))
