"""Damage in a store: the results that were there before, or an error that names a command.

That command is run as it is printed, and afterwards all results are there again. Stores alone are
damaged in more ways in ``tests/store/test_damage.py``; here a search, an index run and the commands
of the product meet the damage.
"""

from __future__ import annotations

import dataclasses
import math
import random
import shlex
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from eaglenet.cli.main import app
from eaglenet.core.errors import EagleNetError
from eaglenet.core.frame_spec import Splitting
from eaglenet.indexing.index import IndexOptions, index_videos
from eaglenet.search.engine import Engine
from eaglenet.store.store import LocalStore
from sampling import one_in, slow
from small_videos import colour_video
from synthetic_store import BagMethod

# In bfloat16, which some processors choose, a clip differs visibly if it is encoded again.
OPTIONS = IndexOptions(splitting=Splitting(6.0, 1.0), workers=0, precision="fp32")
PLACE = ["--clip-seconds", "6", "--overlap", "1", "--workers", "0", "--precision", "fp32"]
"""What the test adds to a command: how its store was made, and no processes."""
TEXTS = ("red car", "a dog sleeps")
SUBTITLES = "1\n00:00:01,000 --> 00:00:02,000\nThe red cars drive home\n"


@pytest.fixture(scope="module")
def bag() -> BagMethod:
    return BagMethod()


@pytest.fixture(autouse=True)
def _load_bag(bag: BagMethod, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command line finds the model of these tests."""
    monkeypatch.setattr("eaglenet.models.folder.load", lambda name: bag)
    monkeypatch.setattr("eaglenet.indexing.model.require_model_name", lambda name: None)


@pytest.fixture(scope="module")
def intact(bag: BagMethod, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with videos and a store of them, to copy and damage."""
    place = tmp_path_factory.mktemp("damaged")
    videos = place / "videos"
    videos.mkdir()
    for number, colours in enumerate((["red", "green"], ["blue"], ["green"] * 4 + ["red"])):
        colour_video(videos / f"{number}.mp4", colours)
    (videos / "0.srt").write_text(SUBTITLES)
    (place / "texts.txt").write_text("\n".join(TEXTS))
    index_videos([videos], place / "store", "bag", method=bag, options=OPTIONS)
    # A second commit of hubness offsets leaves a second version of the labels.
    options = dataclasses.replace(OPTIONS, hubness=TEXTS)
    index_videos([videos], place / "store", "bag", method=bag, options=options)
    return place


def results(store: Path, bag: BagMethod) -> list[object]:
    """Everything that searching and browsing show."""
    engine = Engine.open(store, bag)
    shown: list[object] = []
    for query, modalities in (("red", "visual"), ("blue dog", "visual"), ("cars", "speech")):
        hits = engine.search(query, k=20, modalities=modalities, keep_duplicates=True)
        # Clips with the same score may change places when they are encoded again.
        for hit in sorted(hits, key=lambda hit: (-hit.score, hit.clip_id)):
            explanation = engine.explain(query, hit.clip_id)
            scores = [score for _, score in explanation.frames]
            # Among equal frames, rounding chooses the moment.
            is_flat = not scores or max(scores) - min(scores) < 1e-4
            moment = None if is_flat and modalities == "visual" else hit.moment
            values = (hit.clip_id, hit.path, hit.score, moment, hit.duration)
            shown += [values, engine.thumbnail(hit.clip_id), explanation.score, explanation.frames]
    info = engine.info()
    return [
        *shown,
        *(info[name] for name in ("clips", "files", "hours", "transcript_lines", "folders")),
    ]


@pytest.fixture(scope="module")
def expected(intact: Path, bag: BagMethod) -> list[object]:
    """Results of the store before any damage."""
    return results(intact / "store", bag)


def is_alike(one: object, other: object) -> bool:
    """Compare results; clips that are encoded again in another batch may differ by rounding."""
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-5, abs_tol=1e-5)
    if dataclasses.is_dataclass(one) and type(one) is type(other):
        return is_alike(list(vars(one).values()), list(vars(other).values()))
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(is_alike, one, other))
    return one == other


def refusal_of(action: Callable[[], object]) -> str:
    """Message of an error of ours, one line that names a command; empty if there is none."""
    text = ""
    try:
        action()
    except EagleNetError as error:
        text = str(error)
    assert not text or ("eaglenet " in text and "\n" not in text), text
    return text


def run_commands(text: str, store: Path, place: Path) -> str:
    """Run the commands at the end of a message, as pasted into a shell; returns their output."""
    output = ""
    for command in text.rpartition(": ")[2].split(" && "):
        words = shlex.split(command.replace("FOLDER", shlex.quote(str(place / "videos"))))
        if words[0] == "mv":
            Path(words[1]).rename(words[2])
            continue
        assert words.pop(0) == "eaglenet", text
        if "--hubness" in words:
            words[-1] = str(place / "texts.txt")
        if words[0] == "index":
            words += [*PLACE, *([] if "--model" in words else ["--model", "bag"])]
        result = CliRunner().invoke(app, words)
        if isinstance(result.exception, EagleNetError):
            output += f"{result.output}{result.exception}\n"
        else:
            assert result.exit_code == 0, (words, result.output, result.exception)
            output += result.output
    return output


def recover(text: str, store: Path, place: Path, bag: BagMethod) -> None:
    """Follow what is printed until there is nothing more to do."""
    for _ in range(4):
        lines = [line for line in text.splitlines() if "eaglenet " in line]
        if not lines:
            return
        text = "".join(run_commands(line, store, place) for line in lines)
    raise AssertionError(f"the commands do not end: {text}")


def check(place: Path, bag: BagMethod, expected: list[object], *, writes_first: bool) -> str:
    """Meet the damage, recover, and compare; returns who noticed."""
    store, videos = place / "store", place / "videos"

    def write() -> None:
        index_videos([videos], store, "bag", method=bag, options=OPTIONS)

    def search() -> None:
        assert is_alike(results(store, bag), expected)

    def verify() -> None:
        LocalStore.open(store).verify()

    steps = {"writer": write, "search": search, "verify": verify}
    for name in ("writer", "search", "verify") if writes_first else ("search", "verify", "writer"):
        refusal = refusal_of(steps[name])
        if refusal:
            recover(refusal, store, place, bag)
            break
    else:
        name = "harmless"
    if not LocalStore.open(store).snapshot().hubness_bank:
        options = dataclasses.replace(OPTIONS, hubness=TEXTS)
        index_videos([videos], store, "bag", method=bag, options=options)
    write()
    search()
    verify()
    return name


def damage(path: Path, chance: random.Random) -> str:
    """Flip 1, 8 or 64 bits, zero or shuffle a stretch, cut the file, or append to it."""
    content = bytearray(path.read_bytes())
    kind = chance.choice(["1", "8", "64", "zero", "swap", "cut", "append"])
    start = chance.randrange(len(content))
    size = min(chance.choice([16, 512, 4096]), len(content) - start)
    if kind == "cut":
        del content[start:]
    elif kind == "append":
        content += chance.randbytes(size)
    elif kind == "zero":
        content[start : start + size] = bytes(size)
    elif kind == "swap":
        other = chance.randrange(len(content) - size + 1)
        stretch = content[start : start + size]
        content[start : start + size] = content[other : other + size]
        content[other : other + size] = stretch
    else:
        for _ in range(int(kind)):
            content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    path.write_bytes(bytes(content))
    return kind


def copy_of(intact: Path, tmp_path: Path) -> Path:
    """A copy at the same path, because a store knows where its videos are."""
    aside = tmp_path / "aside"
    shutil.rmtree(aside, ignore_errors=True)
    shutil.copytree(intact / "store", aside)
    return aside


def trial(intact: Path, tmp_path: Path, bag: BagMethod, seed: int, expected: list[object]) -> str:
    chance = random.Random(seed)
    whole = copy_of(intact, tmp_path)
    store = intact / "store"
    files = sorted(path for path in store.rglob("*") if path.is_file() and path.stat().st_size)
    path = chance.choice(files)
    kind = damage(path, chance)
    try:
        return check(intact, bag, expected, writes_first=seed % 2 == 1)
    except BaseException as error:
        raise AssertionError(f"damage {seed}: {kind} in {path.name}") from error
    finally:
        restore(intact, whole)


def restore(intact: Path, whole: Path) -> None:
    for name in ("store", "store.old"):
        shutil.rmtree(intact / name, ignore_errors=True)
    whole.rename(intact / "store")


def test_random_damage_is_harmless_or_has_a_way_back(
    intact: Path, bag: BagMethod, expected: list[object], tmp_path: Path
) -> None:
    assert len(expected) > 20
    outcomes = [trial(intact, tmp_path, bag, seed, expected) for seed in range(4)]
    assert "search" in outcomes
    assert len(set(outcomes)) > 1


@pytest.mark.slow
def test_three_hundred_random_damages_are_harmless_or_have_a_way_back(
    intact: Path, bag: BagMethod, expected: list[object], tmp_path: Path
) -> None:
    outcomes = [trial(intact, tmp_path, bag, seed, expected) for seed in range(1000, 1300)]
    print({outcome: outcomes.count(outcome) for outcome in sorted(set(outcomes))})


def _sql(statement: str) -> Callable[[Path], None]:
    def change(store: Path) -> None:
        connection = sqlite3.connect(store / "store.db")
        connection.execute(statement)
        connection.commit()
        connection.close()

    return change


def _lost(table: str) -> Callable[[Path], None]:
    """Rows that disappear as from a damaged page: no trigger counts them."""

    def change(store: Path) -> None:
        connection = sqlite3.connect(store / "store.db")
        triggers = connection.execute(
            "SELECT name, sql FROM sqlite_master WHERE type = 'trigger'"
        ).fetchall()
        for name, _ in triggers:
            connection.execute(f"DROP TRIGGER {name}")
        connection.execute(f"DELETE FROM {table}")
        for _, statement in triggers:
            connection.execute(statement)
        connection.commit()
        connection.close()

    return change


def _swapped_vectors(store: Path) -> None:
    (path,) = (store / "segments").glob("*.vectors")
    vectors = np.frombuffer(path.read_bytes(), np.float32).reshape(5, -1).copy()
    vectors[[0, 3]] = vectors[[3, 0]]
    path.write_bytes(vectors.tobytes())


def _removed(name: str) -> Callable[[Path], None]:
    def change(store: Path) -> None:
        for path in store.glob(name):
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    return change


AIMED = {
    "another path": _sql("UPDATE files SET path = '/etc/passwd' WHERE id = 1"),
    "another status": _sql("UPDATE files SET status = 'failed', reason = '' WHERE id = 2"),
    "another bank": _sql("UPDATE hubness SET vectors = zeroblob(length(vectors))"),
    "no bank": _lost("hubness"),
    "an impossible bank": _sql("UPDATE hubness SET scale = -1"),
    "both manifests": lambda store: (
        _sql("UPDATE manifest SET content = '{}'")(store),
        _sql("UPDATE manifest_copy SET content = '{}'")(store),
    ),
    "no lines": _lost("lines"),
    "the schema": _sql("DROP TABLE sources"),
    "no version of the schema": _sql("PRAGMA user_version = 0"),
    "swapped vectors": _swapped_vectors,
    "no database": _removed("store.db"),
    "no segments": _removed("segments"),
    "no thumbnails": _removed("segments/*.thumbnails"),
    "an old journal": lambda store: (store / "store.db-journal").write_bytes(bytes(5000)),
    "a torn WAL": lambda store: (store / "store.db-wal").write_bytes(b"\x37\x7f\x06\x83" * 999),
    "a folder for a segment": lambda store: [
        (path.unlink(), path.mkdir()) for path in (store / "segments").glob("*.codes")
    ],
}


# By default every second damage is met, by a reader or by a writer; the slow tests try both.
FIRST = [(name, number % 4 == 0) for number, name in enumerate(AIMED)]


@pytest.mark.parametrize(
    ("name", "writes_first"),
    [*one_in(2, FIRST), *(slow((name, not writes_first)) for name, writes_first in FIRST)],
)
def test_aimed_damage_is_harmless_or_has_a_way_back(
    name: str,
    writes_first: bool,
    intact: Path,
    bag: BagMethod,
    expected: list[object],
    tmp_path: Path,
) -> None:
    whole = copy_of(intact, tmp_path)
    try:
        AIMED[name](intact / "store")
        check(intact, bag, expected, writes_first=writes_first)
    finally:
        restore(intact, whole)


def test_whole_store_is_verified(intact: Path) -> None:
    counts = LocalStore.open(intact / "store").verify()
    assert (counts.clips, counts.files, counts.lines) == (5, 3, 1)
