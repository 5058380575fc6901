"""Subtitle files: three formats, several encodings, broken and hostile ones."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

import pytest

from eaglenet.transcripts import subtitles
from eaglenet.transcripts.lines import MAX_CHARACTERS, TranscriptLine
from eaglenet.transcripts.subtitles import (
    MAX_BYTES,
    SubtitleFinder,
    format_subtitles,
    language_of,
    read_subtitles,
)

SRT = (
    "1\n00:00:01,500 --> 00:00:03,250\n<i>Gr\u00fc\u00dfe</i> &amp; K\u00fcsse\n\n"
    "2\n01:00:04,000 --> 01:00:05,000\nzwei\nZeilen\n"
)
GERMAN = [
    TranscriptLine(1.5, 3.25, "Gr\u00fc\u00dfe & K\u00fcsse"),
    TranscriptLine(3604.0, 3605.0, "zwei Zeilen"),
]


def write(path: Path, text: str, encoding: str = "utf-8") -> Path:
    path.write_bytes(text.encode(encoding))
    return path


@pytest.mark.parametrize(
    "encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "latin-1", "cp1252"]
)
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_encodings_and_line_endings_read_alike(tmp_path: Path, encoding: str, end: str) -> None:
    path = write(tmp_path / "film.srt", SRT.replace("\n", end), encoding)
    assert read_subtitles(path) == GERMAN


def test_reads_webvtt_without_hours_notes_and_settings(tmp_path: Path) -> None:
    text = (
        "WEBVTT\n\nNOTE this is a comment\n\nSTYLE\n::cue { color: red }\n\n"
        "first\n00:01.000 --> 00:02.500 align:start position:10%\n<v Ann>Hello <c.loud>you</c>\n"
    )
    assert read_subtitles(write(tmp_path / "a.vtt", text)) == [
        TranscriptLine(1.0, 2.5, "Hello you")
    ]


def test_reads_substation_columns_styles_and_drawings(tmp_path: Path) -> None:
    text = (
        "[Script Info]\nDialogue: 0,0:00:00.00,0:00:09.00,not an event\n[Events]\n"
        "Format: Start, End, Style, Text\n"
        "Dialogue: 0:00:01.50,0:00:02.00,Top,{\\an8\\i1}Hello,\\Nall {\\i0}of you\n"
        "Comment: 0:00:02.00,0:00:03.00,Top,not shown\n"
        "Dialogue: 0:00:04.00,0:00:05.00,Top,{\\p1}m 0 0 l 100 100{\\p0}\n"
    )
    assert read_subtitles(write(tmp_path / "a.ass", text)) == [
        TranscriptLine(1.5, 2.0, "Hello, all of you")
    ]


def test_reads_cues_without_blank_lines_and_with_wrong_ends(tmp_path: Path) -> None:
    text = "1\n00:00:05,000 --> 00:00:01,000\nbackwards\n2\n00:00:06,00 --> 00:00:07,0\nlast"
    lines = read_subtitles(write(tmp_path / "a.srt", text))
    assert lines == [TranscriptLine(5.0, 5.0, "backwards"), TranscriptLine(6.0, 7.0, "last")]


@pytest.mark.parametrize(
    "content", [b"nonsense", b"\x00" * 5000, b"\x80\x81 --> \xff\n", b"99:99:99,9 -> 1\n\nx"]
)
def test_reports_a_file_without_a_readable_line(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.srt").write_bytes(content)
    with pytest.raises(ValueError, match="no line with start and end times"):
        read_subtitles(tmp_path / "a.srt")


def test_empty_file_has_no_lines(tmp_path: Path) -> None:
    assert read_subtitles(write(tmp_path / "a.srt", " \n")) == []


def test_bounds_file_size_and_line_length(tmp_path: Path) -> None:
    with (tmp_path / "huge.srt").open("wb") as stream:
        stream.truncate(MAX_BYTES + 1)
    with pytest.raises(ValueError, match="at most"):
        read_subtitles(tmp_path / "huge.srt")
    long = write(tmp_path / "long.srt", f"00:00:01,0 --> 00:00:02,0\n{'word ' * 100_000}")
    (line,) = read_subtitles(long)
    assert len(line.text) <= MAX_CHARACTERS
    signs = write(tmp_path / "signs.srt", "00:00:01,0 --> 00:00:02,0\n" + "<" * 200_000)
    assert len(read_subtitles(signs)) == 1


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("tags.srt", "00:00:01,0 --> 00:00:02,0\n" + "<a" * 500_000),
        ("spaces.srt", "00:00:01,0 --> 00:00:02,0\n" + "< " * 500_000),
        ("blank.srt", "00:00:01,0 --> 00:00:02,0\nx" + "\n" * 1_000_000 + "y"),
        ("digits.vtt", "WEBVTT\n\n00:01.000 --> 00:02.000\n" + "1" * 1_000_000 + "x"),
        ("styles.ass", "[Events]\nDialogue: 0,0:00:01.00,0:00:02.00,,,0,0,0,," + "{\\" * 500_000),
        ("drawings.ass", "[Events]\nDialogue: 0,0:00:01.00,0:00:02.00,,,0,0,0,," + "{}" * 500_000),
        ("section.ass", "[" + "a" * 1_000_000 + "\n[Events]\nStyle: x,y,z\nDialogue: 0,a,b,c"),
    ],
)
def test_hostile_files_take_linear_time(tmp_path: Path, name: str, text: str) -> None:
    path = write(tmp_path / name, text)
    start = time.perf_counter()
    with contextlib.suppress(ValueError):
        read_subtitles(path)
    assert time.perf_counter() - start < 20


def test_bounds_the_number_of_cues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eaglenet.transcripts.subtitles.MAX_LINES", 10)
    cues = "".join(f"0:0:{second},0-->0:0:{second},5\nx\n\n" for second in range(50))
    assert len(read_subtitles(write(tmp_path / "a.srt", cues))) == 10
    event = "Dialogue: 0,0:00:{:02}.00,0:00:59.00,,,0,0,0,,x\n"
    events = "[Events]\n" + "".join(map(event.format, range(50)))
    assert len(read_subtitles(write(tmp_path / "a.ass", events))) == 10


def test_keeps_numbers_and_drops_notes_after_a_blank_line(tmp_path: Path) -> None:
    srt = "1\n00:00:01,0 --> 00:00:02,0\nHow many?\n42\n\n2\n00:00:03,0 --> 00:00:04,0\n7\n"
    lines = read_subtitles(write(tmp_path / "a.srt", srt))
    assert [line.text for line in lines] == ["How many? 42", "7"]
    vtt = "WEBVTT\n\n00:01.000 --> 00:02.000\nfirst\n\nNOTE not shown\n\n00:03.000 --> 00:04.000\n"
    assert [line.text for line in read_subtitles(write(tmp_path / "a.vtt", vtt))] == ["first"]


def test_hours_of_recordings_longer_than_four_days(tmp_path: Path) -> None:
    cue = "99:59:59{0}000 --> 100:00:01{0}500\nlate\n\n120:30:00{0}000 --> 120:30:01{0}000\nlater\n"
    times = [(359_999.0, 360_001.5), (433_800.0, 433_801.0)]
    for name, text in (("a.srt", cue.format(",")), ("a.vtt", "WEBVTT\n\n" + cue.format("."))):
        lines = read_subtitles(write(tmp_path / name, text))
        assert [(line.start, line.end) for line in lines] == times
    saved = write(tmp_path / "saved.srt", format_subtitles(lines))
    assert read_subtitles(saved) == lines


def test_subrip_without_hours_or_milliseconds(tmp_path: Path) -> None:
    """As some programs write it; all of the file was refused, or a cue lost."""
    srt = "1\n00:01 --> 00:03\nfirst\n\n2\n00:01:02 --> 00:01:05.5\nsecond\n"
    lines = read_subtitles(write(tmp_path / "a.srt", srt))
    assert [(line.start, line.end, line.text) for line in lines] == [
        (1.0, 3.0, "first"),
        (62.0, 65.5, "second"),
    ]


def test_reads_automatic_captions_of_youtube(tmp_path: Path) -> None:
    """They begin with a line of one space, and have the time of each word."""
    vtt = (
        "WEBVTT\nKind: captions\nLanguage: en\n\n"
        "00:00:00.160 --> 00:00:02.389 align:start position:0%\n \n"
        "so<00:00:00.320><c> good</c><00:00:01.500><c> morning</c>\n\n"
        "00:00:02.389 --> 00:00:02.399 align:start position:0%\nso good morning\n \n"
    )
    lines = read_subtitles(write(tmp_path / "a.vtt", vtt))
    assert [(line.start, line.text) for line in lines] == [
        (0.16, "so good morning"),
        (2.389, "so good morning"),
    ]


def test_text_may_contain_times_and_comparisons(tmp_path: Path) -> None:
    times = "00:00:01,000 --> 00:00:02,000"
    for text, expected in (
        ("from 10:00:00,5 to 11:00:00,5\nrow two", "from 10:00:00 5 to 11:00:00 5 row two"),
        ("2 < 3 and 5 > 4", "2 < 3 and 5 > 4"),
        ("I <3 you > all", "I <3 you > all"),
        ('<font color="red">a</font> <00:00:01.500>b', "a b"),
    ):
        (line,) = read_subtitles(write(tmp_path / "a.srt", f"1\n{times}\n{text}\n"))
        assert (line.start, line.text) == (1.0, expected)


def test_line_ends_that_were_converted_twice(tmp_path: Path) -> None:
    srt = "1\r\r\n00:00:01,000 --> 00:00:02,000\r\r\na\r\r\nb\r\r\n\r\r\n2\r\r\n"
    path = tmp_path / "a.srt"
    path.write_bytes(f"{srt}00:00:03,000 --> 00:00:04,000\r\r\nc\r\r\n".encode())
    assert [line.text for line in read_subtitles(path)] == ["a b", "c"]


def test_one_invalid_event_does_not_hide_the_others(tmp_path: Path) -> None:
    text = (
        "[V4+ Styles]\nStyle: Default,Arial,big,&HXYZ\n[Events]\n"
        "Dialogue: 0,never,0:00:02.00,,,0,0,0,,invalid\n"
        "Dialogue: 0,0:00:03.00,0:00:04.00,,,0,0,0,,valid\n"
    )
    assert read_subtitles(write(tmp_path / "a.ass", text)) == [TranscriptLine(3.0, 4.0, "valid")]


@pytest.mark.parametrize(
    ("language", "encoding", "text"),
    [
        ("ru", "cp1251", "\u041f\u0440\u0438\u0432\u0435\u0442"),
        ("el", "cp1253", "\u03ba\u03b1\u03bb\u03b7\u03bc\u03ad\u03c1\u03b1"),
        ("ja", "cp932", "\u3053\u3093\u306b\u3061\u306f"),
        ("zh-TW", "big5", "\u4f60\u597d"),
        ("zh-Hans", "gb18030", "\u4f60\u597d"),
        ("pl", "cp1250", "\u017c\u00f3\u0142w"),
        ("ru", "utf-8", "\u041f\u0440\u0438\u0432\u0435\u0442"),
        ("ru", "utf-16", "\u041f\u0440\u0438\u0432\u0435\u0442"),
        ("fr", "cp1252", "\u00e9t\u00e9 \u0153uf"),
        ("", "cp1252", "\u00e9t\u00e9"),
    ],
)
def test_older_encodings_are_those_of_the_language(
    tmp_path: Path, language: str, encoding: str, text: str
) -> None:
    path = tmp_path / "film.srt"
    path.write_bytes(f"1\n00:00:03,000 --> 00:00:04,000\n{text}\n".encode(encoding))
    assert [line.text for line in read_subtitles(path, language=language)] == [text]


@pytest.mark.parametrize(
    ("name", "language"),
    [
        ("film.srt", ""),
        ("film.en.srt", "en"),
        ("film.eng.forced.srt", "en"),
        ("film.sdh.pt-BR.vtt", "pt-BR"),
        ("film.part2.srt", None),
        ("film2.srt", None),
        ("film.en.de.srt", None),
        ("film.en.hi.srt", "en"),
        ("film.hi.srt", "hi"),
        ("film.dan.srt", "da"),
        ("other.srt", None),
    ],
)
def test_file_name_gives_video_and_language(name: str, language: str | None) -> None:
    assert language_of(name, "film") == language


def test_finds_files_beside_a_video_by_suffix_in_any_case(tmp_path: Path) -> None:
    for name in ("a.mp4", "a.en.SRT", "a.de.ass", "a.txt", "b.srt"):
        write(tmp_path / name, "x")
    (tmp_path / "a.fr.srt").mkdir()
    files = SubtitleFinder().beside(str(tmp_path / "a.mp4"))
    assert [(Path(file.path).name, file.language) for file in files] == [
        ("a.de.ass", "de"),
        ("a.en.SRT", "en"),
    ]
    assert SubtitleFinder().beside(str(tmp_path / "gone" / "a.mp4")) == []


def test_subtitles_of_other_videos_are_not_compared_with_each_video(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["7.srt", "7.en.srt", "7-b.srt", "7b.srt", "70.srt", "7 .srt", "6.srt", "7..srt"]
    for name in [*names, *(f"film {number}.srt" for number in range(40))]:
        (tmp_path / name).touch()
    compared = []

    def compare(name: str, stem: str) -> str | None:
        compared.append(name)
        return language_of(name, stem)

    monkeypatch.setattr(subtitles, "language_of", compare)
    files = SubtitleFinder().beside(str(tmp_path / "7.mp4"))
    assert [Path(file.path).name for file in files] == ["7.en.srt", "7.srt"]
    assert sorted(compared) == ["7..srt", "7.en.srt", "7.srt"]
