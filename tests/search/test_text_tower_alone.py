"""A search in words keeps no image tower in memory; a search by picture brings it back."""

from __future__ import annotations

import threading
from pathlib import Path

import torch

import eaglenet
from eaglenet.encoders.base import TowerEncoder
from eaglenet.search.models import keep_text_tower
from eaglenet.types import Clips
from small_model import save_small_model


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
    keep_text_tower(method, str(tmp_path))
    assert isinstance(method.encoder, TowerEncoder)
    tower = sum(p.numel() for p in whole.encoder.vision.parameters())  # type: ignore[attr-defined]
    assert weights_of(method) == before - 4 * tower
    text = method.encode_text(method.tokenize(["a red car"]))
    assert torch.equal(text.sentence, whole.encode_text(whole.tokenize(["a red car"])).sentence)
    assert weights_of(method) < before
    assert method.device == torch.device("cpu")
    clips = random_clips(method.frame_spec.size)
    with torch.no_grad():
        expected = whole.encode_video(clips).frames
        assert torch.equal(method.encode_video(clips).frames, expected)
    assert weights_of(method) == before


def test_several_threads_bring_the_tower_back_once(tmp_path: Path) -> None:
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
