"""Full-text search in transcripts."""

from __future__ import annotations

from pathlib import Path

import pytest
from made_store import changes_of, content_of, fill, make_lines, make_manifest

from eaglenet.store.database import read_state
from eaglenet.store.records import Changes, Line, LineQuery, Phrase, Source, SourceLines
from eaglenet.store.snapshot import OutdatedError, Snapshot
from eaglenet.store.store import LocalStore
from eaglenet.store.transcripts import edit_distance, text_checksum


def texts_of(snapshot: Snapshot, query: LineQuery, limit: int = 10) -> list[str]:
    return [hit.line.text for hit in snapshot.find_lines(query, limit)]


def store_of(folder: Path, *texts: str, kind: str = "subtitle") -> Snapshot:
    lines = [Line(float(n), n + 1.0, "", text, text.lower()) for n, text in enumerate(texts)]
    source = Source(content_of(0), kind, "", 0, 0, "test", "done")  # type: ignore[arg-type]
    with LocalStore.write(folder, make_manifest()) as writer:
        writer.commit(changes_of(0))
        writer.commit(Changes(transcripts=[SourceLines(source, lines)]))
        writer.finish()
    return LocalStore.open(folder).snapshot()


def test_english_words_are_stemmed(tmp_path: Path) -> None:
    snapshot = store_of(tmp_path / "store", "He was running home", "She walks", "A horse")
    assert texts_of(snapshot, LineQuery(("run",))) == ["He was running home"]
    assert texts_of(snapshot, LineQuery(("walking",))) == ["She walks"]
    assert texts_of(snapshot, LineQuery(("horses",))) == ["A horse"]


def test_languages_of_lines_are_known(tmp_path: Path) -> None:
    lines = [
        Line(float(n), n + 1.0, language, "a word", "a word")
        for n, language in enumerate(["de-AT", "pt_BR", "", "language", "42"])
    ]
    source = Source(content_of(0), "subtitle", "", 0, 0, "test", "done")
    with LocalStore.write(tmp_path / "store", make_manifest()) as writer:
        writer.commit(Changes(transcripts=[SourceLines(source, lines)]))
        codes = ("de", "pt", "fr", "at", "a")
        assert LocalStore.open(tmp_path / "store").snapshot().languages(codes) == ["de", "pt"]
        writer.commit(Changes(transcripts=[SourceLines(source, lines[1:])]))
        assert LocalStore.open(tmp_path / "store").snapshot().languages(codes) == ["pt"]


def test_prefixes_and_phrases(tmp_path: Path) -> None:
    snapshot = store_of(
        tmp_path / "store",
        "no entry for vehicles",
        "entry is allowed, no doubt",
        "no " + "word " * 20 + "entry",
    )
    assert texts_of(snapshot, LineQuery(("vehic*",))) == ["no entry for vehicles"]
    assert texts_of(snapshot, LineQuery(phrases=(Phrase(("no", "entry")),))) == [
        "no entry for vehicles"
    ]
    near = {
        gap: set(texts_of(snapshot, LineQuery(phrases=(Phrase(("no", "entry"), gap),))))
        for gap in (0, 1, 2, 20)
    }
    assert near[0] == near[1] == {"no entry for vehicles"}
    assert near[2] == {"no entry for vehicles", "entry is allowed, no doubt"}
    assert len(near[20]) == 3


def test_terms_beside_a_phrase_rank_and_do_not_exclude(tmp_path: Path) -> None:
    snapshot = store_of(tmp_path / "store", "no entry here", "no entry for cars", "cars")
    query = LineQuery(("cars",), (Phrase(("no", "entry")),))
    assert texts_of(snapshot, query) == ["no entry for cars", "no entry here"]


def test_operators_of_the_query_language_are_words(tmp_path: Path) -> None:
    snapshot = store_of(tmp_path / "store", "this and that", 'a "quoted" word', "near the sea")
    for term in ("and", '"quoted"', "near", "a)(", "terms:x", "*", "^", 'x" OR "sea', "\0"):
        snapshot.find_lines(LineQuery((term,)), 5)
    assert texts_of(snapshot, LineQuery(("and",))) == ["this and that"]
    assert texts_of(snapshot, LineQuery(("content1",))) == []
    assert texts_of(snapshot, LineQuery(("subtitle",))) == []


def test_scripts_without_spaces_are_found_by_pairs(tmp_path: Path) -> None:
    lines = [Line(0.0, 1.0, "zh", "红色汽车", "红色 色汽 汽车 红 色 汽 车")]
    source = Source(content_of(0), "speech", "", 0, 0, "test", "done", lines=1)
    with LocalStore.write(tmp_path / "store", make_manifest()) as writer:
        writer.commit(changes_of(0))
        writer.commit(Changes(transcripts=[SourceLines(source, lines)]))
    snapshot = LocalStore.open(tmp_path / "store").snapshot()
    assert texts_of(snapshot, LineQuery(("汽车",))) == ["红色汽车"]
    assert texts_of(snapshot, LineQuery(phrases=(Phrase(("红色", "色汽")),))) == ["红色汽车"]
    assert texts_of(snapshot, LineQuery(("飞机",))) == []


def test_marks_belong_to_words(tmp_path: Path) -> None:
    snapshot = store_of(tmp_path / "store", "हिन्दी में", "été")
    assert texts_of(snapshot, LineQuery(("हिन्दी",))) == ["हिन्दी में"]
    assert texts_of(snapshot, LineQuery(("ह",))) == []


def test_spelling_mistakes(tmp_path: Path) -> None:
    snapshot = store_of(tmp_path / "store", "The elephant and the giraffe", "a red car")
    assert snapshot.similar_terms("elefant") == ["elephant"]
    assert snapshot.similar_terms("giraf") == []
    assert snapshot.similar_terms("girafe") == ["giraffe"]
    assert snapshot.similar_terms("car") == []
    assert snapshot.similar_terms("zzzzzz") == []


def test_short_words_are_corrected_by_any_single_edit(tmp_path: Path) -> None:
    snapshot = store_of(tmp_path / "store", "the world is a bike")
    for wrong in ("wrold", "woold", "wold", "xorld", "orld", "worl", "worle"):
        assert snapshot.similar_terms(wrong) == ["world"], wrong
    assert snapshot.similar_terms("bake") == ["bike"]
    assert snapshot.similar_terms("biked") == ["bike"]
    for unlike in ("wrodl", "blue", "b?ke", "w*ld", "[a-z]"):
        assert snapshot.similar_terms(unlike) == [], unlike


def test_lines_of_some_kinds_and_files(tmp_path: Path) -> None:
    snapshot = fill(tmp_path / "store", 4).snapshot()
    ids = {hit.content: hit.content_id for hit in snapshot.find_lines(LineQuery(("car",)), 9)}
    assert len(ids) == 4
    content_ids = [ids[content_of(1)], ids[content_of(3)]]
    hits = snapshot.find_lines(LineQuery(("car",)), 9, content_ids)
    assert sorted(hit.content for hit in hits) == sorted([content_of(1), content_of(3)])
    assert snapshot.find_lines(LineQuery(("car",), kinds=("speech", "text")), 9) == []
    assert snapshot.find_lines(LineQuery(("car",), kinds=("speech", "subtitle")), 9, []) == []
    assert len(snapshot.find_lines(LineQuery(("car",)), 2)) == 2


def test_a_source_goes_on_where_it_stopped(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    source = Source(content_of(0), "speech", "", 0, 0, "listener", "done", until=20.0, lines=6)
    lines = [Line(5.0 * n, 5.0 * n + 4, "en", f"line {n}", f"line {n}") for n in range(6)]
    with LocalStore.write(folder, make_manifest()) as writer:
        writer.commit(changes_of(0))
        writer.commit(Changes(transcripts=[SourceLines(source, lines[:4])]))
        more = SourceLines(source, lines[2:], keep_until=10.0)
        writer.commit(Changes(transcripts=[more]))
        assert writer.sources()[source.key] == source
        writer.commit(Changes(transcripts=[SourceLines(source, [], keep_until=float("inf"))]))
        assert writer.sources()[source.key].lines == len(lines)
    snapshot = LocalStore.open(folder).snapshot()
    ((stored, kept),) = snapshot.transcripts(["speech"])
    assert stored == source
    assert kept == lines


def test_removed_sources_are_not_found(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    store = fill(folder, 2)
    with LocalStore.write(folder) as writer:
        writer.commit(Changes(removed_sources=[make_lines(0).source.key]))
        writer.finish()
    snapshot = store.snapshot()
    assert {hit.content for hit in snapshot.find_lines(LineQuery(("car",)), 9)} == {content_of(1)}
    assert snapshot.num_lines == 3
    store.verify()


def test_a_reader_that_stays_open_verifies_after_changes(tmp_path: Path) -> None:
    """The changes are many enough for FTS5 to merge what the reader has seen."""
    folder = tmp_path / "store"
    store = fill(folder, 6)
    for numbers in ((1, 2, 4), (0, 3)):
        assert store.snapshot().find_lines(LineQuery(("car",)), 9)
        store.verify()
        with LocalStore.write(folder) as writer:
            for number in range(6, 26):
                writer.commit(changes_of(number))
            for number in (*numbers, *range(6, 26)):
                writer.commit(Changes(removed_sources=[make_lines(number).source.key]))
            writer.finish()
        store.verify()
    assert store.snapshot().num_lines == 3


def test_a_repaired_full_text_index_has_its_checksum(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    fill(folder, 6).database.close()
    LocalStore.repair(folder)
    database = LocalStore.open(folder).database
    assert read_state(database).text_checksum == text_checksum(database.connection)


@pytest.mark.parametrize(
    ("one", "other", "distance"),
    [("", "", 0), ("abc", "abc", 0), ("abc", "acb", 1), ("abc", "abd", 1), ("abcd", "xyzw", 3)],
)
def test_edit_distance(one: str, other: str, distance: int) -> None:
    assert edit_distance(one, other, 2) == distance


def test_a_phrase_reads_a_limited_part_of_hostile_transcripts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The index stems words, so that lines with "no entries" have to be read for "no entry"."""
    from eaglenet.search import transcripts
    from eaglenet.search.query import TranscriptQuery

    read: list[int] = []

    def analyse(text: str) -> object:
        read.append(len(text))
        return original(text)

    original = transcripts.analyse
    monkeypatch.setattr(transcripts, "analyse", analyse)
    monkeypatch.setattr(transcripts, "MAX_READ_CHARACTERS", 100_000)
    snapshot = store_of(tmp_path / "store", *["no entries " * 100] * 200)
    for query in ('"no entry"', '"no entry"~9'):
        hits = transcripts._find_lines(snapshot, TranscriptQuery.parse(query), ("subtitle",), None)
        assert hits == []
        assert 90_000 < sum(read) <= 100_000
        read.clear()


def test_transcripts_that_change_while_they_are_read_are_not_given_in_part(tmp_path: Path) -> None:
    snapshot = fill(tmp_path, 2).snapshot()
    transcripts = snapshot.transcripts()
    assert len(next(transcripts)[1]) == 3
    source, lines = make_lines(1).source, make_lines(1).lines
    with LocalStore.write(tmp_path) as writer:
        writer.commit(Changes(transcripts=[SourceLines(source, lines[:2])]))
    with pytest.raises(OutdatedError):
        next(transcripts)
