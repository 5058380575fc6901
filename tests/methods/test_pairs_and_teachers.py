"""ClipBERT's network of pairs and TeachText's loss equal the authors' code.

The numbers were made by the official classes (`tests/golden/other`): ClipBERT's transformer with
its head and the loss of its training script; a training step of TeachText's trainer.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from eaglenet.core.types import Losses, TextFeatures, VideoFeatures
from eaglenet.encoders.features import FeatureConfig, FeatureEncoder
from eaglenet.losses import margin_loss
from eaglenet.methods import METHODS
from eaglenet.methods.early.clipbert import ClipBERT, pool_clips
from eaglenet.methods.early.teachtext import TeachText, teacher_scores

FOLDER = Path(__file__).parents[1] / "golden" / "other"


def load(name: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    with np.load(FOLDER / f"{name}.npz") as file:
        options = json.loads(str(file["options"]))
        return options, {key: torch.from_numpy(file[key]) for key in file.files[:-1]}


def below(arrays: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {k.removeprefix(prefix): v for k, v in arrays.items() if k.startswith(prefix)}


# Our weight -> theirs, where one stands for one.
NAMES = {
    "text_norm": "bert.embeddings.LayerNorm",
    "patch_norm": "bert.visual_embeddings.LayerNorm",
    "pooler": "bert.pooler.dense",
    "head.0": "classifier.0",
    "head.2": "classifier.2",
}
BLOCK_NAMES = {
    "out_projection": "attention.output.dense",
    "attention_norm": "attention.output.LayerNorm",
    "up": "intermediate.dense",
    "down": "output.dense",
    "output_norm": "output.LayerNorm",
}


def same_weights(num_layers: int) -> dict[str, str]:
    names = dict(NAMES)
    for index in range(num_layers):
        for ours, theirs in BLOCK_NAMES.items():
            names[f"stack.blocks.{index}.{ours}"] = f"bert.encoder.layer.{index}.{theirs}"
    return {f"{a}.{kind}": f"{b}.{kind}" for a, b in names.items() for kind in ("weight", "bias")}


def fused_matrix(arrays: dict[str, Tensor], index: int, kind: str) -> Tensor:
    start = f"bert.encoder.layer.{index}.attention.self"
    return torch.cat([arrays[f"{start}.{part}.{kind}"] for part in ("query", "key", "value")])


def build_clipbert(options: dict[str, Any], weights: dict[str, Tensor]) -> ClipBERT:
    dim = options["dim"]
    config = METHODS["clipbert"].config_class(
        num_frames=options["frames"],
        frames_per_clip=options["frames_per_clip"],
        dim=dim,
        num_layers=options["layers"],
        num_heads=options["heads"],
        hidden_dim=options["hidden"],
        num_positions=options["positions"],
        dropout=0.0,
        pairs_at_once=5,
    )
    encoder = FeatureEncoder(FeatureConfig(text_dim=dim, frame_dim=dim, dim=dim, identity=True))
    method = ClipBERT(encoder, config)
    method.grid = torch.nn.Parameter(torch.zeros(2, 100, dim))
    with torch.no_grad():
        for linear in (method.word_map, method.patch_map):  # the official code has none
            assert isinstance(linear, torch.nn.Linear)
            linear.weight.copy_(torch.eye(dim))
            linear.bias.zero_()
        state = dict(method.named_parameters())
        for ours, theirs in same_weights(options["layers"]).items():
            state[ours].copy_(weights[theirs])
        for index in range(options["layers"]):
            for kind in ("weight", "bias"):
                name = f"stack.blocks.{index}.in_projection.{kind}"
                state[name].copy_(fused_matrix(weights, index, kind))
        embeddings, visual = "bert.embeddings", "bert.visual_embeddings"
        assert method.first is not None
        method.first.copy_(weights[f"{embeddings}.word_embeddings.weight"][1])
        method.positions.copy_(weights[f"{embeddings}.position_embeddings.weight"])
        method.kinds[0].copy_(weights[f"{embeddings}.token_type_embeddings.weight"][0])
        method.kinds[1].copy_(weights[f"{visual}.token_type_embeddings.weight"][0])
        rows = weights[f"{visual}.row_position_embeddings.weight"]
        method.grid[0, : len(rows)].copy_(rows)
        columns = weights[f"{visual}.col_position_embeddings.weight"]
        method.grid[1, : len(columns)].copy_(columns)
    return method.eval()


@pytest.mark.parametrize("case", ["full", "padded"])
@pytest.mark.parametrize("name", ["clipbert-salt0", "clipbert-salt1"])
def test_clipberts_pair_network_equals_the_official_code(name: str, case: str) -> None:
    options, arrays = load(name)
    weights, inputs = below(arrays, "weights/"), below(arrays, f"{case}/inputs/")
    outputs = below(arrays, f"{case}/outputs/")
    method = build_clipbert(options, weights)
    words = weights["bert.embeddings.word_embeddings.weight"][inputs["ids"]]
    mask = inputs["mask"].bool()
    # The first word is the class token, which the method adds itself.
    text = TextFeatures(words[:, 0], words[:, 1:], mask[:, 1:])
    patches = inputs["grid"].flatten(2, 3).requires_grad_()
    is_real = torch.ones(patches.shape[:2], dtype=torch.bool)
    video = VideoFeatures(patches.mean(dim=2), is_real, patches=patches)
    num_texts, num_videos = len(words), len(patches)
    pairs = torch.cartesian_prod(torch.arange(num_texts), torch.arange(num_videos))
    logits, clips = method.pair_logits(text, video, pairs[:, 0], pairs[:, 1])
    theirs = outputs["logits"].flatten(0, 1)
    torch.testing.assert_close(logits, theirs, atol=1e-5, rtol=1e-5)
    # Ours ranks by the logarithm of the odds.
    odds = torch.logit(outputs["probabilities"].double()).float()
    torch.testing.assert_close(method.score(text, video), odds, atol=2e-5, rtol=1e-5)

    logits, clips = method.pair_logits(text, video, inputs["rows"], inputs["columns"])
    loss = F.cross_entropy(pool_clips(logits, clips, "lse"), inputs["labels"])
    torch.testing.assert_close(loss, outputs["loss"], atol=1e-5, rtol=0)
    loss.backward()
    expected = below(arrays, f"{case}/gradients/")
    compare_gradients(patches, expected["inputs/grid"].flatten(2, 3))
    gradients = below(expected, "weights/")
    own = dict(method.named_parameters())
    for ours, official in same_weights(options["layers"]).items():
        compare_gradients(own[ours], gradients[official])
    for index in range(options["layers"]):
        name_of = f"stack.blocks.{index}.in_projection.weight"
        compare_gradients(own[name_of], fused_matrix(gradients, index, "weight"))
    compare_gradients(method.positions, gradients["bert.embeddings.position_embeddings.weight"])


def compare_gradients(ours: Tensor, theirs: Tensor) -> None:
    """Within 1e-4 of the largest entry."""
    assert ours.grad is not None
    assert (ours.grad - theirs).abs().max() <= 1e-4 * theirs.abs().max().clamp_min(1e-6)


@pytest.mark.parametrize("name", ["teachtext-salt0", "teachtext-salt1"])
def test_teachtexts_loss_equals_a_step_of_the_official_trainer(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    options, arrays = load(name)
    inputs = below(arrays, "inputs/")
    scores = inputs["scores"].requires_grad_()
    count = len(scores)
    encoder = FeatureEncoder(FeatureConfig(text_dim=8, frame_dim=8, dim=8))
    config = METHODS["teachtext"].config_class(
        num_frames=2, dim=8, student="ce", student_config={"margin": options["margin"]}
    )
    method = METHODS["teachtext"].build(config, encoder)
    assert isinstance(method, TeachText)
    # The student's scores are given; its own equality with the official code is tested elsewhere.
    monkeypatch.setattr(method, "score", lambda text, video: scores)
    monkeypatch.setattr(
        method.student,
        "losses",
        lambda text, video, positives: Losses(
            {"margin": margin_loss(scores, positives, options["margin"])}
        ),
    )
    text = TextFeatures(torch.zeros(count, 8), teachers=inputs["teacher_text"])
    video = VideoFeatures(
        torch.zeros(count, 2, 8), torch.ones(count, 2).bool(), teachers=inputs["teacher_video"]
    )
    assert inputs["teacher_text"].shape[1] == options["teachers"]
    losses = method.losses(text, video, torch.eye(count, dtype=torch.bool))
    torch.testing.assert_close(losses.total, arrays["outputs/loss"], atol=1e-6, rtol=0)
    losses.total.backward()
    compare_gradients(scores, arrays["gradients/inputs/scores"])
    assert teacher_scores(text, video).shape == (count, count)
