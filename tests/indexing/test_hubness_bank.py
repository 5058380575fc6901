"""Hubness bank of a store: from a file, from the model, the previous one, or none."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F
from typer.testing import CliRunner

from eaglenet.cli.main import app
from eaglenet.core.errors import UsageError
from eaglenet.core.frame_spec import Splitting
from eaglenet.core.types import Clips
from eaglenet.indexing.index import IndexOptions, index_videos
from eaglenet.indexing.maintenance import options_like
from eaglenet.indexing.model import model_hubness_bank, read_hubness_texts
from eaglenet.methods import METHODS
from eaglenet.methods.wordframe import WordFrame, WordFrameConfig
from eaglenet.models.files import PACKAGED
from eaglenet.models.folder import load, save_head
from eaglenet.search.engine import Engine
from eaglenet.store.store import LocalStore
from small_videos import colour_video
from synthetic_store import BagMethod


def index_with_bag(videos: Path, store: Path, hubness: Any = None) -> None:
    options = IndexOptions(splitting=Splitting(3.0, 1.0), workers=0, hubness=hubness)
    index_videos([videos], store, "bag", method=BagMethod(), options=options)


def test_indexing_keeps_changes_and_drops_a_bank(tmp_path: Path) -> None:
    (tmp_path / "videos").mkdir()
    colour_video(tmp_path / "videos/0.mp4", ["red", "green", "blue"])
    store = tmp_path / "store"

    def index(hubness: Any = None) -> str:
        index_with_bag(tmp_path / "videos", store, hubness)
        assert LocalStore.open(store).verify().clips
        return str(Engine.open(store, BagMethod()).info()["hubness"])

    assert index() == "off"
    file = tmp_path / "sentences.txt"
    file.write_text("red car\n\n  green dog \nred car\n")
    assert index(str(file)) == "2 texts given, weight 1"
    bank = LocalStore.open(store).snapshot().hubness_bank
    assert bank is not None
    assert bank.texts == ("red car", "green dog")
    colour_video(tmp_path / "videos/1.mp4", ["blue", "red"])
    assert index() == "2 texts given, weight 1"
    snapshot = LocalStore.open(store).snapshot()
    assert snapshot.hubness_offsets is not None
    assert np.array_equal(
        snapshot.hubness_offsets, bank.offsets(snapshot.vectors_at(np.arange(len(snapshot))))
    )
    assert options_like(store, IndexOptions())[1].hubness == ("red car", "green dog")
    assert options_like(store, IndexOptions(hubness="off"))[1].hubness == "off"
    assert index(["blue ball"]) == "1 text given, weight 1"
    assert index("off") == "off"
    assert LocalStore.open(store).snapshot().hubness_bank is None
    with pytest.raises(UsageError, match="bag has no hubness bank"):
        index("own")
    (tmp_path / "bytes.txt").write_bytes(b"\xff")
    for name, cause in (("none.txt", "no such file"), ("bytes.txt", "'utf-8' codec")):
        with pytest.raises(
            UsageError, match="use own, off, or a file with one text per line"
        ) as refused:
            index(str(tmp_path / name))
        assert str(refused.value).startswith(f"{tmp_path / name}: cannot read it ({cause}")
    with pytest.raises(UsageError, match="a hubness bank of 0 texts"):
        read_hubness_texts([" "])


def test_a_head_gives_its_bank_and_leaves_the_towers_as_they_are(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(PACKAGED / "demo", folder)
    model = load(folder)
    config = WordFrameConfig(num_frames=5, num_layers=0, interaction=False, bank=8)
    head = METHODS["wordframe"].build(config, model.encoder)
    assert isinstance(head, WordFrame)
    assert head.bank is not None
    head.bank.add(F.normalize(torch.randn(5, model.encoder.dim), dim=-1))
    save_head(head, folder / "head")
    path = folder / "head" / "config.json"
    plain = json.loads(path.read_text())
    path.write_text(json.dumps({**plain, "config": {**plain["config"], "token_shift": True}}))
    model = load(folder)
    model.encoder.set_token_shift(())
    frames = torch.randint(0, 256, (1, 5, 3, model.frame_spec.size, model.frame_spec.size))
    clips = Clips(frames.byte(), torch.ones(1, 5, dtype=torch.bool), torch.zeros(1, 5))
    with torch.no_grad():
        before = model.encode_video(clips).frames
        bank = model_hubness_bank(model, str(folder))
        assert torch.equal(model.encode_video(clips).frames, before)
    assert bank is not None
    assert (len(bank.vectors), bank.weight) == (5, 0.75)
    assert bank.scale == pytest.approx(head.loss.scale().item(), rel=1e-6)


def test_new_stores_of_the_packaged_model_have_its_bank(tmp_path: Path) -> None:
    (tmp_path / "videos").mkdir()
    colour_video(tmp_path / "videos/0.mp4", ["red", "green"])
    arguments = ["index", str(tmp_path / "videos"), "--store", str(tmp_path / "store")]
    runner = CliRunner()
    found = runner.invoke(app, [*arguments, "--workers", "0", "--precision", "fp32"])
    assert found.exit_code == 0, found.output
    engine = Engine.open(tmp_path / "store", device="cpu")
    assert engine.info()["hubness"] == "1800 texts of the model's own, weight 0.75"
    for hit in engine.search("a red picture"):
        # Its head does the same arithmetic on the same frames: shortlist and ranking agree.
        assert hit.score == pytest.approx(hit.coarse_score, abs=2e-3)
