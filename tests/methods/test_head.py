"""A head beside a model: trained on features, used on the towers that made them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import eaglenet
from eaglenet.core.errors import CheckpointError, UsageError
from eaglenet.core.types import TextFeatures, VideoFeatures
from eaglenet.encoders.features import FeatureConfig, FeatureEncoder
from eaglenet.methods import METHODS, Method
from eaglenet.methods.wordframe import WordFrameConfig
from eaglenet.models.files import head_folder
from eaglenet.models.folder import save_head, with_head

DIM = 64


def train_head(identity: bool = True) -> Method:
    """As training on features leaves it."""
    torch.manual_seed(1)
    encoder = FeatureEncoder(FeatureConfig(DIM, DIM, DIM, identity=identity))
    method = METHODS["wordframe"].build(WordFrameConfig(num_frames=8), encoder).eval()
    with torch.no_grad():
        method.gate.fill_(0.07)  # type: ignore[operator,union-attr]
    return method


@torch.no_grad()
def test_the_head_scores_the_towers_features_as_it_did_stored_ones(tmp_path: Path) -> None:
    head = train_head()
    save_head(head, tmp_path / "head")
    assert head_folder(tmp_path) == tmp_path / "head"
    model = eaglenet.load("demo")
    whole_model = with_head(model, tmp_path / "head")
    generator = torch.Generator().manual_seed(0)
    text = TextFeatures(torch.randn(3, DIM, generator=generator))
    mask = torch.ones(5, 4, dtype=torch.bool)
    video = VideoFeatures(torch.randn(5, 4, DIM, generator=generator), mask)
    assert torch.equal(whole_model.score(text, video), head.score(text, video))
    sentences = whole_model.encode_text(["a red circle moves"])
    assert sentences.words is not None
    plain = model.encoder.encode_text(model.tokenize(["a red circle moves"]))
    torch.testing.assert_close(sentences.sentence, plain.sentence)


@torch.no_grad()
def test_a_head_in_int8_is_smaller_and_scores_nearly_the_same(tmp_path: Path) -> None:
    head, model = train_head(), eaglenet.load("demo")
    save_head(head, tmp_path / "full")
    save_head(head, tmp_path / "int8", storage="int8")
    sizes = [(tmp_path / name / "model.safetensors").stat().st_size for name in ("full", "int8")]
    assert sizes[1] < 0.3 * sizes[0]
    full, int8_model = (with_head(model, tmp_path / name) for name in ("full", "int8"))
    generator = torch.Generator().manual_seed(0)
    text = TextFeatures(torch.randn(3, DIM, generator=generator))
    mask = torch.ones(5, 4, dtype=torch.bool)
    video = VideoFeatures(torch.randn(5, 4, DIM, generator=generator), mask)
    one, other = full.score(text, video), int8_model.score(text, video)
    assert not torch.equal(one, other)
    torch.testing.assert_close(other, one, atol=0.02 * float(one.std()), rtol=0)


def test_a_head_with_adapters_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="identity=true"):
        save_head(train_head(identity=False), tmp_path / "head")


def test_a_head_of_another_model_is_refused(tmp_path: Path) -> None:
    save_head(train_head(), tmp_path / "head")
    path = tmp_path / "head" / "config.json"
    path.write_text(path.read_text().replace('"dim": 64', '"dim": 65'))
    with pytest.raises(CheckpointError, match="belongs to another model"):
        with_head(eaglenet.load("demo"), tmp_path / "head")
    (tmp_path / "head" / "model.safetensors").write_bytes(b"torn")
    with pytest.raises(CheckpointError, match="cannot be read"):
        with_head(eaglenet.load("demo"), tmp_path / "head")
    assert head_folder(tmp_path / "head") is None
