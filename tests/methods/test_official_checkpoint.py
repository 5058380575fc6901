"""Whole official checkpoints: settings are read from them, the rest has to be given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

import eaglenet
from eaglenet.core.errors import UsageError
from eaglenet.methods.official_checkpoint import INFERENCE, NO_TOWER, UNDETERMINED, convert_official
from eaglenet.methods.official_tables import TABLES
from golden_peers import FILES, load_peer

FULL = {
    "clip4clip": ("lstm_visual.", "cross.", "similarity_dense.", "clip.visual."),
    "tvproxynet": ("dash_weights.",),
}
"""Weights of other heads in the golden files."""


def openai_towers(dim: int, shifted: bool) -> dict[str, Tensor]:
    """A CLIP of OpenAI's layout, one head of 64 in each tower."""
    width, generator = 64, torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return 0.1 * torch.randn(*shape, generator=generator)

    weights = {
        "visual.class_embedding": draw(width),
        "visual.positional_embedding": draw(10, width),
        "visual.conv1.weight": draw(width, 3, 4, 4),
        "visual.proj": draw(width, dim),
        "positional_embedding": draw(12, width),
        "token_embedding.weight": draw(20, width),
        "text_projection": draw(width, dim),
    }
    for norm in ("visual.ln_pre", "visual.ln_post", "ln_final"):
        weights |= {f"{norm}.weight": draw(width), f"{norm}.bias": draw(width)}
    for tower, depth in (("visual.transformer", 2), ("transformer", 1)):
        for index in range(depth):
            block = f"{tower}.resblocks.{index}"
            net = ".net" if shifted and tower.startswith("visual") and index else ""
            sizes = {
                "ln_1": (width,),
                "ln_2": (width,),
                f"attn{net}.out_proj": (width, width),
                "mlp.c_fc": (4 * width, width),
                "mlp.c_proj": (width, 4 * width),
            }
            for name, size in sizes.items():
                weights[f"{block}.{name}.weight"] = draw(*size)
                weights[f"{block}.{name}.bias"] = draw(size[0])
            weights[f"{block}.attn{net}.in_proj_weight"] = draw(3 * width, width)
            weights[f"{block}.attn{net}.in_proj_bias"] = draw(3 * width)
    return {f"clip.{name}": value for name, value in weights.items()}


def checkpoint(name: str) -> dict[str, Tensor]:
    golden = load_peer(name)
    weights = {
        key: value
        for key, value in golden.weights.items()
        if not key.startswith(FULL.get(golden.method, ("-",)))
    }
    is_shifted = golden.method in ("prost", "ts2net", "ucofia")
    return {**openai_towers(golden.options["dim"], is_shifted), **weights}


@pytest.mark.parametrize(
    "name",
    [
        name
        for name in FILES
        if name.split("-")[0] in ("clip4clip", "drl", "glscl", "prost", "ts2net", "ucofia")
    ],
)
def test_settings_are_read_from_the_checkpoint(name: str) -> None:
    golden = load_peer(name)
    settings: dict[str, Any] = dict(UNDETERMINED.get(golden.method, {}))
    if "num_frames" in settings:
        settings["num_frames"] = golden.options["frames"]
    settings["num_heads"] = golden.options["heads"]
    if golden.method in ("prost", "ts2net", "ucofia"):
        settings["num_shifted_blocks"] = 0 if golden.method == "ucofia" else 1
    conversion = convert_official(golden.method, checkpoint(name), settings, max_words=32)
    config, options = conversion.method.config, golden.options
    assert config.num_frames == options["frames"]
    assert getattr(config, "num_layers", 2) == options["layers"]
    for ours, theirs in (
        ("num_phrases", "phrases"),
        ("num_objects", "objects"),
        ("num_events", "events"),
        ("num_words", "words"),
        ("num_tokens", "selected"),
        ("num_concepts", "query_number"),
        ("feed_forward", "decoder_hidden"),
    ):
        if hasattr(config, ours) and theirs in options:
            assert getattr(config, ours) == options[theirs]
    assert getattr(config, "padding", "official") == "official"
    assert conversion.method.habits.max_words == 32
    assert conversion.method.habits.precision == "fp16"


def test_a_setting_without_a_trace_has_to_be_given() -> None:
    with pytest.raises(UsageError, match=r"does not determine num_frames.*--set num_frames=12"):
        convert_official("drl", checkpoint("drl-salt0"))


def test_checkpoints_with_other_text_towers_are_refused() -> None:
    with pytest.raises(UsageError, match="its text tower is BERT"):
        convert_official("mmt", {})
    with pytest.raises(UsageError, match="choose one of clip4clip"):
        convert_official("rap", {})
    assert set(INFERENCE) | set(NO_TOWER) == set(TABLES)


def test_the_command_converts_and_the_model_loads(tmp_path: Path) -> None:
    from eaglenet.cli.main import app

    torch.save(checkpoint("drl-salt0"), tmp_path / "drl.bin")
    done = CliRunner().invoke(
        app,
        ["convert", str(tmp_path / "drl.bin"), str(tmp_path / "model"), "--from", "drl",
         "--set", "num_frames=6", "--set", "num_heads=4"],
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    method = eaglenet.load(tmp_path / "model")
    assert method.name == "drl"
    assert (method.frame_spec.num_frames, method.frame_spec.short) == (6, "mask")
    assert method.habits.max_words == 32
