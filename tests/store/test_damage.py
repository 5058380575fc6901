"""Damage: right results, or an error that names a part and a command, and that command works."""

from __future__ import annotations

import random
import shlex
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from index_run import index
from made_store import DIM, fill, make_batch

from eaglenet.core.errors import StoreError
from eaglenet.store.disk import DATABASE
from eaglenet.store.records import LineQuery
from eaglenet.store.repair import read_rows
from eaglenet.store.schema import COLUMNS, PAGE_SIZE
from eaglenet.store.segments import KINDS
from eaglenet.store.store import LocalStore
from sampling import one_in

FILES = 6


def everything(folder: Path) -> list[Any]:
    """Results of all kinds of reads."""
    store = LocalStore.open(folder)
    snapshot = store.snapshot()
    query = make_batch(0).vectors[0]
    # In double precision: the last bit of a product depends on the CPU and the order of the rows,
    # which is another one after a repair.
    parts = [part.astype(np.float64) @ query for _, part in snapshot.vector_parts()]
    scores = np.concatenate(parts).round(9)
    if snapshot.visible is not None:
        scores[~snapshot.visible] = -np.inf
    rows = np.argsort(-scores, kind="stable")[: len(snapshot)]
    clips = snapshot.clips(rows)
    nearest = snapshot.codes().nearest(query, 5, snapshot.visible)
    files = snapshot.files()
    lines = snapshot.find_lines(LineQuery(("car", "dog", "ticket")), 50)
    results: list[Any] = [
        [(clip.id, clip.start, clip.end) for clip in clips],
        sorted(clip.id for clip in snapshot.clips(nearest)),
        scores[rows].tolist(),
        [snapshot.features_at(np.array([row])).tobytes() for row in rows],
        [snapshot.thumbnail(int(row)) for row in rows],
        sorted(zip(files.contents, map(tuple, files.paths), files.sizes, strict=True)),
        sorted((hit.content, hit.line.text, hit.line.start) for hit in lines),
        sorted(snapshot.similar_terms("tickt")),
        snapshot.terms_beginning_with("tic", 9),
        snapshot.languages(("de", "en")),
        store.manifest.to_json(),
    ]
    return results


@pytest.fixture(scope="module")
def intact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("intact") / "store"
    fill(folder, FILES).database.close()
    return folder


@pytest.fixture(scope="module")
def expected(intact: Path) -> list[Any]:
    """What every kind of read gives."""
    return everything(intact)


def damage_randomly(path: Path, chance: random.Random) -> str:
    """Flip 1, 8 or 64 bits, zero a stretch, or cut the file."""
    content = bytearray(path.read_bytes())
    if not content:
        return "nothing"
    kind = chance.choice(["1", "8", "64", "zero", "cut"])
    if kind == "cut":
        del content[chance.randrange(len(content)) :]
    elif kind == "zero":
        start = chance.randrange(len(content))
        size = min(chance.choice([16, 512, 4096]), len(content) - start)
        content[start : start + size] = bytes(size)
    else:
        for _ in range(int(kind)):
            content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    path.write_bytes(bytes(content))
    return kind


def recover(folder: Path, message: str) -> None:
    """Run the command that an error names, and index again what it says is missing."""
    words = shlex.split(message.rpartition(": ")[2])
    assert words[:3] == ["eaglenet", "store", "repair"], message
    refusal = error_of(lambda: LocalStore.repair(Path(words[-1])))
    if refusal:
        # Not even the model is known any more: the error says how to begin again.
        assert "eaglenet index" in refusal
        folder.rename(folder.with_name("away"))
    index(folder, FILES)


def error_of(action: Callable[[], object]) -> str:
    """Message of a :class:`StoreError`; empty if there is none."""
    try:
        action()
    except StoreError as error:
        return str(error)
    return ""


def check(folder: Path, expected: list[Any]) -> str:
    """Read everything; where that is refused, recover and read again."""
    results: list[Any] = []
    refusal = error_of(lambda: results.extend(everything(folder)))
    if not refusal:
        assert results == expected
    refusal = refusal or error_of(LocalStore.open(folder).verify)
    if refusal:
        assert "\n" not in refusal
        recover(folder, refusal)
    assert everything(folder) == expected
    LocalStore.open(folder).verify()
    index(folder, FILES + 1)
    LocalStore.open(folder).verify()
    return "refused" if refusal and not results else "verified" if refusal else "harmless"


def trial(intact: Path, place: Path, seed: int, expected: list[Any]) -> str:
    chance = random.Random(seed)
    folder = place / "store"
    shutil.copytree(intact, folder)
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.stat().st_size)
    path = chance.choice(files)
    kind = damage_randomly(path, chance)
    try:
        return check(folder, expected)
    except BaseException as error:
        raise AssertionError(f"damage {seed}: {kind} in {path.name}") from error
    finally:
        shutil.rmtree(place)


def test_random_damage(intact: Path, expected: list[Any], tmp_path: Path) -> None:
    outcomes = [trial(intact, tmp_path / str(seed), seed, expected) for seed in range(15)]
    assert outcomes.count("refused") > 5


@pytest.mark.slow
def test_three_hundred_random_damages(intact: Path, expected: list[Any], tmp_path: Path) -> None:
    outcomes = [trial(intact, tmp_path / str(seed), seed, expected) for seed in range(1000, 1300)]
    print({outcome: outcomes.count(outcome) for outcome in sorted(set(outcomes))})


@pytest.mark.slow
def test_random_damage_to_the_database(intact: Path, expected: list[Any], tmp_path: Path) -> None:
    """Every page, several times."""
    size = (intact / DATABASE).stat().st_size
    for page in range(size // PAGE_SIZE):
        for seed in range(4):
            folder = tmp_path / f"{page} {seed}" / "store"
            shutil.copytree(intact, folder)
            chance = random.Random(1000 * page + seed)
            content = bytearray((folder / DATABASE).read_bytes())
            start = page * PAGE_SIZE
            if seed == 0:
                content[start : start + PAGE_SIZE] = bytes(PAGE_SIZE)
            for _ in range(4**seed if seed else 0):
                content[start + chance.randrange(PAGE_SIZE)] ^= 1 << chance.randrange(8)
            (folder / DATABASE).write_bytes(bytes(content))
            try:
                check(folder, expected)
            except BaseException as error:
                raise AssertionError(f"page {page}, seed {seed}") from error
            shutil.rmtree(folder.parent)


def change_row(table: str, column: str, value: object) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        connection = sqlite3.connect(folder / DATABASE)
        connection.execute(f'UPDATE {table} SET "{column}" = ? WHERE rowid = 1', (value,))
        connection.commit()
        connection.close()

    return change


def run_without_triggers(folder: Path, statement: str) -> None:
    """Change a table as a damaged page would: the totals stay as they were."""
    connection = sqlite3.connect(folder / DATABASE)
    triggers = connection.execute(
        "SELECT name, sql FROM sqlite_master WHERE type = 'trigger'"
    ).fetchall()
    for name, _ in triggers:
        connection.execute(f"DROP TRIGGER {name}")
    connection.execute(statement)
    for _, trigger in triggers:
        connection.execute(trigger)
    connection.commit()
    connection.close()


def remove_row(table: str) -> Callable[[Path], None]:
    return lambda folder: run_without_triggers(folder, f"DELETE FROM {table} WHERE rowid = 1")


def swap_rows(kind: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        (path,) = (folder / "segments").glob(f"*.{kind}")
        rows = np.frombuffer(path.read_bytes(), np.uint8).reshape(FILES * 4, -1).copy()
        rows[[2, 7]] = rows[[7, 2]]
        path.write_bytes(rows.tobytes())

    return change


def not_numbers(folder: Path) -> None:
    (path,) = (folder / "segments").glob("*.vectors")
    vectors = np.frombuffer(path.read_bytes(), np.float32).reshape(-1, DIM).copy()
    vectors[5] = np.nan
    path.write_bytes(vectors.tobytes())


def remove_files_of(kind: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        for path in (folder / "segments").glob(f"*.{kind}"):
            path.unlink()

    return change


def zero_page(number: int) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        with (folder / DATABASE).open("r+b") as stream:
            stream.seek(number * PAGE_SIZE)
            stream.write(bytes(PAGE_SIZE))

    return change


AIMED: dict[str, Callable[[Path], None]] = {
    "the version of the schema": lambda folder: _pragma(folder, "user_version = 0"),
    "the application id": lambda folder: _pragma(folder, "application_id = 7"),
    "a number of rows in totals": change_row("totals", "num_rows", 3),
    "a trigger": lambda folder: _run(folder, "DROP TRIGGER files_insert"),
    "vectors that are no numbers": not_numbers,
    "the name of a file": change_row("files", "path", "/etc/passwd"),
    "the state of a file": change_row("files", "status", "failed"),
    "the content of a file": change_row("files", "content_id", 2),
    "the hash of a content": change_row("contents", "hash", "0" * 32),
    "the time of a clip": change_row("clips", "start", 1e300),
    "the content of a clip": change_row("clips", "content_id", 77),
    "the next clip id": change_row("state", "next_clip_id", 1),
    "the next segment id": change_row("state", "next_segment_id", 1),
    "the version": change_row("state", "version", -5),
    "fewer rows of a segment": change_row("segments", "num_rows", 3),
    "more rows of a segment": change_row("segments", "num_rows", 10**9),
    "the checksums of a segment": change_row("segments", "block_checksums", b"\0" * 12),
    "the labels of a segment": change_row("segments", "labels_version", 9),
    "the text of a line": change_row("lines", "text", "Something else"),
    "the terms of a line": change_row("lines", "terms", "something else"),
    "the reader of a source": change_row("sources", "reader", "other"),
    "the manifest": change_row("manifest", "content", '{"model": "other"}'),
    "the copy of the manifest": change_row("manifest_copy", "content", "{}"),
    "an empty full-text index": lambda folder: _run(folder, "DELETE FROM words_data"),
    "a hole in the full-text index": lambda folder: _run(
        folder, "DELETE FROM words_data WHERE id = (SELECT max(id) FROM words_data)"
    ),
    "the format of a full-text index": lambda folder: _run(
        folder, "UPDATE term_trigrams_config SET k = 'v\"rsion'"
    ),
    "a setting of a full-text index": lambda folder: _run(
        folder, "INSERT INTO words_config VALUES ('pgsz', 7)"
    ),
    "another hidden clip": lambda folder: run_without_triggers(
        folder, "INSERT INTO hidden VALUES (2)"
    ),
    "a file to remove": lambda folder: _run(
        folder, "INSERT INTO obsolete VALUES ('000001.vectors')"
    ),
    "a path to remove": lambda folder: _run(folder, "INSERT INTO obsolete VALUES ('../store.db')"),
    "an empty database": lambda folder: (folder / DATABASE).write_bytes(b"") and None,
    "a text in place of the database": lambda folder: (
        (folder / DATABASE).write_text("not a database" * 1000) and None
    ),
    "garbage in the WAL": lambda folder: (
        (folder / f"{DATABASE}-wal").write_bytes(b"\x37\x7f\x06\x82" + bytes(range(256)) * 40)
        and None
    ),
    **{f"a missing row of {table}": remove_row(table) for table in COLUMNS},
    **{f"missing {kind}": remove_files_of(kind) for kind in KINDS},
    **{f"swapped {kind}": swap_rows(kind) for kind in KINDS if kind != "thumbnails"},
    **{f"page {number} zeroed": zero_page(number) for number in range(12)},
}


def _pragma(folder: Path, text: str) -> None:
    _run(folder, f"PRAGMA {text}")


def _run(folder: Path, statement: str) -> None:
    connection = sqlite3.connect(folder / DATABASE)
    connection.execute(statement)
    connection.commit()
    connection.close()


@pytest.mark.parametrize("name", one_in(3, AIMED))
def test_aimed_damage(name: str, intact: Path, expected: list[Any], tmp_path: Path) -> None:
    folder = tmp_path / "store"
    shutil.copytree(intact, folder)
    AIMED[name](folder)
    check(folder, expected)


def test_there_are_fifty_aimed_damages() -> None:
    assert len(AIMED) >= 50


def test_a_damaged_clip_costs_only_its_own_file(intact: Path, tmp_path: Path) -> None:
    folder = tmp_path / "store"
    shutil.copytree(intact, folder)
    (path,) = (folder / "segments").glob("*.features")
    content = bytearray(path.read_bytes())
    content[3] ^= 1
    path.write_bytes(bytes(content))
    outcome = LocalStore.repair(folder)
    assert outcome.incomplete_files == ("/videos/0.mp4",)
    assert (outcome.clips, outcome.files) == (4 * (FILES - 1), FILES - 1)
    with LocalStore.write(folder) as writer:
        ((_, numbers),) = writer.incomplete_contents().items()
    assert numbers == {1, 2, 3}


def test_rows_are_read_without_the_header_of_the_database(intact: Path, tmp_path: Path) -> None:
    path = tmp_path / DATABASE
    content = (intact / DATABASE).read_bytes()
    path.write_bytes(bytes(PAGE_SIZE) + content[PAGE_SIZE:])
    rows, expected = read_rows(path), read_rows(intact / DATABASE)
    assert rows == expected
    assert len(expected["clips"]) == 4 * FILES
    assert len(expected["lines"]) == 3 * FILES
