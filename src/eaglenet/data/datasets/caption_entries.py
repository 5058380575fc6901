"""Annotations that are a list of entries, each a video and one caption of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from eaglenet.data.records import check_id, clean_captions, report_empty_captions
from eaglenet.errors import DatasetError


def captions_of_entries(
    dataset: str, path: Path, entries: Sequence[Any], *, video: str, caption: str, title: str
) -> dict[str, list[str]]:
    """The captions of each video, in file order; ``title`` is what an entry is called in errors.

    ``video`` and ``caption`` are the keys. Empty captions are counted and left out.
    """
    captions: dict[str, list[str]] = {}
    num_empty = 0
    for place, entry in enumerate(entries):
        where = f"{path}: {title} {place}"
        try:
            video_id, text = entry[video], entry[caption]
        except (TypeError, KeyError):
            raise DatasetError(f"{where} needs the keys {video!r} and {caption!r}") from None
        check_id(video_id, where)
        kept, empty = clean_captions([text], where)
        if kept:
            captions.setdefault(video_id, []).extend(kept)
        num_empty += empty
    report_empty_captions(dataset, num_empty, path)
    return captions
