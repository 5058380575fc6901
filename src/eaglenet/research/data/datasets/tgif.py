"""TGIF: animated GIFs, each of their sentences a query of its own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

from eaglenet.research.data.annotation_files import (
    VideoFinder,
    captions_of_entries,
    find_file,
    finder_for,
    read_columns,
    read_list,
    stem_of,
)
from eaglenet.research.data.records import (
    DatasetSpec,
    LeftOut,
    RetrievalProtocol,
    Split,
    check_split_name,
    gather_records,
    make_split,
)
from eaglenet.research.data.sources import add_dataset

FOLDERS = ("splits", "data/splits", "tgif", "TGIF", "TGIF-Release/data", "TGIF-Release/data/splits")
SPLITS = ("train", "val", "test")
MULTI_CAPTION = RetrievalProtocol(
    "TGIF", "every sentence is ranked against all GIFs of the official split"
)


def load(
    root: Path | str,
    split: str,
    *,
    video_folders: Sequence[Path | str] = (),
    finder: VideoFinder | None = None,
) -> Split:
    """A split of TGIF, in the order of its list of addresses.

    A GIF is known by the last part of its address, which is the name of its file.
    """
    root = Path(root)
    check_split_name("tgif", split, SPLITS)
    path = find_file(root, ("tgif-v1.0.tsv",), FOLDERS)
    rows = read_columns(path, ("url", "sentence"))
    by_address = captions_of_entries(
        "tgif", path, rows, video="url", caption="sentence", title="line"
    )
    captions: dict[str, list[str]] = {}
    same_name = []
    for address in read_list(find_file(root, (f"{split}.txt",), FOLDERS)):
        name = file_stem(address)
        if name in captions:
            same_name.append(LeftOut(address, "another address has the same file name"))
        else:
            captions[name] = by_address.get(address, [])
    find = (finder or finder_for(root, video_folders)).find
    videos, left_out = gather_records(captions, captions, find)
    return make_split("tgif", split, MULTI_CAPTION, videos, [*left_out, *same_name])


def file_stem(address: str) -> str:
    """Name of the file behind an address, without its ending.

    >>> file_stem("https://38.media.tumblr.com/9f6c25cc/tumblr_mevmyaKtDf1rgvhr8o1_500.gif")
    'tumblr_mevmyaKtDf1rgvhr8o1_500'
    """
    try:
        path = urlsplit(address).path
    except ValueError:
        path = address
    return stem_of(path.rpartition("/")[2]) or address


add_dataset(DatasetSpec("tgif", "TGIF", load))
