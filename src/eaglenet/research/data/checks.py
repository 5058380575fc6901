"""Checks of datasets: missing and undecodable files, and videos shared by splits."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eaglenet.core.errors import DatasetError, UsageError
from eaglenet.core.progress import Progress, report_progress
from eaglenet.core.text import pluralize
from eaglenet.core.types import FrameSpec
from eaglenet.research.data.annotation_files import finder_for
from eaglenet.research.data.records import DATASETS, LEFT_OUT, Split, VideoProblem, VideoRecord
from eaglenet.research.data.records import logger as records_logger

if TYPE_CHECKING:
    from eaglenet.video.decoding import WindowsRequest


@dataclass(frozen=True)
class SplitReport:
    """Check of a split; ``ambiguous`` lists the ids that several files match."""

    name: str
    protocol: str
    num_videos: int
    num_captions: int
    num_found: int
    missing: tuple[str, ...] = ()
    undecodable: tuple[VideoProblem, ...] = ()
    left_out: tuple[VideoProblem, ...] = ()
    ambiguous: tuple[str, ...] = ()

    @property
    def num_usable(self) -> int:
        return self.num_found - len(self.undecodable)

    @property
    def summary(self) -> str:
        return f"{self.num_usable:,} of {self.num_videos:,} {self.name} videos usable"


@dataclass(frozen=True)
class CheckReport:
    """Check of a dataset.

    overlaps: ids that are in two splits, by names such as 'train and test'. broken: reasons why
    annotations cannot be read, by split. decoded: True if all frames were decoded.
    """

    dataset: str
    root: str
    splits: tuple[SplitReport, ...]
    overlaps: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    broken: Mapping[str, str] = field(default_factory=dict)
    decoded: bool = False

    @property
    def exit_code(self) -> int:
        """Exit code of the command: 1 for shared videos or unreadable annotations, 3 for gaps."""
        if self.overlaps or self.broken:
            return 1
        is_incomplete = any(
            report.missing or report.undecodable or report.left_out for report in self.splits
        )
        return 3 if is_incomplete else 0

    @property
    def verdict(self) -> str:
        """What the check means for training and evaluation; empty if it stops them."""
        if self.exit_code == 1:
            return ""
        num_videos = sum(report.num_videos for report in self.splits)
        num_unusable = num_videos - sum(report.num_usable for report in self.splits)
        if num_unusable:
            return (
                f"{num_unusable:,} of {pluralize(num_videos, 'video')} cannot be used; training "
                "and evaluation leave them out"
            )
        shared = "; no video is in two splits" if len(self.splits) > 1 else ""
        frames = "" if self.decoded else "; frames were not decoded (--decode checks them, too)"
        return f"no problems in {pluralize(num_videos, 'video')}{shared}{frames}"

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for ``--json``."""
        content = asdict(self)
        for entry, report in zip(content["splits"], self.splits, strict=True):
            entry["num_usable"] = report.num_usable
            entry["summary"] = report.summary
        content["exit_code"] = self.exit_code
        return content


def check_dataset(
    name: str,
    root: Path | str,
    *,
    splits: Sequence[str] | None = None,
    video_folders: Sequence[Path | str] = (),
    decode: bool = False,
    workers: int = 2,
    progress: Progress | None = None,
    **options: Any,
) -> CheckReport:
    """Open every video of every split; with ``decode``, also decode its frames.

    Raises:
        DatasetError: the annotations of all splits are unreadable. Those of some are reported.
    """
    dataset = DATASETS[name]
    root = Path(root)
    names = tuple(splits or dataset.splits)
    base = root if root.is_dir() else root.parent
    if not base.is_dir():
        raise DatasetError(f"{root} does not exist; expected the folder of the dataset")
    finder = finder_for(base, video_folders)
    loaded_splits: list[Split] = []
    errors: dict[str, str] = {}
    with _without_repeated_warnings():
        for split_name in names:
            try:
                loaded_splits.append(dataset.load(root, split_name, finder=finder, **options))
            except UsageError:
                raise
            except DatasetError as error:
                errors[split_name] = str(error)
    if not loaded_splits:
        raise DatasetError("; ".join(dict.fromkeys(errors.values())))
    records = {
        _content(video): video
        for split in loaded_splits
        for video in split.videos
        if video.path is not None
    }
    outcomes = (decode_files if decode else probe_all)(records, workers)
    title = "decoding videos" if decode else "opening videos"
    problems = {}
    for number, (content, reason) in enumerate(outcomes, start=1):
        if reason is not None:
            problems[content] = reason
        report_progress(progress, title, number, len(records))
    reports = tuple(
        report_split(
            split,
            {video.video_id: problems[_content(video)] for video in split.videos
             if _content(video) in problems},
            [video.video_id for video in split.missing],
            list(finder.ambiguous(split.video_ids)),
        )
        for split in loaded_splits
    )  # fmt: skip
    return CheckReport(name, str(root), reports, find_overlaps(loaded_splits), errors, decode)


@contextmanager
def _without_repeated_warnings() -> Iterator[None]:
    """Log each warning once, though every split reads the same files.

    Videos left out are in the report, so warnings about them are not logged.
    """
    messages: set[str] = set()

    def is_new(record: logging.LogRecord) -> bool:
        message = record.getMessage()
        if record.msg == LEFT_OUT or message in messages:
            return False
        messages.add(message)
        return True

    records_logger.addFilter(is_new)
    try:
        yield
    finally:
        records_logger.removeFilter(is_new)


Content = tuple[Path | None, tuple[float, float] | None]
"""File of a video, and its window in seconds."""


def _content(video: VideoRecord) -> Content:
    return video.path, video.window


def report_split(
    split: Split, problems: Mapping[str, str], missing: Sequence[str], ambiguous: Sequence[str] = ()
) -> SplitReport:
    """Make the report of a split.

    problems: reasons why videos cannot be decoded, by id. missing: ids of videos without a file.
    """
    return SplitReport(
        name=split.name,
        protocol=split.protocol.name,
        num_videos=split.num_listed,
        num_captions=len(split.texts),
        num_found=len(split) - len(missing),
        missing=tuple(missing),
        undecodable=tuple(
            VideoProblem(name, problems[name]) for name in split.video_ids if name in problems
        ),
        left_out=split.left_out,
        ambiguous=tuple(ambiguous),
    )


def find_overlaps(splits: Sequence[Split]) -> dict[str, tuple[str, ...]]:
    """Find the videos that two splits share by id or by file, which make scores invalid."""
    overlaps = {}
    for number, first in enumerate(splits):
        for second in splits[number + 1 :]:
            ids = set(first.video_ids) & set(second.video_ids)
            files = {video.path for video in first.videos if video.path is not None}
            ids |= {video.video_id for video in second.videos if video.path in files}
            if ids:
                shared_ids = tuple(key for key in second.video_ids if key in ids)
                overlaps[f"{first.name} and {second.name}"] = shared_ids
    return overlaps


def probe_all(
    records: Mapping[Content, VideoRecord], workers: int
) -> Iterator[tuple[Content, str | None]]:
    """Open files in confined processes; yield each window with its problem, or None.

    A window outside its file is a problem, as for training.
    """
    from eaglenet.video.decoding import WindowsRequest, check_windows
    from eaglenet.video.input_file import share_file
    from eaglenet.video.limits import Limits
    from eaglenet.video.pool import Access, Budget, Failure, map_ahead

    limits = Limits()
    budget: Budget[WindowsRequest] = Budget(
        limits.memory,
        lambda request: request.path,
        lambda request: limits.time_for(0.0, request.path),
    )
    access: Access[WindowsRequest, list[str]] = Access(
        share=lambda request: share_file(request.path), check=_check_problems
    )
    by_path: dict[Path | None, list[Content]] = {}
    for content in records:
        by_path.setdefault(content[0], []).append(content)
    requests = [
        WindowsRequest(str(path), tuple(window for _, window in contents))
        for path, contents in by_path.items()
    ]
    workers = min(max(1, workers), len(requests))  # Starting one takes half a second.
    outcomes = map_ahead(check_windows, requests, workers=workers, budget=budget, access=access)
    for contents, outcome in zip(by_path.values(), outcomes, strict=True):
        if isinstance(outcome, Failure):
            yield from ((content, outcome.reason) for content in contents)
        else:
            for content, problem in zip(contents, outcome.result, strict=True):
                yield content, problem or None


def _check_problems(request: WindowsRequest, problems: list[str]) -> None:
    """Raise ``ValueError`` if the reply of a worker does not fit its request."""
    if len(problems) != len(request.windows):
        raise ValueError(f"{len(problems)} results for {len(request.windows)} windows")


def decode_files(
    records: Mapping[Content, VideoRecord], workers: int
) -> Iterator[tuple[Content, str | None]]:
    """Decode the frames of videos; yield each with its problem, or None."""
    from eaglenet.video.decoding import decode_many
    from eaglenet.video.pool import Failure

    items = [(video.video_id, str(video.path), video.window) for video in records.values()]
    outcomes = decode_many(items, FrameSpec(), workers=min(max(1, workers), len(items)))
    for content, outcome in zip(records, outcomes, strict=True):
        yield content, outcome.reason if isinstance(outcome, Failure) else None
