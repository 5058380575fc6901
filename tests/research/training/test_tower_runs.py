"""Runs that train towers: low-rank changes of them, and towers shared out over processes."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import st_models
from eaglenet.core.errors import ConfigError
from eaglenet.core.types import FrameSpec
from eaglenet.encoders.clip_config import ClipConfig, TextConfig, VisionConfig
from eaglenet.models.folder import load
from eaglenet.research.experiments import estimate
from eaglenet.research.experiments.build import check_experiment
from eaglenet.research.experiments.experiment import EncoderChoice, Experiment
from eaglenet.research.experiments.runs import train
from eaglenet.research.recipes import Recipe
from eaglenet.research.training import trainer
from eaglenet.research.training.config import TrainingConfig
from eaglenet.research.training.distributed import World
from processes import run_ranks
from tiny import logged_losses, tiny_experiment

TOWERS = ClipConfig(
    dim=16,
    vision=VisionConfig(image_size=32, patch_size=16, width=16, layers=2, heads=2, mlp_width=20),
    text=TextConfig(vocabulary_size=700, width=8, layers=2, heads=2, mlp_width=12),
)


def tower_experiment(**training: Any) -> Experiment:
    """Mean pooling over tiny towers on sixteen clips of the demo world."""
    recipe = Recipe("clip4clip", "demo").build()
    settings = {"epochs": 2, "batch_size": 8, "lr_encoder": 1e-3, "lr_head": 1e-2, **training}
    return dataclasses.replace(
        recipe,
        name="towers",
        encoder=EncoderChoice("clip", "demo", TOWERS),
        method_config=dataclasses.replace(recipe.method_config, num_frames=2),
        data=dataclasses.replace(
            recipe.data,
            options={"train": 16, "val": 12},
            frames=FrameSpec(num_frames=2, size=32),
        ),
        training=TrainingConfig(captions="one", checkpoint_every=0, **settings),
    )


@pytest.mark.parametrize("targets", ["attention", "all"])
def test_a_run_with_low_rank_changes_exports_a_plain_model(tmp_path: Path, targets: str) -> None:
    experiment = tower_experiment(lora_rank=2, lora_targets=targets)
    run = train(experiment, tmp_path / "run", device="cpu")
    losses = [entry["total"] for entry in logged_losses(run.folder)]
    assert len(set(losses)) == len(losses)
    model = load(run.folder)
    start = load_start(experiment)
    changed = {
        name for name, value in model.state_dict().items() if not torch.equal(value, start[name])
    }
    assert set(model.state_dict()) == set(start)
    kinds = {name.rpartition(".")[0].rpartition(".")[2] for name in changed if "blocks" in name}
    assert kinds == ({"qkv", "out"} if targets == "attention" else {"qkv", "out", "up", "down"})
    # A finished run goes on from its checkpoint, with the adapters in it.
    longer = train(tower_experiment(lora_rank=2, lora_targets=targets, epochs=3),
                   tmp_path / "run", device="cpu")  # fmt: skip
    assert len(logged_losses(longer.folder)) > len(losses)


@pytest.mark.parametrize("settings", [{"freeze": "towers"}, {"lora_rank": 2}])
def test_frozen_parameters_are_not_counted_as_trained(
    tmp_path: Path, settings: dict[str, Any]
) -> None:
    # The head of X-Pool, because mean pooling has nothing to train beside its towers.
    xpool = Recipe("xpool", "demo").build().method_config
    experiment = dataclasses.replace(
        tower_experiment(epochs=1, **settings),
        method="xpool",
        method_config=dataclasses.replace(xpool, num_frames=2),
    )
    check = check_experiment(experiment, World(), tmp_path)
    run = train(experiment, tmp_path / "run", device="cpu")
    manifest = json.loads((run.folder / "manifest.json").read_text())
    assert check.parameters == manifest["parameters"] == run.result["parameters"]
    assert check.parameters["trained"] < check.parameters["encoder"]


def test_an_estimate_divides_batches_as_training_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chunks = []

    def record(method: Any, batch: Any, config: TrainingConfig, *_: Any, **__: Any) -> None:
        chunks.append((len(batch.video_ids), config.accumulate))

    monkeypatch.setattr(estimate, "training_losses", record)
    check_experiment(tower_experiment(accumulate=4), World(), tmp_path)
    assert set(chunks) == {(4, 2), (8, 4)}
    chunks.clear()
    check_experiment(tower_experiment(), World(), tmp_path)
    assert set(chunks) == {(4, 1), (8, 1)}


def load_start(experiment: Experiment) -> dict[str, torch.Tensor]:
    from eaglenet.research.experiments.build import build_method

    return build_method(experiment).state_dict()


def test_adapters_are_refused_where_they_cannot_work(features: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no towers, only adapters of stored"):
        train(tiny_experiment(features, lora_rank=2), tmp_path / "run", device="cpu")
    with pytest.raises(ConfigError, match=r"training\.lora_rank is -1"):
        TrainingConfig(lora_rank=-1)
    with pytest.raises(ConfigError, match=r"cannot be combined with training\.precision"):
        TrainingConfig(lora_rank=1, precision="fp16_weights")
    with pytest.raises(ConfigError, match=r"training\.shard needs .*training\.optimizer=adamw"):
        TrainingConfig(shard=True, optimizer="bert_adam")


def train_shared_out(folder: Path, rank: int, source: str, is_compiled: bool = False) -> None:
    """One epoch, then another from its checkpoint, on one process and on two.

    ``is_compiled``: the towers of the two processes are compiled before they are shared out, as
    they are on GPUs.
    """
    shard_towers = trainer.shard_towers

    def compile_and_shard(encoder: Any, world: World) -> int:
        if is_compiled and world.size > 1:
            encoder.compile(backend="aot_eager")
        return shard_towers(encoder, world)

    trainer.shard_towers = compile_and_shard
    for epochs in (1, 2):
        experiment = tower_experiment(shard=True, clip_norm=0.5, epochs=epochs, lora_rank=rank)
        if source:
            tower = EncoderChoice("pretrained", source)
            experiment = dataclasses.replace(experiment, encoder=tower)
        for size in (1, 2):
            run_ranks(partial(train, experiment, folder / str(size), device="cpu"), size)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rank", "maker"),
    [(0, ""), (2, ""), (0, "compiled"), (2, "make_clip"), (2, "make_qwen")],
)
def test_towers_on_two_processes_have_the_losses_of_one(
    tmp_path: Path, rank: int, maker: str
) -> None:
    """In a new interpreter: a fork after a threaded product of matrices would wait for ever."""
    is_library = maker.startswith("make")
    source = f"st:{getattr(st_models, maker)(tmp_path / 'base')}" if is_library else ""
    call = f"train_shared_out(Path({str(tmp_path)!r}), {rank}, {source!r}, {maker == 'compiled'})"
    code = f"from test_tower_runs import *; {call}"
    folders = [str(Path(__file__).parent), *sys.path]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(folders)}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True, timeout=900)
    one, two = logged_losses(tmp_path / "1"), logged_losses(tmp_path / "2")
    assert len(one) == len(two) == 4
    for first, second in zip(one, two, strict=True):
        for name in ("total", "gradient norm"):
            assert first[name] == pytest.approx(second[name], rel=1e-4), name
    first, second = (load(tmp_path / name).state_dict() for name in ("1", "2"))
    for name, value in first.items():
        torch.testing.assert_close(second[name], value, rtol=1e-3, atol=1e-4, msg=name)


def test_every_process_holds_a_part_of_the_blocks_only(tmp_path: Path) -> None:
    from eaglenet.research.experiments.build import build_method
    from eaglenet.research.training.distributed import is_sharded, join, shard_towers

    def rank() -> None:
        world = join("cpu")
        method = build_method(tower_experiment())
        assert shard_towers(method.encoder, world) == 4
        parts = [value for value in method.parameters() if is_sharded(value)]
        held = sum(value.to_local().numel() for value in parts)
        assert held < 0.6 * sum(value.numel() for value in parts)
        world.__exit__()

    run_ranks(rank)
