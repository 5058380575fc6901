"""Timelines of hits for editors and players: EDL, FCPXML, xmeml, OTIO, CSV, M3U8 and SRT.

All times are whole frames of the source. A timeline has the most frequent rate of its sources; the
in and out points of other sources keep their rate, and their lengths are rounded to frames of the
timeline.
"""

from __future__ import annotations

import csv
import io
import json
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree
from xml.etree.ElementTree import Element, SubElement

from eaglenet.core.errors import UsageError, VideoDecodeError, cause_of
from eaglenet.core.files import write_output
from eaglenet.search.hit import Hit, file_url
from eaglenet.transcripts.lines import TranscriptLine
from eaglenet.transcripts.subtitles import format_subtitles

IMAGE_SECONDS = 5
"""Duration of an image on a timeline."""
DEFAULT_RATE = Fraction(25)
MAX_RATE = 1000
NTSC = 1001
_TIMECODE = re.compile(r"(\d\d):(\d\d):(\d\d)([:;.])(\d\d+)")


@dataclass(frozen=True)
class Media:
    """Source file of a cut; ``start`` is its first timecode as a number of frames."""

    path: str
    rate: Fraction = DEFAULT_RATE
    num_frames: int = 0
    start: int = 0
    is_drop_frame: bool = False
    width: int = 1920
    height: int = 1080
    has_audio: bool = False

    @property
    def name(self) -> str:
        return Path(self.path).name

    def timecode(self, frame: int) -> str:
        """Return the timecode of a frame, counted from the first frame of the file."""
        return format_timecode(self.start + frame, self.rate, drop_frame=self.is_drop_frame)


@dataclass(frozen=True)
class Cut:
    """Frames ``[first, last)`` of a source, counted from its first frame."""

    media: Media
    first: int
    last: int
    title: str = ""
    score: float = 0.0
    confidence: float | None = None

    @property
    def num_frames(self) -> int:
        return self.last - self.first

    @property
    def seconds(self) -> Fraction:
        return self.num_frames / self.media.rate


class MediaValues(NamedTuple):
    """Fields of a :class:`Media` as plain numbers, which a sandboxed worker may return."""

    rate: tuple[int, int]
    num_frames: int
    start: int
    is_drop_frame: bool
    width: int
    height: int
    has_audio: bool

    def media(self, path: str) -> Media:
        return Media(path, Fraction(*self.rate), *self[1:])


def read_media_values(path: str) -> MediaValues:
    """Read rate, length and start timecode of a video without decoding it.

    The start timecode is that of the container or a ``tmcd`` track; 0 without one.
    """
    from eaglenet.video.containers import open_container, video_stream

    try:
        with open_container(Path(path)) as container:
            stream = video_stream(Path(path), container)
            rate = snap_rate(stream.average_rate or stream.guessed_rate or DEFAULT_RATE)
            seconds = (
                stream.duration * stream.time_base
                if stream.duration and stream.time_base
                else Fraction(container.duration or 0, 1_000_000)
            )
            tags = [container.metadata, *(each.metadata for each in container.streams)]
            text = next((group["timecode"] for group in tags if "timecode" in group), "")
            return MediaValues(
                rate.as_integer_ratio(),
                stream.frames or max(1, round(seconds * rate)),
                *_read_start(text, rate),
                stream.width or 1920,
                stream.height or 1080,
                bool(container.streams.audio),
            )
    except (OSError, ValueError) as error:
        raise VideoDecodeError(path, cause_of(error)) from error


def check_media_values(_path: str, values: MediaValues) -> None:
    """Raise ``ValueError`` for impossible values."""
    numerator, denominator = values.rate
    if not (0 < numerator < 2**31 and 0 < denominator < 2**31):
        raise ValueError("an impossible frame rate")
    limits = (values.num_frames, 2**31), (values.width, 2**16), (values.height, 2**16)
    if not all(0 < value < limit for value, limit in limits) or not 0 <= values.start < 2**31:
        raise ValueError("an impossible length, start or size")


def snap_rate(rate: Fraction | float) -> Fraction:
    """Return the exact rate for a rounded one: 24000/1001 for 23.976.

    >>> snap_rate(Fraction(2997, 100))
    Fraction(30000, 1001)
    """
    value = Fraction(rate).limit_denominator(100_000)
    if not 0 < value <= MAX_RATE:
        return DEFAULT_RATE
    nominal = max(1, round(value))
    for exact in (Fraction(nominal), Fraction(nominal * 1000, NTSC)):
        if abs(value - exact) / exact < Fraction(1, 5000):
            return exact
    return value


def _read_start(text: str, rate: Fraction) -> tuple[int, bool]:
    try:
        return parse_timecode(text, rate), ";" in text
    except ValueError:
        return 0, False


def format_timecode(frame: int, rate: Fraction, *, drop_frame: bool = False) -> str:
    """Format a frame as ``HH:MM:SS:FF``, or ``HH:MM:SS;FF`` for drop-frame timecode.

    Drop-frame timecode skips the first frame numbers of every minute except each tenth, so that
    timecode at 29.97 frames per second agrees with the clock. No frame is dropped.

    >>> format_timecode(1800, Fraction(30000, 1001), drop_frame=True)
    '00:01:00;02'
    """
    nominal = max(1, round(rate))
    if drop_frame:
        num_skipped = _skipped_per_minute(rate)
        minute, ten_minutes = 60 * nominal - num_skipped, 600 * nominal - 9 * num_skipped
        tens, remainder = divmod(frame, ten_minutes)
        frame += 9 * num_skipped * tens
        # No number is skipped in the first of ten minutes.
        if remainder >= 60 * nominal:
            frame += num_skipped * (1 + (remainder - 60 * nominal) // minute)
    seconds, number = divmod(frame, nominal)
    minutes, second = divmod(seconds, 60)
    hours, minute = divmod(minutes, 60)
    width = max(2, len(str(nominal - 1)))
    separator = ";" if drop_frame else ":"
    return f"{hours % 24:02d}:{minute:02d}:{second:02d}{separator}{number:0{width}d}"


def parse_timecode(text: str, rate: Fraction) -> int:
    """Return the frame of a timecode; ``;`` or ``.`` before the frames means drop-frame.

    >>> parse_timecode("01:00:00;00", Fraction(30000, 1001))
    107892
    """
    match = _TIMECODE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r:.40} is not a timecode")
    nominal = max(1, round(rate))
    hours, minutes, seconds, number = (int(match.group(index)) for index in (1, 2, 3, 5))
    if minutes > 59 or seconds > 59 or number >= nominal:
        raise ValueError(f"{text!r:.40} is not a timecode at {nominal} frames per second")
    minutes += 60 * hours
    frame = (60 * minutes + seconds) * nominal + number
    if match.group(4) == ":":
        return frame
    return frame - _skipped_per_minute(rate) * (minutes - minutes // 10)


def can_drop_frames(rate: Fraction) -> bool:
    """Return whether drop-frame timecode exists for a rate: 29.97 and its multiples."""
    return rate.denominator == NTSC and round(rate) % 30 == 0


def _skipped_per_minute(rate: Fraction) -> int:
    """Return the frame numbers that drop-frame timecode skips per minute."""
    if not can_drop_frames(rate):
        raise ValueError(f"no drop-frame timecode at {float(rate):.3f} frames per second")
    return round(rate) // 15


def make_cuts(
    hits: Sequence[Hit],
    title: str,
    *,
    padding: float = 0.0,
    read: Callable[[Hit], Media],
) -> list[Cut]:
    """Return cuts of whole frames: the moment of each hit and ``padding`` seconds around it.

    ``read`` is called once per video, with a hit in it.
    """
    sources: dict[str, Media] = {}
    cuts = []
    for hit in hits:
        if hit.path not in sources:
            is_image = not hit.duration
            sources[hit.path] = (
                Media(hit.path, num_frames=round(IMAGE_SECONDS * DEFAULT_RATE))
                if is_image
                else read(hit)
            )
        media = sources[hit.path]
        if hit.duration:
            # Tolerance for rounding errors, so that 2.0 s at 25 per second is frame 50, not 49.
            first = math.floor((hit.moment.start - padding) * media.rate + Fraction(1, 1000))
            last = math.ceil((hit.moment.end + padding) * media.rate - Fraction(1, 1000))
        else:
            first, last = 0, media.num_frames
        first = min(max(first, 0), max(media.num_frames - 1, 0))
        last = max(min(last, media.num_frames), first + 1)
        cuts.append(Cut(media, first, last, title, hit.score, hit.confidence))
    return cuts


@dataclass(frozen=True)
class _Timeline:
    title: str
    rate: Fraction
    cuts: Sequence[Cut]

    def lengths(self) -> list[int]:
        """Return the length of each cut in frames of the timeline."""
        return [max(1, round(cut.seconds * self.rate)) for cut in self.cuts]


def write_timeline(path: Path, cuts: Sequence[Cut], title: str) -> None:
    """Write a timeline of cuts in the format of the path's suffix."""
    save_text(path, format_timeline(cuts, title, path.suffix.lstrip(".").lower()))


def format_timeline(cuts: Sequence[Cut], title: str, kind: str) -> str:
    """Return a timeline of cuts as text; ``kind`` is one of :data:`FORMATS`."""
    if kind not in FORMATS:
        names = ", ".join(f".{name}" for name in FORMATS)
        raise UsageError(f"unknown format {kind!r}; use a name that ends in one of: {names}")
    if not cuts:
        raise UsageError("no results to save; search for something that is in the store")
    rates = Counter(cut.media.rate for cut in cuts)
    line = " ".join(_one_line(title, " ").split())
    return FORMATS[kind](_Timeline(line, rates.most_common(1)[0][0], cuts))


def save_text(path: Path, text: str) -> None:
    """Write a UTF-8 file; lone surrogates, as in some file names, become ``?``."""
    try:
        write_output(path, text.encode("utf-8", errors="replace"))
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error.strerror}") from error


def _edl(timeline: _Timeline) -> str:
    """Format as CMX 3600, for Resolve, Premiere and Avid."""
    rate = timeline.rate
    is_drop = any(cut.media.is_drop_frame for cut in timeline.cuts) and can_drop_frames(rate)
    mode = "DROP FRAME" if is_drop else "NON-DROP FRAME"
    lines = [f"TITLE: {timeline.title[:70]}", f"FCM: {mode}", ""]
    record = 0
    for number, (cut, length) in enumerate(zip(timeline.cuts, timeline.lengths(), strict=True), 1):
        media = cut.media
        source = [media.timecode(frame) for frame in (cut.first, cut.last)]
        target = [
            format_timecode(frame, rate, drop_frame=is_drop) for frame in (record, record + length)
        ]
        tracks = "AA/V" if media.has_audio else "V"
        lines.append(f"{number:03d}  AX       {tracks:<5} C        {' '.join((*source, *target))}")
        lines.append(f"* FROM CLIP NAME: {_one_line(media.name)}")
        lines.append(f"* SOURCE FILE: {_one_line(media.path)}")
        if media.rate != rate:
            lines.append(f"* SOURCE RATE: {float(media.rate):.3f}")
        lines.append("")
        record += length
    return "\n".join(lines) + "\n"


def _fcpxml(timeline: _Timeline) -> str:
    """Format as FCPXML 1.9, for Final Cut Pro and Resolve."""
    root = Element("fcpxml", version="1.9")
    resources = SubElement(root, "resources")
    formats: dict[tuple[Fraction, int, int], str] = {}
    assets: dict[str, str] = {}

    def format_of(rate: Fraction, width: int, height: int) -> str:
        key = rate, width, height
        if key not in formats:
            formats[key] = f"r{len(formats) + len(assets) + 1}"
            SubElement(
                resources,
                "format",
                id=formats[key],
                frameDuration=_rational(1 / rate),
                width=str(width),
                height=str(height),
            )
        return formats[key]

    first = next(cut.media for cut in timeline.cuts if cut.media.rate == timeline.rate)
    sequence_format = format_of(timeline.rate, first.width, first.height)
    for cut in timeline.cuts:
        media = cut.media
        if media.path not in assets:
            asset_format = format_of(media.rate, media.width, media.height)
            assets[media.path] = f"r{len(formats) + len(assets) + 1}"
            asset = SubElement(
                resources,
                "asset",
                id=assets[media.path],
                name=_one_line(media.name),
                start=_rational(media.start / media.rate),
                duration=_rational(media.num_frames / media.rate),
                hasVideo="1",
                hasAudio="1" if media.has_audio else "0",
                format=asset_format,
            )
            SubElement(asset, "media-rep", kind="original-media", src=file_url(media.path))
    library = SubElement(root, "library")
    event = SubElement(library, "event", name="eaglenet")
    project = SubElement(event, "project", name=_one_line(timeline.title))
    lengths = timeline.lengths()
    sequence = SubElement(
        project,
        "sequence",
        format=sequence_format,
        duration=_rational(sum(lengths) / timeline.rate),
        tcStart="0s",
        tcFormat="NDF",
    )
    spine = SubElement(sequence, "spine")
    offset = 0
    for cut, length in zip(timeline.cuts, lengths, strict=True):
        media = cut.media
        SubElement(
            spine,
            "asset-clip",
            ref=assets[media.path],
            name=_one_line(media.name),
            offset=_rational(offset / timeline.rate),
            start=_rational((media.start + cut.first) / media.rate),
            duration=_rational(length / timeline.rate),
            tcFormat="DF" if media.is_drop_frame else "NDF",
        )
        offset += length
    return _xml(root, "<!DOCTYPE fcpxml>")


def _xmeml(timeline: _Timeline) -> str:
    """Format as Final Cut Pro 7 XML, for Premiere."""
    root = Element("xmeml", version="5")
    sequence = SubElement(root, "sequence", id="sequence-1")
    lengths = timeline.lengths()
    _add(sequence, "name", _one_line(timeline.title))
    _add(sequence, "duration", sum(lengths))
    _add_rate(sequence, timeline.rate)
    media_element = SubElement(sequence, "media")
    kinds = ["video", "audio"] if any(cut.media.has_audio for cut in timeline.cuts) else ["video"]
    tracks = {kind: SubElement(SubElement(media_element, kind), "track") for kind in kinds}
    files: dict[str, str] = {}
    record = 0
    for number, (cut, length) in enumerate(zip(timeline.cuts, lengths, strict=True), 1):
        kinds = [kind for kind in tracks if kind == "video" or cut.media.has_audio]
        for kind in kinds:
            item = SubElement(tracks[kind], "clipitem", id=f"{kind}-{number}")
            _add(item, "name", _one_line(cut.media.name))
            _add(item, "duration", cut.media.num_frames)
            _add_rate(item, cut.media.rate)
            for name, value in (
                ("start", record),
                ("end", record + length),
                ("in", cut.first),
                ("out", cut.last),
            ):
                _add(item, name, value)
            _add_xmeml_file(item, cut.media, files)
            if kind == "audio":
                source = SubElement(item, "sourcetrack")
                _add(source, "mediatype", "audio")
                _add(source, "trackindex", 1)
            for other in kinds if len(kinds) > 1 else ():
                link = SubElement(item, "link")
                _add(link, "linkclipref", f"{other}-{number}")
        record += length
    return _xml(root, "<!DOCTYPE xmeml>")


def _add_xmeml_file(item: Element, media: Media, files: dict[str, str]) -> None:
    """Describe a file at its first use, and refer to it by id later."""
    if media.path in files:
        SubElement(item, "file", id=files[media.path])
        return
    files[media.path] = f"file-{len(files) + 1}"
    file = SubElement(item, "file", id=files[media.path])
    _add(file, "name", _one_line(media.name))
    _add(file, "pathurl", file_url(media.path))
    _add(file, "duration", media.num_frames)
    _add_rate(file, media.rate)
    timecode = SubElement(file, "timecode")
    _add_rate(timecode, media.rate)
    _add(timecode, "string", media.timecode(0))
    _add(timecode, "frame", media.start)
    _add(timecode, "displayformat", "DF" if media.is_drop_frame else "NDF")
    kinds = SubElement(file, "media")
    SubElement(kinds, "video")
    if media.has_audio:
        _add(SubElement(kinds, "audio"), "channelcount", 2)


def _otio(timeline: _Timeline) -> str:
    """Format as OpenTimelineIO JSON."""

    def time(value: float, rate: Fraction) -> dict[str, Any]:
        return {"OTIO_SCHEMA": "RationalTime.1", "rate": float(rate), "value": float(value)}

    def time_range(start: int, length: int, rate: Fraction) -> dict[str, Any]:
        return {
            "OTIO_SCHEMA": "TimeRange.1",
            "start_time": time(start, rate),
            "duration": time(length, rate),
        }

    clips = []
    for cut in timeline.cuts:
        media = cut.media
        clips.append(
            {
                "OTIO_SCHEMA": "Clip.2",
                "name": media.name,
                "source_range": time_range(media.start + cut.first, cut.num_frames, media.rate),
                "active_media_reference_key": "DEFAULT_MEDIA",
                "media_references": {
                    "DEFAULT_MEDIA": {
                        "OTIO_SCHEMA": "ExternalReference.1",
                        "target_url": file_url(media.path),
                        "available_range": time_range(media.start, media.num_frames, media.rate),
                    }
                },
                "metadata": {"eaglenet": {"score": cut.score, "confidence": cut.confidence}},
            }
        )
    track = {"OTIO_SCHEMA": "Track.1", "kind": "Video", "name": "V1", "children": clips}
    stack = {"OTIO_SCHEMA": "Stack.1", "name": "tracks", "children": [track]}
    record = {"OTIO_SCHEMA": "Timeline.1", "name": timeline.title, "tracks": stack}
    return json.dumps(record, indent=2) + "\n"


def _csv(timeline: _Timeline) -> str:
    stream = io.StringIO()
    writer = csv.writer(stream)
    writer.writerow(
        [
            "rank", "query", "path", "start_timecode", "end_timecode", "start_seconds",
            "end_seconds", "frame_rate", "score", "confidence",
        ]
    )  # fmt: skip
    for rank, cut in enumerate(timeline.cuts, 1):
        media = cut.media
        codes = [media.timecode(frame) for frame in (cut.first, cut.last)]
        seconds = [f"{float(frame / media.rate):.6f}" for frame in (cut.first, cut.last)]
        confidence = "" if cut.confidence is None else f"{cut.confidence:.4f}"
        writer.writerow(
            [
                rank, _cell(cut.title or timeline.title), _cell(media.path), *codes, *seconds,
                f"{float(media.rate):.6f}", f"{cut.score:.6f}", confidence,
            ]
        )  # fmt: skip
    return stream.getvalue()


def _cell(text: str) -> str:
    """Return text as one line that no spreadsheet takes for a formula."""
    text = _one_line(text)
    return f"'{text}" if text[:1] in ("=", "+", "-", "@") else text


def _m3u8(timeline: _Timeline) -> str:
    """Format as a playlist for VLC; other players ignore the start and stop times."""
    lines = ["#EXTM3U"]
    for cut in timeline.cuts:
        rate = cut.media.rate
        lines += [
            f"#EXTINF:{float(cut.seconds):.3f},{_one_line(cut.media.name)}",
            f"#EXTVLCOPT:start-time={float(cut.first / rate):.3f}",
            f"#EXTVLCOPT:stop-time={float(cut.last / rate):.3f}",
            file_url(cut.media.path),
        ]
    return "\n".join(lines) + "\n"


def _srt(timeline: _Timeline) -> str:
    """Format as one subtitle per cut, for the cuts played in sequence."""
    lines, start = [], Fraction(0)
    for cut in timeline.cuts:
        end = start + cut.seconds
        code = cut.media.timecode(cut.first)
        text = f"{_one_line(cut.title or timeline.title)}\n{_one_line(f'{cut.media.name}  {code}')}"
        lines.append(TranscriptLine(float(start), float(end), text))
        start = end
    return format_subtitles(lines)


FORMATS: Mapping[str, Callable[[_Timeline], str]] = {
    "edl": _edl,
    "fcpxml": _fcpxml,
    "xml": _xmeml,
    "otio": _otio,
    "csv": _csv,
    "m3u8": _m3u8,
    "srt": _srt,
}


def _add(parent: Element, name: str, value: object) -> None:
    SubElement(parent, name).text = str(value)


def _add_rate(parent: Element, rate: Fraction) -> None:
    element = SubElement(parent, "rate")
    _add(element, "timebase", max(1, round(rate)))
    _add(element, "ntsc", "TRUE" if rate.denominator == NTSC else "FALSE")


def _xml(root: Element, doctype: str) -> str:
    ElementTree.indent(root)
    body = ElementTree.tostring(root, encoding="unicode")
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{doctype}\n{body}\n'


def _rational(seconds: Fraction | int) -> str:
    return f"{Fraction(seconds)}s"  # "2s" or "1001/30000s".


def _one_line(text: str, replacement: str = "?") -> str:
    """Replace line breaks, control characters, and characters that XML cannot contain.

    All others stay, also invisible ones: editors look for the file by its name.
    """
    return "".join(
        replacement
        if unicodedata.category(char) in ("Cc", "Cs", "Zl", "Zp") or ord(char) & 0xFFFE == 0xFFFE
        else char
        for char in text
    )
