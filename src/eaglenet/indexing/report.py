"""Progress of an index run, and its report."""

from __future__ import annotations

import html
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from eaglenet.core.progress import Progress, ProgressUpdate
from eaglenet.core.text import escape_line, format_duration, format_hours, pluralize

MAX_KINDS = 6
"""Extensions listed for files that are neither videos nor images."""
MAX_KNOWN = 3
"""Names listed for files that an earlier run could not index."""
MAX_SHOWN = 20
"""Files with problems that the text of a report in Python names."""
MAX_LISTED = 1000
"""Files with problems that a notebook lists; the list is saved with the notebook."""


@dataclass(frozen=True)
class IndexProgress:
    """Counts so far. Files that are done are committed."""

    path: str
    """File that was just finished; empty if only clips of a longer one were stored."""
    total: int
    num_done: int
    num_skipped: int
    hours: float
    """Hours of video encoded, including the encoded part of unfinished files."""
    bytes_total: int
    bytes_done: int
    """An unfinished file counts in proportion to its encoded clips."""
    seconds: float
    """Seconds since this pass started."""
    clips: int
    """Clips stored in this pass, including those of unfinished files."""
    is_completing: bool = False
    """True in the second pass, which replaces clips from keyframes with exact ones."""
    seconds_left: float | None = None
    """Estimated seconds left in this pass; None until the rate is steady."""

    @property
    def speed(self) -> float:
        """Seconds of video per second."""
        return self.hours * 3600 / self.seconds if self.seconds > 0 else 0.0

    def __str__(self) -> str:
        """Format files, clips, hours, speed, remaining time and skipped files as one line."""
        pass_name = "second pass, exact frames: " if self.is_completing else ""
        counts = [
            f"{pass_name}{self.num_done + self.num_skipped}/{self.total} files",
            pluralize(self.clips, "clip"),
        ]
        if self.hours:
            counts += [f"{format_hours(self.hours)} of video", f"{self.speed:.1f}x real time"]
        if self.seconds_left is not None:
            # A second pass may follow the first.
            duration = format_duration(self.seconds_left)
            counts.append(f"{duration} left" if self.is_completing else f"searchable in {duration}")
        if self.num_skipped:
            counts.append(f"{self.num_skipped} skipped")
        return ", ".join(counts)


OnProgress = Callable[[IndexProgress], None]


def show_on(display: Progress | None) -> OnProgress | None:
    """Return a callback that shows the progress of an index run in bytes."""
    if display is None:
        return None

    def update(progress: IndexProgress) -> None:
        name = "completing" if progress.is_completing else "indexing"
        total = progress.bytes_total or 1
        display(ProgressUpdate(name, progress.bytes_done, total, str(progress), is_counted=False))

    return update


@dataclass(frozen=True)
class FileProblem:
    """A file that is not, or not completely, in the store."""

    path: str
    reason: str
    is_known: bool = False
    """True if an earlier run reported it, and this one did not try the file again."""
    is_indexed: bool = False
    """True if the file is in the store, and only one of its transcripts is not."""


NO_VIDEO = "neither a video nor an image"
"""Reason for a file that begins like a video but is none, such as a sound file."""
DAMAGED = "damaged: "
"""Prefix of the reason for a file that is in the store although parts of it do not decode."""


@dataclass(frozen=True)
class IndexReport:
    """Result of an index run."""

    indexed: int
    """Files encoded in this run, including images."""
    unchanged: int
    aliases: int
    """Files whose content was in the store under another path."""
    dropped: int
    missing: int
    """Files of the store that no longer exist on disk and were not dropped."""
    clips: int
    """Clips in the store now."""
    hours: float
    """Hours of video encoded in this run."""
    elapsed: float
    problems: tuple[FileProblem, ...]
    damaged: tuple[FileProblem, ...]
    """Files that are in the store although parts of them do not decode."""
    other_files: Mapping[str, int] = field(default_factory=dict)
    """Number of files that are neither videos nor images, by extension."""
    hidden: int = 0
    """Number of hidden videos, images and folders, which are left out."""
    unused_tags: tuple[str, ...] = ()
    """Names in the table of tags that match none of the files."""
    transcript_lines: int = 0
    """Lines read in this run: subtitles, speech, on-screen text, descriptions."""
    images: int = 0
    """Images encoded in this run."""
    device: str = "cpu"
    """Device used for encoding."""
    precision: str = "fp32"
    """Precision used for encoding; fp32 if nothing was encoded. The log says why ``auto`` chose
    fp32 rather than int8."""
    new_files: tuple[str, ...] = ()
    """Paths of the files encoded in this run."""
    completed: int = 0
    """Files of earlier runs whose clips from keyframes were replaced by exact ones."""
    keyframe_clips: int = 0
    """Clips in the store now that were encoded from keyframes only."""
    searchable_after: float = 0.0
    """Seconds from the start until all new files were searchable."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return asdict(self)

    def __repr__(self) -> str:
        problems = [
            pluralize(len(files), f"file {title}", f"files {title}")
            for title, files in self.problem_groups()
            if files
        ]
        return f"<IndexReport: {'; '.join([self._counts(), *problems])}>"

    def __str__(self) -> str:
        """Return the summary and the problems, as `eaglenet index` prints them."""
        lines = [*self.summary_lines(), *self.remark_lines()]
        for title, files in self.problem_groups():
            lines += problem_lines(title, files[:MAX_SHOWN])
            if len(files) > MAX_SHOWN:
                lines.append(f"  and {len(files) - MAX_SHOWN:,} more")
        return "\n".join(map(escape_line, lines))

    def _repr_html_(self) -> str:
        """Show the summary in a notebook, with the problems in tables."""
        lines = (
            html.escape(escape_line(line)) for line in (*self.summary_lines(), *self.remark_lines())
        )
        tables = "".join(
            _problem_table(title, files) for title, files in self.problem_groups() if files
        )
        return f"<div>{'<br>'.join(lines)}</div>{tables}"

    def problem_groups(self) -> tuple[tuple[str, Sequence[FileProblem]], ...]:
        """Return the problems by kind, each kind with its title."""
        return (
            ("not indexed", [file for file in self.problems if not file.is_indexed]),
            ("with a missing transcript", [file for file in self.problems if file.is_indexed]),
            ("indexed with unreadable parts", self.damaged),
        )

    def _counts(self) -> str:
        videos = self.indexed - self.images
        counts = [pluralize(videos, "video")] if videos or not self.images else []
        counts += [pluralize(self.images, "image")] if self.images else []
        hours = f"{format_hours(self.hours)} " if videos or not self.images else ""
        return (
            f"{' and '.join(counts)} indexed ({hours}in {format_duration(self.elapsed)}), "
            f"{self.unchanged} unchanged, {self.aliases} copied or moved"
        )

    def summary_lines(self, store: str = "the store") -> Iterator[str]:
        """Yield the counts of the run and of the store."""
        yield self._counts()
        if self.completed:
            yield f"{pluralize(self.completed, 'file')} of earlier runs completed"
        if self.indexed and self.searchable_after < self.elapsed - 1:
            yield f"all new files were searchable after {format_duration(self.searchable_after)}"
        if self.indexed or self.completed:
            yield f"encoded on {self.device} in {self.precision}"
        if self.transcript_lines:
            yield f"{pluralize(self.transcript_lines, 'transcript line')} read"
        if self.dropped:
            yield f"{pluralize(self.dropped, 'deleted or excluded file')} dropped"
        if self.missing:
            files = pluralize(self.missing, "indexed file is", "indexed files are")
            yield f"{files} deleted or excluded; drop them with --drop-missing"
        yield f"{pluralize(self.clips, 'clip')} in {store}"
        if self.keyframe_clips:
            yield (
                f"{pluralize(self.keyframe_clips, 'clip')} from keyframes only; index again, "
                "without --quick, to complete them"
            )

    def remark_lines(self) -> Iterator[str]:
        """Yield remarks on files that were left out without a problem."""
        if self.other_files:
            yield _other_files(self.other_files)
        if self.hidden:
            count = pluralize(
                self.hidden, "hidden file or folder is", "hidden files and folders are"
            )
            yield f"{count} left out: names that begin with a dot"


def _other_files(counts: Mapping[str, int]) -> str:
    """Return the numbers of files that are neither videos nor images, by extension."""
    kinds = [f"{number:,} {suffix or 'without extension'}" for suffix, number in counts.items()]
    if len(kinds) > MAX_KINDS:
        kinds[MAX_KINDS:] = [f"{sum(list(counts.values())[MAX_KINDS:]):,} of other kinds"]
    files = pluralize(sum(counts.values()), "file is", "files are")
    return f"{files} neither video nor image: {', '.join(kinds)} (`eaglenet -v index` names them)"


def problem_lines(title: str, files: Sequence[FileProblem]) -> Iterator[str]:
    """List the new problems with their reasons, and the first names of known ones."""
    new_files = [file for file in files if not file.is_known]
    known_names = [file.path for file in files if file.is_known]
    if new_files:
        yield f"{pluralize(len(new_files), 'file')} {title}:"
    paths: dict[str, list[str]] = {}
    for file in new_files:
        paths.setdefault(file.reason, []).append(file.path)
    for reason, reason_paths in paths.items():
        if len(reason_paths) == 1:
            yield f"  {reason_paths[0]}: {reason}"
        else:
            yield f"  {pluralize(len(reason_paths), 'file')}: {reason}"
            yield from (f"    {path}" for path in reason_paths)
    if known_names:
        count, names = pluralize(len(known_names), "file"), ", ".join(known_names[:MAX_KNOWN])
        more = ", ..." if len(known_names) > MAX_KNOWN else ""
        yield f"{count} {title}, known before this run: {names}{more}"


def _problem_table(title: str, files: Sequence[FileProblem]) -> str:
    rows = "".join(
        f"<tr><td>{html.escape(path)}</td><td>{html.escape(reason)}</td></tr>"
        for path, reason in (
            (escape_line(file.path), escape_line(file.reason)) for file in files[:MAX_LISTED]
        )
    )
    if len(files) > MAX_LISTED:
        rows += f"<tr><td>and {len(files) - MAX_LISTED:,} more</td></tr>"
    count = pluralize(len(files), "file")
    return f"<details><summary>{count} {title}</summary><table>{rows}</table></details>"
