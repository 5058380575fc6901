"""One store of `small`, searched through numpy and through torch, with the same hits."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn import functional as F

import eaglenet
from eaglenet.core.errors import StoreError
from eaglenet.methods.base import Method
from eaglenet.models.files import PACKAGED
from eaglenet.search.engine import Engine
from eaglenet.search.model import NumpyModel
from eaglenet.search.query import Query
from eaglenet.search.torch_model import TorchModel, load_for_search
from eaglenet.store.hubness import HubnessBank
from eaglenet.store.store import LocalStore
from synthetic_store import add_file, content_of, make_manifest

TEXTS = ["a man drives a red car", "two dogs on a beach", "someone is cooking", "snow"]


@pytest.fixture(scope="module")
def small() -> Method:
    return eaglenet.load("small")


@pytest.fixture(scope="module")
def store(small: Method, tmp_path_factory: pytest.TempPathFactory) -> LocalStore:
    """Clips around the vectors of texts, so that cosines are as large as those of real clips."""
    folder = tmp_path_factory.mktemp("two-runtimes") / "store"
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        scenes = F.normalize(small.encode_text([*TEXTS, "a goal", "a cat"]).sentence, dim=-1)
    manifest = make_manifest(small, model="small")
    with LocalStore.write(folder, manifest) as writer:
        for number in range(12):
            noise = torch.randn(5, manifest.layout.num_frames, 384, generator=generator) / 384**0.5
            frames = 3 * (0.5 * scenes[number % 6] + noise)
            add_file(writer, small, f"/videos/{number}.mp4", content_of(number), frames)
        writer.finish()
    return LocalStore.open(folder)


@pytest.fixture(scope="module")
def light(store: LocalStore) -> Engine:
    return Engine(store)


@pytest.fixture(scope="module")
def heavy(store: LocalStore, light: Engine) -> Engine:
    engine = Engine(store)
    model = TorchModel(load_for_search(store, None, "cpu"))
    engine._model = store.manifest.identity, model
    return engine


def assert_same_hits(light: Engine, heavy: Engine, query: str | Query) -> None:
    assert isinstance(light.model, NumpyModel)
    assert isinstance(heavy.model, TorchModel)
    pairs = list(zip(light.search(query, 20), heavy.search(query, 20), strict=True))
    assert len(pairs) == 20
    assert [one.clip_id for one, _ in pairs] == [other.clip_id for _, other in pairs]
    for one, other in pairs:
        assert one.score == pytest.approx(other.score, abs=1e-4)
        assert one.coarse_score == pytest.approx(other.coarse_score, abs=1e-4)
        assert one.moment == other.moment


@pytest.mark.parametrize("text", TEXTS)
def test_texts_have_the_same_hits(light: Engine, heavy: Engine, text: str) -> None:
    assert_same_hits(light, heavy, text)


def test_a_text_with_negatives_has_the_same_hits(light: Engine, heavy: Engine) -> None:
    assert_same_hits(light, heavy, Query("a car", negatives=("snow", "a man")))


def test_a_clip_has_the_same_hits(light: Engine, heavy: Engine) -> None:
    assert_same_hits(light, heavy, Query(clip_id=light.search("snow", 1)[0].clip_id))


def test_an_image_has_the_same_hits(light: Engine, heavy: Engine, tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 255, (60, 80, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    assert_same_hits(light, heavy, Query(image=tmp_path / "a.png"))


def test_an_explanation_has_the_same_scores(light: Engine, heavy: Engine) -> None:
    clip = light.search(TEXTS[0], 1)[0].clip_id
    one, other = (engine.explain(TEXTS[0], clip) for engine in (light, heavy))
    assert one.score == pytest.approx(other.score, abs=1e-4)
    np.testing.assert_allclose(one.frames, other.frames, atol=1e-4)


def test_hubness_offsets_count_alike(
    store: LocalStore, light: Engine, heavy: Engine, small: Method, tmp_path: Path
) -> None:
    shutil.copytree(store.location, tmp_path / "store")
    with torch.no_grad():
        bank = small.coarse_vectors(small.encode_text(["a man talks", "a dog"])).numpy()
    with LocalStore.write(tmp_path / "store") as writer:
        writer.set_hubness(HubnessBank("given", bank, 1.0, 20.0))
    corrected = LocalStore.open(tmp_path / "store")
    engines = [Engine(corrected), Engine(corrected)]
    for engine, other in zip(engines, (light, heavy), strict=True):
        engine._model = store.manifest.identity, other.model
    assert_same_hits(*engines, TEXTS[1])
    before = light.search(TEXTS[1], 1)[0].coarse_score
    assert engines[0].search(TEXTS[1], 1)[0].coarse_score != pytest.approx(before, abs=1e-3)


def test_other_weights_are_refused_without_torch(store: LocalStore, tmp_path: Path) -> None:
    shutil.copytree(PACKAGED / "small", tmp_path / "copy")
    assert Engine(store, model=tmp_path / "copy").search("snow", 1)
    path = tmp_path / "copy" / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-100_000:-90_000] = bytes(10_000)
    path.write_bytes(content)
    with pytest.raises(StoreError, match="made with another model"):
        Engine(store, model=tmp_path / "copy").search("snow", 1)


def test_a_loaded_model_runs_in_torch(store: LocalStore, small: Method) -> None:
    assert isinstance(Engine(store, model=small).model, TorchModel)
