"""Where and in which precision clips are encoded, and what comes of it."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from eaglenet.cli.main import app
from eaglenet.core.errors import UsageError
from eaglenet.encoders import hardware, int8
from eaglenet.indexing import encoding
from eaglenet.indexing.encoding import prepare_for_precision
from eaglenet.indexing.files import CandidateFile
from eaglenet.indexing.index import IndexOptions, index_videos
from eaglenet.methods.base import Method
from eaglenet.models.folder import load
from eaglenet.search.engine import Engine
from eaglenet.store.store import open_store
from small_model import save_small_model
from small_videos import colour_video

ON_CPU = ("--device", "cpu", "--workers", "0")


def vectors(store: Path) -> np.ndarray:
    """Coarse vectors of the clips of a store, of length 1."""
    found = np.concatenate([part for _, part in open_store(store).snapshot().vector_parts()])
    return found / np.linalg.norm(found, axis=1, keepdims=True)


def cosines(folder: Path, model: str, other: str = "bf16") -> np.ndarray:
    """Of the clips of one film, encoded in another precision and in fp32."""
    film = colour_video(folder / "film.mp4", ["red", "green", "blue", "red"])
    found = {}
    for precision in ("fp32", other):
        store = folder / precision
        options = IndexOptions(device="cpu", precision=precision, workers=0)
        report = index_videos([film], store, model, options=options)
        assert (report.precision, report.device) == (precision, "cpu")
        found[precision] = vectors(store)
    return (found["fp32"] * found[other]).sum(1)


def test_bf16_vectors_agree_with_fp32(tmp_path: Path) -> None:
    """The arithmetic is the same on any CPU; only its speed is not."""
    model = save_small_model(tmp_path / "model")
    found = cosines(tmp_path, str(model))
    assert len(found) == 2
    assert found.min() > 0.9995
    assert found.min() < 1.0 - 1e-9, "nothing was computed in bf16"


def test_packaged_model_loses_little_in_int8() -> None:
    pytest.importorskip("onnxruntime", reason="int8 products need onnxruntime")
    method = load("small")
    twin = encoding.to_int8(method)
    frames = torch.randint(0, 256, (1, 2, 3, 168, 168), dtype=torch.uint8)
    with torch.inference_mode():
        exact, found = (model.encoder.encode_frames(frames)[0, :, 0] for model in (method, twin))
    cosines = torch.cosine_similarity(exact, found)
    assert cosines.min() > 0.999
    assert cosines.min() < 1.0 - 1e-9, "nothing was computed in int8"
    assert twin.encoder.text is method.encoder.text


def test_index_stores_int8_vectors(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime", reason="int8 products need onnxruntime")
    found = cosines(tmp_path, str(save_small_model(tmp_path / "model")), "int8")
    assert found.min() > 0.999
    assert found.min() < 1.0 - 1e-9, "nothing was computed in int8"


def test_auto_chooses_int8_for_much_work_and_equal_vectors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``prepare_for_precision`` is told what machine and how much work there is."""
    method = load(str(save_small_model(tmp_path / "model")))
    little, much = (CandidateFile("film.mp4", size, 0) for size in (2**20, 2**30))
    monkeypatch.setattr(hardware, "_cpu_flags", lambda: {"dot": True})
    monkeypatch.setattr(int8, "is_installed", lambda: True)
    monkeypatch.setattr(encoding, "to_int8", copy.deepcopy)
    assert prepare_for_precision(method, "auto", [little]) == (method, "fp32")
    twin, chosen = prepare_for_precision(method, "auto", [much])
    assert chosen == "int8"
    assert twin is not method
    # Six clips from the web, which a model of real size encodes for minutes in fp32.
    assert (
        prepare_for_precision(method, "auto", [CandidateFile("clip.mp4", 2**19, 0)] * 6)[1]
        == "int8"
    )
    assert prepare_for_precision(method, "int8", [little])[1] == "int8"
    monkeypatch.setattr(hardware, "_cpu_flags", lambda: {"dot": True, "bf16": True})
    assert prepare_for_precision(method, "auto", [much]) == (method, "bf16")

    def refuse(method: Method) -> Method:
        raise UsageError("other frame vectors")

    monkeypatch.setattr(hardware, "_cpu_flags", lambda: {"dot": True})
    monkeypatch.setattr(encoding, "to_int8", refuse)
    assert prepare_for_precision(method, "auto", [much]) == (method, "fp32")
    with pytest.raises(UsageError, match="other frame vectors"):
        prepare_for_precision(method, "int8", [much])


@pytest.mark.skipif(
    not hardware.has_fast_bf16("cpu"), reason="this CPU has no bfloat16 products: they are emulated"
)
def test_packaged_model_loses_nothing_in_bf16(tmp_path: Path) -> None:
    assert cosines(tmp_path, "small").min() > 0.999


def test_report_names_the_chosen_precision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = str(save_small_model(tmp_path / "model"))
    film = colour_video(tmp_path / "film.mp4", ["red"])
    for flags, precision in (({"amx_bf16": True}, "bf16"), ({}, "fp32")):
        monkeypatch.setattr(hardware, "_cpu_flags", lambda flags=flags: flags)
        options = IndexOptions(device="cpu", workers=0)
        report = index_videos([film], tmp_path / precision, model, options=options)
        assert report.precision == precision
        assert report.to_dict()["precision"] == precision


def test_auto_moves_a_loaded_model_to_the_best_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``meta`` stands for a GPU: nothing can be computed there, but models can be put there."""
    model = str(save_small_model(tmp_path / "model"))
    film = colour_video(tmp_path / "film.mp4", ["red"])
    store = tmp_path / "store"
    index_videos([film], store, model, options=IndexOptions(device="cpu", workers=0))
    monkeypatch.setattr("eaglenet.encoders.hardware.best_device", lambda: "meta")
    assert Engine.open(store).model.device == "meta"
    assert Engine.open(store, device="cpu").model.device == "cpu"
    assert Engine.open(store, load(model)).model.device == "cpu"


def test_commands_take_a_device_and_index_prints_it(tmp_path: Path) -> None:
    model = str(save_small_model(tmp_path / "model"))
    film = str(colour_video(tmp_path / "film.mp4", ["red"]))
    store = str(tmp_path / "store")
    runner = CliRunner()
    found = runner.invoke(
        app,
        ["index", film, "--store", store, "--model", model, "--precision", "bf16", *ON_CPU],
    )
    assert found.exit_code == 0, found.output
    assert "encoded on cpu in bf16" in found.output
    assert "new store with the model" not in found.output, "the model was named"
    for device in ("auto", "cpu"):
        found = runner.invoke(app, ["search", "red", "--store", store, "--device", device])
        assert found.exit_code == 0, found.output
    assert open_store(store).manifest.model == model


def test_new_store_names_the_default_model_once(tmp_path: Path) -> None:
    film = str(colour_video(tmp_path / "film.mp4", ["red"]))
    arguments = ["index", film, "--store", str(tmp_path / "store"), "--workers", "0"]
    first = CliRunner().invoke(app, arguments)
    assert first.exit_code == 0, first.output
    assert "new store with the model small" in first.output
    assert "--model balanced" in first.output
    again = CliRunner().invoke(app, arguments)
    assert again.exit_code == 0, again.output
    assert "new store" not in again.output
