"""Model folders: exact, readable, atomic, and clear about what is wrong with them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor

import eaglenet
from clip_folder import save_clip
from eaglenet.core.errors import CheckpointError, ModelNotFoundError
from eaglenet.core.types import Clips, FrameSpec, TextFeatures, VideoFeatures
from eaglenet.encoders.clip import ClipEncoder
from eaglenet.encoders.clip_config import ClipConfig, TextConfig, VisionConfig
from eaglenet.encoders.features import FeatureConfig, FeatureEncoder
from eaglenet.encoders.tokenizers import ClipTokenizer
from eaglenet.methods import METHODS, Method
from eaglenet.methods.base import EvaluationHabits
from eaglenet.methods.eaglenet import EagleNetConfig
from eaglenet.models import files

TEXTS, VIDEOS, FRAMES, DIM, IMAGE = 2, 3, 4, 8, 32
TINY = ClipConfig(
    dim=DIM,
    vision=VisionConfig(image_size=IMAGE, patch_size=8, width=12, layers=2, heads=2, mlp_width=24),
    text=TextConfig(vocabulary_size=520, width=10, layers=1, heads=2, mlp_width=20),
)


def config(**changes: Any) -> EagleNetConfig:
    small: dict[str, Any] = {"dim": DIM, "num_frames": FRAMES, "num_heads": 2, "replay_size": 5}
    return EagleNetConfig.for_script(**{**small, **changes})


def build(**changes: Any) -> Method:
    torch.manual_seed(0)
    method = METHODS["eaglenet"].build(config(**changes), ClipEncoder(TINY)).eval()
    method.tokenizer = ClipTokenizer.from_merges([])
    return method


def scores(method: Method) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    frames = torch.randint(
        0, 256, (VIDEOS, FRAMES, 3, IMAGE, IMAGE), dtype=torch.uint8, generator=generator
    )
    clips = Clips(frames, torch.ones(VIDEOS, FRAMES, dtype=torch.bool), torch.zeros(VIDEOS, FRAMES))
    with torch.no_grad():
        text = method.encode_text(method.tokenizer(["a cat", "two dogs"], max_length=9))
        return method.score(text, method.encode_video(clips))


def edit(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_save_and_load_give_bit_identical_scores(tmp_path: Path) -> None:
    method = build()
    method.frame_spec = FrameSpec(num_frames=FRAMES, size=IMAGE, sampling="per_second")
    method.habits = EvaluationHabits(19, "fp16")
    eaglenet.save(method, tmp_path / "model")
    again = eaglenet.load(tmp_path / "model")
    assert torch.equal(scores(again), scores(method))
    assert again.config == method.config
    assert again.frame_spec == method.frame_spec
    assert again.habits == method.habits
    assert not again.training
    names = sorted(path.name for path in (tmp_path / "model").iterdir())
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= set(names)
    assert not any("partial" in name for name in names)


def test_half_precision_stays_half_precision(tmp_path: Path) -> None:
    method = build().to(torch.bfloat16)
    eaglenet.save(method, tmp_path)
    again = eaglenet.load(tmp_path)
    assert torch.equal(scores(again), scores(method))
    assert again.device.type == "cpu"


def test_the_replay_buffer_comes_back(tmp_path: Path) -> None:
    method: Any = build()
    method.replay.write(torch.ones(2, DIM), torch.ones(2, FRAMES, DIM))
    eaglenet.save(method, tmp_path)
    again: Any = eaglenet.load(tmp_path)
    assert int(again.replay.written) == 2


def test_frozen_features_come_back(tmp_path: Path) -> None:
    encoder = FeatureEncoder(FeatureConfig(text_dim=5, frame_dim=6, dim=DIM))
    method = METHODS["eaglenet"].build(config(), encoder).eval()
    eaglenet.save(method, tmp_path)
    again = eaglenet.load(tmp_path)
    text = TextFeatures(torch.randn(TEXTS, 5))
    mask = torch.ones(VIDEOS, FRAMES, dtype=torch.bool)
    video = VideoFeatures(torch.randn(VIDEOS, FRAMES, 6), mask)
    one = method.score(method.encode_text(text), method.encode_video(video))
    other = again.score(again.encode_text(text), again.encode_video(video))
    assert torch.equal(one, other)
    assert again.tokenizer is None


def test_a_run_folder_gives_the_model_inside(tmp_path: Path) -> None:
    method = build()
    eaglenet.save(method, tmp_path / "run" / "model")
    assert torch.equal(scores(eaglenet.load(tmp_path / "run")), scores(method))


def test_a_clip_folder_gives_the_zero_shot_model(tmp_path: Path) -> None:
    save_clip(ClipEncoder(TINY), ClipTokenizer.from_merges([]), tmp_path)
    method = eaglenet.load(tmp_path)
    assert method.name == "clip4clip"
    assert method.frame_spec.size == IMAGE
    assert scores(method).shape == (TEXTS, VIDEOS)


def test_a_newer_form_says_to_upgrade(tmp_path: Path) -> None:
    eaglenet.save(build(), tmp_path)
    edit(tmp_path, eaglenet=2)
    with pytest.raises(CheckpointError, match=r"format 2.*upgrade"):
        eaglenet.load(tmp_path)


def test_an_unknown_option_is_named(tmp_path: Path) -> None:
    method = build()
    eaglenet.save(method, tmp_path)
    plain = json.loads((tmp_path / "config.json").read_text())["config"]
    edit(tmp_path, config={**plain, "graf": "gat"})
    with pytest.raises(CheckpointError, match=r"unknown setting 'config.graf'.*a newer eaglenet"):
        eaglenet.load(tmp_path)
    edit(tmp_path, config=plain, extra=1)
    with pytest.raises(CheckpointError, match="unknown extra"):
        eaglenet.load(tmp_path)


def test_weights_of_another_model_are_named(tmp_path: Path) -> None:
    eaglenet.save(build(), tmp_path)
    eaglenet.save(build(energy="bilinear"), tmp_path / "other")
    (tmp_path / "other" / "model.safetensors").replace(tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"energy\.hidden"):
        eaglenet.load(tmp_path)


def test_other_shapes_are_named(tmp_path: Path) -> None:
    eaglenet.save(build(), tmp_path)
    plain = json.loads((tmp_path / "config.json").read_text())["config"]
    edit(tmp_path, config={**plain, "num_frames": 9})
    with pytest.raises(CheckpointError, match="says"):
        eaglenet.load(tmp_path)


def test_damaged_files_are_named(tmp_path: Path) -> None:
    eaglenet.save(build(), tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"nothing")
    with pytest.raises(CheckpointError, match=r"model\.safetensors: the weights cannot be read"):
        eaglenet.load(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match="does not exist"):
        eaglenet.load(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match="not JSON"):
        eaglenet.load(tmp_path)


def test_a_save_that_fails_leaves_the_old_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = build()
    eaglenet.save(method, tmp_path)

    def full_disk(*_: Any, **__: Any) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(safetensors.torch, "save_file", full_disk)
    with pytest.raises(OSError, match="no space"):
        eaglenet.save(build(energy="bilinear"), tmp_path)
    assert torch.equal(scores(eaglenet.load(tmp_path)), scores(method))


def test_a_missing_demo_model_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(files, "PACKAGED", tmp_path)
    with pytest.raises(ModelNotFoundError, match="demo"):
        eaglenet.load("demo")
    eaglenet.save(build(), tmp_path / "demo")
    assert eaglenet.load("demo").name == "eaglenet"


def test_the_name_demo_means_the_packaged_model_even_beside_a_folder_of_that_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    package_folder, own = tmp_path / "packaged", tmp_path / "own"
    eaglenet.save(build(), package_folder / "demo")
    eaglenet.save(build(num_candidates=7), own / "demo")
    monkeypatch.setattr(files, "PACKAGED", package_folder)
    monkeypatch.chdir(own)
    assert eaglenet.load("demo").config.num_candidates != 7
    for path in ("./demo", Path("demo"), str(own / "demo")):
        assert eaglenet.load(path).config.num_candidates == 7


def test_the_config_is_readable(tmp_path: Path) -> None:
    method = build()
    eaglenet.save(method, tmp_path)
    plain = json.loads((tmp_path / "config.json").read_text())
    assert plain["eaglenet"] == 1
    assert plain["method"] == "eaglenet"
    assert plain["encoder"]["kind"] == "clip"
    assert replace(method.config, **plain["config"]) == method.config
