"""What is said in videos: indexed by itself, kept up to date, found, highlighted and fused."""

from __future__ import annotations

import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import CliRunner

from eaglenet.cli.main import app
from eaglenet.core.errors import StoreError, UsageError
from eaglenet.indexing.index import IndexOptions, index_videos
from eaglenet.indexing.report import IndexReport
from eaglenet.search.engine import Engine
from eaglenet.search.hit import Hit
from eaglenet.search.options import Filters, SearchOptions
from eaglenet.search.query import Query, TranscriptQuery
from eaglenet.search.transcripts import explain_no_match, rank_clips
from eaglenet.store.records import Changes
from eaglenet.store.store import LocalStore
from small_videos import colour_video
from subtitled import write_with_subtitles
from synthetic_store import BagMethod

ENGLISH = (
    "1\n00:00:01,000 --> 00:00:02,000\nHello <i>brave</i> new world\n\n"
    "2\n00:00:03,500 --> 00:00:04,000\nIt is all yours, dogs and cats\n"
)
GERMAN = "WEBVTT\n\n00:01.000 --> 00:02.500\nDie gro\u00dfe Stra\u00dfe ist leer\n"
RUSSIAN = "\u0441 \u043c\u0430\u0448\u0438\u043d\u043e\u0439"
CHINESE = "\u4ed6\u5f00\u4e00\u8f86\u7ea2\u8272\u7684\u6c7d\u8f66"


def index(folder: Path, method: BagMethod, **options: object) -> IndexReport:
    changes = IndexOptions(workers=0, **options)  # type: ignore[arg-type]
    return index_videos([folder / "v"], folder / "store", "bag", method=method, options=changes)


@pytest.fixture(scope="session")
def original(bag: BagMethod, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder ``v`` with two subtitle files, one video with subtitles inside, and its store."""
    folder = tmp_path_factory.mktemp("words")
    videos = folder / "v"
    videos.mkdir()
    colour_video(videos / "film.mp4", ["red", "green"])
    colour_video(videos / "other.mp4", ["blue"])
    (videos / "film.en.srt").write_text(ENGLISH)
    (videos / "other.de.vtt").write_text(GERMAN, "utf-8")
    (videos / "other.srt").write_bytes(b"nonsense")
    write_with_subtitles(videos / "inner.mkv", [(2.0, 3.0, CHINESE)], language="chi", seconds=4)
    report = index(folder, bag)
    assert report.transcript_lines == 4
    return folder


@pytest.fixture
def folder(original: Path, bag: BagMethod, tmp_path: Path) -> Path:
    """The same, to be written to."""
    shutil.copytree(original / "v", tmp_path / "v")
    index(tmp_path, bag)
    return tmp_path


@pytest.fixture
def engine(original: Path, bag: BagMethod) -> Engine:
    """The store of subtitled videos, open for searching."""
    return Engine.open(original / "store", bag)


def texts_of(hits: list[Hit]) -> list[str]:
    return [line.text for hit in hits for line in hit.transcript]


def test_reports_broken_subtitles_and_indexes_the_rest(folder: Path, bag: BagMethod) -> None:
    report = index(folder, bag)
    assert [Path(problem.path).name for problem in report.problems] == ["other.srt"]
    assert "no line with start and end times" in report.problems[0].reason
    (folder / "v" / "other.srt").write_text(ENGLISH)
    report = index(folder, bag)
    assert (report.problems, report.transcript_lines) == ((), 2)


def test_finds_speech_with_its_moment_and_lines(engine: Engine) -> None:
    (hit, *_) = engine.search("the brave new world", modalities="speech")
    assert (Path(hit.path).name, hit.matched_in) == ("film.mp4", ("speech",))
    assert (hit.moment.start, hit.moment.end) == (1.0, 2.0)
    (line,) = hit.transcript
    assert (line.kind, line.language) == ("subtitle", "en")
    assert [line.text[start:end] for start, end in line.highlights] == ["brave new world"]
    json.dumps(hit.to_dict())


@pytest.mark.parametrize(
    ("query", "name", "lit"),
    [
        ("STRASSE", "other.mp4", ["Stra\u00dfe"]),
        ("grosse strassen", "other.mp4", ["gro\u00dfe Stra\u00dfe"]),
        ("dog", "film.mp4", ["dogs"]),
        ("\u7ea2\u8272\u6c7d\u8f66", "inner.mkv", ["\u7ea2\u8272", "\u6c7d\u8f66"]),
        ("\u8f66", "inner.mkv", ["\u8f66"]),
    ],
)
def test_finds_terms_in_any_language(engine: Engine, query: str, name: str, lit: list[str]) -> None:
    hits = engine.search(query, modalities="speech")
    assert [Path(hit.path).name for hit in hits] == [name]
    line = hits[0].transcript[0]
    assert [line.text[start:end] for start, end in line.highlights] == lit


@pytest.mark.parametrize(
    ("language", "text", "query", "lit"),
    [
        ("de", "Die Kinder spielen in alten H\u00e4usern", "Kind Haus", ["Kinder", "H\u00e4usern"]),
        ("fr", "Deux chevaux blancs", "cheval", ["chevaux"]),
        ("es", "Los perros corriendo", "perro correr", ["perros corriendo"]),
        ("it", "Le ragazze mangiano", "ragazza mangiare", ["ragazze mangiano"]),
        ("ru", RUSSIAN, "\u043c\u0430\u0448\u0438\u043d\u0430", [RUSSIAN[2:]]),
    ],
)
def test_finds_inflected_words_by_the_language_of_the_line(
    bag: BagMethod, tmp_path: Path, language: str, text: str, query: str, lit: list[str]
) -> None:
    (tmp_path / "v").mkdir()
    colour_video(tmp_path / "v" / "film.mp4", ["red"])
    subtitles = tmp_path / "v" / f"film.{language}.srt"
    subtitles.write_text(f"1\n00:00:00,500 --> 00:00:01,000\n{text}\n", "utf-8")
    index(tmp_path, bag)
    snapshot, parsed = LocalStore.open(tmp_path / "store").snapshot(), TranscriptQuery.parse(query)
    (match,) = rank_clips(snapshot, parsed, ["speech"])
    assert match.coverage == 1
    assert rank_clips(snapshot, parsed, ["speech"], negatives=[parsed]) == []
    line = match.lines[0]
    assert [line.text[start:end] for start, end in line.highlights] == lit


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ('"brave new"', 1),
        ('"new brave"', 0),
        ("\u201ebrave new\u201c hello", 1),
        ("\u300c\u7ea2\u8272\u7684\u6c7d\u8f66\u300d", 1),
        ("\u300c\u7ea2\u8272\u6c7d\u8f66\u300d", 0),
        ('"brave new" "all yours"', 0),
    ],
)
def test_quotes_enclose_exact_phrases(engine: Engine, query: str, found: int) -> None:
    assert len(engine.search(query, modalities="speech,screen-text")) == found


def test_phrases_match_transcripts_only(engine: Engine) -> None:
    assert [hit.matched_in for hit in engine.search('"brave new"')] == [("speech",)]
    assert engine.search('"new brave"') == []
    assert len(engine.search('"new brave"', modalities="visual")) == 3


def test_explains_why_no_line_matches(engine: Engine) -> None:
    both, spoken = SearchOptions(), SearchOptions(modalities=("speech", "screen-text"))
    lines = f"{engine.info()['transcript_lines']} transcript lines, none with"
    phrase = Query('"no such phrase"')
    advice = "remove the quotation marks to match words in any order"
    assert engine.why_empty(both, phrase) == f"{lines} this phrase; {advice} and search frames too"
    assert engine.why_empty(spoken, phrase) == f"{lines} this phrase; {advice}"
    reason = engine.why_empty(spoken, Query("zzz"))
    assert reason == f"{lines} these words; frames were not searched: search in visual, too"
    assert engine.why_empty(both, Query("a red car")) == ""
    filtered = SearchOptions(Filters(path="nowhere/*"), modalities=("speech",))
    assert "a path like 'nowhere/*'" in engine.why_empty(filtered, Query("zzz"))
    empty = explain_no_match(TranscriptQuery.parse('"a b"'), ("speech",), 0)
    assert "this store has none" in empty


def test_fuses_frames_and_transcripts(engine: Engine) -> None:
    hits = engine.search("hello brave new world", k=3)
    assert hits[0].transcript
    assert hits[0].matched_in == ("speech", "visual")
    assert [hit.matched_in for hit in hits[1:]] == [("visual",)] * 2
    assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
    assert 0 < hits[-1].score < hits[0].score <= 1
    assert {hit.clip_id for hit in hits} == {hit.clip_id for hit in engine.search("red", k=3)}


def test_common_words_alone_do_not_match(engine: Engine) -> None:
    """A word or two in common are chance."""
    query = "a green car is all fast"
    alone = engine.search(query, modalities="visual")
    assert engine.search(query) == alone


def test_filters_and_negatives_apply_to_transcripts(engine: Engine) -> None:
    assert engine.search("brave new world", modalities="speech", path="other*") == []
    assert len(engine.search("brave new world", modalities="speech", path="film*")) == 1
    assert engine.search(Query("brave new world", negatives=("hello",)), modalities="speech") == []


def test_a_line_with_the_whole_query_comes_before_two_that_share_its_words(
    tmp_path: Path, bag: BagMethod
) -> None:
    films = {
        "shared": ("The village doctor missed the last bus", "Her grandfather found a wallet"),
        "verbatim": ("The village doctor found a wallet", "Our teacher won the tournament"),
    }
    (tmp_path / "v").mkdir()
    for colour, (name, lines) in zip(("red", "blue"), films.items(), strict=True):
        colour_video(tmp_path / "v" / f"{name}.mp4", [colour])
        cues = (f"00:0{at}.000 --> 00:0{at}.900\n{text}" for at, text in enumerate(lines))
        (tmp_path / "v" / f"{name}.vtt").write_text("WEBVTT\n\n" + "\n\n".join(cues) + "\n")
    index(tmp_path, bag)
    hits = Engine.open(tmp_path / "store", bag).search(
        "the village doctor found a", modalities=("speech",)
    )
    assert [Path(hit.path).stem for hit in hits] == ["verbatim", "shared"]


def test_groups_transcript_hits_by_file(engine: Engine) -> None:
    assert len(engine.search("brave dogs", modalities="speech", group_files=True)) == 1


@pytest.mark.parametrize("modalities", ["sound", "", "visual,smell"])
def test_refuses_unknown_modalities(engine: Engine, modalities: str) -> None:
    with pytest.raises(UsageError, match="visual, speech, screen-text, descriptions"):
        engine.search("red", modalities=modalities)


def test_clips_are_searched_in_frames_only(engine: Engine) -> None:
    clip = engine.search("red", k=1)[0].clip_id
    assert engine.search(Query(clip_id=clip))
    with pytest.raises(UsageError, match="frames only"):
        engine.search(Query(clip_id=clip), modalities="speech")


@pytest.mark.parametrize(
    ("query", "lit"),
    [
        ("brav*", ["brave"]),
        ("bra* wor*", ["brave", "world"]),
        ("YOUR*", ["yours"]),
        ("wor* hel*", ["Hello", "world"]),
    ],
)
def test_star_stands_for_the_rest_of_a_word(engine: Engine, query: str, lit: list[str]) -> None:
    (hit,) = engine.search(query, modalities="speech")
    line = hit.transcript[0]
    assert [line.text[start:end] for start, end in line.highlights] == lit
    assert engine.search("b*", modalities="speech") == []
    assert TranscriptQuery.parse(query).plain == query.replace("*", "")


@pytest.mark.parametrize(
    ("query", "lit"), [("hallo", "Hello"), ("wrold", "world"), ("strase", "Stra\u00dfe")]
)
def test_misspelt_words_are_found_in_transcripts_alone(
    engine: Engine, query: str, lit: str
) -> None:
    (hit,) = engine.search(query, modalities="speech")
    line = hit.transcript[0]
    assert [line.text[start:end] for start, end in line.highlights] == [lit]
    # A word that nobody says describes what frames show: similar ones are no match for it.
    assert all(hit.matched_in == ("visual",) for hit in engine.search(query))
    assert engine.search(f'"{query}"', modalities="speech") == []


def test_words_are_found_by_their_stems_and_phrases_word_by_word(
    bag: BagMethod, tmp_path: Path
) -> None:
    (tmp_path / "v").mkdir()
    colour_video(tmp_path / "v" / "film.mp4", ["red"])
    (tmp_path / "v" / "film.srt").write_text("00:00:00,5 --> 00:00:01,5\nHe was running home\n")
    index(tmp_path, bag)
    engine = Engine.open(tmp_path / "store", bag)
    for query, lit in (("runs", "running"), ("homes run", "running home"), ("RUN", "running")):
        (hit,) = engine.search(query, modalities="speech")
        line = hit.transcript[0]
        assert [line.text[start:end] for start, end in line.highlights] == [lit]
        assert hit.metadata["transcript_score"] > 0.4
    assert len(engine.search('"running home"')) == 1
    assert engine.search('"runs home"') == []
    (hit,) = engine.search('"home he"~2')
    line = hit.transcript[0]
    assert [line.text[start:end] for start, end in line.highlights] == ["He", "home"]
    assert engine.search('"home he"~1') == []
    assert engine.search(Query("home", negatives=("runs",)), modalities="speech") == []


def test_updates_subtitles(folder: Path, bag: BagMethod) -> None:
    videos, engine = folder / "v", Engine.open(folder / "store", bag)
    assert index(folder, bag).transcript_lines == 0
    (videos / "film.en.srt").write_text(ENGLISH.replace("brave", "timid"))
    (videos / "film.fr.srt").write_text("00:00:01,0 --> 00:00:02,0\nbonjour tout le monde\n")
    assert index(folder, bag).transcript_lines == 3
    assert len(texts_of(engine.search("timid", modalities="speech"))) == 1
    assert texts_of(engine.search("brave", modalities="speech")) == []
    assert texts_of(engine.search("bonjour", modalities="speech")) == ["bonjour tout le monde"]
    (videos / "film.fr.srt").unlink()
    index(folder, bag)
    assert texts_of(engine.search("bonjour", modalities="speech")) == []


def test_removes_transcripts_with_their_file(folder: Path, bag: BagMethod) -> None:
    for name in ("film.mp4", "film.en.srt"):
        (folder / "v" / name).rename(folder / "v" / name.replace("film", "movie"))
    index(folder, bag, drop_missing=True)
    engine = Engine.open(folder / "store", bag)
    hits = engine.search("brave", modalities="speech")
    assert [Path(hit.path).name for hit in hits] == ["movie.mp4"]
    assert len(texts_of(hits)) == 1
    (folder / "v" / "movie.mp4").unlink()
    index(folder, bag, drop_missing=True)
    assert engine.search("brave", modalities="speech") == []
    assert engine.info()["transcript_lines"] == 2


def test_adds_transcripts_to_a_store_without(folder: Path, bag: BagMethod) -> None:
    store = folder / "store"
    with LocalStore.write(store) as writer:
        writer.commit(Changes(removed_sources=list(writer.sources())))
    engine = Engine.open(store, bag)
    assert engine.search("brave", modalities="speech") == []
    assert [hit.matched_in for hit in engine.search("brave")] == [("visual",)] * 3
    assert engine.info()["transcript_lines"] == 0
    report = index(folder, bag)
    assert (report.transcript_lines, report.indexed) == (4, 0)
    assert len(engine.search("\u6c7d\u8f66", modalities="speech")) == 1


def test_can_skip_subtitles(tmp_path: Path, bag: BagMethod, original: Path) -> None:
    shutil.copytree(original / "v", tmp_path / "v")
    report = index(tmp_path, bag, subtitles=False)
    assert (report.transcript_lines, report.problems) == (0, ())
    assert LocalStore.open(tmp_path / "store").snapshot().num_lines == 0


def test_repair_restores_a_damaged_index_of_transcripts(folder: Path, bag: BagMethod) -> None:
    store = folder / "store"
    assert LocalStore.open(store).verify().lines == 4
    with closing(sqlite3.connect(store / "store.db")) as connection:
        connection.execute("UPDATE words_data SET block = zeroblob(length(block)) WHERE id > 10")
        connection.commit()
    engine = Engine.open(store, bag)
    with pytest.raises(StoreError, match=r"full-text index of .* is damaged.*store repair"):
        engine.search("brave")
    assert len(engine.search("brave", modalities="visual")) == 3
    assert LocalStore.repair(store).lines == 4
    assert len(engine.search("brave", modalities="speech")) == 1


def test_command_prints_transcripts(
    original: Path, bag: BagMethod, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = Engine.open(original / "store", bag)
    monkeypatch.setattr(Engine, "open", lambda *_: opened)
    arguments = ["search", "brave new world", "--store", str(original / "store"), "--in", "speech"]
    shown = CliRunner().invoke(app, arguments)
    assert shown.exit_code == 0
    assert "speech Hello brave new world" in shown.output
    answer = json.loads(CliRunner().invoke(app, [*arguments, "--json"]).stdout)
    assert answer["hits"][0]["matched_in"] == ["speech"]
    assert answer["hits"][0]["transcript"][0]["highlights"] == [[6, 21]]
