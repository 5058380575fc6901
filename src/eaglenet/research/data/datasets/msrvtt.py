"""MSR-VTT: 10,000 videos with 20 captions each, and the field's ways to split them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from eaglenet.core.errors import DatasetError, UsageError
from eaglenet.research.data.annotation_files import (
    VideoFinder,
    captions_of_entries,
    find_file,
    finder_for,
    read_csv,
    read_json,
    refuse_duplicates,
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
    training_ids,
)
from eaglenet.research.data.sources import add_dataset

FOLDERS = ("msrvtt", "MSRVTT", "MSR-VTT", "msrvtt_data")
TRAIN_FILES = {
    "9k": ("MSRVTT_train.9k.csv",),
    "7k": ("MSRVTT_train.7k.csv",),
    "full": ("MSRVTT_train.full.csv",),
}
TESTS = ("1k-A", "full")
# Published results on 1k-A select on the test set; the dataset ships no validation set for it.
HELD_OUT = 500

TRAIN = RetrievalProtocol("MSR-VTT train", "every caption with its video")
HELD_OUT_VALIDATION = RetrievalProtocol(
    "MSR-VTT validation held out of training",
    "videos taken out of the training list by a hash of their id; every caption is a query",
)
VALIDATION = RetrievalProtocol(
    "MSR-VTT full validation", "the 497 official videos; 20 captions each"
)
TEST_1K_A = RetrievalProtocol(
    "MSR-VTT 1k-A", "JSFusion's 1,000 test videos, one given caption each, against each other"
)
TEST_FULL = RetrievalProtocol(
    "MSR-VTT full test", "the 2,990 official test videos; each of their captions is a query"
)


def load(
    root: Path | str,
    split: str,
    *,
    train: Literal["9k", "7k", "full"] | None = None,
    test: Literal["1k-A", "full"] = "1k-A",
    hold_out: int = HELD_OUT,
    video_folders: Sequence[Path | str] = (),
    finder: VideoFinder | None = None,
) -> Split:
    """A split of MSR-VTT.

    Args:
        train: training list; 9k for the 1k-A test and 7k for the full test unless given.
            9k shares 1,990 videos with the full test and is refused beside it.
        hold_out: training videos kept for validation. 0 trains on the whole list, as published
            results do; there is no ``val`` then. ``train="full"`` has a validation list of its own.
        video_folders: where the files are, besides ``root``.
    """
    root = Path(root)
    check_split_name("msrvtt", split, ("train", "val", "test"))
    train = train or ("9k" if test == "1k-A" else "7k")
    if train not in TRAIN_FILES or test not in TESTS:
        raise UsageError(
            f"msrvtt train={train!r}, test={test!r}: known are train "
            f"{', '.join(TRAIN_FILES)} and test {', '.join(TESTS)}"
        )
    if train == "9k" and test == "full":
        raise UsageError(
            "msrvtt: the 9k training list holds 1,990 videos of the full test; "
            "use train='7k' or train='full' with test='full'"
        )
    find = (finder or finder_for(root, video_folders)).find
    if split == "test" and test == "1k-A":
        return load_1k_a(root, find)
    captions = read_captions(find_file(root, ("MSRVTT_data.json",), FOLDERS))
    ids, protocol = choose(root, split, train, hold_out)
    return make_split("msrvtt", split, protocol, *gather_records(ids, captions, find))


def choose(
    root: Path, split: str, train: str, hold_out: int
) -> tuple[list[str], RetrievalProtocol]:
    """Ids and protocol of a split that takes its captions from ``MSRVTT_data.json``."""
    if split == "test":
        return read_ids(find_file(root, ("MSRVTT_test.full.csv",), FOLDERS)), TEST_FULL
    has_validation = train == "full"
    if split == "val" and has_validation:
        return read_ids(find_file(root, ("MSRVTT_val.full.csv",), FOLDERS)), VALIDATION
    ids = read_ids(find_file(root, TRAIN_FILES[train], FOLDERS))
    if has_validation:
        return ids, TRAIN
    protocol = TRAIN if split == "train" else HELD_OUT_VALIDATION
    return training_ids("msrvtt", split, ids, hold_out), protocol


def load_1k_a(root: Path, find: Any) -> Split:
    path = find_file(root, ("MSRVTT_JSFUSION_test.csv",), FOLDERS)
    captions: dict[str, tuple[str, ...]] = {}
    ids = []
    num_empty = 0
    for line, row in read_csv(path, ("video_id", "sentence")):
        kept, empty = clean_captions([row["sentence"]], f"{path}: line {line}")
        ids.append(row["video_id"])
        captions[row["video_id"]] = kept
        num_empty += empty
    refuse_duplicates(ids, path)
    report_empty_captions("msrvtt", num_empty, path)
    return make_split("msrvtt", "test", TEST_1K_A, *gather_records(ids, captions, find))


def read_ids(path: Path) -> list[str]:
    ids = [row["video_id"] for _, row in read_csv(path, ("video_id",))]
    refuse_duplicates(ids, path)
    return ids


def read_captions(path: Path) -> dict[str, list[str]]:
    """``MSRVTT_data.json``: {"sentences": [{"video_id", "caption"}, ...]}."""
    content = read_json(path)
    sentences = content.get("sentences") if isinstance(content, dict) else None
    if not isinstance(sentences, list):
        raise DatasetError(f"{path}: expected an object with a list under 'sentences'")
    return captions_of_entries(
        "msrvtt", path, enumerate(sentences), video="video_id", caption="caption", title="sentence"
    )


add_dataset(
    DatasetSpec(
        "msrvtt",
        "MSR-VTT",
        load,
        options={
            "train": "training list: 9k, 7k or full",
            "test": "test set: 1k-A or full",
            "hold_out": "training videos kept for validation (500; 0 trains on all)",
        },
    )
)
