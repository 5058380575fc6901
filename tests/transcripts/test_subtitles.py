"""Subtitle files as people have them: three formats, several encodings, and broken ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from eaglenet.transcripts.lines import MAX_CHARACTERS, TranscriptLine
from eaglenet.transcripts.subtitles import MAX_BYTES, SubtitleFinder, language_of, read_subtitles

SRT = (
    "1\n00:00:01,500 --> 00:00:03,250\n<i>Gr\u00fc\u00dfe</i> &amp; K\u00fcsse\n\n"
    "2\n01:00:04,000 --> 01:00:05,000\nzwei\nZeilen\n"
)
GERMAN = [TranscriptLine(1.5, 3.25, "Gr\u00fc\u00dfe & K\u00fcsse"), TranscriptLine(3604.0, 3605.0, "zwei Zeilen")]


def write(path: Path, text: str, encoding: str = "utf-8") -> Path:
    path.write_bytes(text.encode(encoding))
    return path


@pytest.mark.parametrize(
    "encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "latin-1", "cp1252"]
)
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_a_file_reads_the_same_in_any_encoding(tmp_path: Path, encoding: str, end: str) -> None:
    path = write(tmp_path / "film.srt", SRT.replace("\n", end), encoding)
    assert read_subtitles(path) == GERMAN


def test_webvtt_has_times_without_hours_notes_and_settings(tmp_path: Path) -> None:
    text = (
        "WEBVTT\n\nNOTE this is not said\n\nSTYLE\n::cue { color: red }\n\n"
        "first\n00:01.000 --> 00:02.500 align:start position:10%\n<v Ann>Hello <c.loud>you</c>\n"
    )
    assert read_subtitles(write(tmp_path / "a.vtt", text)) == [TranscriptLine(1.0, 2.5, "Hello you")]


def test_substation_alpha_has_columns_styles_and_drawings(tmp_path: Path) -> None:
    text = (
        "[Script Info]\nDialogue: 0,0:00:00.00,0:00:09.00,not an event\n[Events]\n"
        "Format: Start, End, Style, Text\n"
        "Dialogue: 0:00:01.50,0:00:02.00,Top,{\\an8\\i1}Hello,\\Nall {\\i0}of you\n"
        "Comment: 0:00:02.00,0:00:03.00,Top,not shown\n"
        "Dialogue: 0:00:04.00,0:00:05.00,Top,{\\p1}m 0 0 l 100 100{\\p0}\n"
    )
    assert read_subtitles(write(tmp_path / "a.ass", text)) == [TranscriptLine(1.5, 2.0, "Hello, all of you")]


def test_a_file_without_empty_lines_and_with_wrong_ends_is_read(tmp_path: Path) -> None:
    text = "1\n00:00:05,000 --> 00:00:01,000\nbackwards\n2\n00:00:06,00 --> 00:00:07,0\nlast"
    lines = read_subtitles(write(tmp_path / "a.srt", text))
    assert lines == [TranscriptLine(5.0, 5.0, "backwards"), TranscriptLine(6.0, 7.0, "last")]


@pytest.mark.parametrize(
    "content", [b"nonsense", b"\x00" * 5000, b"\x80\x81 --> \xff\n", b"99:99:99,9 -> 1\n\nx"]
)
def test_a_file_without_a_readable_line_says_so(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.srt").write_bytes(content)
    with pytest.raises(ValueError, match="no line with its times"):
        read_subtitles(tmp_path / "a.srt")


def test_an_empty_file_has_no_lines(tmp_path: Path) -> None:
    assert read_subtitles(write(tmp_path / "a.srt", " \n")) == []


def test_sizes_are_bounded(tmp_path: Path) -> None:
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
    ("name", "language"),
    [
        ("film.srt", ""),
        ("film.en.srt", "en"),
        ("film.eng.forced.srt", "en"),
        ("film.sdh.pt-BR.vtt", "pt-BR"),
        ("film.part2.srt", None),
        ("film2.srt", None),
        ("film.en.de.srt", None),
        ("other.srt", None),
    ],
)
def test_a_name_tells_its_video_and_language(name: str, language: str | None) -> None:
    assert language_of(name, "film") == language


def test_files_beside_a_video_are_found_whatever_the_case_of_their_ending(tmp_path: Path) -> None:
    for name in ("a.mp4", "a.en.SRT", "a.de.ass", "a.txt", "b.srt"):
        write(tmp_path / name, "x")
    (tmp_path / "a.fr.srt").mkdir()
    found = SubtitleFinder().beside(str(tmp_path / "a.mp4"))
    assert [(Path(file.path).name, file.language) for file in found] == [
        ("a.de.ass", "de"),
        ("a.en.SRT", "en"),
    ]
    assert SubtitleFinder().beside(str(tmp_path / "gone" / "a.mp4")) == []
