"""A store of a model with a head beside it: the head ranks, the store stays what it was."""

from __future__ import annotations

import shutil
from pathlib import Path

import torch
from synthetic_store import make_store

from eaglenet.encoders.features import FeatureConfig, FeatureEncoder
from eaglenet.methods import METHODS
from eaglenet.methods.wordframe import WordFrameConfig
from eaglenet.models.files import PACKAGED
from eaglenet.models.folder import load
from eaglenet.models.head import save_head
from eaglenet.search.engine import Engine


@torch.no_grad()
def test_head_beside_the_model_ranks(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(PACKAGED / "demo", folder)
    model = load(str(folder))
    make_store(tmp_path / "store", model, num_files=0)
    before = Engine.open(tmp_path / "store", str(folder), device="cpu")
    assert before.method.name == model.name
    encoder = FeatureEncoder(FeatureConfig(64, 64, 64, identity=True))
    save_head(METHODS["wordframe"].build(WordFrameConfig(num_frames=8), encoder), folder / "head")
    after = Engine.open(tmp_path / "store", str(folder), device="cpu")
    assert after.method.name == "wordframe"
    assert after.reranker.method is after.method
    # The shortlist is the towers' own: the vectors that were indexed still fit.
    sides = [engine.method for engine in (before, after)]
    vectors = [side.coarse_vectors(side.encode_text(["a red circle moves"])) for side in sides]
    torch.testing.assert_close(vectors[0], vectors[1])
    assert after.search("a red circle moves") == []
