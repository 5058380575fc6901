"""A checkpoint of ClipBERT becomes a model with the official scores, from pixels and token ids.

``golden/other/clipbert-checkpoint.npz`` was made by the official classes: a ResNet-50 of detectron2
with narrow layers, ClipBERT's transformer, its pooling over clips and its loss. It also has the
names and shapes of all weights of the true size.
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
from typer.testing import CliRunner

import eaglenet
from eaglenet.core.errors import CheckpointError, ConfigError, UsageError
from eaglenet.core.types import Clips, Tokens
from eaglenet.methods.early.clipbert import ClipBERT, pool_clips
from eaglenet.methods.official.checkpoint import (
    ONE_VALUE,
    UNDETERMINED,
    convert_official,
    translate,
)
from eaglenet.models.folder import save
from eaglenet.video.decoding import write_video

FILE = Path(__file__).parents[1] / "golden" / "other" / "clipbert-checkpoint.npz"
with np.load(FILE) as stored:
    OPTIONS = json.loads(str(stored["options"]))
    TRUE_SIZE: dict[str, list[int]] = json.loads(str(stored["true_size"]))
    NUMBERS = {
        name: torch.from_numpy(stored[name])
        for name in stored.files
        if name not in ("options", "true_size")
    }
AUTHORS: dict[str, Any] = {**UNDETERMINED["clipbert"], **ONE_VALUE["clipbert"]}
TINY = {
    **AUTHORS,
    "num_frames": OPTIONS["frames"],
    "image_size": OPTIONS["side"],
    "num_heads": OPTIONS["heads"],
    "max_words": 7,
}


def below(prefix: str) -> dict[str, Tensor]:
    return {k.removeprefix(prefix): v for k, v in NUMBERS.items() if k.startswith(prefix)}


WEIGHTS, INPUTS, OUTPUTS = below("weights/"), below("inputs/"), below("outputs/")
TOKENS = Tokens(INPUTS["ids"], INPUTS["mask"].bool())
CLIPS = Clips(
    INPUTS["frames"],
    torch.ones(INPUTS["frames"].shape[:2], dtype=torch.bool),
    torch.zeros(INPUTS["frames"].shape[:2]),
)


def convert(**changes: Any) -> ClipBERT:
    method = convert_official("clipbert", WEIGHTS, {**TINY, **changes}).method
    assert isinstance(method, ClipBERT)
    return method


@pytest.mark.parametrize("pooling", ["lse", "mean", "max"])
@torch.no_grad()
def test_scores_from_pixels_equal_those_of_the_official_code(pooling: str, tmp_path: Path) -> None:
    save(convert(pooling=pooling), tmp_path)
    method: Any = eaglenet.load(tmp_path)
    text, video = method.encode_text(TOKENS), method.encode_video(CLIPS)
    grid = OUTPUTS["grid"].flatten(1, 2)  # of the first clip
    torch.testing.assert_close(video.patches[0, :2], grid, atol=1e-5, rtol=1e-5)
    pairs = torch.cartesian_prod(torch.arange(len(text)), torch.arange(len(video)))
    logits, _ = method.pair_logits(text, video, pairs[:, 0], pairs[:, 1])
    torch.testing.assert_close(logits, OUTPUTS["logits"].flatten(0, 1), atol=1e-5, rtol=1e-5)
    expected = OUTPUTS[f"probabilities/{pooling}"]
    scores = method.score(text, video)
    torch.testing.assert_close(torch.sigmoid(scores), expected, atol=1e-5, rtol=0)
    torch.testing.assert_close(scores, torch.logit(expected), atol=1e-4, rtol=0)


@pytest.mark.parametrize("pooling", ["lse", "mean", "max"])
def test_loss_and_gradients_equal_those_of_an_official_step(pooling: str) -> None:
    method = convert(pooling=pooling)
    text, video = method.encode_text(TOKENS), method.encode_video(CLIPS)
    logits, mask = method.pair_logits(text, video, INPUTS["rows"], INPUTS["columns"])
    loss = F.cross_entropy(pool_clips(logits, mask, pooling), INPUTS["labels"])
    torch.testing.assert_close(loss, OUTPUTS[f"loss/{pooling}"], atol=1e-5, rtol=0)
    if pooling != "lse":
        return
    loss.backward()
    theirs = below("gradients/")
    largest = max(float(value.abs().max()) for value in theirs.values())
    expected = translate(
        method, {name: theirs.get(name, torch.zeros_like(value)) for name, value in WEIGHTS.items()}
    ).state
    for name, parameter in method.named_parameters():
        if parameter.grad is None:  # The loss does not read the scale of cosines.
            assert not parameter.requires_grad or name == "encoder.logit_scale"
            continue
        bound = 1e-4 * expected[name].abs().max().clamp_min(1e-4 * largest)
        assert (parameter.grad - expected[name]).abs().max() <= bound, name
    frozen_names = {name for name, value in method.named_parameters() if not value.requires_grad}
    blocks = [f"encoder.vision.blocks.{index}." for index in range(3)]
    assert {name for name in frozen_names if name.startswith(blocks[2])}
    assert all(
        name.startswith(("encoder.vision.stem.", *blocks, "encoder.logit_scale"))
        for name in frozen_names
    )


def test_a_checkpoint_of_the_true_size_fits_weight_by_weight() -> None:
    """Names and shapes only: tensors without values."""
    with torch.device("meta"):
        weights = {name: torch.empty(shape) for name, shape in TRUE_SIZE.items()}
        conversion = convert_official("clipbert", weights, AUTHORS)
        read = translate(conversion.method, weights).state
    method: Any = conversion.method
    assert set(method.state_dict()) - set(read) == {"encoder.logit_scale"}
    assert (method.config.num_layers, method.config.num_heads, method.config.dim) == (12, 12, 768)
    assert method.encoder.config.vision.depths == (3, 4, 6, 3)
    assert method.encoder.vocabulary_size == 30522
    assert set(conversion.unused_weights.values()) == {
        "detection of objects, never called",
        "never read",
    }
    assert (method.habits.max_words, method.habits.precision) == (20, "fp16")
    frames = method.frame_spec
    assert (frames.num_frames, frames.size, frames.resize) == (32, 448, "pad")


def test_settings_without_a_trace_have_to_be_given() -> None:
    with pytest.raises(UsageError, match=r"does not determine num_frames, pooling, image_size"):
        convert_official("clipbert", WEIGHTS)
    with pytest.raises(UsageError, match=r"--set fps=1: .* only those with fps=2"):
        convert(fps=1)
    with pytest.raises(ConfigError, match="pooling"):
        convert(pooling="sum")
    with pytest.raises(ConfigError, match="image_size is 32; expected 64 or more"):
        convert(image_size=32)


def test_checkpoints_of_other_tasks_are_refused() -> None:
    one_output = WEIGHTS["transformer.classifier.2.weight"][:1]
    with pytest.raises(CheckpointError, match="loss_type=rank, which is not supported"):
        convert_official(
            "clipbert", {**WEIGHTS, "transformer.classifier.2.weight": one_output}, TINY
        )
    without_head = {n: w for n, w in WEIGHTS.items() if "classifier" not in n}
    with pytest.raises(CheckpointError, match=r"no weight 'transformer\.classifier\.2\.weight'"):
        convert_official("clipbert", without_head, TINY)


def test_frames_of_another_size_and_long_texts_are_refused() -> None:
    method = convert()
    small = Clips(CLIPS.frames[..., :64, :64], CLIPS.mask, CLIPS.seconds)
    with pytest.raises(UsageError, match="frames are 64 x 64, this tower takes 128 x 128"):
        method.encode_video(small)
    ids = torch.ones(1, 13, dtype=torch.int64)
    with pytest.raises(UsageError, match="texts are 13 tokens long, this tower takes 12"):
        method.encode_text(Tokens(ids, ids.bool()))


def write_vocabulary(folder: Path) -> None:
    """A WordPiece tokenizer in the form of that of ``bert-base-uncased``."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "car", "##s", "dog"]
    pieces += [f"w{index}" for index in range(40 - len(pieces))]
    backend = Tokenizer(
        models.WordPiece({piece: index for index, piece in enumerate(pieces)}, unk_token="[UNK]")
    )
    backend.normalizer = normalizers.BertNormalizer()
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    backend.save(str(folder / "tokenizer.json"))


def test_the_command_makes_a_model_for_texts_and_files_that_refuses_to_search(
    tmp_path: Path,
) -> None:
    from eaglenet.cli.main import app

    torch.save({"state_dict": {n: w.half() for n, w in WEIGHTS.items()}}, tmp_path / "model.pt")
    write_vocabulary(tmp_path)
    settings = [f"--set={name}={value}" for name, value in TINY.items()]
    outcome = CliRunner().invoke(
        app,
        ["convert", str(tmp_path / "model.pt"), str(tmp_path / "model"), "--from", "clipbert",
         *settings, "--tokenizer", str(tmp_path)],
    )  # fmt: skip
    assert outcome.exit_code == 0, outcome.output
    assert "6 frames (second_pairs" in " ".join(outcome.output.split())
    method = eaglenet.load(tmp_path / "model")
    frames = method.frame_spec
    assert (frames.sampling, frames.resize, frames.square_pixels) == ("second_pairs", "pad", True)
    assert method.tokenize(["A Cars dog"], 6).ids.tolist() == [[2, 4, 5, 6, 7, 3]]
    video = tmp_path / "a.mp4"
    pixels = np.random.default_rng(0).integers(0, 256, (60, 48, 64, 3), dtype=np.uint8)
    write_video(video, pixels, 25)
    scores = method.similarity(["a dog", "cars"], [video])
    assert scores.shape == (2, 1)
    assert scores.isfinite().all()
    with pytest.raises(UsageError, match="its towers share no space"):
        eaglenet.index(video, tmp_path / "store", model=tmp_path / "model")
