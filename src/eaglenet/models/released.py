"""The authors' released checkpoints, read as an EagleNet of ours."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from eaglenet.core import untrusted
from eaglenet.core.errors import CheckpointError
from eaglenet.encoders.clip import ClipEncoder
from eaglenet.encoders.weight_names import clip_config, from_openai
from eaglenet.energy.energies import EnergyPooling
from eaglenet.methods.base import EvaluationHabits
from eaglenet.methods.eaglenet import RELEASED_FRAMES, EagleNet, EagleNetConfig

BUFFERS = ("ebm.replay_buffer_txt", "ebm.replay_buffer_vid")
RELATIONS = ("text_text", "frame_frame", "text_frame")
"""Their relations 0, 1 and 2."""

POOLING_NAMES = {
    "cross_attn.q_proj": "query",
    "cross_attn.k_proj": "key",
    "cross_attn.v_proj": "value",
    "cross_attn.out_proj": "output",
    "linear_proj": "feed_forward",
    "layer_norm1": "input_norm",
    "layer_norm2": "attention_norm",
    "layer_norm3": "output_norm",
}

DEAD_LAYER = "the last layer's messages are never read"
UNRUN_LAYER = "built but never run: the model has fewer layers"

UNDETERMINED = {
    "num_layers": 2,
    "prior": "uniform",
    "num_candidates": 20,
    "negative_slope": 0.1,
}
"""Settings that change scores and leave no trace in a checkpoint, as the authors' scripts have
them. The class builds two graph layers for a model of one, and runs the last."""

UNUSED: dict[str, str] = {
    r"transformerClip\..*": "a temporal transformer that the forward pass never calls",
    r"frame_position_embeddings\..*": "positions of that transformer",
    r"stochastic\.std_branch\.learnable_scalar": "never read, and never initialised",
    r"pool_frames\.cross_attn\.k_proj\.bias": "cancels in the softmax over frames",
    r"clip\.(input_resolution|context_length|vocab_size)": "sizes, read off the weights",
}
"""What a released checkpoint carries without effect, and why it has none."""


WORDS, LONG_WORDS = 32, 64
"""Tokens of a text in the authors' scripts; the second on DiDeMo, whose videos have 64 frames."""


@dataclass(frozen=True)
class Conversion:
    """A converted model, and what of the checkpoint has no effect on it: name -> why."""

    method: EagleNet
    unused: dict[str, str]


def read_released(path: str | Path) -> dict[str, Tensor]:
    """The weights of a released ``.bin``; only tensors are read, never code."""
    path = Path(path)
    if not path.is_file():
        raise CheckpointError(f"{path} is not a file; give the released .bin checkpoint")
    try:
        if zipfile.is_zipfile(path):
            untrusted.check_zip(path)
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged or foreign file can fail in any way
        # Not torch's own text, which advises to load files that run what is in them.
        raise CheckpointError(
            f"{path}: not a file of tensors ({type(error).__name__}); expected the authors' "
            "state_dict as saved by torch.save"
        ) from error
    for key in ("state_dict", "model_state_dict", "model"):
        if isinstance(content, dict) and isinstance(content.get(key), dict):
            content = content[key]
    if isinstance(content, dict) and any(isinstance(part, dict) for part in content.values()):
        # One state_dict for each network, as HGR's code saves them.
        content = {
            f"{key}.{name}": value
            for key, part in content.items()
            if isinstance(part, dict)
            for name, value in part.items()
        }
    if not isinstance(content, dict) or not all(isinstance(v, Tensor) for v in content.values()):
        raise CheckpointError(f"{path}: expected names and tensors (a state_dict)")
    try:
        untrusted.check_tensor_bytes(content.values(), path)
    except ValueError as error:
        raise CheckpointError(f"{path}: {error}") from error
    return {name.removeprefix("module."): value for name, value in content.items()}


def convert(
    weights: Mapping[str, Tensor],
    *,
    energy_pooling: EnergyPooling = "mean",
    **changes: Any,
) -> Conversion:
    """Our model with their weights, in eval mode.

    Graph, energy, frame position, number of frames and loss are read from names and shapes. The
    settings of :data:`UNDETERMINED` are not: without ``changes`` they are those of the authors'
    scripts. The pooling of energies and the loss weights matter in training only.

    Args:
        changes: further options of :class:`EagleNetConfig`, e.g. ``energy_support_weight``.
    """
    weights = _one_name(weights)
    inferred = _infer_config(weights)
    config = replace(inferred, energy_pooling=energy_pooling, **changes)
    if config.num_layers > inferred.num_layers:
        raise CheckpointError(
            f"num_layers is {config.num_layers}, the checkpoint has {inferred.num_layers} layers"
        )
    first = inferred.num_layers - config.num_layers
    names = _names(config, first)
    unused = {name: why for name in weights if (why := _why_unused(name, config, first))}
    known = {*names.values(), *BUFFERS, *unused}
    unknown = [name for name in weights if name not in known and not name.startswith("clip.")]
    if unknown:
        raise CheckpointError(
            f"{len(unknown)} weights are not understood: {', '.join(sorted(unknown)[:8])}; this is "
            "not a checkpoint of the released EagleNet, or of a variant that is not known here"
        )
    method = EagleNet.build(config, _encoder(weights, unused))
    state = method.state_dict()
    for ours, theirs in names.items():
        value = _take(weights, theirs).float()
        if value.numel() != state[ours].numel():
            raise CheckpointError(
                f"{theirs} is {list(value.shape)}, expected {list(state[ours].shape)}"
            )
        state[ours] = value.reshape(state[ours].shape)
    method.load_state_dict(state)
    _fill_replay(method, weights)
    # As the authors evaluate: their frames and words, CLIP in half precision.
    method.frame_spec = replace(method.frame_spec, **RELEASED_FRAMES)
    method.habits = EvaluationHabits(LONG_WORDS if config.num_frames >= 64 else WORDS, "fp16")
    return Conversion(method.eval(), dict(sorted(unused.items())))


def _one_name(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Shifted attention is wrapped in a module of its own in some checkpoints: ``attn.net``."""
    renamed: dict[str, Tensor] = {}
    for name, value in weights.items():
        plain = name.replace(".attn.net.", ".attn.")
        if plain in renamed and not torch.equal(renamed[plain], value):
            raise CheckpointError(f"{plain} appears under two names with different values")
        renamed[plain] = value
    return renamed


def _infer_config(weights: Mapping[str, Tensor]) -> EagleNetConfig:
    """What names and shapes say."""
    layers = {name.split(".")[2] for name in weights if name.startswith("gnn.layers.")}
    is_relational = "gnn.layers.0.lin_rels.0.weight" in weights
    matrix, vector = ("lin_rels.0", "att_l_rels.0") if is_relational else ("lin1", "att_l")
    projection = _take(weights, f"gnn.layers.0.{matrix}.weight")
    head_dim = _take(weights, f"gnn.layers.0.{vector}.weight").shape[-1]
    has_energy = "ebm.replay_buffer_txt" in weights
    is_perceptron = "ebm.energy_net.0.weight" in weights
    is_bilinear = "ebm.energy_net.weight" in weights
    return EagleNetConfig.released(
        dim=projection.shape[1],
        num_frames=_take(weights, "stochastic.std_branch.linear_proj.weight").shape[1],
        graph="rgat" if is_relational else "gat",
        num_layers=len(layers),
        num_heads=projection.shape[0] // head_dim,
        frame_position="frame_pe" in weights,
        energy=(
            ("mlp" if is_perceptron else "bilinear" if is_bilinear else "cosine")
            if has_energy
            else None
        ),
        replay_size=len(weights["ebm.replay_buffer_txt"]) if has_energy else 500,
        loss="sigmoid" if "loss_fct.temp_prior" in weights else "softmax",
    )


def _names(config: EagleNetConfig, first: int) -> dict[str, str]:
    """Ours -> theirs, for everything but CLIP and the buffers; ``first``: the first layer run."""
    names = {
        f"pooling.{ours}.{kind}": f"pool_frames.{theirs}.{kind}"
        for theirs, ours in POOLING_NAMES.items()
        for kind in ("weight", "bias")
    }
    del names["pooling.key.bias"]
    for kind in ("weight", "bias"):
        names[f"stochastic.log_radius.{kind}"] = f"stochastic.std_branch.linear_proj.{kind}"
        if config.energy == "mlp":
            names[f"energy.hidden.{kind}"] = f"ebm.energy_net.0.{kind}"
            names[f"energy.output.{kind}"] = f"ebm.energy_net.2.{kind}"
        elif config.energy == "bilinear":
            names[f"energy.projection.{kind}"] = f"ebm.energy_net.{kind}"
    for index in range(config.num_layers):
        is_last = index == config.num_layers - 1
        names |= _layer_names(config, f"gnn.layers.{first + index}", index, is_last)
    if config.frame_position:
        names["graph.position"] = "frame_pe"
    if config.loss == "sigmoid":
        names |= {"loss.temperature": "loss_fct.temp_prior", "loss.bias": "loss_fct.bias"}
    else:
        names["loss.logit_scale"] = "clip.logit_scale"
    return names


def _layer_names(config: EagleNetConfig, theirs: str, index: int, is_last: bool) -> dict[str, str]:
    ours = "graph.edges" if is_last else f"graph.layers.{index}"
    if config.graph == "gat":
        return {
            f"{ours}.relation.projection.weight": f"{theirs}.lin1.weight",
            f"{ours}.relation.query": f"{theirs}.att_l.weight",
            f"{ours}.relation.key": f"{theirs}.att_r.weight",
        }
    names = {} if is_last else {f"{ours}.residual.weight": f"{theirs}.lin_out.weight"}
    for number, relation in enumerate(RELATIONS):
        if is_last and relation != "text_frame":
            continue
        part = f"{ours}.relation" if is_last else f"{ours}.{relation}"
        names[f"{part}.projection.weight"] = f"{theirs}.lin_rels.{number}.weight"
        names[f"{part}.query"] = f"{theirs}.att_l_rels.{number}.weight"
        names[f"{part}.key"] = f"{theirs}.att_r_rels.{number}.weight"
    return names


def _why_unused(name: str, config: EagleNetConfig, first: int) -> str | None:
    for pattern, why in UNUSED.items():
        if re.fullmatch(pattern, name):
            return why
    if any(name.startswith(f"gnn.layers.{index}.") for index in range(first)):
        return UNRUN_LAYER
    last = rf"gnn\.layers\.{first + config.num_layers - 1}\."
    dead = rf"{last}(lin_out\.weight|(lin|att_l|att_r)_rels\.[01]\.weight)"
    return DEAD_LAYER if config.graph == "rgat" and re.fullmatch(dead, name) else None


def _encoder(weights: Mapping[str, Tensor], unused: Mapping[str, str]) -> ClipEncoder:
    start = "clip."
    clip = {
        name.removeprefix(start): value.float()
        for name, value in weights.items()
        if name.startswith(start) and name not in unused
    }
    renamed = from_openai(clip)
    # Renaming copies nothing, so that what was not taken is in memory nobody else has.
    taken = {value.untyped_storage().data_ptr() for value in renamed.values()}
    unknown = sorted(n for n, v in clip.items() if v.untyped_storage().data_ptr() not in taken)
    if unknown:
        raise CheckpointError(
            f"{len(unknown)} weights are not those of a CLIP model: "
            f"{', '.join(start + name for name in unknown[:8])}"
        )
    with torch.device("meta"):
        encoder = ClipEncoder(clip_config(renamed))
    encoder.load_state_dict(renamed, assign=True)
    return encoder


def _fill_replay(method: EagleNet, weights: Mapping[str, Tensor]) -> None:
    """Their buffer starts as zeros and puts the newest rows first; ours keeps real rows only."""
    if method.replay is None:
        return
    texts, frames = (_take(weights, name).float() for name in BUFFERS)
    is_real = texts.abs().sum(dim=-1) > 0
    method.replay.write(texts[is_real].flip(0), frames[is_real].flip(0))


def _take(weights: Mapping[str, Tensor], name: str) -> Tensor:
    if name not in weights:
        raise CheckpointError(
            f"the checkpoint has no {name}; is it one of the released EagleNet code?"
        )
    return weights[name]
