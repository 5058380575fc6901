"""Timelines for editors, read back by readers that are not ours."""

import csv
import importlib.util
import io
import json
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import av
import numpy as np
import pysubs2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eaglenet.core.errors import UsageError, VideoDecodeError
from eaglenet.search.hit import Hit, Moment
from eaglenet.search.timelines import (
    FORMATS,
    Cut,
    Media,
    can_drop_frames,
    format_timecode,
    make_cuts,
    parse_timecode,
    read_media_values,
    snap_rate,
    write_timeline,
)

FILM, NTSC, SMOOTH, PAL = (
    Fraction(24000, 1001),
    Fraction(30000, 1001),
    Fraction(60000, 1001),
    Fraction(25),
)
A = Media("/videos/a b & <c>.mp4", NTSC, 3000, parse_timecode("01:00:00;00", NTSC), True)
B = Media("/videos/b.mov", PAL, 500, width=640, height=360)
CUTS = (Cut(A, 30, 120, score=0.5, confidence=0.9), Cut(B, 0, 50), Cut(A, 1800, 1830))


@pytest.mark.parametrize(
    ("frame", "rate", "drop", "expected"),
    [
        # SMPTE 12M: an hour of 29.97 drop-frame timecode has 107,892 frames, ten minutes 17,982.
        (1799, NTSC, True, "00:00:59;29"),
        (1800, NTSC, True, "00:01:00;02"),
        (17982, NTSC, True, "00:10:00;00"),
        (107892, NTSC, True, "01:00:00;00"),
        (3600, SMOOTH, True, "00:01:00;04"),
        (215784, SMOOTH, True, "01:00:00;00"),
        (1800, NTSC, False, "00:01:00:00"),
        (86400, FILM, False, "01:00:00:00"),
        (90000, PAL, False, "01:00:00:00"),
        (24 * 90000, PAL, False, "00:00:00:00"),
    ],
)
def test_timecodes_equal_those_of_the_standard(
    frame: int, rate: Fraction, drop: bool, expected: str
) -> None:
    assert format_timecode(frame, rate, drop_frame=drop) == expected


@given(st.integers(0, 2_500_000), st.sampled_from([(NTSC, True), (SMOOTH, True), (FILM, False)]))
def test_timecodes_are_read_as_they_were_written(frame: int, rate: tuple[Fraction, bool]) -> None:
    frame %= round(86_400 * rate[0]) - 200
    assert parse_timecode(format_timecode(frame, rate[0], drop_frame=rate[1]), rate[0]) == frame


def test_drop_frame_exists_for_multiples_of_2997_only() -> None:
    assert [can_drop_frames(rate) for rate in (NTSC, SMOOTH, FILM, PAL, Fraction(30))] == [
        True,
        True,
        False,
        False,
        False,
    ]
    with pytest.raises(ValueError, match="no drop-frame"):
        parse_timecode("00:00:00;00", PAL)


@pytest.mark.parametrize(
    "text", ["", "1:2:3:4", "00:61:00:00", "00:00:00:25", "00:00:00", "x" * 99]
)
def test_what_is_no_timecode_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="timecode"):
        parse_timecode(text, PAL)


@pytest.mark.parametrize(
    ("measured", "exact"),
    [
        (Fraction(23976, 1000), FILM),
        (Fraction(2997, 100), NTSC),
        (Fraction(5994, 100), SMOOTH),
        (Fraction(359, 12), Fraction(359, 12)),  # of a short clip; neither 30 nor 29.97
        (Fraction(25), PAL),
        (Fraction(0), PAL),
        (Fraction(90000), PAL),
    ],
)
def test_rates_are_made_exact(measured: Fraction, exact: Fraction) -> None:
    assert snap_rate(measured) == exact


def write_video(path: Path, rate: Fraction, count: int, timecode: str = "") -> Path:
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=rate)
        stream.width = stream.height = 32
        if timecode:
            stream.metadata["timecode"] = timecode
        for _ in range(count):
            frame = av.VideoFrame.from_ndarray(np.zeros((32, 32, 3), np.uint8))
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return path


def read_media(path: Path) -> Media:
    return read_media_values(str(path)).media(str(path))


@pytest.mark.parametrize("rate", [FILM, NTSC, SMOOTH, PAL])
def test_rate_and_length_are_those_of_the_file(tmp_path: Path, rate: Fraction) -> None:
    media = read_media(write_video(tmp_path / "a.mp4", rate, 60))
    assert (media.rate, media.num_frames, media.start) == (rate, 60, 0)
    assert (media.width, media.height, media.has_audio) == (32, 32, False)


def test_the_start_timecode_is_that_of_the_file(tmp_path: Path) -> None:
    media = read_media(write_video(tmp_path / "a.mov", NTSC, 10, "01:00:00;00"))
    assert (media.start, media.is_drop_frame) == (107892, True)
    media = read_media(write_video(tmp_path / "b.mov", PAL, 10, "10:00:00:12"))
    assert (media.start, media.is_drop_frame) == (900012, False)


def test_what_is_no_video_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.mp4").write_text("no")
    with pytest.raises(VideoDecodeError):
        read_media(tmp_path / "a.mp4")


def hit(path: str, start: float, end: float, duration: float = 100.0) -> Hit:
    return Hit(1, "id", path, 0.5, 0.5, Moment(start, end, start), duration)


def test_moments_become_whole_frames() -> None:
    media = Media("a.mp4", PAL, 2500)
    hits = [hit("a.mp4", 2.0, 4.0), hit("a.mp4", 2.01, 3.99), hit("a.mp4", 99.0, 100.0)]
    cuts = make_cuts(hits, "", read=lambda path: media)
    assert [(cut.first, cut.last) for cut in cuts] == [(50, 100), (50, 100), (2475, 2500)]
    padded = make_cuts(hits, "", padding=3.0, read=lambda path: media)
    assert [(cut.first, cut.last) for cut in padded] == [(0, 175), (0, 175), (2400, 2500)]


def test_a_moment_beyond_the_end_of_the_file_keeps_a_frame() -> None:
    [cut] = make_cuts([hit("a", 50.0, 60.0)], "", read=lambda path: Media(path, PAL, 25))
    assert (cut.first, cut.last) == (24, 25)


def test_an_image_is_shown_for_some_seconds() -> None:
    def fail(path: str) -> Media:
        raise AssertionError(path)

    [cut] = make_cuts([hit("a.jpg", 0.0, 0.0, duration=0.0)], "", read=fail)
    assert cut.seconds == 5


def written(tmp_path: Path, kind: str, cuts: Sequence[Cut] = CUTS, title: str = "a red car") -> str:
    path = tmp_path / f"timeline.{kind}"
    write_timeline(path, cuts, title)
    return path.read_text("utf-8")


def test_edl_has_frame_exact_timecodes(tmp_path: Path) -> None:
    lines = written(tmp_path, "edl").splitlines()
    assert lines[:2] == ["TITLE: a red car", "FCM: DROP FRAME"]
    events = [line.split()[4:] for line in lines if line[:3].isdigit()]
    assert events == [
        ["01:00:01;00", "01:00:04;00", "00:00:00;00", "00:00:03;00"],
        ["00:00:00:00", "00:00:02:00", "00:00:03;00", "00:00:05;00"],
        ["01:01:00;02", "01:01:01;02", "00:00:05;00", "00:00:06;00"],
    ]
    assert "* FROM CLIP NAME: b.mov" in lines
    assert "* SOURCE RATE: 25.000" in lines


def test_fcpxml_has_rational_times(tmp_path: Path) -> None:
    root = ElementTree.fromstring(written(tmp_path, "fcpxml"))
    formats = {each.get("id"): each.get("frameDuration") for each in root.iter("format")}
    assets = {each.get("id"): each for each in root.iter("asset")}
    clips = list(root.iter("asset-clip"))
    assert len(clips) == 3
    assert len(assets) == 2
    first = clips[0]
    asset = assets[first.get("ref")]
    assert asset.get("name") == "a b & <c>.mp4"
    assert formats[asset.get("format")] == "1001/30000s"
    media = asset.find("media-rep")
    assert media is not None
    assert media.get("src") == "file:///videos/a%20b%20%26%20%3Cc%3E.mp4"

    def seconds(clip: ElementTree.Element, name: str) -> Fraction:
        return Fraction((clip.get(name) or "").removesuffix("s"))

    assert seconds(first, "start") == (107892 + 30) / NTSC
    assert seconds(first, "duration") == 90 / NTSC
    assert seconds(clips[1], "offset") == 90 / NTSC
    assert len({*formats, *assets}) == len(formats) + len(assets)


def count_to(timecode: str, nominal: int) -> int:
    """Frame of a drop-frame timecode, by counting every number that is not dropped."""
    hours, minutes, seconds, frames = map(int, timecode.replace(";", ":").split(":"))
    counted = 0
    for minute in range(60 * hours + minutes + 1):
        first = 0 if minute % 10 == 0 else nominal // 15
        is_last = minute == 60 * hours + minutes
        counted += (seconds * nominal + frames if is_last else 60 * nominal) - first
    return counted


@pytest.mark.parametrize(
    ("rate", "timecode", "frame"),
    [
        (FILM, "01:00:00:00", 86_400),
        (NTSC, "01:00:00;00", count_to("01:00:00;00", 30)),
        (NTSC, "00:09:59;29", count_to("00:09:59;29", 30)),
        (SMOOTH, "01:02:01;04", count_to("01:02:01;04", 60)),
    ],
)
def test_times_of_fcpxml_are_whole_frames_at_ntsc_rates(
    tmp_path: Path, rate: Fraction, timecode: str, frame: int
) -> None:
    """Editors refuse or shift clips whose times lie between two frames of their format."""
    start = parse_timecode(timecode, rate)
    assert start == frame
    own = Media("/videos/own.mov", rate, 30_000, start, is_drop_frame=";" in timecode)
    other = Media("/videos/other.mov", PAL, 500)
    cuts = [Cut(own, 17, 117), Cut(own, 1_000, 1_001), Cut(other, 30, 61)]
    root = ElementTree.fromstring(written(tmp_path, "fcpxml", cuts))

    def seconds(element: ElementTree.Element, name: str) -> Fraction:
        text = element.get(name) or ""
        assert text.endswith("s")
        return Fraction(text[:-1])

    formats = {each.get("id"): seconds(each, "frameDuration") for each in root.iter("format")}
    assets = {each.get("id"): each for each in root.iter("asset")}
    sequence = root.find(".//sequence")
    assert sequence is not None
    assert formats[sequence.get("format")] == 1 / rate
    clips = list(root.iter("asset-clip"))
    end = Fraction(0)
    for clip in clips:
        asset = assets[clip.get("ref")]
        frame_length = formats[asset.get("format")]
        assert (seconds(clip, "start") / frame_length).denominator == 1
        assert seconds(asset, "start") <= seconds(clip, "start")
        assert seconds(clip, "offset") == end
        end += seconds(clip, "duration")
        assert (seconds(clip, "duration") * rate).denominator == 1
    assert seconds(sequence, "duration") == end
    frames = [(seconds(clip, "start") * rate, seconds(clip, "duration") * rate) for clip in clips]
    assert frames[:2] == [(frame + 17, 100), (frame + 1_000, 1)]
    assert [clip.get("tcFormat") for clip in clips] == [
        *2 * ["DF" if ";" in timecode else "NDF"],
        "NDF",
    ]


def test_xmeml_has_frames_of_the_source(tmp_path: Path) -> None:
    root = ElementTree.fromstring(written(tmp_path, "xml"))
    items = [
        tuple(int(item.findtext(name) or -1) for name in ("start", "end", "in", "out"))
        for item in root.iter("clipitem")
    ]
    assert items == [(0, 90, 30, 120), (90, 150, 0, 50), (150, 180, 1800, 1830)]
    assert root.findtext("sequence/rate/ntsc") == "TRUE"
    assert root.findtext("sequence/rate/timebase") == "30"
    assert root.findtext(".//file/timecode/string") == "01:00:00;00"


def test_files_with_audio_keep_it(tmp_path: Path) -> None:
    """On a track of their own in xmeml, linked to the picture; by the channels of an EDL event."""
    loud = Media("/videos/loud.mp4", PAL, 500, has_audio=True)
    cuts = [Cut(loud, 25, 50), Cut(B, 0, 50), Cut(loud, 100, 150)]
    root = ElementTree.fromstring(written(tmp_path, "xml", cuts))
    spans = {
        kind: [
            (int(item.findtext("start") or -1), int(item.findtext("in") or -1))
            for item in root.findall(f"sequence/media/{kind}/track/clipitem")
        ]
        for kind in ("video", "audio")
    }
    assert spans == {"video": [(0, 25), (25, 0), (75, 100)], "audio": [(0, 25), (75, 100)]}
    items = {item.get("id"): item for item in root.iter("clipitem")}
    for item in items.values():
        assert all(link.text in items for link in item.iter("linkclipref"))
    assert root.find(".//file[@id='file-1']/media/audio") is not None
    events = [
        line.split()[2]
        for line in written(tmp_path, "edl", cuts).splitlines()
        if line[:3].isdigit()
    ]
    assert events == ["AA/V", "V", "AA/V"]


def test_csv_has_one_row_per_hit_and_no_formula(tmp_path: Path) -> None:
    rows = list(csv.DictReader(io.StringIO(written(tmp_path, "csv", title="=HYPERLINK(1)"))))
    assert [row["start_timecode"] for row in rows] == ["01:00:01;00", "00:00:00:00", "01:01:00;02"]
    assert rows[0]["confidence"] == "0.9000"
    assert rows[1]["confidence"] == ""
    assert rows[0]["query"] == "'=HYPERLINK(1)"
    assert float(rows[0]["start_seconds"]) == pytest.approx(30 / NTSC)


def test_m3u8_names_files_and_times(tmp_path: Path) -> None:
    lines = written(tmp_path, "m3u8").splitlines()
    assert lines[0] == "#EXTM3U"
    assert lines[5:9] == [
        "#EXTINF:2.000,b.mov",
        "#EXTVLCOPT:start-time=0.000",
        "#EXTVLCOPT:stop-time=2.000",
        "file:///videos/b.mov",
    ]


def test_srt_is_read_by_pysubs2(tmp_path: Path) -> None:
    events = pysubs2.SSAFile.from_string(written(tmp_path, "srt"))
    assert [(event.start, event.end) for event in events] == [
        (0, 3003),
        (3003, 5003),
        (5003, 6004),
    ]
    assert "01:01:00;02" in events[2].text
    cuts = [Cut(B, 0, 50, "a dog"), Cut(B, 50, 75, "a cat")]
    titles = [
        event.text.split("\\N")[0]
        for event in pysubs2.SSAFile.from_string(written(tmp_path, "srt", cuts))
    ]
    assert titles == ["a dog", "a cat"]


@pytest.mark.parametrize("kind", FORMATS)
def test_hostile_names_stay_inside_their_field(tmp_path: Path, kind: str) -> None:
    name = 'x\n002  AX V C\r\n]]>"<b>&\x00\x1b[31m,=1+1\udcff.mp4'
    media = Media(f"/videos/{name}", PAL, 100)
    text = written(tmp_path, kind, [Cut(media, 0, 25)], title=f"a {name}")
    assert "\x1b" not in text
    assert "\x00" not in text
    if kind in ("fcpxml", "xml"):
        ElementTree.fromstring(text)
    elif kind == "otio":
        assert len(json.loads(text)["tracks"]["children"][0]["children"]) == 1
    elif kind == "csv":
        assert len(list(csv.reader(io.StringIO(text)))) == 2
    elif kind == "edl":
        assert sum(line[:3].isdigit() for line in text.splitlines()) == 1


@pytest.mark.parametrize("kind", FORMATS)
def test_names_keep_spaces_and_joiners(tmp_path: Path, kind: str) -> None:
    name = "9.41.00\u202fAM 会議\u3000\u06cc\u200c\u06cc 👨\u200d👩.mp4"
    text = written(tmp_path, kind, [Cut(Media(f"/videos/{name}", PAL, 100), 0, 25)])
    if kind == "otio":
        text = json.loads(text)["tracks"]["children"][0]["children"][0]["name"]
    elif kind == "srt":  # Subtitles have plain spaces.
        name = "9.41.00 AM 会議 \u06cc\u200c\u06cc 👨\u200d👩.mp4"
    assert name in text


def test_nothing_to_save_and_unknown_formats_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no results"):
        write_timeline(tmp_path / "a.edl", [], "")
    with pytest.raises(UsageError, match="fcpxml"):
        write_timeline(tmp_path / "a.mlt", CUTS, "")
    with pytest.raises(UsageError, match="cannot be written"):
        write_timeline(tmp_path / "none" / "a.edl", CUTS, "")


has_otio = importlib.util.find_spec("opentimelineio") is not None
needs_otio = pytest.mark.skipif(not has_otio, reason="opentimelineio is not installed")


def read_with_otio(path: Path, **options: Any) -> list[tuple[float, float]]:
    """First frame and number of frames of each clip, as OpenTimelineIO reads them."""
    import opentimelineio

    # Readers other than that of its own format are packages of their own.
    if path.suffix[1:] not in opentimelineio.adapters.suffixes_with_defined_adapters(read=True):
        pytest.skip(f"opentimelineio has no reader for {path.suffix}")
    result = opentimelineio.adapters.read_from_file(str(path), **options)
    timeline = result if hasattr(result, "find_clips") else result[0]
    if not hasattr(timeline, "find_clips"):
        pytest.skip("another kind of document")
    ranges = [
        (clip.source_range.start_time.value, clip.source_range.duration.value)
        for clip in timeline.find_clips()
    ]
    return list(dict.fromkeys(ranges))  # Tracks of audio have the same ones.


@needs_otio
@pytest.mark.parametrize("has_audio", [False, True])
@pytest.mark.parametrize(
    ("kind", "rate"),
    [
        *((kind, rate) for kind in ("otio", "edl", "xml") for rate in (FILM, NTSC, SMOOTH, PAL)),
        # Its reader of FCPXML takes 29.97 for 29; our rational times are checked above.
        ("fcpxml", PAL),
    ],
)
def test_opentimelineio_reads_the_same_frames(
    tmp_path: Path, kind: str, rate: Fraction, has_audio: bool
) -> None:
    hour = parse_timecode("01:00:00:00", rate)
    media = Media("/videos/a.mov", rate, 30_000, hour, has_audio=has_audio)
    cuts = [Cut(media, 17, 117), Cut(media, 1_000, 1_001)]
    path = tmp_path / f"timeline.{kind}"
    write_timeline(path, cuts, "a red car")
    options = {"rate": float(rate)} if kind == "edl" else {}
    ranges = read_with_otio(path, **options)
    first = 0 if kind == "xml" and ranges[0][0] < hour else hour
    assert ranges == [(first + 17, 100), (first + 1_000, 1)]
