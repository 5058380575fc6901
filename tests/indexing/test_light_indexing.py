"""Indexing with `small` through onnxruntime: the same stores as through torch."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

import eaglenet
from eaglenet.core.frame_spec import Splitting
from eaglenet.encoders import hardware
from eaglenet.indexing.decoding import ClipFrames
from eaglenet.indexing.encoding import ClipEncoding, prepare_for_precision
from eaglenet.indexing.files import CandidateFile
from eaglenet.indexing.model import (
    choose_hubness_bank,
    load_light,
    make_light_manifest,
    uses_light_model,
)
from eaglenet.indexing.options import IndexOptions
from eaglenet.methods.base import Method
from eaglenet.models.light_model import LightModel
from eaglenet.models.onnx_vision import sample_images
from eaglenet.search.torch_model import make_manifest
from eaglenet.store.manifest import Manifest
from sampling import one_in

pytest.importorskip("onnxruntime")
MUCH = [CandidateFile("clip.mp4", 2**24, 0)]


@pytest.fixture(scope="module")
def small() -> Method:
    return eaglenet.load("small")


@pytest.fixture(scope="module")
def light() -> LightModel:
    return load_light("small")


@pytest.fixture(scope="module")
def manifest(light: LightModel) -> Manifest:
    return make_light_manifest(light, "small", light.frame_spec, Splitting(), ["/videos"])


def clip(number: int, order: list[int]) -> ClipFrames:
    """A clip of six of the sample images; -1 is a frame that is missing."""
    pixels = sample_images(168)[np.maximum(order, 0)]
    is_real = np.array([image >= 0 for image in order])
    times = np.arange(6, dtype=np.float32)
    return ClipFrames(("f" * 32, number), "a.mp4", (0.0, 6.0), pixels, is_real, times, b"")


def test_both_runtimes_make_the_same_manifest(small: Method, manifest: Manifest) -> None:
    assert manifest == make_manifest(small, "small", small.frame_spec, Splitting(), ["/videos"])


def test_both_runtimes_choose_the_same_hubness_bank(small: Method, light: LightModel) -> None:
    assert choose_hubness_bank(None, light, "small") == choose_hubness_bank(None, small, "small")
    texts = ["a man talks", "a dog runs"]
    one, other = (choose_hubness_bank(texts, model, "small") for model in (light, small))
    assert one is not None
    assert other is not None
    np.testing.assert_allclose(one.vectors, other.vectors, atol=1e-6)
    assert (one.weight, one.texts) == (other.weight, other.texts)
    assert one.scale == pytest.approx(other.scale, rel=1e-6)


@pytest.mark.parametrize(("precision", "tolerance"), one_in(2, [("fp32", 1e-5), ("int8", 1e-3)]))
def test_both_runtimes_encode_clips_alike(
    small: Method, light: LightModel, manifest: Manifest, precision: str, tolerance: float
) -> None:
    clips = [clip(0, [0, 1, 2, 3, 0, 1]), clip(1, [3, 2, -1, -1, -1, -1])]
    model, chosen = prepare_for_precision(light, precision, MUCH)
    one = ClipEncoding(model, manifest, precision=chosen)._encode(clips)
    other = ClipEncoding(small, manifest)._encode(clips)
    assert chosen == precision
    assert one.keys == other.keys
    assert ((one.vectors * other.vectors).sum(axis=1) > 1 - tolerance).all()
    for name in ("mask", "seconds"):
        np.testing.assert_array_equal(one.features[name], other.features[name])
    first, second = (batch.features["frames"].astype(np.float32) for batch in (one, other))
    lengths = np.linalg.norm(first, axis=-1) * np.linalg.norm(second, axis=-1)
    is_real = one.features["mask"]
    assert ((first * second).sum(axis=-1)[is_real] / lengths[is_real] > 1 - tolerance).all()
    assert not first[~is_real].any()


def test_equal_frames_are_encoded_once(light: LightModel, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = []
    tower = light.vision("fp32")
    monkeypatch.setitem(
        light._visions, "fp32", lambda frames: counts.append(len(frames)) or tower(frames)
    )
    pixels = np.stack([sample_images(168)[[0, 1, 0, 1]], sample_images(168)[[1, 2, 3, 3]]])
    vectors = light.encode_frames(pixels, np.ones((2, 4), np.bool_))
    assert sum(counts) == 4
    np.testing.assert_array_equal(vectors[0, 1], vectors[1, 0])
    np.testing.assert_allclose(vectors[1, 2], tower(sample_images(168)[3:])[0], atol=1e-4)


@pytest.mark.parametrize(
    ("flags", "files", "expected"),
    [
        ({"dot": True}, MUCH, "int8"),
        ({"dot": True}, [CandidateFile("clip.mp4", 2**19, 0)], "fp32"),
        ({"dot": True, "bf16": True}, MUCH, "int8"),
        ({}, MUCH, "fp32"),
    ],
)
def test_auto_precision_of_a_light_model(
    light: LightModel,
    flags: dict[str, bool],
    files: list[CandidateFile],
    expected: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hardware, "_cpu_flags", lambda: flags)
    assert prepare_for_precision(light, "auto", files) == (light, expected)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, True),
        ({"device": "cpu"}, True),
        ({"precision": "int8"}, True),
        ({"device": "cuda"}, False),
        ({"precision": "bf16"}, False),
        ({"prepare": True}, False),
        ({"executor": "ray"}, False),
    ],
)
def test_options_that_need_torch(
    changes: dict[str, object], expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hardware, "_cpu_flags", dict)
    monkeypatch.setattr(hardware, "has_gpu", lambda: False)
    options = dataclasses.replace(IndexOptions(), **changes)  # type: ignore[arg-type]
    assert uses_light_model("small", options) == expected
    assert not uses_light_model("demo", options)


def test_torch_is_used_where_it_is_faster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(hardware, "has_gpu", lambda: True)
    monkeypatch.setattr(hardware, "_cpu_flags", dict)
    assert not uses_light_model("small", IndexOptions())
    assert uses_light_model("small", IndexOptions(device="cpu"))
    monkeypatch.setattr(hardware, "_cpu_flags", lambda: {"amx_bf16": True})
    assert not uses_light_model("small", IndexOptions(device="cpu"))
    monkeypatch.setattr(hardware, "is_torch_installed", lambda: False)
    assert uses_light_model("small", IndexOptions())
