"""Damage in a store: an error that names the part, or the answer that was there before."""

from __future__ import annotations

import json
import random
import shutil
import time
from pathlib import Path

import numpy as np
import pytest
from campaign import count, limits, numbers
from mutations import mutate_bytes, mutated_json_bytes
from synthetic_store import BagMethod, make_store

from eaglenet.core.errors import EagleNetError, StoreError
from eaglenet.indexing.maintenance import repair, verify
from eaglenet.search.engine import Engine
from eaglenet.search.store import checked
from eaglenet.search.store.base import open_store

CASES = 120


def answer(store: Path, bag: BagMethod) -> list[object]:
    """Everything that a search and its pictures show."""
    checked._files.clear()
    engine = Engine.open(store, bag)
    hits = engine.search("red car", k=20)
    pictures = [engine.thumbnail(hit.clip_id) for hit in hits]
    return [(hit.clip_id, hit.path, hit.score, hit.moment, hit.duration) for hit in hits] + pictures


def is_one_line(error: EagleNetError) -> bool:
    return "\n" not in str(error)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store without a fault, to copy and damage."""
    folder = tmp_path_factory.mktemp("damaged") / "store"
    make_store(folder, BagMethod())
    return folder


PARTS = [
    "snapshot/current.json",
    "snapshot/rows-1.npz",
    "snapshot/files-1.json",
    "snapshot/vectors-1.f32",
    "snapshot/records-1.bin",
    "snapshot/thumbnails-1.bin",
    "manifest.json",
]


@pytest.mark.parametrize("part", PARTS)
def test_no_damage_to_a_part_gives_another_answer(part: str, sound: Path) -> None:
    bag = BagMethod()
    expected = answer(sound, bag)
    path = sound / part
    content = path.read_bytes()
    refused = tried = 0
    try:
        for number in numbers(CASES):
            tried += 1
            chance = random.Random(f"{part} {number}")
            is_json = part.endswith(".json") and number % 2
            mutate = mutated_json_bytes if is_json else mutate_bytes
            path.write_bytes(mutate(content, chance))
            try:
                with limits():
                    found = answer(sound, bag)
            except EagleNetError as error:
                refused += is_one_line(error)
            else:
                assert found == expected, number
    finally:
        path.write_bytes(content)
        count(part, tried)
    assert refused > tried // 2


def test_swapped_and_broken_vectors_are_noticed(sound: Path, tmp_path: Path) -> None:
    bag = BagMethod()
    for number, change in enumerate(("swap", "nan", "zero")):
        store = tmp_path / str(number)
        shutil.copytree(sound, store)
        path = store / "snapshot" / "vectors-1.f32"
        vectors = np.frombuffer(path.read_bytes(), np.float32).reshape(18, -1).copy()
        if change == "swap":
            vectors[[2, 7]] = vectors[[7, 2]]
        else:
            vectors[5] = np.nan if change == "nan" else 0
        path.write_bytes(vectors.tobytes())
        with pytest.raises(StoreError, match=r"vectors-1.f32 .* eaglenet store repair"):
            answer(store, bag)
        with pytest.raises(StoreError, match=r"vectors-1.f32"):
            verify(store)
        repair(store)
        assert answer(store, bag) == answer(sound, bag)


def test_an_edited_list_of_files_is_noticed(sound: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    shutil.copytree(sound, store)
    path = store / "snapshot" / "files-1.json"
    values = json.loads(path.read_text())
    values["paths"][0] = ["/etc/passwd"]
    path.write_text(json.dumps(values))
    with pytest.raises(StoreError, match=r"files-1.json is not as it was written"):
        Engine.open(store, BagMethod())


@pytest.mark.parametrize("value", [-1, 2**70, 1e300, "many", None, []])
def test_impossible_numbers_in_a_snapshot_are_noticed_and_repaired(
    value: object, sound: Path, tmp_path: Path
) -> None:
    bag = BagMethod()
    expected = answer(sound, bag)
    path = Path("snapshot") / "current.json"
    changed = 0
    for name, old in json.loads((sound / path).read_text()).items():
        if type(old) is not int:
            continue
        store = tmp_path / name
        shutil.copytree(sound, store)
        values = json.loads((store / path).read_text())
        (store / path).write_text(json.dumps(values | {name: value}))
        with pytest.raises(StoreError, match="eaglenet store repair"):
            answer(store, bag)
        repair(store)
        assert answer(store, bag) == expected
        changed += 1
    assert changed > 1


def test_a_whole_store_is_verified(sound: Path) -> None:
    assert (verify(sound).clips, verify(sound).files) == (18, 6)


def test_damaged_tables_are_an_error_everywhere_and_never_replace_a_good_snapshot(
    sound: Path, tmp_path: Path
) -> None:
    bag = BagMethod()
    expected = answer(sound, bag)
    data = sorted(
        path.relative_to(sound)
        for name in ("clips.lance", "files.lance")
        for path in (sound / name / "data").iterdir()
    )
    refused = 0
    for number in range(16):
        chance = random.Random(number)
        store = tmp_path / str(number)
        shutil.copytree(sound, store)
        path = store / chance.choice(data)
        content = bytearray(path.read_bytes())
        place = chance.randrange(len(content) // 2)
        content[place : place + 40] = chance.randbytes(40)
        path.write_bytes(bytes(content))
        for act in (verify, repair):
            try:
                act(store)
            except StoreError as error:
                refused += is_one_line(error)
        assert answer(store, bag) == expected, number
        shutil.rmtree(store)
    assert refused > 5


@pytest.mark.slow
def test_a_hundred_thousand_clips_open_in_a_tenth_of_a_second(tmp_path: Path) -> None:
    bag = BagMethod()
    make_store(tmp_path / "store", bag, num_files=100, clips_each=1000)
    snapshot = open_store(tmp_path / "store").snapshot()
    assert len(snapshot) == 100_000
    took = []
    for _ in range(5):
        began = time.perf_counter()
        open_store(tmp_path / "store").snapshot()
        took.append(time.perf_counter() - began)
    assert min(took) < 0.1, took
