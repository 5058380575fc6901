"""Weight names of modules that several official repositories share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from eaglenet.core.errors import CheckpointError
from eaglenet.encoders import weight_names

Weights = Mapping[str, Tensor]
State = dict[str, Tensor]

KINDS = ("weight", "bias")
MMT_TYPES = {"s3d": 1, "vggish": 2, "face": 3, "rgb": 5, "speech": 6, "ocr": 7, "scene": 9}
"""Row of each expert in the token types of MMT; row 0 is that of the first token."""

POOLING_NAMES = {
    "query": "cross_attn.q_proj",
    "key": "cross_attn.k_proj",
    "value": "cross_attn.v_proj",
    "output": "cross_attn.out_proj",
    "feed_forward": "linear_proj",
    "input_norm": "layer_norm1",
    "attention_norm": "layer_norm2",
    "output_norm": "layer_norm3",
}
TEMPORAL_BLOCK_NAMES = {
    "ln_1": "ln_1",
    "in_projection": "attn.in_proj_",
    "out_projection": "attn.out_proj",
    "ln_2": "ln_2",
    "expand": "mlp.c_fc",
    "contract": "mlp.c_proj",
}


class WeightReader(Mapping[str, Tensor]):
    """Official weights by name; records which ones were read."""

    def __init__(self, weights: Weights) -> None:
        self.weights = weights
        self.names_read: set[str] = set()
        self.unused_weights: dict[str, str] = {}
        """Weights without effect, with the reason."""

    def __call__(self, name: str) -> Tensor:
        if name not in self.weights:
            raise CheckpointError(
                f"the checkpoint has no weight {name!r}; it must be from the official code, with "
                "the same settings"
            )
        return self[name]

    def __getitem__(self, name: str) -> Tensor:
        self.names_read.add(name)
        return self.weights[name]

    def __contains__(self, name: object) -> bool:
        return name in self.weights

    def __iter__(self) -> Iterator[str]:
        return iter(self.weights)

    def __len__(self) -> int:
        return len(self.weights)

    def module(self, ours: str, theirs: str, kinds: tuple[str, ...] = KINDS) -> State:
        """Return weight and bias of a module; their name follows a dot, or ``_`` at the end."""
        separator = "" if theirs.endswith("_") else "."
        return {f"{ours}.{kind}": self(f"{theirs}{separator}{kind}") for kind in kinds}

    def modules(self, ours: str, theirs: str, names: Mapping[str, str]) -> State:
        """Return several modules below our name and theirs."""
        state: State = {}
        for our_name, their_name in names.items():
            state |= self.module(f"{ours}.{our_name}", f"{theirs}.{their_name}")
        return state

    def fused_module(self, ours: str, theirs: str, parts: Sequence[str]) -> State:
        """Return one module from several, whose names are ``theirs`` with each part inserted."""
        return {
            f"{ours}.{kind}": torch.cat([self(f"{theirs.format(part)}.{kind}") for part in parts])
            for kind in KINDS
        }

    def norm(self, ours: str, theirs: str, bias: Tensor | None = None) -> State:
        """Return a batch normalisation; the ``bias`` before it is added to the running mean."""
        mean = self(f"{theirs}.running_mean")
        return {
            **self.module(ours, theirs),
            f"{ours}.running_mean": mean if bias is None else mean - bias,
            f"{ours}.running_var": self(f"{theirs}.running_var"),
        }


def logit_scale(read: WeightReader, name: str = "clip.logit_scale") -> State:
    return {"loss.logit_scale": read(name).reshape(())}


def temporal_stack(read: WeightReader, ours: str, stack: Any, theirs: str, positions: str) -> State:
    """Return the temporal blocks of CLIP4Clip, with their positions."""
    state = {f"{ours}.positions": read(positions)}
    for index in range(len(stack.blocks)):
        state |= read.modules(
            f"{ours}.blocks.{index}", f"{theirs}.resblocks.{index}", TEMPORAL_BLOCK_NAMES
        )
    return state


def frame_sequence(read: WeightReader, method: Any, ours: str = "temporal") -> State:
    stack = method.get_submodule(f"{ours}.stack")
    table = "frame_position_embeddings.weight"
    return temporal_stack(read, f"{ours}.stack", stack, "transformerClip", table)


def frame_pooling(read: WeightReader, prefix: str = "") -> State:
    state: State = {}
    for ours, theirs in POOLING_NAMES.items():
        kinds = ("weight",) if ours == "key" else KINDS
        state |= read.module(f"pooling.{ours}", f"{prefix}{theirs}", kinds)
    return state


def token_selection(read: WeightReader) -> State:
    theirs = "visual_token_selector.score_predictor"
    return {
        **read.module("selection.norm", f"{theirs}.in_conv.0"),
        **read.module("selection.local.0", f"{theirs}.in_conv.1", ("weight",)),
        **read.module("selection.scorer.0", f"{theirs}.out_conv.0", ("weight",)),
        **read.module("selection.scorer.2", f"{theirs}.out_conv.2", ("weight",)),
    }


def cross_attention(
    read: WeightReader, ours: str, theirs: str, *, has_scores: bool = True
) -> State:
    """Split fused attention into query, key and value; without scores, value and output only."""
    query, key, value = read(f"{theirs}.in_proj_weight").chunk(3)
    query_bias, _, value_bias = read(f"{theirs}.in_proj_bias").chunk(3)
    state = {
        f"{ours}.value.weight": value,
        f"{ours}.value.bias": value_bias,
        **read.module(f"{ours}.output", f"{theirs}.out_proj"),
    }
    if has_scores:
        state |= {
            f"{ours}.query.weight": query,
            f"{ours}.query.bias": query_bias,
            f"{ours}.key.weight": key,
        }
    return state


def prototype_decoder(read: WeightReader, ours: str, decoder: Any, theirs: str) -> State:
    """Return the prototype decoder of ProST."""
    state = {f"{ours}.queries": read(f"{theirs}.V")}
    for index, layer in enumerate(decoder.layers):
        our_name, their_name = f"{ours}.layers.{index}", f"{theirs}.event_decoder.layers.{index}"
        norms = ["query_norm", "memory_norm", "attention_norm", "output_norm"]
        if layer.around is not None:
            norms.insert(2, "around_norm")
            state |= cross_attention(read, f"{our_name}.around", f"{their_name}.self_attn")
        state |= cross_attention(read, f"{our_name}.across", f"{their_name}.multihead_attn")
        for number, norm in enumerate(norms, start=1):
            state |= read.module(f"{our_name}.{norm}", f"{their_name}.norm{number}")
        state |= read.module(f"{our_name}.network.0", f"{their_name}.linear1")
        state |= read.module(f"{our_name}.network.3", f"{their_name}.linear2")
    return {**state, **read.module(f"{ours}.norm", f"{theirs}.event_decoder.norm")}


def gated_embedding(read: WeightReader, ours: str, theirs: str) -> State:
    """Return a gated embedding unit; the bias before its normalisation goes into the mean."""
    return {
        **read.module(f"{ours}.embed", f"{theirs}.fc"),
        f"{ours}.gate.weight": read(f"{theirs}.cg.fc.weight"),
        **read.norm(f"{ours}.norm", f"{theirs}.cg.batch_norm", read(f"{theirs}.cg.fc.bias")),
    }


def columns_by_centre(weight: Tensor, num_centres: int) -> Tensor:
    """Reorder the columns of a map of VLAD vectors from dimension-major to centre-major."""
    by_centre: Tensor = weight.unflatten(1, (-1, num_centres)).transpose(1, 2)
    return by_centre.flatten(1)


def vlad_centres(read: WeightReader, ours: str, theirs: str, norms: tuple[str, ...]) -> State:
    state = {
        f"{ours}.assign": read(f"{theirs}.clusters"),
        f"{ours}.centres": read(f"{theirs}.clusters2")[0].T,
    }
    for index, norm in enumerate(norms):
        state |= read.norm(f"{ours}.norms.{index}", f"{theirs}.{norm}")
    return state


PADDLE_STATISTICS = {"._mean": ".running_mean", "._variance": ".running_var"}


def from_paddle(weights: Weights) -> State:
    """Return weights of PaddlePaddle in the layout of torch, except those of its BERT."""
    state: State = {}
    for name, value in weights.items():
        for theirs, ours in PADDLE_STATISTICS.items():
            name = name.removesuffix(theirs) + ours if name.endswith(theirs) else name
        is_map = name.endswith(".weight") and value.ndim == 2
        state[name] = value.T if is_map and not name.startswith("text_bert.") else value
    for name in [name for name in state if name.endswith(".self_attn.q_proj.weight")]:
        attention = name.removesuffix(".q_proj.weight")
        if attention.startswith("text_bert."):
            continue
        for kind in KINDS:
            names = [f"{attention}.{part}_proj.{kind}" for part in "qkv"]
            if not all(part in state for part in names):
                raise CheckpointError(f"the checkpoint lacks a part of {attention}")
            state[f"{attention}.in_proj_{kind}"] = torch.cat([state.pop(part) for part in names])
    return state


DISTILBERT_BLOCK_NAMES = {
    "attention.out": "attention.out_lin",
    "ln_1": "sa_layer_norm",
    "mlp.up": "ffn.lin1",
    "mlp.down": "ffn.lin2",
    "ln_2": "output_layer_norm",
}


def distilbert_text(read: WeightReader, prefix: str, projection: str) -> State:
    """Return a DistilBERT of transformers, with its projection to the joint width."""
    ours, embeddings = "encoder.text", f"{prefix}embeddings"
    state = {
        f"{ours}.embedding.weight": read(f"{embeddings}.word_embeddings.weight"),
        f"{ours}.positional_embedding": read(f"{embeddings}.position_embeddings.weight"),
        **read.module(f"{ours}.norm", f"{embeddings}.LayerNorm"),
        **read.module(f"{ours}.projection", projection),
    }
    for index in range(weight_names.depth_of(read, f"{prefix}transformer.layer.")):
        our_name, their_name = f"{ours}.blocks.{index}", f"{prefix}transformer.layer.{index}"
        state |= read.modules(our_name, their_name, DISTILBERT_BLOCK_NAMES)
        state |= read.fused_module(
            f"{our_name}.attention.qkv", f"{their_name}.attention.{{}}_lin", "qkv"
        )
    return state


def bert_blocks(read: WeightReader, stack: Any, bert: str, norm: str) -> State:
    """Return the blocks of a BERT, whose normalisations are called ``norm``."""
    state: State = {}
    names = {
        "out_projection": "attention.output.dense",
        "attention_norm": f"attention.output.{norm}",
        "up": "intermediate.dense",
        "down": "output.dense",
        "output_norm": f"output.{norm}",
    }
    for index in range(len(stack.blocks)):
        ours, theirs = f"stack.blocks.{index}", f"{bert}.encoder.layer.{index}"
        state |= read.modules(ours, theirs, names)
        state |= read.fused_module(
            f"{ours}.in_projection", f"{theirs}.attention.self.{{}}", ("query", "key", "value")
        )
    return state


def openai_clip(read: WeightReader) -> State:
    """Return the towers of the checkpoint in the layout of OpenAI, without the logit scale."""
    state: State = {}
    visual = "clip.visual"
    if f"{visual}.class_embedding" in read:
        state |= weight_names.openai_stem(read, visual) | _patches(read, visual)
        if f"{visual}.proj" in read:
            state |= weight_names.openai_vision(read, visual)
            state |= _low_rank(read, "vision", f"{visual}.transformer")
    if "clip.token_embedding.weight" in read:
        state |= weight_names.openai_text(read, "clip.")
        state |= _low_rank(read, "text", "clip.transformer")
    return _in_encoder(state)


def _patches(read: WeightReader, visual: str) -> State:
    """Return the patch embedding, or the one over three frames of CLIP4Clip."""
    if f"{visual}.conv2.weight" not in read:
        return {weight_names.PATCHES: read(f"{visual}.conv1.weight").flatten(1)}
    before, middle, after = read(f"{visual}.conv2.weight").unbind(2)
    return {
        weight_names.PATCHES: middle.flatten(1),
        "vision.temporal_stem.before.weight": before.flatten(1),
        "vision.temporal_stem.after.weight": after.flatten(1),
    }


def _low_rank(read: WeightReader, tower: str, prefix: str) -> State:
    """Return the low-rank changes of TempMe, if the checkpoint has any."""
    state: State = {}
    for index in range(weight_names.depth_of(read, f"{prefix}.resblocks.")):
        theirs = f"{prefix}.resblocks.{index}.attn.TVPt_LoRA"
        if f"{theirs}_a" in read:
            state[f"{tower}.blocks.{index}.attention.qkv.down"] = read(f"{theirs}_a")
            state[f"{tower}.blocks.{index}.attention.qkv.up"] = read(f"{theirs}_b")
    return state


def hub_clip(read: WeightReader, prefix: str = "") -> State:
    """Return the towers of the checkpoint in the layout of transformers."""
    state: State = {}
    if f"{prefix}vision_model.embeddings.class_embedding" in read:
        state |= weight_names.hub_vision(read, prefix)
    if f"{prefix}text_model.embeddings.token_embedding.weight" in read:
        state |= weight_names.hub_text(read, prefix)
    return _in_encoder(state)


def _in_encoder(state: State) -> State:
    return {f"encoder.{name}": value for name, value in state.items()}
