"""A bank of sentences in a store: clips that answer everything stop doing so, and nothing else."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from synthetic_store import DIM, FRAMES, BagMethod, add_file, content_of, make_store
from torch.nn import functional as F

from eaglenet.core.errors import StoreError
from eaglenet.indexing.hubness import choose_hubness_bank, encode_hubness_bank, set_hubness_bank
from eaglenet.indexing.maintenance import repair, verify
from eaglenet.layers.sentence_bank import SentenceBank
from eaglenet.scoring.hubness import TEMPERATURE, hub_bias
from eaglenet.search import shortlist
from eaglenet.search import shortlist as approximate
from eaglenet.search.engine import Engine
from eaglenet.search.query import Query
from eaglenet.search.shortlist import approximate_shortlists, exact_shortlists, merge_shortlists
from eaglenet.search.store import publishing
from eaglenet.search.store.base import Store, open_store
from eaglenet.search.store.checks import sealed
from eaglenet.search.store.hub_bank import HubBank
from eaglenet.search.store.manifest import Manifest
from eaglenet.search.store.tables import ClipStore

SENTENCES = ("red car", "green dog", "blue ball", "dog runs fast", "car jumps", "ball sleeps slow")


def unit(*shape: int, seed: int = 3) -> torch.Tensor:
    return F.normalize(torch.randn(*shape, generator=torch.Generator().manual_seed(seed)), dim=-1)


def bank_of(method: BagMethod) -> HubBank:
    return encode_hubness_bank(SENTENCES, method)


def levelled(store: Store, tables: ClipStore, bank: HubBank | None) -> Store:
    changed = set_hubness_bank(store, tables, bank)
    changed.publish(tables)
    return changed


def with_hub(folder: Path, method: BagMethod) -> tuple[Store, ClipStore]:
    """A clip that shows something of what each sentence says, and one that is all of them."""
    store, tables = make_store(folder, method, num_files=0)
    with torch.no_grad():
        sentences = method.coarse_vectors(method.encode_text(SENTENCES))
    for number, sentence in enumerate(sentences):
        other = unit(DIM, seed=10 + number)
        other = F.normalize(other - sentences.pinverse() @ (sentences @ other), dim=-1)
        frames = (0.4 * sentence + 0.84**0.5 * other).expand(1, FRAMES, DIM).clone()
        path = f"/videos/{number}.mp4"
        add_file(tables, store.manifest, method, path, content_of(number), frames)
    # Cosines of 0.5 and more with each: nothing of it is anywhere else.
    hub = F.normalize(sentences.pinverse() @ torch.ones(len(sentences)), dim=-1)
    frames = hub.expand(1, FRAMES, DIM).clone()
    add_file(tables, store.manifest, method, "/videos/hub.mp4", content_of(99), frames)
    store.publish(tables)
    return store, tables


def test_hubness_offsets_equal_a_loop_and_those_of_evaluate() -> None:
    generator = np.random.default_rng(1)
    vectors = generator.normal(size=(7, 16)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    clips = generator.normal(size=(5, 16)).astype(np.float32)
    clips /= np.linalg.norm(clips, axis=1, keepdims=True)
    found = HubBank("given", vectors, 0.75, 31.0).levels(clips)
    for clip, level in zip(clips, found, strict=True):
        total = sum(math.exp(31.0 * float(clip @ sentence)) for sentence in vectors) / 7
        assert level == pytest.approx(0.75 / 31.0 * math.log(total), abs=1e-6)
    layer = SentenceBank(9, 16, 0.75)
    layer.add(torch.from_numpy(vectors))
    expected = layer(torch.from_numpy(clips), torch.tensor(31.0))
    torch.testing.assert_close(torch.from_numpy(found), expected, atol=1e-6, rtol=0)
    plain = HubBank("given", vectors, 1.0, TEMPERATURE).levels(clips)
    bias = hub_bias(torch.from_numpy(vectors @ clips.T))
    torch.testing.assert_close(torch.from_numpy(plain).double(), -bias, atol=1e-6, rtol=0)


def test_hubness_offset_is_independent_of_other_clips() -> None:
    bank = HubBank("given", unit(33, 384).numpy(), 1.0, 20.0)
    clips = unit(101, 384, seed=4).numpy()
    whole = bank.levels(clips)
    for size in (1, 2, 7, 64):
        parts = [bank.levels(clips[start : start + size]) for start in range(0, 101, size)]
        assert np.concatenate(parts).tobytes() == whole.tobytes()


def test_corrects_a_clip_that_matches_everything(bag: BagMethod, tmp_path: Path) -> None:
    store, tables = with_hub(tmp_path, bag)

    def first(**options: Any) -> list[str]:
        engine = Engine.open(tmp_path, bag)
        return [engine.search(text, k=1, **options)[0].path for text in SENTENCES]

    right = [f"/videos/{number}.mp4" for number in range(len(SENTENCES))]
    for rerank in (True, False):
        assert first(rerank=rerank) == ["/videos/hub.mp4"] * len(SENTENCES)
    levelled(store, tables, bank_of(bag))
    for rerank in (True, False):
        assert first(rerank=rerank) == right
    levelled(open_store(tmp_path), tables, None)
    assert first() == ["/videos/hub.mp4"] * len(SENTENCES)


def test_shortlists_are_corrected_in_shards_and_codes_alike(
    bag: BagMethod, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, tables = make_store(tmp_path, bag, num_files=9, clips_each=4)
    levelled(store, tables, bank_of(bag))
    tables.remove_files(["/videos/3.mp4"])
    open_store(tmp_path).publish(tables)
    snapshot = open_store(tmp_path).snapshot()
    assert snapshot.levels is not None
    queries, hubness_weights = unit(7, DIM), [1.0, 0.5, 0.0, 1.0, 1.0, 0.25, 1.0]
    vectors = snapshot.vectors_of(np.arange(len(snapshot))).double()
    allowed = np.random.default_rng(0).random(len(snapshot)) < 0.6
    for mask in (None, allowed):
        whole = exact_shortlists(snapshot, queries, 6, mask, hubness_weights=hubness_weights)
        pieces = [
            exact_shortlists(snapshot, queries, 6, mask, (number, 3), hubness_weights)
            for number in (1, 2, 3)
        ]
        coded = approximate_shortlists(snapshot, queries, 6, mask, hubness_weights)
        for number, found in enumerate(whole):
            scores = vectors @ queries[number].double()
            scores -= hubness_weights[number] * torch.from_numpy(snapshot.levels).double()
            scores[~torch.from_numpy(mask if mask is not None else np.ones_like(allowed))] = -9
            best = scores.topk(6)
            assert found.rows.tolist() == best.indices.tolist()
            torch.testing.assert_close(torch.from_numpy(found.cosines), best.values.float())
            for other in (merge_shortlists([piece[number] for piece in pieces], 6), coded[number]):
                assert other.rows.tolist() == found.rows.tolist()
                assert other.cosines.tobytes() == found.cosines.tobytes()
    monkeypatch.setattr(shortlist, "EXACT_BYTES", 0)
    monkeypatch.setattr(approximate, "CANDIDATES", 99)
    engine = Engine.open(tmp_path, bag)
    assert engine.info()["index"] == "codes"
    by_codes = [(hit.clip_id, hit.score, hit.coarse_score) for hit in engine.search("red car")]
    monkeypatch.undo()
    hits = Engine.open(tmp_path, bag).search("red car")
    assert [(hit.clip_id, hit.score, hit.coarse_score) for hit in hits] == by_codes


def test_corrects_texts_once_and_frames_never(bag: BagMethod, tmp_path: Path) -> None:
    store, tables = make_store(tmp_path, bag)
    plain = {hit.clip_id: hit for hit in Engine.open(tmp_path, bag).search("red car", k=50)}
    no_dog = Query("red car", negatives=("blue dog",))
    with_negative = {hit.clip_id: hit for hit in Engine.open(tmp_path, bag).search(no_dog, k=50)}
    similar = Engine.open(tmp_path, bag).search(Query(clip_id=next(iter(plain))), k=5)
    levelled(store, tables, bank_of(bag))
    engine = Engine.open(tmp_path, bag)
    levels = engine.snapshot.levels
    assert levels is not None
    for query, before, weight in ((Query("red car"), plain, 1.0), (no_dog, with_negative, 0.5)):
        for hit in engine.search(query, k=50):
            offset = weight * levels[engine.snapshot.row(hit.clip_id)]
            assert hit.score == pytest.approx(before[hit.clip_id].score - offset, abs=1e-6)
            coarse = before[hit.clip_id].coarse_score
            assert hit.coarse_score == pytest.approx(coarse - offset, abs=1e-6)
    best = engine.search("red car", k=1)[0]
    told = engine.explain("red car", best.clip_id)
    assert (told.score, told.coarse_score) == pytest.approx((best.score, best.coarse_score))
    assert engine.search(Query(clip_id=next(iter(plain))), k=5) == similar


def test_model_that_corrects_itself_is_not_corrected_again(
    bag: BagMethod, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, tables = make_store(tmp_path, bag)
    before = {hit.clip_id: hit.score for hit in Engine.open(tmp_path, bag).search("red car", k=50)}
    layer = SentenceBank(8, DIM, 0.75)
    layer.add(unit(8, DIM))
    monkeypatch.setattr(BagMethod, "level_bank", (layer, torch.tensor(30.0)))
    bank = choose_hubness_bank("own", bag, "bag")
    assert bank is not None
    assert (bank.weight, bank.scale, bank.texts) == (0.75, 30.0, ())
    levelled(store, tables, bank)
    hits = Engine.open(tmp_path, bag).search("red car", k=50)
    assert {hit.clip_id: hit.score for hit in hits} == before


def test_resuming_and_repairing_give_the_same_offsets(
    bag: BagMethod, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def levels(folder: Path) -> dict[str, bytes]:
        snapshot = open_store(folder).snapshot()
        assert snapshot.levels is not None
        return {
            snapshot.clip_id(row): snapshot.levels[row].tobytes() for row in range(len(snapshot))
        }

    bank = bank_of(bag)
    store, tables = make_store(tmp_path / "whole", bag, num_files=6)
    levelled(store, tables, bank)
    expected = levels(tmp_path / "whole")
    monkeypatch.setattr(publishing, "CHUNK", 2)
    first, rows = make_store(tmp_path / "steps", bag, num_files=0)
    first = levelled(first, rows, bank)
    generator = torch.Generator().manual_seed(1)
    for number in range(6):
        frames = F.normalize(torch.randn(3, FRAMES, DIM, generator=generator), dim=-1)
        path = f"/videos/{number}.mp4"
        add_file(rows, first.manifest, bag, path, content_of(number), frames)
        first.publish(rows)
    assert levels(tmp_path / "steps") == expected
    repair(tmp_path / "steps")
    assert levels(tmp_path / "steps") == expected
    assert verify(tmp_path / "steps").clips == 18


def test_store_without_a_hubness_bank_is_unchanged(bag: BagMethod, tmp_path: Path) -> None:
    store, _ = make_store(tmp_path, bag)
    assert "hubness" not in json.loads(store.manifest.to_bytes())
    assert "bank" not in json.loads((tmp_path / "snapshot/current.json").read_text())
    with np.load(next((tmp_path / "snapshot").glob("rows-*.npz"))) as columns:
        assert "level" not in columns.files
    assert Engine.open(tmp_path, bag).info()["hubness"] == "off"
    assert verify(tmp_path).clips == 18


def test_names_damaged_files(bag: BagMethod, tmp_path: Path) -> None:
    store, tables = make_store(tmp_path, bag)
    store = levelled(store, tables, bank_of(bag))
    assert store.manifest.hubness is not None
    rows = max((tmp_path / "snapshot").glob("rows-*.npz"))
    content = rows.read_bytes()
    with np.load(rows) as columns:
        level = columns["level"].tobytes()
    place = content.index(level)
    rows.write_bytes(content[:place] + b"\1\2\3\4" + content[place + 4 :])
    with pytest.raises(StoreError, match=rf"damaged \({rows.name} is not as it was written"):
        open_store(tmp_path).snapshot()
    rows.write_bytes(content)
    path = tmp_path / store.manifest.hubness.file
    kept = path.read_bytes()
    path.write_bytes(kept[:-1] + b"\7")
    for command in (verify, repair):
        with pytest.raises(StoreError, match=rf"{path.name} of .* not as it was written"):
            command(tmp_path)
    path.unlink()
    with pytest.raises(StoreError, match=rf"{path.name} of .* --hubness own"):
        repair(tmp_path)
    assert len(Engine.open(tmp_path, bag).search("red car", k=50)) == 18
    path.write_bytes(kept)
    assert verify(tmp_path).clips == 18


def test_verify_finds_offsets_of_another_bank(bag: BagMethod, tmp_path: Path) -> None:
    store, tables = make_store(tmp_path, bag)
    store = levelled(store, tables, bank_of(bag))
    other = encode_hubness_bank(SENTENCES[:3], bag)
    store.with_bank(other)
    assert Engine.open(tmp_path, bag).info()["hubness"].startswith("bank-")
    with pytest.raises(StoreError, match=r"come from bank-.*, not from the hubness bank"):
        verify(tmp_path)
    current = tmp_path / "snapshot/current.json"
    values = json.loads(current.read_text())
    plain = {name: value for name, value in values.items() if name not in ("format", "check")}
    current.write_bytes(sealed({**plain, "bank": other.note.file}))
    with pytest.raises(StoreError, match=r"hubness offsets in .* do not match its hubness bank"):
        verify(tmp_path)
    repair(tmp_path)
    assert verify(tmp_path).clips == 18
    assert len(list(tmp_path.glob("bank-*.npz"))) == 1


def test_hubness_bank_is_not_changed_while_clips_are_missing(
    bag: BagMethod, tmp_path: Path
) -> None:
    store, tables = make_store(tmp_path, bag)
    tables.remove_contents([content_of(0)])
    with pytest.raises(StoreError, match="encode them again first, without --hubness"):
        set_hubness_bank(store, tables, bank_of(bag))
    assert len(open_store(tmp_path).snapshot()) == 18


def test_invalid_hubness_bank_in_a_manifest_is_damage(bag: BagMethod, tmp_path: Path) -> None:
    store, _ = make_store(tmp_path, bag)
    manifest = dataclasses.replace(store.manifest, hubness=bank_of(bag).note)
    assert Manifest.from_bytes(manifest.to_bytes(), "it") == manifest
    for right, wrong, reason in (
        ('"scale": 20.0', '"scale": -1.0', "scale -1"),
        ('"weight": 1.0', '"weight": NaN', "weight nan"),
        ('"file": "bank-', '"file": "../bank-', "a bank in '../bank-"),
        ('"sentences": 6', '"sentences": "x"', "sentences"),
    ):
        text = manifest.to_bytes().decode().replace(right, wrong)
        assert text.encode() != manifest.to_bytes()
        values = {key: value for key, value in json.loads(text).items() if key != "check"}
        with pytest.raises(StoreError, match=reason):
            Manifest.from_bytes(json.dumps(values).encode(), "it")
