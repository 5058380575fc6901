"""A search in words neither reads nor keeps the image tower; one by a picture brings it back."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

import eaglenet
from clip_folder import learn_tokenizer, save_clip
from eaglenet.core.types import Clips
from eaglenet.encoders import weights
from eaglenet.encoders.base import TowerEncoder
from eaglenet.encoders.clip import ClipEncoder
from eaglenet.encoders.clip_config import ClipConfig, TextConfig, VisionConfig
from eaglenet.encoders.weights import _MappedFile
from eaglenet.indexing.index import index
from eaglenet.models.folder import load_for_texts
from eaglenet.search.query import Query
from eaglenet.search.torch_model import TorchModel, model_identity, release_image_tower
from openai_class import OpenaiClip, OpenaiShape, save_archive
from small_model import save_small_model
from texts_alone import IMAGE_TOWER, check_texts_alone

WORDS = learn_tokenizer(["a", "red", "green", "blue", "car"])
MEASURED = """
import resource, subprocess, sys
subprocess.run([sys.executable, "-m", "eaglenet", *sys.argv[1:]], check=True)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""
"""A process in between: one starts with the peak of the process that started it."""
PEAK = 1300 * 2**10
"""KiB that a search with ViT-L/14 may take at its highest: 823 MiB were measured with a CPU build
of torch and 1,046 MiB with a CUDA build, of which 470 are the text tower in fp32; 3,073 MiB when
both towers were read."""


def random_clips(size: int) -> Clips:
    generator = torch.Generator().manual_seed(1)
    frames = torch.randint(0, 256, (1, 2, 3, size, size), generator=generator)
    return Clips(frames.byte(), torch.ones(1, 2, dtype=torch.bool), torch.zeros(1, 2))


def weights_of(method: eaglenet.Method) -> int:
    """Bytes of weights that are really there."""
    real = [p for p in method.parameters() if not p.is_meta]
    return sum(p.numel() * p.element_size() for p in real)


def test_words_are_read_without_the_image_tower_and_pictures_bring_it_back(tmp_path: Path) -> None:
    save_small_model(tmp_path)
    whole, method = eaglenet.load(tmp_path), eaglenet.load(tmp_path)
    before = weights_of(method)
    release_image_tower(method, str(tmp_path))
    assert isinstance(method.encoder, TowerEncoder)
    tower = sum(p.numel() for p in whole.encoder.vision.parameters())  # type: ignore[attr-defined]
    assert weights_of(method) == before - 4 * tower
    text = method.encode_text(method.tokenize(["a red car"]))
    assert torch.equal(text.sentence, whole.encode_text(whole.tokenize(["a red car"])).sentence)
    assert weights_of(method) < before
    method.to("cpu")  # moves what is there
    assert method.device == torch.device("cpu")
    clips = random_clips(method.frame_spec.size)
    with torch.no_grad():
        expected = whole.encode_video(clips).frames
        assert torch.equal(method.encode_video(clips).frames, expected)
    assert weights_of(method) == before


def test_threads_reload_the_image_tower_once(tmp_path: Path) -> None:
    save_small_model(tmp_path)
    method = eaglenet.load(tmp_path)
    assert isinstance(method.encoder, TowerEncoder)
    vision = method.encoder.vision
    made = []

    def restore() -> torch.nn.Module:
        made.append(1)
        return eaglenet.load(tmp_path).encoder.vision  # type: ignore[attr-defined,no-any-return]

    method.encoder.release_vision(restore)
    clips, found = random_clips(method.frame_spec.size), []
    threads = [
        threading.Thread(target=lambda: found.append(method.encode_video(clips).frames))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1
    assert len(found) == 4
    assert vision is not method.encoder.vision


def test_a_thread_never_gets_the_released_tower(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even if another restores the tower while this one looks it up."""
    save_small_model(tmp_path)
    encoder = eaglenet.load(tmp_path).encoder
    assert isinstance(encoder, TowerEncoder)
    vision = eaglenet.load(tmp_path).encoder.vision  # type: ignore[attr-defined]
    encoder.release_vision(lambda: vision)
    look_up, is_first = torch.nn.Module.__getattr__, [True]

    def look_up_slowly(self: torch.nn.Module, name: str) -> Any:
        value = look_up(self, name)
        if self is encoder and name == "vision" and is_first:
            is_first.clear()
            thread = threading.Thread(target=lambda: encoder.vision)
            thread.start()
            thread.join()
        return value

    monkeypatch.setattr(torch.nn.Module, "__getattr__", look_up_slowly)
    assert encoder.vision is vision


def save_hub_folder(folder: Path, *, layers: int = 2) -> Path:
    """A CLIP as it is on the hub, in half precision, narrow."""
    vision = VisionConfig(image_size=32, patch_size=8, width=64, layers=layers, heads=1)
    text = TextConfig(WORDS.vocabulary_size, 77, 48, 2, 1, 96)
    save_clip(ClipEncoder(ClipConfig(24, vision, text), seed=3).half(), WORDS, folder)
    return folder


def save_bin_folder(folder: Path) -> Path:
    """The same with its weights as torch saves them."""
    import safetensors.torch

    path = save_hub_folder(folder) / "model.safetensors"
    torch.save(safetensors.torch.load_file(path), folder / "pytorch_model.bin")
    path.unlink()
    return folder


def save_openai_file(folder: Path) -> Path:
    """OpenAI's archive with its vocabulary beside it."""
    folder.mkdir()
    WORDS.save(folder)
    shape = OpenaiShape(3, 8, 64, 64, 40, WORDS.vocabulary_size, 2, 3, mlp=3)
    return save_archive(OpenaiClip(shape).half().eval(), folder / "ViT-tiny.pt")


def save_in_int8(folder: Path) -> Path:
    """A model folder whose matrices are int8 with scales, as that of ``small``."""
    eaglenet.save(eaglenet.load(save_hub_folder(folder / "whole")), folder, storage="int8")
    return folder


@pytest.mark.parametrize(
    "save", [save_hub_folder, save_bin_folder, save_openai_file, save_in_int8, save_small_model]
)
def test_image_tower_is_not_read_for_texts(save: Any, tmp_path: Path) -> None:
    check_texts_alone(save(tmp_path / "model"))


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        *((name, {}) for name in ("bridgeformer", "clipvip", "drl", "frozen", "tmass", "tvmm")),
        ("clip4clip", {"stem": "3d"}),
    ],
)
def test_methods_on_towers_keep_their_identity(
    name: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    save_small_model(tmp_path, name, **changes)
    method, whole = load_for_texts(tmp_path), eaglenet.load(tmp_path)
    assert model_identity(method) == model_identity(whole)


def test_model_identity_covers_the_image_tower(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three at most: queries, keys and values are one matrix to us."""
    plain = _MappedFile.read
    held: list[weakref.ref[torch.Tensor]] = []
    most = []

    def spy(self: Any, name: str) -> torch.Tensor:
        value = plain(self, name)
        if IMAGE_TOWER in name:
            held.append(weakref.ref(value))
            most.append(sum(each() is not None for each in held))
        return value

    monkeypatch.setattr(_MappedFile, "read", spy)
    monkeypatch.setattr(weights, "MAPPED_BYTES", -1)  # mapped anew for every weight
    method = load_for_texts(save_hub_folder(tmp_path, layers=4))
    gc.disable()
    try:
        model_identity(method)
    finally:
        gc.enable()
    assert len(held) > 4 * 16
    assert max(most) == 3


def test_hits_equal_those_of_the_whole_model(tmp_path: Path) -> None:
    model = save_hub_folder(tmp_path / "model")
    (tmp_path / "pictures").mkdir()
    for colour in ("red", "green"):
        Image.new("RGB", (40, 24), colour).save(tmp_path / "pictures" / f"{colour}.png")
    index(tmp_path / "pictures", tmp_path / "store", model=str(model), workers=0)
    alone = eaglenet.open(tmp_path / "store")
    whole = eaglenet.open(tmp_path / "store", eaglenet.load(model))
    first, second = (engine.search("a red car", k=2) for engine in (alone, whole))
    assert [(hit.path, hit.score) for hit in first] == [(hit.path, hit.score) for hit in second]
    assert isinstance(alone.model, TorchModel)
    encoder = alone.model.method.encoder
    assert isinstance(encoder, TowerEncoder)
    vision = encoder._modules["vision"]
    assert vision is not None
    assert all(each.is_meta for each in vision.parameters())
    picture = Image.new("RGB", (40, 24), "red")
    found = [engine.search(Query(image=picture), k=2) for engine in (alone, whole)]
    assert [hit.score for hit in found[0]] == [hit.score for hit in found[1]]


def test_another_image_tower_changes_the_identity(tmp_path: Path) -> None:
    """Its weights are not loaded, but they are looked at."""
    save_small_model(tmp_path)
    before = model_identity(load_for_texts(tmp_path))
    method = eaglenet.load(tmp_path)
    with torch.no_grad():
        method.encoder.vision.ln_post.bias += 1  # type: ignore[attr-defined]
    eaglenet.save(method, tmp_path)
    assert model_identity(load_for_texts(tmp_path)) != before


@pytest.mark.slow
def test_peak_memory_of_a_text_search_is_about_the_text_tower(tmp_path: Path) -> None:
    vision = VisionConfig(224, 14, 1024, 24, 16, 4096)
    text = TextConfig(49408, 77, 768, 12, 12, 3072)
    with torch.device("meta"):
        encoder = ClipEncoder(ClipConfig(768, vision, text))
    encoder = encoder.to_empty(device="cpu").half()
    for weight in encoder.parameters():
        weight.data.uniform_(-0.02, 0.02)
    save_clip(encoder, WORDS, tmp_path / "model")
    del encoder
    (tmp_path / "pictures").mkdir()
    Image.new("RGB", (40, 24), "grey").save(tmp_path / "pictures" / "grey.png")
    index(tmp_path / "pictures", tmp_path / "store", model=str(tmp_path / "model"), workers=0)
    command = [sys.executable, "-c", MEASURED, "search", "a red car", "--store", "store"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "grey.png" in done.stdout
    assert int(done.stdout.split()[-1]) < PEAK
