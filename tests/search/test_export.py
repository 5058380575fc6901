"""Transcripts of a store as subtitle files, read back by other readers."""

import itertools
import json
from pathlib import Path

import pysubs2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageFont
from typer.testing import CliRunner

from eaglenet.cli.main import app
from eaglenet.core.errors import UsageError
from eaglenet.indexing.index import IndexOptions, index_videos
from eaglenet.search.engine import Engine
from eaglenet.search.export import (
    BORDER,
    GAP,
    STRIP,
    TILE,
    Transcript,
    drawable,
    load_font,
    read_transcripts,
    write_contact_sheet,
    write_transcript,
)
from eaglenet.search.hits import SearchResult
from eaglenet.search.query import Query
from eaglenet.transcripts.lines import TranscriptLine
from eaglenet.transcripts.subtitles import format_subtitles, read_subtitles
from subtitled import write_with_subtitles
from synthetic_store import BagMethod

SAID = [
    (0.5, 2.0, "Who took my umbrella?"),
    (2.5, 3.25, "00:00:09,000 --> 00:00:10,000"),
    (4.0, 6.0, "Tom & <Jerry>"),
]


@pytest.fixture(scope="module")
def store(bag: BagMethod, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A film with German subtitles inside and English ones beside it, and one without any."""
    folder = tmp_path_factory.mktemp("transcripts") / "films"
    folder.mkdir()
    write_with_subtitles(folder / "film.mkv", [(1.0, 2.0, "Guten Tag")])
    (folder / "film.en.srt").write_text(
        "\n".join(
            f"{number}\n00:00:0{start:.3f} --> 00:00:0{end:.3f}\n{text}\n".replace(".", ",")
            for number, (start, end, text) in enumerate([(0.5, 2.0, "Hello"), (2.5, 3.5, "Bye")], 1)
        )
    )
    write_with_subtitles(folder / "silent.mkv", [])
    store = folder.parent / "store"
    index_videos([folder], store, "bag", method=bag, options=IndexOptions(workers=0))
    return store


def test_command_shows_and_saves_a_transcript(store: Path, tmp_path: Path) -> None:
    run = CliRunner().invoke
    film = str(store.parent / "films" / "film.mkv")
    command = ["store", "transcript", film, "--store", str(store)]
    result = run(app, command)
    assert result.exit_code == 0, result.output
    titles = [each["language"] for each in json.loads(run(app, [*command, "--json"]).stdout)]
    assert sorted(titles) == ["de", "en"]
    english = str(titles.index("en") + 1)
    for name in ("out.srt", "out.vtt"):
        target = tmp_path / name
        result = run(app, [*command, "--source", english, "--save", str(target)])
        assert result.exit_code == 0, result.output
        assert "2 lines" in result.output
        events = pysubs2.load(str(target))
        assert [(event.start, event.end, event.plaintext) for event in events] == [
            (500, 2000, "Hello"),
            (2500, 3500, "Bye"),
        ]
    subtitles = store.parent / "films" / "film.en.srt"
    (tmp_path / "link.srt").symlink_to(subtitles)
    other = store.parent / "films" / "silent.srt"
    other.write_text("of another film")
    for path in (subtitles, tmp_path / "link.srt", other):
        content = path.read_text()
        result = run(app, [*command, "--source", english, "--save", str(path)])
        assert f"{path} may be the subtitles of" in str(result.exception)
        assert path.read_text() == content
    for name in (read_clip_id(store, film), "film.mkv"):  # As tables of hits print it.
        other_command = ["store", "transcript", name, "--store", str(store), "--json"]
        assert run(app, other_command).stdout == run(app, [*command, "--json"]).stdout


def test_a_name_in_several_indexed_folders_is_refused(
    store: Path, bag: BagMethod, tmp_path: Path
) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        write_with_subtitles(tmp_path / folder / "film.mkv", [(1.0, 2.0, folder)])
    folders, options = [tmp_path / "a", tmp_path / "b"], IndexOptions(workers=0)
    index_videos(folders, tmp_path / "store", "bag", method=bag, options=options)
    engine = Engine.open(tmp_path / "store", bag)
    with pytest.raises(UsageError, match="several files have this name"):
        read_transcripts(engine, "film.mkv")
    (transcript,) = read_transcripts(engine, str(tmp_path / "b" / "film.mkv"))
    assert [line.text for line in transcript.lines] == ["b"]


def read_clip_id(store: Path, path: str) -> str:
    snapshot = Engine.open(store).snapshot
    return next(
        clip.id
        for clip in snapshot.clips(range(len(snapshot)))
        if path in snapshot.files([clip.content_id]).paths[0]
    )


def test_files_without_transcripts_and_wrong_names_are_refused(store: Path, tmp_path: Path) -> None:
    engine = Engine.open(store)
    assert read_transcripts(engine, str(store.parent / "films" / "silent.mkv")) == []
    for name in ("/etc/passwd", "../film.mkv", "\x00", "0123456789abcdef-0"):
        with pytest.raises(UsageError):
            read_transcripts(engine, name)
    transcript = Transcript("speech", "en", "", (TranscriptLine(0, 1, "a"),))
    with pytest.raises(UsageError, match=r"\.srt or \.vtt"):
        write_transcript(tmp_path / "a.txt", transcript)
    with pytest.raises(UsageError, match="cannot be written"):
        write_transcript(tmp_path / "none" / "a.srt", transcript)
    run = CliRunner().invoke
    silent = ["store", "transcript", str(store.parent / "films" / "silent.mkv")]
    result = run(app, [*silent, "--store", str(store)])
    assert "has no transcript" in str(result.exception)
    result = run(app, [*silent, "--store", str(store), "--source", "7"])
    assert "--source 7" in str(result.exception)


@pytest.mark.parametrize("suffix", [".srt", ".vtt"])
def test_texts_cannot_forge_cues(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a{suffix}"
    write_transcript(path, Transcript("speech", "", "", tuple(TranscriptLine(*x) for x in SAID)))
    assert [(line.start, line.end) for line in read_subtitles(path)] == [
        (start, end) for start, end, _ in SAID
    ]
    assert len(pysubs2.load(str(path))) == len(SAID)
    if suffix == ".vtt":
        assert read_subtitles(path)[2].text == "Tom & <Jerry>"


@settings(max_examples=40)
@given(
    st.lists(
        st.tuples(st.integers(0, 10**8), st.integers(1, 10**6), st.text(max_size=40)), max_size=9
    ),
    st.booleans(),
)
def test_every_text_makes_one_cue(rows: list[tuple[int, int, str]], is_webvtt: bool) -> None:
    lines = [TranscriptLine(a / 1000, (a + b) / 1000, text or "x") for a, b, text in rows]
    text = format_subtitles(lines, is_webvtt=is_webvtt)
    assert text.count(" --> ") == len(lines)
    assert all("-->" not in row or row.count(":") >= 4 for row in text.split("\n"))


def test_a_contact_sheet_shows_an_image_once(bag: BagMethod, tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    Image.new("RGB", (64, 48), (200, 30, 30)).save(tmp_path / "images" / "red.png")
    options = IndexOptions(workers=0, precision="fp32")
    index_videos([tmp_path / "images"], tmp_path / "store", "bag", options=options, method=bag)
    with Engine.open(tmp_path / "store", bag) as engine:
        results = [SearchResult(Query("red"), engine.search("red"))]
        write_contact_sheet(tmp_path / "sheet.png", engine, results)
    with Image.open(tmp_path / "sheet.png") as sheet:
        reds = [sheet.getpixel((x, sheet.height // 2))[1] < 90 for x in range(sheet.width)]
    assert 0 < sum(reds) < STRIP / 3


def test_a_contact_sheet_writes_accents_whatever_the_fonts() -> None:
    """The font of Pillow, where there is no other, would draw an empty box for each of them."""
    assert drawable("Zoe\u0301 Łódź 日.mp4", ImageFont.load_default(12)) == "Zoe ?odz ?.mp4"
    font = load_font(12)
    if "DejaVu" in font.getname()[0]:
        assert drawable("Zoe\u0301 Łódź", font) == "Zoé Łódź"
    assert drawable("a\nb", font) == "a b"


def test_each_letter_of_a_contact_sheet_is_looked_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looking up a letter takes 0.2 ms; a sheet has thousands."""
    font = load_font(13)
    letters = []
    get_mask = type(font).getmask
    monkeypatch.setattr(
        type(font), "getmask", lambda self, text: letters.append(text) or get_mask(self, text)
    )
    assert drawable("banana " * 20, font) == "banana " * 20
    assert sorted(letters) == ["a", "b", "n", *"\uffff" * 3]


def test_a_contact_sheet_continues_in_the_next_row(bag: BagMethod, tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    for number in range(7):
        colour = (30 * number + 10, 200 - 20 * number, 90)
        Image.new("RGB", (64, 48), colour).save(tmp_path / "images" / f"{number}.png")
    options = IndexOptions(workers=0, precision="fp32")
    index_videos([tmp_path / "images"], tmp_path / "store", "bag", options=options, method=bag)
    with Engine.open(tmp_path / "store", bag) as engine:
        results = [
            SearchResult(Query("red"), engine.search("red", k=k, keep_duplicates=True))
            for k in (7, 2)
        ]
        write_contact_sheet(tmp_path / "sheet.png", engine, results)
    assert len(results[0].hits) == 7
    with Image.open(tmp_path / "sheet.png") as sheet:
        # Frames of images are squares of TILE pixels: count them in the first column of each row.
        column = [sheet.getpixel((GAP + BORDER + TILE // 2, y)) for y in range(sheet.height)]
    is_frame = [abs(pixel[2] - 90) < 3 for pixel in column]
    num_rows = sum(b and not a for a, b in itertools.pairwise(is_frame))
    assert num_rows == 3
