"""MSVD: about 40 captions a video, each of them a query of its own."""

from __future__ import annotations

import io
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from eaglenet.core.errors import DatasetError
from eaglenet.research.data.annotation_files import (
    VideoFinder,
    find_file,
    finder_for,
    read_bytes,
    read_list,
)
from eaglenet.research.data.records import (
    DatasetSpec,
    RetrievalProtocol,
    Split,
    check_split_name,
    clean_captions,
    gather_records,
    make_split,
    report_empty_captions,
)
from eaglenet.research.data.sources import add_dataset

FOLDERS = ("msvd", "MSVD", "msvd_data")
SPLITS = ("train", "val", "test")
MULTI_CAPTION = RetrievalProtocol(
    "MSVD multi-caption",
    "every caption is ranked against all videos; a video is right with any caption of its own",
)


def load(
    root: Path | str,
    split: str,
    *,
    video_folders: Sequence[Path | str] = (),
    finder: VideoFinder | None = None,
) -> Split:
    """A split of MSVD, in the order of its list file."""
    root = Path(root)
    check_split_name("msvd", split, SPLITS)
    captions = read_captions(find_file(root, ("raw-captions.pkl",), FOLDERS))
    ids = read_list(find_file(root, (f"{split}_list.txt",), FOLDERS))
    find = (finder or finder_for(root, video_folders)).find
    return make_split("msvd", split, MULTI_CAPTION, *gather_records(ids, captions, find))


class PlainUnpickler(pickle.Unpickler):
    """Reads text, numbers, lists and dicts. A pickle that names anything else is refused:
    naming a class or function is how a pickle runs code.
    """

    def find_class(self, module_name: str, global_name: str) -> NoReturn:
        raise DatasetError(
            f"the pickle asks for {module_name}.{global_name}; only plain lists, dicts and text "
            "are read, because anything else could run code"
        )

    def persistent_load(self, pid: Any) -> NoReturn:
        raise DatasetError(f"the pickle refers to an outside object {pid!r}; refused")


def read_captions(path: Path) -> dict[str, tuple[str, ...]]:
    """``raw-captions.pkl``: {video_id: [[word, ...], ...]}; whole sentences are taken too."""
    try:
        content = PlainUnpickler(io.BytesIO(read_bytes(path))).load()
    except DatasetError as error:
        raise DatasetError(f"{path}: {error}") from None
    except Exception as error:
        # A broken pickle may raise almost anything.
        cause = " ".join(str(error).split())[:200]  # it may quote what is in the file
        raise DatasetError(f"{path}: not a readable pickle ({cause})") from error
    if not isinstance(content, dict):
        raise DatasetError(f"{path}: expected a dict of video id -> captions")
    captions = {}
    num_empty = 0
    for video_id, sentences in content.items():
        where = f"{path}: video {video_id!r}"
        if not isinstance(video_id, str) or not isinstance(sentences, list | tuple):
            raise DatasetError(f"{where}: expected a text id with a list of captions")
        kept, empty = clean_captions((join_words(words, where) for words in sentences), where)
        captions[video_id] = kept
        num_empty += empty
    report_empty_captions("msvd", num_empty, path)
    return captions


def join_words(words: object, where: str) -> str:
    if isinstance(words, str):
        return words
    if isinstance(words, list | tuple) and all(isinstance(word, str) for word in words):
        return " ".join(words)
    raise DatasetError(f"{where}: a caption is neither text nor a list of words: {words!r:.80}")


add_dataset(DatasetSpec("msvd", "MSVD", load))
