"""A hubness bank in a store: clips that match everything stop doing so."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from eaglenet.indexing.model import choose_hubness_bank, encode_hubness_bank
from eaglenet.layers.hubness import HubnessLayer
from eaglenet.research.evaluation.postprocessing import TEMPERATURE, hub_bias
from eaglenet.search import shortlist
from eaglenet.search.engine import Engine
from eaglenet.search.query import Query
from eaglenet.search.shortlist import approximate_shortlists, exact_shortlists, merge_shortlists
from eaglenet.store.database import Database
from eaglenet.store.hubness import HubnessBank
from eaglenet.store.records import Changes
from eaglenet.store.store import LocalStore
from synthetic_store import (
    DIM,
    FRAMES,
    BagMethod,
    add_file,
    content_of,
    make_manifest,
    make_store,
)

SENTENCES = ("red car", "green dog", "blue ball", "dog runs fast", "car jumps", "ball sleeps slow")


def unit(*shape: int, seed: int = 3) -> torch.Tensor:
    return F.normalize(torch.randn(*shape, generator=torch.Generator().manual_seed(seed)), dim=-1)


def bank_of(method: BagMethod) -> HubnessBank:
    return encode_hubness_bank(SENTENCES, method)


def set_bank(folder: Path, bank: HubnessBank | None) -> None:
    with LocalStore.write(folder) as writer:
        writer.set_hubness(bank)


def make_store_with_hub(folder: Path, method: BagMethod) -> None:
    """A clip that shows something of what each sentence says, and one that is all of them."""
    with torch.no_grad():
        sentences = method.coarse_vectors(method.encode_text(SENTENCES))
    with LocalStore.write(folder, make_manifest(method)) as writer:
        for number, sentence in enumerate(sentences):
            other = unit(DIM, seed=10 + number)
            other = F.normalize(other - sentences.pinverse() @ (sentences @ other), dim=-1)
            frames = (0.4 * sentence + 0.84**0.5 * other).expand(1, FRAMES, DIM).clone()
            add_file(writer, method, f"/videos/{number}.mp4", content_of(number), frames)
        # Cosines of 0.5 and more with each: nothing of it is anywhere else.
        hub = F.normalize(sentences.pinverse() @ torch.ones(len(sentences)), dim=-1)
        frames = hub.expand(1, FRAMES, DIM).clone()
        add_file(writer, method, "/videos/hub.mp4", content_of(99), frames)


def test_hubness_offsets_equal_a_loop_and_those_of_evaluate() -> None:
    generator = np.random.default_rng(1)
    vectors = generator.normal(size=(7, 16)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    clips = generator.normal(size=(5, 16)).astype(np.float32)
    clips /= np.linalg.norm(clips, axis=1, keepdims=True)
    offsets = HubnessBank("given", vectors, 0.75, 31.0).offsets(clips)
    for clip, offset in zip(clips, offsets, strict=True):
        total = sum(math.exp(31.0 * float(clip @ sentence)) for sentence in vectors) / 7
        assert offset == pytest.approx(0.75 / 31.0 * math.log(total), abs=1e-6)
    layer = HubnessLayer(9, 16, 0.75)
    layer.add(torch.from_numpy(vectors))
    expected = layer(torch.from_numpy(clips), torch.tensor(31.0))
    torch.testing.assert_close(torch.from_numpy(offsets), expected, atol=1e-6, rtol=0)
    plain = HubnessBank("given", vectors, 1.0, TEMPERATURE).offsets(clips)
    bias = hub_bias(torch.from_numpy(vectors @ clips.T))
    torch.testing.assert_close(torch.from_numpy(plain).double(), -bias, atol=1e-6, rtol=0)


def test_hubness_offset_is_independent_of_other_clips() -> None:
    bank = HubnessBank("given", unit(33, 384).numpy(), 1.0, 20.0)
    clips = unit(101, 384, seed=4).numpy()
    whole = bank.offsets(clips)
    for size in (1, 2, 7, 64):
        parts = [bank.offsets(clips[start : start + size]) for start in range(0, 101, size)]
        assert np.concatenate(parts).tobytes() == whole.tobytes()


def test_corrects_a_clip_that_matches_everything(bag: BagMethod, tmp_path: Path) -> None:
    make_store_with_hub(tmp_path, bag)

    def first(**options: Any) -> list[str]:
        engine = Engine.open(tmp_path, bag)
        return [engine.search(text, k=1, **options)[0].path for text in SENTENCES]

    right = [f"/videos/{number}.mp4" for number in range(len(SENTENCES))]
    for rerank in (True, False):
        assert first(rerank=rerank) == ["/videos/hub.mp4"] * len(SENTENCES)
    set_bank(tmp_path, bank_of(bag))
    for rerank in (True, False):
        assert first(rerank=rerank) == right
    set_bank(tmp_path, None)
    assert first() == ["/videos/hub.mp4"] * len(SENTENCES)


def test_shortlists_are_corrected_in_shards_and_codes_alike(
    bag: BagMethod, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_store(tmp_path, bag, num_files=9, clips_each=4)
    set_bank(tmp_path, bank_of(bag))
    with LocalStore.write(tmp_path) as writer:
        writer.commit(Changes(removed_files=["/videos/3.mp4"]))
    snapshot = LocalStore.open(tmp_path).snapshot()
    assert snapshot.hubness_offsets is not None
    assert snapshot.visible is not None
    queries, hubness_weights = unit(7, DIM).numpy(), [1.0, 0.5, 0.0, 1.0, 1.0, 0.25, 1.0]
    vectors = snapshot.vectors_at(np.arange(36)).astype(np.float64)
    allowed = np.random.default_rng(0).random(36) < 0.6
    for mask in (None, allowed):
        whole = exact_shortlists(snapshot, queries, 6, mask, hubness_weights=hubness_weights)
        pieces = [
            exact_shortlists(snapshot, queries, 6, mask, (number, 3), hubness_weights)
            for number in (1, 2, 3)
        ]
        coded = approximate_shortlists(snapshot, queries, 6, mask, hubness_weights)
        for number, found in enumerate(whole):
            scores = vectors @ queries[number]
            scores -= hubness_weights[number] * snapshot.hubness_offsets
            scores[~(snapshot.visible if mask is None else snapshot.visible & mask)] = -9
            best = np.argsort(-scores, kind="stable")[:6]
            assert found.rows.tolist() == best.tolist()
            np.testing.assert_allclose(found.cosines, scores[best], atol=1e-6)
            for other in (merge_shortlists([piece[number] for piece in pieces], 6), coded[number]):
                assert other.rows.tolist() == found.rows.tolist()
                assert other.cosines.tobytes() == found.cosines.tobytes()
    monkeypatch.setattr(shortlist, "EXACT_BYTES", 0)
    monkeypatch.setattr(shortlist, "CANDIDATES", 99)
    engine = Engine.open(tmp_path, bag)
    assert engine.info()["index"] == "codes"
    by_codes = [(hit.clip_id, hit.score, hit.coarse_score) for hit in engine.search("red car")]
    monkeypatch.undo()
    hits = Engine.open(tmp_path, bag).search("red car")
    assert [(hit.clip_id, hit.score, hit.coarse_score) for hit in hits] == by_codes


def test_corrects_texts_once_and_frames_never(bag: BagMethod, tmp_path: Path) -> None:
    make_store(tmp_path, bag)
    plain = {
        hit.clip_id: hit
        for hit in Engine.open(tmp_path, bag).search("red car", k=50, keep_duplicates=True)
    }
    no_dog = Query("red car", negatives=("blue dog",))
    with_negative = {
        hit.clip_id: hit
        for hit in Engine.open(tmp_path, bag).search(no_dog, k=50, keep_duplicates=True)
    }
    similar = Engine.open(tmp_path, bag).search(Query(clip_id=next(iter(plain))), k=5)
    set_bank(tmp_path, bank_of(bag))
    engine = Engine.open(tmp_path, bag)
    offsets = engine.snapshot.hubness_offsets
    assert offsets is not None
    for query, before, weight in ((Query("red car"), plain, 1.0), (no_dog, with_negative, 0.5)):
        for hit in engine.search(query, k=50, keep_duplicates=True):
            offset = weight * offsets[engine.snapshot.row(hit.clip_id)]
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
    make_store(tmp_path, bag)
    before = {hit.clip_id: hit.score for hit in Engine.open(tmp_path, bag).search("red car", k=50)}
    layer = HubnessLayer(8, DIM, 0.75)
    layer.add(unit(8, DIM))
    monkeypatch.setattr(BagMethod, "hubness_layer", (layer, torch.tensor(30.0)))
    bank = choose_hubness_bank("own", bag, "bag")
    assert bank is not None
    assert (bank.weight, bank.scale, bank.texts) == (0.75, 30.0, ())
    set_bank(tmp_path, bank)
    hits = Engine.open(tmp_path, bag).search("red car", k=50)
    assert {hit.clip_id: hit.score for hit in hits} == before


def test_resuming_and_repairing_give_the_same_offsets(bag: BagMethod, tmp_path: Path) -> None:
    def offsets(folder: Path) -> dict[str, bytes]:
        snapshot = LocalStore.open(folder).snapshot()
        values = snapshot.hubness_offsets
        assert values is not None
        clips = snapshot.clips(range(snapshot.num_rows))
        return {clip.id: values[clip.row].tobytes() for clip in clips}

    bank = bank_of(bag)
    make_store(tmp_path / "whole", bag, num_files=6)
    set_bank(tmp_path / "whole", bank)
    expected = offsets(tmp_path / "whole")
    generator = torch.Generator().manual_seed(1)
    for number in range(6):
        with LocalStore.write(tmp_path / "steps", make_manifest(bag), bank) as writer:
            frames = F.normalize(torch.randn(3, FRAMES, DIM, generator=generator), dim=-1)
            add_file(writer, bag, f"/videos/{number}.mp4", content_of(number), frames)
    assert offsets(tmp_path / "steps") == expected
    LocalStore.repair(tmp_path / "steps")
    assert offsets(tmp_path / "steps") == expected
    assert LocalStore.open(tmp_path / "steps").verify().clips == 18


def test_store_without_a_hubness_bank_is_not_corrected(bag: BagMethod, tmp_path: Path) -> None:
    store = make_store(tmp_path, bag)
    snapshot = store.snapshot()
    assert snapshot.hubness_bank is None
    assert snapshot.hubness_offsets is None
    assert Engine.open(tmp_path, bag).info()["hubness"] == "off"
    set_bank(tmp_path, bank_of(bag))
    assert Engine.open(tmp_path, bag).info()["hubness"] == "6 texts given, weight 1"


def test_a_bank_that_is_set_while_a_search_reads_the_store_is_no_damage(
    bag: BagMethod, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_store(tmp_path, bag, num_files=2)
    snapshot = LocalStore.open(tmp_path).snapshot()
    value = Database.value

    def set_between(self: Database, statement: str, parameters: Sequence[Any] = ()) -> Any:
        result = value(self, statement, parameters)
        if statement == "SELECT count(*) FROM hubness":
            set_bank(tmp_path, bank_of(bag))
        return result

    monkeypatch.setattr(Database, "value", set_between)
    assert snapshot.hubness_offsets is None
