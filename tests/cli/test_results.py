"""Results in a terminal: whole, within its columns, with pictures and a player."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from eaglenet.cli import queries, results
from eaglenet.cli.results import format_table, shorten_home, wrap
from eaglenet.core.errors import UsageError
from eaglenet.search.hit import Hit, Moment, TranscriptMatch
from eaglenet.search.hits import SearchResult
from eaglenet.search.query import Query

LONG = "/home/someone/videos/2026/a holiday at the sea, and then a few days in the mountains.mp4"
PATHS = (LONG, "/home/someone/videos/short.mov", "/home/someone/videos/2026/\u732b.mkv")
MOMENTS = (Moment(3.0, 9.0, 4.0), Moment(8000.0, 8009.0, 8001.0), Moment(1.0, 2.0, 1.0))


MATCHED = ["#", "match", "moment"]
LINE = TranscriptMatch("a line", 3.0, 4.0, "speech")


def result() -> SearchResult:
    """Three hits of one folder, one of them hours into its film."""
    hits = [
        Hit(number, f"{number}123456789abcdef-{number}", path, 0.5, 0.5, moment, 9000.0)
        for number, (path, moment) in enumerate(zip(PATHS, MOMENTS, strict=True), 1)
    ]
    return SearchResult(Query("a red car"), hits)


@pytest.mark.parametrize("width", [40, 80, 120, None])
def test_table_fits_and_cuts_nothing(width: int | None) -> None:
    """Rank, score, time, id and file are whole; long names go on below."""
    ids = {hit.clip_id: hit.clip_id[:4] for hit in result().hits}
    lines = format_table(result(), ids, width)
    assert width is None or all(len(line) <= width for line in lines)
    assert lines[1] == "in /home/someone/videos"
    whole = "".join(line.strip() for line in lines).replace(" ", "")
    for path in PATHS:
        for word in Path(path).relative_to("/home/someone/videos").parts:
            assert word.replace(" ", "") in whole
    for part in ("0.500", "0:03.0-0:09.0", "2:13:20.0-2:13:29.0", "1123", "2123"):
        assert part in whole


def test_files_and_objects_in_one_table() -> None:
    """They have no common folder: names are whole paths."""
    paths = ["s3://bucket/videos/a.mp4", "s3://bucket/videos/june/b.mp4", "/videos/c.mp4"]
    hits = [replace(hit, path=path) for hit, path in zip(result().hits, paths, strict=True)]
    lines = format_table(SearchResult(Query("a red car"), hits), {}, None)
    assert [line.split()[-1] for line in lines[2:]] == paths
    lines = format_table(SearchResult(Query("a red car"), hits[:2]), {}, None)
    assert lines[1] == "in s3://bucket/videos"
    assert [line.split()[-1] for line in lines[3:]] == ["a.mp4", "june/b.mp4"]


def test_people_read_a_confidence_or_a_score_and_none_of_a_sequence() -> None:
    plain = result().hits
    sure = [replace(hit, confidence=0.8) for hit in plain]
    low = [plain[0], replace(plain[1], score=-0.3), plain[2]]
    sequences = [replace(hit, score=-0.3, metadata={"steps": []}) for hit in plain]
    for hits, heads in (
        (plain, ["#", "score", "moment"]),
        (low, ["#", "score", "moment"]),
        (sure, MATCHED),
        ([*sure[:2], plain[2]], ["#", "score", "match", "moment"]),
        (sequences, ["#", "moment"]),
        ([replace(hit, transcript=(LINE,), matched_in=("speech",)) for hit in plain], MATCHED),
        ([replace(hit, confidence=0.2) for hit in sequences], MATCHED),
    ):
        lines = format_table(SearchResult(Query("a red car"), hits), {}, None)
        assert lines[2].split() == [*heads, "clip", "file"]
        assert "-0.3" not in "".join(lines)


def test_links_open_the_moment_and_take_no_columns() -> None:
    """OSC 8 around the name alone."""
    plain, linked = (format_table(result(), {}, 130, links=links) for links in (False, True))
    begin, end = f"\x1b]8;;{Path(LONG).as_uri()}#t=3.0\x1b\\", "\x1b]8;;\x1b\\"
    assert begin in linked[3]
    assert plain[3] == linked[3].replace(begin, "").replace(end, "")


def test_wide_characters_count_twice_and_home_is_shortened(monkeypatch: pytest.MonkeyPatch) -> None:
    """As terminals draw them, and as people write it."""
    assert wrap("\u732b\u732b\u732b", 4) == ["\u732b\u732b", "\u732b"]
    monkeypatch.setenv("HOME", "/home/someone")
    assert shorten_home("/home/someone/videos") == "~/videos"
    assert shorten_home("/home/someoneelse") == "/home/someoneelse"


def picture() -> bytes:
    """A JPEG, wider than high."""
    stream = io.BytesIO()
    Image.new("RGB", (30, 20), (200, 30, 30)).save(stream, "JPEG")
    return stream.getvalue()


def test_encodes_images_for_each_terminal() -> None:
    """What is sent is the picture: decoded again, or pluralize."""
    sent = results.kitty(picture())
    assert sent.startswith("\x1b_Ga=T,f=100,r=8,m=0;")
    data = sent.split(";", 1)[1].removesuffix("\x1b\\")
    with Image.open(io.BytesIO(base64.b64decode(data))) as opened:
        assert (opened.format, opened.size) == ("PNG", (30, 20))
    sent = results.iterm2(picture())
    assert base64.b64decode(sent.rsplit(":", 1)[1].removesuffix("\a")) == picture()
    sent = results.sixel(picture())
    assert sent.startswith('\x1bP0;1q"1;1;240;160#0;2;')
    assert sent.count("-") == 27  # Bands of six rows.
    assert "!240~" in sent  # A whole band of one colour.


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"TERM": "xterm-kitty"}, results.kitty),
        ({"TERM_PROGRAM": "iTerm.app"}, results.iterm2),
        ({"TERM": "foot"}, results.sixel),
        ({"TERM": "xterm-256color"}, None),
    ],
)
def test_detects_image_support(
    environment: dict[str, str], expected: Callable[[bytes], str] | None
) -> None:
    """Nothing is drawn where it would be noise."""
    assert results.detect_images(environment) is expected


def test_first_installed_player_starts_at_the_moment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """mpv before vlc before the browser; a file that is gone is not played."""
    found = {"mpv", "vlc"}
    monkeypatch.setattr(results.shutil, "which", lambda name: name if name in found else None)
    assert results.player_command("/a.mp4", 12.5) == ["mpv", "--start=12.50", "--", "/a.mp4"]
    found.remove("mpv")
    assert results.player_command("/a.mp4", 3) == ["vlc", "--start-time=3.00", "/a.mp4"]
    found.clear()
    opened: list[str] = []
    monkeypatch.setattr(results.webbrowser, "open", lambda url: opened.append(url) or True)
    film = tmp_path / "a film.mp4"
    with pytest.raises(UsageError, match="no longer exists"):
        results.play(str(film), 1)
    film.touch()
    assert results.play(str(film), 1.5) == "the browser"
    assert opened == [f"{film.as_uri()}#t=1.50"]


def test_prompts_until_an_empty_line_and_plays_numbers(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Errors do not end the talk."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    lines = iter(["a red car", "2", "9", "bad", ""])
    monkeypatch.setattr("builtins.input", lambda prompt: next(lines))
    played: list[tuple[str, float]] = []
    monkeypatch.setattr(results, "play", lambda path, start: played.append((path, start)) or "mpv")
    shown: list[SearchResult] = []

    def find(line: str) -> SearchResult:
        if line == "bad":
            raise UsageError("cannot be searched")
        return result()

    queries.ask_repeatedly(find, shown.append)
    assert len(shown) == 1
    assert played == [(PATHS[1], 8000.0)]
    said = capsys.readouterr().err
    assert "no result 9" in said
    assert "cannot be searched" in said
