"""A store of a model with a head beside it: the head ranks, the store stays what it was."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import torch

from eaglenet.encoders.features import FeatureConfig, FeatureEncoder
from eaglenet.methods import METHODS
from eaglenet.methods.wordframe import WordFrameConfig
from eaglenet.models.files import PACKAGED
from eaglenet.models.folder import load, save_head
from eaglenet.search.engine import Engine
from eaglenet.search.torch_model import TorchModel
from synthetic_store import make_store


@torch.no_grad()
def test_head_beside_the_model_ranks(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(PACKAGED / "demo", folder)
    model = load(str(folder))
    make_store(tmp_path / "store", model, num_files=0)
    before = Engine.open(tmp_path / "store", str(folder), device="cpu")
    assert isinstance(before.model, TorchModel)
    assert before.model.method.name == model.name
    encoder = FeatureEncoder(FeatureConfig(64, 64, 64, identity=True))
    save_head(METHODS["wordframe"].build(WordFrameConfig(num_frames=8), encoder), folder / "head")
    after = Engine.open(tmp_path / "store", str(folder), device="cpu")
    assert isinstance(after.model, TorchModel)
    assert after.model.method.name == "wordframe"
    # The shortlist is the towers' own: the vectors that were indexed still fit.
    first, second = (
        engine.model.encode_texts(["a red circle moves"]).vectors for engine in (before, after)
    )
    np.testing.assert_allclose(first, second, atol=1e-6)
    assert after.search("a red circle moves") == []
