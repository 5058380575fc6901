"""Tables of the weight names of official repositories, one per method.

A table is a function that reads official weights and returns them under our names
(:func:`eaglenet.methods.official.checkpoint.translate`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F

from eaglenet.encoders.weight_names import depth_of, timm_blocks
from eaglenet.methods.official.parts import (
    KINDS,
    MMT_TYPES,
    State,
    WeightReader,
    bert_blocks,
    columns_by_centre,
    cross_attention,
    distilbert_text,
    frame_pooling,
    frame_sequence,
    gated_embedding,
    hub_clip,
    logit_scale,
    openai_clip,
    prototype_decoder,
    temporal_stack,
    token_selection,
    vlad_centres,
)


def _clip4clip(read: WeightReader, method: Any) -> State:
    head = method.config.head
    state = openai_clip(read)
    if head == "tight":
        read("clip.logit_scale")  # The score is a logit already.
        state |= temporal_stack(
            read,
            "head.stack",
            method.head.stack,
            "cross.transformer",
            "cross.embeddings.position_embeddings.weight",
        )
        state |= read.module("head.norm", "cross.pooler.ln_pool")
        state |= read.module("head.hidden", "cross.pooler.dense")
        state["head.output.weight"] = read("similarity_dense.weight")
        bias = read("similarity_dense.bias").reshape(())
        return state | ({"head.score_bias": bias} if method.config.score_bias else {})
    state |= logit_scale(read)
    if head == "lstm":
        for kind in ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"):
            state[f"head.lstm.{kind}"] = read(f"lstm_visual.{kind}")
    elif head == "transformer":
        state |= frame_sequence(read, method, "head")
    return state


LAST_MESSAGES = "the messages of the last layer are not used"
RELATIONS = ("text_text", "frame_frame", "text_frame")
"""Our names of relations 0, 1 and 2 of the released EagleNet."""


def _eaglenet(read: WeightReader, method: Any) -> State:
    config = method.config
    state = {
        **openai_clip(read),
        **frame_pooling(read, "pool_frames."),
        **read.module("stochastic.log_radius", "stochastic.std_branch.linear_proj"),
        "encoder.logit_scale": read("clip.logit_scale"),
    }
    if config.energy == "mlp":
        state |= read.module("energy.hidden", "ebm.energy_net.0")
        state |= read.module("energy.output", "ebm.energy_net.2")
    elif config.energy == "bilinear":
        state |= read.module("energy.projection", "ebm.energy_net")
    # For num_layers=1 the released class builds two layers and runs the last.
    first = depth_of(read, "gnn.layers.") - config.num_layers
    for index in range(config.num_layers):
        state |= _graph_layer(read, f"gnn.layers.{first + index}", index, config)
    for name in read:
        if any(name.startswith(f"gnn.layers.{index}.") for index in range(first)):
            read.unused_weights[name] = "built but never run: the model has fewer layers"
    if method.replay is not None:  # The converter copies its rows.
        read("ebm.replay_buffer_txt")
        read("ebm.replay_buffer_vid")
    if config.frame_position:
        state["graph.position"] = read("frame_pe")
    if config.loss == "sigmoid":
        state |= {
            "loss.temperature": read("loss_fct.temp_prior"),
            "loss.bias": read("loss_fct.bias"),
        }
    else:
        state |= logit_scale(read)
    return state


def _graph_layer(read: WeightReader, theirs: str, index: int, config: Any) -> State:
    is_last = index == config.num_layers - 1
    ours = "graph.edges" if is_last else f"graph.layers.{index}"
    if config.graph == "gat":
        return {
            f"{ours}.relation.projection.weight": read(f"{theirs}.lin1.weight"),
            f"{ours}.relation.query": read(f"{theirs}.att_l.weight"),
            f"{ours}.relation.key": read(f"{theirs}.att_r.weight"),
        }
    state: State = {}
    weight_names = {"projection.weight": "lin_rels", "query": "att_l_rels", "key": "att_r_rels"}
    for number, relation in enumerate(RELATIONS):
        for our_name, their_name in weight_names.items():
            name = f"{theirs}.{their_name}.{number}.weight"
            if is_last and relation != "text_frame":
                read.unused_weights[name] = LAST_MESSAGES
            else:
                module = "relation" if is_last else relation
                state[f"{ours}.{module}.{our_name}"] = read(name)
    if is_last:
        read.unused_weights[f"{theirs}.lin_out.weight"] = LAST_MESSAGES
    else:
        state[f"{ours}.residual.weight"] = read(f"{theirs}.lin_out.weight")
    return state


def _xpool(read: WeightReader, method: Any) -> State:
    prefix = "pool_frames." if "pool_frames.linear_proj.weight" in read else ""
    # CLIP of OpenAI without --huggingface.
    is_openai = "clip.visual.class_embedding" in read
    towers = openai_clip(read) if is_openai else hub_clip(read, "clip.")
    return {**towers, **frame_pooling(read, prefix), **logit_scale(read)}


def _tmass(read: WeightReader, method: Any) -> State:
    return {
        **hub_clip(read, "clip."),
        **frame_pooling(read, "pool_frames."),
        **read.module("stochastic.log_radius", "stochastic.std_branch.linear_proj"),
        **logit_scale(read),
    }


def _ts2net(read: WeightReader, method: Any) -> State:
    return {
        **openai_clip(read),
        **token_selection(read),
        **frame_sequence(read, method),
        **logit_scale(read),
    }


def _ucofia(read: WeightReader, method: Any) -> State:
    return {
        **_ts2net(read, method),
        # The official code multiplies by its matrices from the right: x W.
        "sentence_map.weight": read("global_mat_weight").T,
        "video_map.weight": read("global_mat_weight_1").T,
        "word_map.weight": read("local_mat_weight").T,
        "patch_map.weight": read("local_mat_weight1").T,
        "over_frames.mixing": read("frame_logit_weight"),
        "over_words.mixing": read("word_mat_weight"),
        "over_patches.mixing": read("pixel_mat_weight"),
        "last_words.mixing": read("word_mat_weight2"),
        "last_patches.mixing": read("pixel_mat_weight2"),
    }


def _prost(read: WeightReader, method: Any) -> State:
    state = {**openai_clip(read), **logit_scale(read)}
    for ours, theirs in (("phrases", "word"), ("objects", "patch")):
        for index in (0, 2):
            theirs_name = f"{theirs}_prototype_weight.{index}"
            state |= read.module(f"{ours}.network.{index}", theirs_name)
    for name in ("frame_decoder", "event_decoder"):
        state |= prototype_decoder(read, name, method.get_submodule(name), name)
    return state


def _drl(read: WeightReader, method: Any) -> State:
    state = {**openai_clip(read), **frame_sequence(read, method), **logit_scale(read)}
    for ours, theirs in (("word_weights", "text"), ("frame_weights", "video")):
        state |= read.module(f"{ours}.network.0", f"{theirs}_weight_fc.0")
        state |= read.module(f"{ours}.network.2", f"{theirs}_weight_fc.2", ("weight",))
    return state


def _glscl(read: WeightReader, method: Any) -> State:
    state = {**openai_clip(read), **frame_sequence(read, method), **logit_scale(read)}
    state["queries"] = read("spatial_queries")
    for index in range(len(method.decoder.layers)):
        our_name, their_name = f"decoder.layers.{index}", f"transformer_decoder_noun.layers.{index}"
        for attention in ("self_attn", "multihead_attn"):
            for kind in KINDS:
                name = f"{attention}.in_proj_{kind}"
                state[f"{our_name}.{name}"] = read(f"{their_name}.{name}")
            state |= read.module(
                f"{our_name}.{attention}.out_proj", f"{their_name}.{attention}.out_proj"
            )
        for module in ("linear1", "linear2", "norm1", "norm2", "norm3"):
            state |= read.module(f"{our_name}.{module}", f"{their_name}.{module}")
    return state


def _tempme(read: WeightReader, method: Any) -> State:
    state = {**openai_clip(read), **logit_scale(read)}
    for number, block in enumerate(method.merging.groups):
        if number < len(method.merging.positions):
            name = f"clip.visual.transformer.resblocks.{block}.TVPt_Video_Positional_embedding"
            state[f"merging.positions.{number}"] = read(name)[0, :, 0]
    return state


def _proxies(read: WeightReader, prefix: str) -> State:
    theirs = f"{prefix}vision_model.embeddings"
    if f"{theirs}.added_cls" not in read:
        return {}
    return {
        "proxies.added": read(f"{theirs}.added_cls"),
        "proxies.frame_positions": read(f"{theirs}.temporal_embedding")[0],
    }


def _prefix_of(read: WeightReader, end: str) -> str:
    """Return the prefix of a name, which differs between checkpoints of a repository."""
    for name in read.weights:
        if name.endswith(end):
            return name.removesuffix(end)
    return ""


def _clipvip(read: WeightReader, method: Any) -> State:
    prefix = _prefix_of(read, "vision_model.embeddings.class_embedding")
    return {
        **hub_clip(read, prefix),
        **_proxies(read, prefix),
        **logit_scale(read, f"{prefix}logit_scale"),
    }


def _tvproxynet(read: WeightReader, method: Any) -> State:
    prefix = _prefix_of(read, "vision_model.embeddings.class_embedding")
    scale = _prefix_of(read, "logit_scale")
    state = {
        **hub_clip(read, prefix),
        **_proxies(read, prefix),
        **logit_scale(read, f"{scale}logit_scale"),
    }
    if f"{prefix}visual_projection_patch.weight" in read:
        state["proxy_projection.weight"] = read(f"{prefix}visual_projection_patch.weight")
    proxy = _prefix_of(read, "proxy_decoder.event_decoder.norm.weight")
    if method.config.dash == "theta":
        state["theta"] = read(f"{proxy}dash_factor").reshape(())
    else:
        state |= read.module("dash", f"{proxy}dash_weights")
    for index, layer in enumerate(method.leader.layers):
        our_name = f"leader.layers.{index}"
        their_name = f"{proxy}proxy_decoder.event_decoder.layers.{index}"
        state |= cross_attention(
            read, our_name, f"{their_name}.multihead_attn", has_scores=layer.num_tokens > 1
        )
        for number, norm in enumerate(
            ("query_norm", "memory_norm", "attention_norm", "output_norm"), start=1
        ):
            state |= read.module(f"{our_name}.{norm}", f"{their_name}.norm{number}")
        state |= read.module(f"{our_name}.network.0", f"{their_name}.linear1")
        state |= read.module(f"{our_name}.network.3", f"{their_name}.linear2")
    return {**state, **read.module("leader.norm", f"{proxy}proxy_decoder.event_decoder.norm")}


ONE_EXPERT = "the weight of a single expert is 1"


def _text_experts(read: WeightReader, method: Any, num_centres: int) -> State:
    """Return text heads and weights of experts over a VLAD vector (CE and T2VLAD)."""
    state: State = {}
    for index in range(len(method.widths)):
        state |= gated_embedding(read, f"text_heads.{index}", f"ce.text_GU.{index}")
        name = f"text_heads.{index}.embed.weight"
        state[name] = columns_by_centre(state[name], num_centres)
    if method.weigh is not None:
        state["weigh.weight"] = columns_by_centre(read("ce.moe_fc.weight"), num_centres)
        state["weigh.bias"] = read("ce.moe_fc.bias")
    else:
        read.unused_weights |= {f"ce.moe_fc.{kind}": ONE_EXPERT for kind in KINDS}
    return state


def _ce(read: WeightReader, method: Any) -> State:
    state = {
        **vlad_centres(read, "text_vlad", "text_pooling", ("batch_norm",)),
        **_text_experts(read, method, method.config.text_centres),
    }
    for index, name in enumerate(method.widths):
        state |= read.module(f"maps.{name}", f"ce.video_dim_reduce.{index}.fc")
        if name in method.vlads:
            state |= vlad_centres(read, f"vlads.{name}", f"pooling.{name}", ("batch_norm",))
            centres = method.config.centres[name]
            state[f"maps.{name}.weight"] = columns_by_centre(state[f"maps.{name}.weight"], centres)
    pair_network = "ce.g_reason_shared"
    state |= {
        "gate.pair.first.weight": read("ce.g_reason_1.weight"),
        **read.norm("gate.pair.first_norm", f"{pair_network}.0", read("ce.g_reason_1.bias")),
        "gate.pair.second.weight": read(f"{pair_network}.2.weight"),
        **read.norm("gate.pair.second_norm", f"{pair_network}.3", read(f"{pair_network}.2.bias")),
        "gate.pair.last.weight": read(f"{pair_network}.5.weight"),
    }
    last_bias = read(f"{pair_network}.5.bias")
    has_bias = method.gate.pair.last.bias is not None
    if has_bias:
        state["gate.pair.last.bias"] = last_bias
    for index in range(len(method.widths)):
        theirs = f"ce.video_GU.{index}.cg"
        state[f"gate.maps.{index}.weight"] = read(f"{theirs}.fc.weight")
        state |= read.norm(
            f"gate.pair_norms.{index}", f"{theirs}.batch_norm", None if has_bias else last_bias
        )
        own_bias = read(f"{theirs}.fc.bias")
        state |= read.norm(f"gate.own_norms.{index}", f"{theirs}.batch_norm2", own_bias)
    return state


def _mmt(read: WeightReader, method: Any, types: Mapping[str, int] = MMT_TYPES) -> State:
    """``types``: row of each expert in the token types."""
    bert = "vid_bert"
    rows = [0] + [types[name] for name in method.widths]
    state = {
        "tokens.positions": read(f"{bert}.embeddings.position_embeddings.weight"),
        "tokens.types": read(f"{bert}.embeddings.token_type_embeddings.weight")[rows],
        **read.module("tokens.norm", f"{bert}.embeddings.layer_norm"),
    }
    state |= bert_blocks(read, method.stack, bert, "layer_norm")
    for index, name in enumerate(method.widths):
        state |= read.module(f"tokens.maps.{name}", f"video_dim_reduce.{name}.fc")
        state |= gated_embedding(read, f"text_heads.{index}", f"text_GU.{name}")
    if method.weigh is not None:
        state |= read.fused_module("weigh", "moe_fc_txt.{}", list(method.widths))
    else:
        names = [f"moe_fc_txt.{name}.{kind}" for name in method.widths for kind in KINDS]
        read.unused_weights |= dict.fromkeys(names, ONE_EXPERT)
    return state


def _t2vlad(read: WeightReader, method: Any) -> State:
    transformer = "ce.transformers"
    layer = f"{transformer}.layers.0"
    state = {
        **vlad_centres(read, "vlad", "text_pooling", ("batch_norm2", "batch_norm1")),
        **_text_experts(read, method, method.config.num_centres),
        "mixer.in_projection.weight": read(f"{layer}.self_attn.in_proj_weight"),
        "mixer.in_projection.bias": read(f"{layer}.self_attn.in_proj_bias"),
        **read.modules(
            "mixer",
            layer,
            {
                "out_projection": "self_attn.out_proj",
                "ln_1": "norm1",
                "ln_2": "norm2",
                "up": "linear1",
                "down": "linear2",
            },
        ),
        **read.module("mixer.ln_last", f"{transformer}.norm"),
    }
    for index, name in enumerate(method.widths):
        state |= read.module(f"token_maps.{name}", f"ce.video_dim_reduce.{index}.fc")
        state |= gated_embedding(read, f"video_heads.{name}", f"ce.video_GU.{index}")
    return state


def _hgr(read: WeightReader, method: Any) -> State:
    text, video = "text_encoder", "video_encoder"
    state: State = {
        "graph.pooling.query.weight": read(f"{text}.ft_attn.weight"),
        "graph.roles": read(f"{text}.role_embedding.weight"),
        "pooling.query.weight": read(f"{video}.ft_attn.weight"),
    }
    for kind in ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"):
        state[f"words.forward_network.{kind}"] = read(f"{text}.rnn.{kind}")
        state[f"words.backward_network.{kind}"] = read(f"{text}.rnn.{kind}_reverse")
    for index in range(len(method.graph.layers)):
        our_name, their_name = f"graph.layers.{index}", f"{text}.gcn.layers.{index}"
        state |= {
            f"{our_name}.mix.weight": read(f"{their_name}.ctx_layer.weight"),
            f"{our_name}.key.weight": read(f"{their_name}.edge_attn_key.weight"),
            **read.module(f"{our_name}.query", f"{their_name}.edge_attn_query"),
            **read.module(f"{our_name}.norm", f"{their_name}.layernorm"),
        }
    name = method.frames_expert
    for number, level in enumerate(("video", "verb", "noun")):
        state |= read.module(f"maps.{level}.{name}", f"{video}.level_embeds.{number}")
    return state


def _projection(read: WeightReader, name: str) -> str:
    """Return the name of the linear map in a sequence of modules, or of one alone."""
    choices = (f"{name}.0", f"{name}.1", name)
    return next((choice for choice in choices if f"{choice}.weight" in read), name)


def _space_time(read: WeightReader, method: Any) -> State:
    """Return the towers of Frozen and BridgeFormer, whose visual one has the layout of timm."""
    if "clip.visual.class_embedding" in read:  # BridgeFormer on CLIP.
        read("clip.logit_scale")  # The temperature is fixed.
        return openai_clip(read)
    ours, prefix = "encoder.vision", _prefix_of(read, "cls_token")
    patches = f"{prefix}patch_embed.proj"
    norm = "norm" if f"{prefix}norm.weight" in read else "norm1"
    state = {
        f"{ours}.class_embedding": read(f"{prefix}cls_token").flatten(),
        f"{ours}.positional_embedding": read(f"{prefix}pos_embed")[0],
        f"{ours}.patch_embedding.projection.weight": read(f"{patches}.weight").flatten(1),
        f"{ours}.patch_embedding.projection.bias": read(f"{patches}.bias"),
        **read.module(f"{ours}.ln_post", f"{prefix}{norm}"),
        **read.module(f"{ours}.projection", _projection(read, "vid_proj")),
    }
    if "text_model.embeddings.word_embeddings.weight" in read:
        name = "txt_proj" if "txt_proj.1.weight" in read else "text_proj"  # As in MCQ and MILES.
        state |= distilbert_text(read, "text_model.", _projection(read, name))
    blocks = timm_blocks(read, f"{prefix}blocks")
    state |= {f"encoder.{name}": value for name, value in blocks.items()}
    space_time = method.space_time
    if space_time.frame_positions is not None:
        state["space_time.frame_positions"] = read(f"{prefix}temporal_embed")[0]
    for index in range(len(space_time.time or ())):
        our_name, their_name = f"space_time.time.{index}", f"{prefix}blocks.{index}"
        state |= read.module(f"{our_name}.norm", f"{their_name}.norm3")
        state |= read.module(f"{our_name}.attention.qkv", f"{their_name}.timeattn.qkv")
        state |= read.module(f"{our_name}.attention.out", f"{their_name}.timeattn.proj")
    return state


BOTTLENECK_NAMES = {"reduce": "conv1", "middle": "conv2", "expand": "conv3"}


def _normed_convolution(read: WeightReader, ours: str, theirs: str) -> State:
    """Return a convolution, and its frozen statistics as one factor and one term per channel."""
    deviation = (read(f"{theirs}.norm.running_var") + 1e-5).sqrt()
    scale = read(f"{theirs}.norm.weight") / deviation
    shift = read(f"{theirs}.norm.bias") - read(f"{theirs}.norm.running_mean") * scale
    convolution = {f"{ours}.0.weight": read(f"{theirs}.weight")}
    return {**convolution, f"{ours}.1.scale": scale, f"{ours}.1.shift": shift}


def _resnet(read: WeightReader, tower: Any) -> State:
    """Return the ResNet of detectron2 in ClipBERT, which reads blue, green, red."""
    ours, theirs = "encoder.vision", "cnn.feature.backbone"
    state = _normed_convolution(read, f"{ours}.stem", f"{theirs}.stem.conv1")
    state[f"{ours}.stem.0.weight"] = state[f"{ours}.stem.0.weight"].flip(1)
    index = 0
    for stage, depth in enumerate(tower.config.depths, start=2):
        for number in range(depth):
            our_name, their_name = f"{ours}.blocks.{index}", f"{theirs}.res{stage}.{number}"
            names = dict(BOTTLENECK_NAMES)
            if tower.blocks[index].shortcut is not None:
                names["shortcut"] = "shortcut"
            for our_part, their_part in names.items():
                state |= _normed_convolution(
                    read, f"{our_name}.{our_part}", f"{their_name}.{their_part}"
                )
            index += 1
    return {**state, f"{ours}.grid.weight": read("cnn.grid_encoder.0.weight")}


def _clipbert(read: WeightReader, method: Any) -> State:
    bert = "transformer.bert"
    words, cells = f"{bert}.embeddings", f"{bert}.visual_embeddings"
    kinds = [
        read(f"{name}.token_type_embeddings.weight")[0]  # The text is one sentence.
        for name in (words, cells)
    ]
    grid = []
    for axis in ("row", "col"):
        positions = read(f"{cells}.{axis}_position_embeddings.weight")
        grid.append(F.pad(positions, (0, 0, 0, method.grid.shape[1] - len(positions))))
    return {
        **_resnet(read, method.encoder.vision),
        "encoder.text.embedding.weight": read(f"{words}.word_embeddings.weight"),
        "positions": read(f"{words}.position_embeddings.weight"),
        "kinds": torch.stack(kinds),
        "grid": torch.stack(grid),
        **read.module("text_norm", f"{words}.LayerNorm"),
        **read.module("patch_norm", f"{cells}.LayerNorm"),
        **read.module("pooler", f"{bert}.pooler.dense"),
        **read.modules("head", "transformer.classifier", {"0": "0", "2": "2"}),
        **bert_blocks(read, method.stack, bert, "LayerNorm"),
    }


TABLES: dict[str, Callable[..., State]] = {
    "bridgeformer": _space_time,
    "ce": _ce,
    "clip4clip": _clip4clip,
    "clipbert": _clipbert,
    "clipvip": _clipvip,
    "drl": _drl,
    "eaglenet": _eaglenet,
    "frozen": _space_time,
    "glscl": _glscl,
    "hgr": _hgr,
    "mmt": _mmt,
    "prost": _prost,
    "t2vlad": _t2vlad,
    "tempme": _tempme,
    "tmass": _tmass,
    "ts2net": _ts2net,
    "tvproxynet": _tvproxynet,
    "ucofia": _ucofia,
    "xpool": _xpool,
}
"""Tables by name of the method."""
