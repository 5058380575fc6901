"""What is said is found by its meaning: indexed, kept up to date, ranked with words, labelled."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from eaglenet.cli.main import app
from eaglenet.indexing import index as index_module
from eaglenet.indexing.index import IndexOptions, index_videos
from eaglenet.indexing.report import IndexReport
from eaglenet.models import light_model
from eaglenet.search.engine import Engine
from eaglenet.search.query import Query
from eaglenet.store.store import LocalStore
from eaglenet.transcripts import subtitles
from small_videos import colour_video
from synthetic_store import BagMethod

POLICE = "the police arrested two men after a long chase on the motorway"
SALT = "add a pinch of salt and let it simmer for ten minutes"
LAPTOP = "my laptop won't start since I spilled coffee on it"
COLOURS = (["red"], ["green"], ["blue"], ["red", "blue"])
ITALIAN = "il vecchio guardiano del faro ha perso le chiavi della macchina"


def write_subtitles(path: Path, *texts: str) -> None:
    cues = (
        f"{number}\n00:00:0{number},000 --> 00:00:0{number},900\n{text}\n"
        for number, text in enumerate(texts, 1)
    )
    path.write_text("\n".join(cues))


def index(folder: Path, method: BagMethod) -> IndexReport:
    options = IndexOptions(workers=0)
    return index_videos([folder / "v"], folder / "store", "bag", method=method, options=options)


@pytest.fixture(scope="module")
def original(bag: BagMethod, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four videos in each of which one thing is said, and their store."""
    folder = tmp_path_factory.mktemp("meaning")
    videos = folder / "v"
    videos.mkdir()
    halves = POLICE.split(" after ")
    talk = {"a": [halves[0], f"after {halves[1]}"], "b": [SALT], "c": [LAPTOP], "d": [ITALIAN]}
    for number, (name, texts) in enumerate(talk.items()):
        colour_video(videos / f"{name}.mp4", COLOURS[number])
        write_subtitles(videos / f"{name}.srt", *texts)
    assert index(folder, bag).transcript_lines == 5
    return folder


@pytest.fixture
def folder(original: Path, bag: BagMethod, tmp_path: Path) -> Path:
    """The same, to be written to."""
    shutil.copytree(original / "v", tmp_path / "v")
    index(tmp_path, bag)
    return tmp_path


@pytest.fixture
def engine(original: Path, bag: BagMethod) -> Engine:
    return Engine.open(original / "store", bag)


@pytest.mark.parametrize(
    ("query", "name", "text"),
    [
        ("suspects were caught by officers", "a.mp4", POLICE),
        ("cooking instructions", "b.mp4", SALT),
        ("a computer was damaged by a drink", "c.mp4", LAPTOP),
    ],
)
def test_other_words_find_what_is_said(engine: Engine, query: str, name: str, text: str) -> None:
    hit = engine.search(query, modalities="speech")[0]
    assert (Path(hit.path).name, hit.matched_in) == (name, ("speech",))
    line = hit.transcript[0]
    assert (line.text, line.by_meaning, line.highlights) == (text, True, ())
    assert hit.to_dict()["transcript"][0]["by_meaning"] is True


def test_a_window_of_two_lines_is_a_moment_of_both(engine: Engine) -> None:
    hit = engine.search("suspects were caught by officers", modalities="speech")[0]
    assert (hit.moment.start, hit.moment.end) == (1.0, 2.9)


def test_words_come_first_and_are_shown_once(engine: Engine) -> None:
    hits = engine.search("a pinch of salt", modalities="speech")
    assert Path(hits[0].path).name == "b.mp4"
    (line,) = hits[0].transcript
    assert (line.by_meaning, bool(line.highlights)) == (False, True)
    assert hits[0].score > 0.9


def test_the_meaning_counts_beside_frames_if_it_is_near(engine: Engine) -> None:
    hits = engine.search("suspects were arrested by the cops")
    first = next(hit for hit in hits if Path(hit.path).name == "a.mp4")
    assert first.rank == 1
    assert "speech" in first.matched_in
    for hit in engine.search("red"):
        assert (hit.matched_in, hit.transcript) == (("visual",), ())


def test_phrases_filters_negatives_and_modalities_apply(engine: Engine) -> None:
    query = "suspects were caught by officers"
    assert engine.search(f'"{query}"', modalities="speech") == []
    names = {
        Path(hit.path).name for hit in engine.search(query, modalities="speech", path="*b.mp4")
    }
    assert names <= {"b.mp4"}
    assert engine.search(query, modalities="screen-text") == []
    negative = engine.search(Query(query, negatives=("motorway chase",)), modalities="speech")
    assert "a.mp4" not in {Path(hit.path).name for hit in negative}


def test_other_languages_are_found_by_their_words_alone(engine: Engine) -> None:
    assert engine.snapshot.num_windows == 3
    assert (
        engine.search("la mia sorella ha trovato un portafoglio", modalities="speech")[0]
        .transcript[0]
        .by_meaning
        is False
    )
    assert engine.search("guardiano", modalities="speech")[0].transcript[0].text == ITALIAN


def test_a_store_without_windows_gets_them_without_decoding(
    folder: Path, bag: BagMethod, monkeypatch: pytest.MonkeyPatch
) -> None:
    with LocalStore.write(folder / "store") as writer:
        with writer.transaction() as change:
            change.connection.execute("DELETE FROM windows")
        writer.finish()
    engine = Engine.open(folder / "store", bag)
    query = "suspects were caught by officers"
    assert engine.search(query, modalities="speech") == []
    assert not list((folder / "store" / "segments").glob("*.meanings"))
    monkeypatch.setattr(index_module, "find_executor", lambda name: None)
    report = index(folder, bag)
    assert (report.indexed, report.transcript_lines) == (0, 0)
    assert Path(engine.search(query, modalities="speech")[0].path).name == "a.mp4"
    LocalStore.open(folder / "store").verify()


def test_vectors_of_another_encoder_are_not_compared_and_replaced(
    folder: Path, bag: BagMethod, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(light_model, "MEANING_FORMAT", "windows 0")
    engine = Engine.open(folder / "store", bag)
    query = "suspects were caught by officers"
    assert engine.search(query, modalities="speech") == []
    index(folder, bag)
    assert len(engine.snapshot.encoders) == 1
    assert Path(engine.search(query, modalities="speech")[0].path).name == "a.mp4"


def test_changed_and_removed_subtitles_change_the_windows(folder: Path, bag: BagMethod) -> None:
    write_subtitles(folder / "v" / "a.srt", "we planted tomatoes and beans behind the garage")
    (folder / "v" / "b.srt").unlink()
    index(folder, bag)
    engine = Engine.open(folder / "store", bag)
    assert engine.search("suspects were caught by officers", modalities="speech") == []
    assert engine.search("cooking instructions", modalities="speech") == []
    hits = engine.search("growing vegetables at home", modalities="speech")
    assert [Path(hit.path).name for hit in hits] == ["a.mp4"]


def test_the_command_says_that_a_line_was_found_by_its_meaning(
    original: Path, bag: BagMethod, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = Engine.open(original / "store", bag)
    monkeypatch.setattr(Engine, "open", lambda *_: opened)
    arguments = ["search", "cooking instructions", "--store", str(original / "store")]
    shown = CliRunner().invoke(app, [*arguments, "--in", "speech"])
    assert f"speech {SALT} (by meaning)" in shown.output


def test_lines_stay_while_the_folder_of_their_subtitles_cannot_be_read(
    folder: Path, bag: BagMethod, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: str) -> None:
        raise PermissionError(13, "Permission denied", path)

    readable = subtitles.os
    functions = {**vars(readable), "scandir": refuse}
    monkeypatch.setattr(subtitles, "os", SimpleNamespace(**functions))
    reasons = {problem.path: problem.reason for problem in index(folder, bag).problems}
    assert reasons == {str(folder / "v"): "subtitles: Permission denied; index again to read them"}
    engine = Engine.open(folder / "store", bag)
    assert engine.snapshot.num_lines == 5
    monkeypatch.setattr(subtitles, "os", readable)
    (folder / "v" / "b.srt").unlink()
    assert index(folder, bag).problems == ()
    assert engine.snapshot.num_lines == 4
