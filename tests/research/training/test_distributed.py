"""Two processes are one process with the joined batch."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from eaglenet.core.errors import DistributedError, NonFiniteError, StoppedError, UsageError
from eaglenet.core.files import hold_lock
from eaglenet.core.types import PairBatch, TextFeatures, VideoFeatures
from eaglenet.encoders.features import FeatureConfig, FeatureEncoder
from eaglenet.methods import METHODS
from eaglenet.research.evaluation.metrics import EvaluationOptions
from eaglenet.research.experiments.build import build_method, load_source
from eaglenet.research.experiments.runs import train
from eaglenet.research.training import trainer as trainer_module
from eaglenet.research.training.config import TrainingConfig
from eaglenet.research.training.distributed import (
    World,
    average_gradients,
    gather_tensor,
    gather_uneven,
    join,
)
from eaglenet.research.training.epochs import evaluate_source
from eaglenet.research.training.step import training_losses
from processes import free_port, run_ranks, start, wait
from tiny import logged_losses, tiny_experiment


def gradients_of(
    features: Path, world: World, steps: Any = 2, **options: int
) -> dict[str, Tensor | dict[str, Tensor]]:
    """Losses, gradients and buffers after some steps without an optimizer."""
    experiment = tiny_experiment(features)
    method = build_method(experiment).double().train()
    source = load_source(
        experiment.data, "train", method, cache=features, device=torch.device("cpu")
    )
    rows = torch.arange(0, 24, 2)
    totals = []
    for step in range(steps):
        batch = source.pairs((rows + step).chunk(world.size)[world.rank])
        batch = PairBatch(
            batch.texts.to("cpu", torch.float64),
            batch.videos.to("cpu", torch.float64),
            batch.video_ids,
        )
        method.zero_grad()
        losses = training_losses(method, batch, TrainingConfig(**options), world, seed=step)
        average_gradients(method.parameters(), world)
        totals.append(losses.total)
    gradients = {
        name: value.grad for name, value in method.named_parameters() if value.grad is not None
    }
    return {
        "totals": torch.stack(totals),
        "gradients": gradients,
        "buffers": dict(method.named_buffers()),
    }


@pytest.mark.parametrize("options", [{}, {"accumulate": 3}])
def test_two_processes_equal_one_with_the_joined_batch(
    features: Path, tmp_path: Path, options: dict[str, Any]
) -> None:
    expected = gradients_of(features, World(), **options)

    def rank() -> None:
        world = join("cpu")
        found = gradients_of(features, world, **options)
        torch.save(found, tmp_path / f"{world.rank}.pt")
        world.__exit__()

    run_ranks(rank)
    for index in range(2):
        found = torch.load(tmp_path / f"{index}.pt")
        torch.testing.assert_close(found["totals"], expected["totals"], rtol=1e-10, atol=1e-10)
        assert set(found["gradients"]) == set(expected["gradients"])
        for kind in ("gradients", "buffers"):
            for name, value in expected[kind].items():
                torch.testing.assert_close(
                    found[kind][name], value, rtol=1e-9, atol=1e-10, msg=f"{kind} {name}"
                )


def test_a_gathered_tensor_has_the_summed_gradient(tmp_path: Path) -> None:
    def rank() -> None:
        world = join("cpu")
        value = torch.full((3, 2), float(world.rank + 1), requires_grad=True)
        joined = gather_tensor(value, world)
        assert joined.tolist() == [[1.0, 1.0]] * 3 + [[2.0, 2.0]] * 3
        (joined * (world.rank + 1)).sum().backward()
        assert value.grad.tolist() == [[3.0, 3.0]] * 3
        mask = gather_tensor(torch.tensor([world.rank == 0]), world)
        assert mask.tolist() == [True, False]
        whole = torch.arange(5.0)[:, None]
        uneven = gather_uneven(TextFeatures(whole[world.rank :: 2]), 5, world)
        assert uneven.sentence.tolist() == whole.tolist()
        world.__exit__()

    run_ranks(rank)


def test_local_gradients_are_those_of_the_released_code(tmp_path: Path) -> None:
    """Its gather gives a rank its own slice: 1 / W of the gradient through the encoder."""

    def rank() -> None:
        world = join("cpu")
        value = torch.full((3, 2), float(world.rank + 1), requires_grad=True)
        joined = gather_tensor(value, world, "local")
        (joined * (world.rank + 1)).sum().backward()
        assert value.grad.tolist() == [[world.rank + 1.0] * 2] * 3
        world.__exit__()

    run_ranks(rank)


def test_local_gradients_halve_the_encoder_and_keep_the_head(
    features: Path, tmp_path: Path
) -> None:
    expected = gradients_of(features, World())

    def rank() -> None:
        world = join("cpu")
        found = gradients_of(features, world, gradients="local")
        torch.save(found, tmp_path / f"{world.rank}.pt")
        world.__exit__()

    run_ranks(rank)
    found = torch.load(tmp_path / "1.pt")["gradients"]
    for name, value in expected["gradients"].items():
        share = 0.5 if name.startswith("encoder.") else 1.0
        torch.testing.assert_close(found[name], share * value, rtol=1e-9, atol=1e-10, msg=name)


def test_a_whole_run_on_two_processes_equals_one(features: Path, tmp_path: Path) -> None:
    experiment = tiny_experiment(features, epochs=2)
    train(experiment, tmp_path / "one", device="cpu")
    run_ranks(lambda: train(experiment, tmp_path / "two", device="cpu") and None)
    one, two = logged_losses(tmp_path / "one"), logged_losses(tmp_path / "two")
    assert len(one) == len(two) > 4
    for first, second in zip(one, two, strict=True):
        # fp32 sums in another order; the difference grows slowly over steps.
        assert first["total"] == pytest.approx(second["total"], rel=1e-4)


def test_a_signal_to_one_rank_stops_all_after_the_same_step(features: Path, tmp_path: Path) -> None:
    experiment = tiny_experiment(features, epochs=50, checkpoint_every=0)

    def rank() -> None:
        original = trainer_module.training_losses

        def signalled(method: Any, batch: Any, config: Any, world: Any, **others: Any) -> Any:
            if world.rank == 1 and others["seed"] == 3:
                os.kill(os.getpid(), signal.SIGTERM)
            return original(method, batch, config, world, **others)

        trainer_module.training_losses = signalled
        with pytest.raises(StoppedError, match="SIGTERM after step 4 of 150") as stopped:
            train(experiment, tmp_path, device="cpu")
        assert stopped.value.exit_code == 143

    run_ranks(rank)
    assert len(logged_losses(tmp_path)) == 4


def test_a_run_on_two_processes_that_is_resumed_equals_an_uninterrupted_one(
    features: Path, tmp_path: Path
) -> None:
    """With dropout in the encoder, which each rank draws on its own."""
    experiment = tiny_experiment(features, epochs=2, checkpoint_every=0).override(
        ["encoder.config.dropout=0.5"]
    )

    def stopped_run() -> None:
        original = trainer_module.training_losses

        def signalled(method: Any, batch: Any, config: Any, world: Any, **others: Any) -> Any:
            if world.rank == 1 and others["seed"] == 1:
                os.kill(os.getpid(), signal.SIGTERM)
            return original(method, batch, config, world, **others)

        trainer_module.training_losses = signalled
        with pytest.raises(StoppedError):
            train(experiment, tmp_path / "resumed", device="cpu")

    def resumed_run() -> None:
        train(experiment, tmp_path / "resumed", device="cpu")

    def whole_run() -> None:
        train(experiment, tmp_path / "whole", device="cpu")

    run_ranks(stopped_run)
    assert len(logged_losses(tmp_path / "resumed")) == 2
    run_ranks(resumed_run)
    run_ranks(whole_run)
    resumed, whole = logged_losses(tmp_path / "resumed"), logged_losses(tmp_path / "whole")
    assert len(whole) > 4
    assert resumed == whole


def test_every_rank_is_told_that_another_process_trains_in_the_folder(
    features: Path, tmp_path: Path
) -> None:
    def rank() -> None:
        with pytest.raises(UsageError, match="is being trained by another eaglenet"):
            train(tiny_experiment(features), tmp_path, device="cpu")

    with hold_lock(tmp_path / ".lock"):
        run_ranks(rank)


def test_shared_evaluation_equals_evaluation_by_one(features: Path, tmp_path: Path) -> None:
    experiment = tiny_experiment(features)

    def evaluated(world: Any, **settings: Any) -> Any:
        method = build_method(experiment)
        source = load_source(
            experiment.data, "val", method, cache=features, device=torch.device("cpu")
        )
        record = evaluate_source(method, source, world, EvaluationOptions(**settings)).to_dict()
        return {key: record[key] for key in record if key not in ("seconds", "device")}

    choices = ({}, {"backend": "reference", "precision": "bf16"}, {"noise_seeds": (3, 4)})
    expected = [evaluated(World(), **choice) for choice in choices]
    assert expected[1]["precision"] == "bf16"

    def rank() -> None:
        world = join("cpu")
        assert [evaluated(world, **choice) for choice in choices] == expected
        world.__exit__()

    run_ranks(rank)


def test_features_that_are_not_finite_stop_every_process(features: Path) -> None:
    experiment = tiny_experiment(features)

    def rank() -> None:
        world = join("cpu")
        method = build_method(experiment)
        source = load_source(
            experiment.data, "val", method, cache=features, device=torch.device("cpu")
        )
        if world.rank == 0:
            for parameter in method.encoder.parameters():
                torch.nn.init.constant_(parameter, float("nan"))
        with pytest.raises(NonFiniteError, match="NaN or infinite"):
            evaluate_source(method, source, world)
        world.__exit__()

    run_ranks(rank)


def test_one_process_needs_no_process_group(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    world = join("cpu")
    assert (world.rank, world.size) == (0, 1)
    assert not torch.distributed.is_initialized()


def test_waiting_for_a_rank_that_never_comes_ends_with_a_message(tmp_path: Path) -> None:
    path = tmp_path / "message"

    def rank() -> None:
        try:
            join("cpu", timeout_seconds=1.0)
        except DistributedError as error:
            path.write_text(str(error))

    started = time.monotonic()
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    child = start(rank, RANK="1", WORLD_SIZE="2", LOCAL_RANK="1", **shared)
    assert wait(child) == 0
    assert time.monotonic() - started < 120
    assert "rank 1 of 2 could not connect to the others" in path.read_text()
    assert os.environ.get("RANK") is None


@pytest.mark.parametrize("options", [{}, {"accumulate": 2, "accumulation": "split"}])
def test_ranks_drop_out_other_entries_and_share_the_noise_of_the_losses(
    options: dict[str, Any],
) -> None:
    def rank() -> None:
        world = join("cpu")
        spec = METHODS["clip4clip"]
        encoder = FeatureEncoder(FeatureConfig(8, 8, 8, dropout=0.5))
        method = spec.build(spec.config_class(num_frames=3), encoder).train()
        original, seen, noise = method.losses, [], []

        def watched(text: Any, video: Any, right: Any) -> Any:
            seen.append(text.sentence.detach())
            noise.append(torch.rand(5))
            return original(text, video, right)

        method.losses = watched  # type: ignore[method-assign]
        batch = PairBatch(
            TextFeatures(torch.ones(4, 8)),
            VideoFeatures(torch.ones(4, 3, 8), torch.ones(4, 3, dtype=torch.bool)),
            torch.arange(4) + 4 * world.rank,
        )
        training_losses(method, batch, TrainingConfig(**options), world, seed=3)
        assert len(seen) == options.get("accumulate", 1)
        for sentences, drawn in zip(seen, noise, strict=True):
            first, second = sentences.chunk(2)  # The same texts, encoded by each rank.
            assert not torch.equal(first, second)
            first, second = gather_tensor(drawn, world).chunk(2)
            assert torch.equal(first, second)
        world.__exit__()

    run_ranks(rank)
