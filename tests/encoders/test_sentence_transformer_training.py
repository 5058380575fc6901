"""Low-rank changes of models of sentence-transformers: trained, merged, saved and opened again."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import eaglenet
import st_models
from eaglenet.core.errors import UsageError
from eaglenet.core.types import Clips
from eaglenet.encoders.low_rank import Targets, adapt_towers, is_adapter, merged_state
from eaglenet.methods.base import Method
from eaglenet.research.training.trainer import save_model

TEXTS = ["a red ball", "two dogs", "rain"]


def clips_for(method: Method) -> Clips:
    spec = method.frame_spec
    shape = (len(TEXTS), 3, 3, spec.size, spec.size)
    generator = torch.Generator().manual_seed(5)
    frames = torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)
    mask = torch.ones(shape[:2], dtype=torch.bool)
    mask[1, 2] = False
    return Clips(frames, mask, torch.arange(3).expand(len(TEXTS), -1) / 2)


def train(method: Any, clips: Clips, steps: int = 6) -> list[float]:
    """Train only the low-rank changes for a few steps, and return the losses."""
    adapters = [p for name, p in method.named_parameters() if is_adapter(name)]
    optimizer = torch.optim.Adam(adapters, lr=3e-3)
    method.train()
    losses = []
    for _ in range(steps):
        text, video = method.encode_text(method.tokenize(TEXTS)), method.encode_video(clips)
        loss = method.losses(text, video, torch.eye(len(TEXTS), dtype=torch.bool)).total
        optimizer.zero_grad()
        loss.backward()
        assert all(p.grad is not None for p in adapters)
        optimizer.step()
        losses.append(loss.item())
    method.eval()
    return losses


@pytest.mark.parametrize(
    ("name", "targets"),
    [
        ("clip", "all"),
        pytest.param("qwen", "attention", marks=pytest.mark.slow),
        pytest.param("multi_vector", "attention", marks=pytest.mark.slow),
    ],
)
def test_low_rank_changes_are_trained_and_merged_into_a_folder(
    name: str, targets: Targets, tmp_path: Path
) -> None:
    folder = getattr(st_models, f"make_{name}")(tmp_path / "base")
    method: Any = eaglenet.load(f"st:{folder}")
    clips = clips_for(method)
    with torch.no_grad():
        start = method.similarity(TEXTS, clips)
    with pytest.raises(UsageError, match=r"with low-rank updates: --set training\.lora_rank=16"):
        method.train()
    plain = set(method.state_dict())
    count = adapt_towers(method.encoder, 2, targets)
    assert len([n for n, _ in method.named_parameters() if is_adapter(n)]) == 2 * count
    # Vectors with gradients are those of the library.
    with_gradients = method.encode_video(clips).frames
    assert with_gradients.requires_grad
    with torch.no_grad():
        torch.testing.assert_close(
            with_gradients, method.encode_video(clips).frames, atol=1e-5, rtol=0
        )
        torch.testing.assert_close(method.similarity(TEXTS, clips), start, atol=1e-5, rtol=0)
    video = method.encode_video(clips)
    video.frames.square().sum().backward()
    adapter = next(
        p for n, p in method.named_parameters() if n.endswith(".up") and p.grad is not None
    )
    expected, adapter.grad = adapter.grad, None
    method.encoder.set_gradient_checkpointing(3)
    method.encode_video(clips).frames.square().sum().backward()
    torch.testing.assert_close(adapter.grad, expected)
    losses = train(method, clips)
    assert losses[-1] < losses[0] - 0.02
    with torch.no_grad():
        new_scores = method.similarity(TEXTS, clips)
    assert (new_scores - start).abs().max() > 1e-3
    weights = merged_state(method.state_dict())
    assert set(weights) == plain
    save_model(method, tmp_path / "model", method.state_dict())
    shutil.rmtree(folder)
    loaded_method = eaglenet.load(tmp_path / "model")
    torch.testing.assert_close(
        loaded_method.similarity(TEXTS, clips), new_scores, atol=1e-5, rtol=0
    )
    # The saved tower is a model of sentence-transformers, with the changes in its weights.
    alone = eaglenet.load(f"st:{tmp_path / 'model' / 'st'}")
    torch.testing.assert_close(alone.similarity(TEXTS, clips), new_scores, atol=1e-5, rtol=0)
