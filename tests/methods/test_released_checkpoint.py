"""Released checkpoints become model folders that score the same; anything else is refused."""

from __future__ import annotations

import json
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close
from typer.testing import CliRunner

import eaglenet
from eaglenet.core.errors import CheckpointError
from eaglenet.core.types import TextFeatures, Tokens, VideoFeatures
from eaglenet.methods.eaglenet import EagleNet
from eaglenet.methods.official.checkpoint import convert_eaglenet
from eaglenet.methods.official.files import read_released
from eaglenet.research.data.demo.dataset import render_world
from eaglenet.research.experiments import evaluation
from golden_checkpoint import (
    END,
    GOLDEN_NAMES,
    START,
    TOLERANCE,
    golden_inputs,
    golden_options,
    golden_weights,
    load_golden,
)
from sampling import one_in

RGAT = "rgat-bilinear-avg-sig-pe1-m12-salt0"


def command(*arguments: str) -> Any:
    from eaglenet.cli.main import app

    if "--dataset" not in arguments and "--set" not in arguments:
        arguments = (*arguments, "--dataset", "msrvtt-b32")
    return CliRunner().invoke(app, ["convert", *arguments])


def golden_scores(method: EagleNet, name: str) -> Tensor:
    """From token ids and pixels to scores, with the reference's noise for each pair."""
    inputs = golden_inputs(name)
    encoder: Any = method.encoder
    with torch.no_grad():
        text = method.encode_text(Tokens(inputs.token_ids, inputs.token_ids > 0))
        frames = encoder.encode_frames(inputs.pixels)[:, :, 0]
        video = VideoFeatures(frames, torch.ones(frames.shape[:2], dtype=torch.bool))
        noise = inputs.candidate_noise.unflatten(1, (len(text), -1)).permute(1, 2, 0, 3)
        return method.score(text, video, noise)


def test_a_converted_checkpoint_is_evaluated_as_its_authors_did() -> None:
    """Every int(fps)-th frame, zeros once normalised, square pixels, 32 words, towers in fp16."""
    method = convert_eaglenet(golden_weights(RGAT)).method
    spec = method.frame_spec
    assert (spec.num_frames, spec.size) == (12, 64)
    assert (spec.sampling, spec.short, spec.square_pixels) == ("whole_rate", "zeros", True)
    assert (method.habits.max_words, method.habits.precision) == (32, "fp16")


class Spelling:
    """A tokenizer of the small checkpoint's few ids, which remembers the lengths asked for."""

    def __init__(self) -> None:
        self.lengths: list[int] = []

    def __call__(self, texts: Sequence[str], max_length: int = 77) -> Tokens:
        self.lengths.append(max_length)
        rows = [[START, *(ord(letter) for letter in text[:6]), END] for text in texts]
        ids = torch.zeros(len(rows), max_length, dtype=torch.long)
        for row, row_number in enumerate(rows):
            ids[row, : len(row_number)] = torch.tensor(row_number)
        return Tokens(ids, ids > 0)

    def save(self, folder: str | Path) -> None:
        raise AssertionError("nothing is saved here")


@pytest.mark.usefixtures("decoded_here")
def test_evaluate_takes_frames_words_and_precision_from_a_converted_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The road to the published numbers: nothing but the two commands."""
    monkeypatch.setenv("EAGLENET_CACHE", str(tmp_path / "cache"))
    render_world(tmp_path / "videos", "test", 3, size=64)
    torch.save(golden_weights(RGAT), tmp_path / "released.bin")
    assert command(str(tmp_path / "released.bin"), str(tmp_path / "model")).exit_code == 0
    method, tokenizer = eaglenet.load(tmp_path / "model"), Spelling()
    method.tokenizer = tokenizer
    monkeypatch.setattr(evaluation, "load", lambda folder: method)
    result = evaluation.evaluate_model("it", "folder", tmp_path / "videos", device="cpu")
    assert result.num_videos == 3
    assert (result.precision, set(tokenizer.lengths)) == ("fp16", {32})
    assert not any("built for" in note for note in result.notes)
    (cache_file,) = (tmp_path / "cache").rglob("cache.json")
    assert '"whole_rate"' in cache_file.read_text()


@pytest.mark.parametrize("name", one_in(len(GOLDEN_NAMES), GOLDEN_NAMES))
def test_a_converted_checkpoint_loads_and_scores_like_the_released_code(
    name: str, tmp_path: Path
) -> None:
    torch.save(golden_weights(name), tmp_path / "released.bin")
    pooling = {"avg": "mean"}.get(golden_options(name)["pooling"], golden_options(name)["pooling"])
    outcome = command(
        str(tmp_path / "released.bin"), str(tmp_path / "model"), "--energy-pooling", pooling
    )
    assert outcome.exit_code == 0, outcome.output
    method = eaglenet.load(tmp_path / "model")
    assert isinstance(method, EagleNet)
    assert not method.training
    scores = golden_scores(method, name)
    assert_close(scores, load_golden(name)["scores"], atol=TOLERANCE, rtol=0)
    eaglenet.save(method, tmp_path / "again")
    again = eaglenet.load(tmp_path / "again")
    assert isinstance(again, EagleNet)
    assert torch.equal(golden_scores(again, name), scores)


def test_weights_without_effect_are_listed_with_the_reason(tmp_path: Path) -> None:
    torch.save(golden_weights(RGAT), tmp_path / "released.bin")
    outcome = command(str(tmp_path / "released.bin"), str(tmp_path / "model"), "--json")
    report = json.loads(outcome.stdout)
    unused_weights = report["unused"]
    for part in (
        "frame_position_embeddings.weight",
        "stochastic.std_branch.learnable_scalar",
        "transformerClip.resblocks.0.ln_1.weight",
        "pool_frames.cross_attn.k_proj.bias",
        "gnn.layers.1.lin_out.weight",
        "gnn.layers.1.lin_rels.0.weight",
        "gnn.layers.1.att_r_rels.1.weight",
    ):
        assert unused_weights[part]
    assert not any(name.startswith("gnn.layers.0") for name in unused_weights)
    assert not any("lin_rels.2" in name for name in unused_weights)


def test_shifted_blocks_are_read_under_both_of_their_names() -> None:
    weights = golden_weights(RGAT)
    plain = {name.replace(".attn.net.", ".attn."): value for name, value in weights.items()}
    assert set(plain) != set(weights)
    one, other = (
        convert_eaglenet(weights).method.state_dict(),
        convert_eaglenet(plain).method.state_dict(),
    )
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_prefixes_of_parallel_training_and_half_precision_are_understood() -> None:
    weights = {f"module.{name}": value.half() for name, value in golden_weights(RGAT).items()}
    method = convert_eaglenet(
        {name.removeprefix("module."): v for name, v in weights.items()}
    ).method
    assert all(value.dtype == torch.float32 for value in method.parameters())


def test_a_wrapped_state_dict_is_understood(tmp_path: Path) -> None:
    small = {f"module.{name}": value for name, value in list(golden_weights(RGAT).items())[:3]}
    torch.save({"state_dict": small, "epoch": 3}, tmp_path / "a.bin")
    assert all(not name.startswith("module.") for name in read_released(tmp_path / "a.bin"))


@pytest.mark.parametrize("name", ["decoder.weight", "clip.visual.adapter.weight", "gnn.v2.weight"])
def test_names_that_are_not_understood_are_refused_by_name(name: str) -> None:
    with pytest.raises(CheckpointError, match=name.replace(".", r"\.")):
        convert_eaglenet({**golden_weights(RGAT), name: torch.zeros(2)})


def test_a_missing_weight_is_named() -> None:
    weights = dict(golden_weights(RGAT))
    del weights["pool_frames.linear_proj.weight"]
    with pytest.raises(CheckpointError, match=r"pool_frames\.linear_proj\.weight"):
        convert_eaglenet(weights)


def test_code_inside_a_checkpoint_is_never_run(tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> tuple[Any, tuple[str]]:
            return (exec, (f"open({str(tmp_path / 'ran')!r}, 'w')",))

    (tmp_path / "bomb.bin").write_bytes(pickle.dumps(Bomb(), protocol=2))
    torch.save({"a": Bomb()}, tmp_path / "bomb2.bin")
    for name, message in (("bomb", "not a file of tensors"), ("bomb2", "expected a state_dict")):
        with pytest.raises(CheckpointError, match=message):
            read_released(tmp_path / f"{name}.bin")
    assert not (tmp_path / "ran").exists()


def test_a_missing_file_says_so(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="is not a file"):
        read_released(tmp_path / "nothing.bin")


def test_the_zero_filled_replay_buffer_is_not_taken_for_samples() -> None:
    method = convert_eaglenet(golden_weights(RGAT)).method
    assert method.replay is not None
    assert int(method.replay.written) == 0
    weights = dict(golden_weights(RGAT))
    texts, frames = (weights[f"ebm.replay_buffer_{kind}"].clone() for kind in ("txt", "vid"))
    # Newest first: row 0 was written last.
    texts[0], texts[1], frames[0], frames[1] = 2.0, 1.0, 2.0, 1.0
    weights |= {"ebm.replay_buffer_txt": texts, "ebm.replay_buffer_vid": frames}
    method = convert_eaglenet(weights).method
    assert method.replay is not None
    assert int(method.replay.written) == 2
    assert method.replay.texts[:2, 0].tolist() == [1.0, 2.0]


def test_the_dataset_sets_what_leaves_no_trace_in_the_weights(tmp_path: Path) -> None:
    torch.save(golden_weights(RGAT), tmp_path / "a.bin")
    outcome = command(str(tmp_path / "a.bin"), str(tmp_path / "m"), "--dataset", "msrvtt-b16")
    assert outcome.exit_code == 0
    assert "has no vocabulary" in outcome.output
    config = json.loads((tmp_path / "m" / "config.json").read_text())["config"]
    assert config["energy_support_weight"] == 1.0


def test_settings_without_a_trace_have_to_be_given(tmp_path: Path) -> None:
    torch.save(golden_weights(RGAT), tmp_path / "a.bin")
    refusal = command(str(tmp_path / "a.bin"), str(tmp_path / "m"), "--set", "num_layers=2")
    assert refusal.exit_code != 0
    assert "does not determine prior, num_candidates, negative_slope" in str(refusal.exception)
    outcome = command(
        str(tmp_path / "a.bin"), str(tmp_path / "m"), "--dataset", "msrvtt-b32",
        "--set", "prior=normal", "--set", "num_candidates=7",
    )  # fmt: skip
    assert outcome.exit_code == 0, outcome.output
    config = json.loads((tmp_path / "m" / "config.json").read_text())["config"]
    assert (config["prior"], config["num_candidates"]) == ("normal", 7)


def test_a_model_of_one_layer_reads_the_last_of_those_that_were_built() -> None:
    weights = golden_weights(RGAT)
    one, two = convert_eaglenet(weights, num_layers=1), convert_eaglenet(weights)
    assert one.method.config.num_layers == 1
    state, other = one.method.state_dict(), two.method.state_dict()
    name = "graph.edges.relation.projection.weight"
    assert torch.equal(state[name], other[name])
    reasons = [why for key, why in one.unused_weights.items() if "gnn.layers.0." in key]
    assert reasons
    assert all("never run" in why for why in reasons)


def test_features_alone_give_the_stored_scores() -> None:
    golden, inputs = load_golden(RGAT), golden_inputs(RGAT)
    text = TextFeatures(golden["text_features"])
    frames = golden["frame_features"]
    video = VideoFeatures(frames, torch.ones(frames.shape[:2], dtype=torch.bool))
    noise = inputs.candidate_noise.unflatten(1, (len(text), -1)).permute(1, 2, 0, 3)
    with torch.no_grad():
        scores = convert_eaglenet(golden_weights(RGAT)).method.score(text, video, noise)
    assert_close(scores, golden["scores"], atol=TOLERANCE, rtol=0)
