"""Towers and settings of official checkpoints, inferred from names and shapes of the weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

from eaglenet.core.errors import CheckpointError, UsageError
from eaglenet.core.settings import from_plain
from eaglenet.core.types import Encoder
from eaglenet.encoders.clip import ClipEncoder
from eaglenet.encoders.features import ExpertConfig, ExpertEncoder
from eaglenet.encoders.resnet_bert import (
    ResnetBertConfig,
    ResnetBertEncoder,
    ResnetConfig,
    WordsConfig,
)
from eaglenet.encoders.vit_bert import VitBertConfig, VitBertEncoder, distilbert, vit
from eaglenet.encoders.weight_names import clip_config, depth_of, from_openai, hub_text, hub_vision
from eaglenet.methods.eaglenet import EagleNetConfig
from eaglenet.methods.official.parts import Weights

Settings = dict[str, Any]
REPLAY = ("ebm.replay_buffer_txt", "ebm.replay_buffer_vid")


def infer(name: str, weights: Weights, settings: Settings) -> tuple[Encoder, Settings]:
    """Return the encoder of a checkpoint, without its weights, and the settings it determines."""
    if name in EXPERT_INFERENCE:
        widths, inferred_settings = EXPERT_INFERENCE[name](weights, settings)
        return ExpertEncoder(widths), inferred_settings
    inferred_settings = INFERENCE[name](weights)
    if name == "clipbert":
        return _resnet_bert(weights, settings), inferred_settings
    return _encoder(weights), inferred_settings


def _encoder(weights: Weights) -> ClipEncoder | VitBertEncoder:
    """Create towers of the sizes in the checkpoint; weights are loaded with the method."""
    if "video_model.cls_token" in weights:
        return _vit_bert(weights)
    if "clip.visual.class_embedding" in weights:
        clip = {n.removeprefix("clip."): w for n, w in weights.items() if n.startswith("clip.")}
        if "visual.conv2.weight" in clip:  # Over three frames: [width, 3, time, side, side].
            clip["visual.conv1.weight"] = clip["visual.conv2.weight"][:, :, 1]
        return ClipEncoder(clip_config(from_openai(clip)))
    end = "vision_model.embeddings.class_embedding"
    prefix = next((name.removesuffix(end) for name in weights if name.endswith(end)), None)
    if prefix is None:
        raise CheckpointError(
            "the checkpoint has no CLIP towers; pass a checkpoint of the whole model"
        )
    return ClipEncoder(clip_config({**hub_vision(weights, prefix), **hub_text(weights, prefix)}))


def _vit_bert(weights: Weights) -> VitBertEncoder:
    """Create the towers of Frozen and BridgeFormer, with heads of 64 as in all released ones."""
    if "text_model.transformer.layer.0.attention.q_lin.weight" not in weights:
        raise CheckpointError(
            "the text tower is not a DistilBERT; other text towers of these methods are not "
            "supported"
        )
    patches = "video_model.patch_embed.proj.weight"
    width, side = _size(weights, patches), _size(weights, patches, 3)
    grid = math.isqrt(_size(weights, "video_model.pos_embed", 1) - 1)
    words = "text_model.embeddings.{}_embeddings.weight"
    text_width = _size(weights, words.format("word"), 1)
    return VitBertEncoder(
        VitBertConfig(
            _size(weights, "vid_proj.0.weight"),
            vit(
                image_size=grid * side,
                patch_size=side,
                width=width,
                layers=depth_of(weights, "video_model.blocks."),
                heads=max(width // 64, 1),
                mlp_width=_size(weights, "video_model.blocks.0.mlp.fc1.weight"),
            ),
            distilbert(
                vocabulary_size=_size(weights, words.format("word")),
                context_length=_size(weights, words.format("position")),
                width=text_width,
                layers=depth_of(weights, "text_model.transformer.layer."),
                heads=max(text_width // 64, 1),
                mlp_width=_size(weights, "text_model.transformer.layer.0.ffn.lin1.weight"),
            ),
        )
    )


def _resnet_bert(weights: Weights, settings: Settings) -> ResnetBertEncoder:
    """Create the towers of ClipBERT."""
    backbone, words = "cnn.feature.backbone", "transformer.bert.embeddings.{}_embeddings.weight"
    sizes = {
        "image_size": settings["image_size"],
        "stem_width": _size(weights, f"{backbone}.stem.conv1.weight"),
        "width": _size(weights, f"{backbone}.res2.0.conv3.weight"),
        "bottleneck_width": _size(weights, f"{backbone}.res2.0.conv1.weight"),
        "depths": [depth_of(weights, f"{backbone}.res{stage}.") for stage in range(2, 6)],
    }
    vocabulary_size, dim = weights[words.format("word")].shape
    context_length = _size(weights, words.format("position"))
    return ResnetBertEncoder(
        ResnetBertConfig(
            dim, from_plain(ResnetConfig, sizes), WordsConfig(vocabulary_size, context_length)
        )
    )


def _size(weights: Weights, name: str, axis: int = 0) -> int:
    if name not in weights:
        raise CheckpointError(f"the checkpoint has no weight {name!r}; is it of another method?")
    return weights[name].shape[axis]


def _temporal(weights: Weights) -> Settings:
    width = _size(weights, "frame_position_embeddings.weight", 1)
    return {
        "num_layers": depth_of(weights, "transformerClip.resblocks."),
        "num_heads": max(width // 64, 1),
        "num_positions": _size(weights, "frame_position_embeddings.weight"),
    }


def _eaglenet(weights: Weights) -> Settings:
    is_relational = "gnn.layers.0.lin_rels.0.weight" in weights
    matrix, vector = ("lin_rels.0", "att_l_rels.0") if is_relational else ("lin1", "att_l")
    num_heads = _size(weights, f"gnn.layers.0.{matrix}.weight") // _size(
        weights, f"gnn.layers.0.{vector}.weight", -1
    )
    energy = None
    if REPLAY[0] in weights:
        is_perceptron = "ebm.energy_net.0.weight" in weights
        is_bilinear = "ebm.energy_net.weight" in weights
        energy = "mlp" if is_perceptron else "bilinear" if is_bilinear else "cosine"
    config = EagleNetConfig.for_script(
        dim=_size(weights, f"gnn.layers.0.{matrix}.weight", 1),
        num_frames=_size(weights, "stochastic.std_branch.linear_proj.weight", 1),
        graph="rgat" if is_relational else "gat",
        num_layers=depth_of(weights, "gnn.layers."),
        num_heads=num_heads,
        frame_position="frame_pe" in weights,
        energy=energy,
        replay_size=_size(weights, REPLAY[0]) if energy else 500,
        loss="sigmoid" if "loss_fct.temp_prior" in weights else "softmax",
    )
    return vars(config)


def _clip4clip(weights: Weights) -> Settings:
    stem = "3d" if "clip.visual.conv2.weight" in weights else "2d"
    if "similarity_dense.weight" in weights:
        positions = "cross.embeddings.position_embeddings.weight"
        return {
            "head": "tight",
            "stem": stem,
            "score_bias": True,
            "num_layers": depth_of(weights, "cross.transformer.resblocks."),
            "num_heads": max(_size(weights, positions, 1) // 64, 1),
            "num_positions": _size(weights, positions),
        }
    if depth_of(weights, "transformerClip.resblocks."):
        return {"head": "transformer", "stem": stem, **_temporal(weights)}
    return {"head": "lstm" if "lstm_visual.weight_ih_l0" in weights else "mean", "stem": stem}


def _clipbert(weights: Weights) -> Settings:
    words = "transformer.bert.embeddings.{}_embeddings.weight"
    dim = _size(weights, words.format("word"), 1)
    labels = _size(weights, "transformer.classifier.2.weight")
    if labels != 2:
        raise CheckpointError(
            f"its head has {labels} outputs, not two: it is not of retrieval, or was trained with "
            "loss_type=rank, which is not supported"
        )
    layer = "transformer.bert.encoder.layer."
    return {
        "dim": dim,
        "num_layers": depth_of(weights, layer),
        "num_heads": max(dim // 64, 1),
        "hidden_dim": _size(weights, f"{layer}0.intermediate.dense.weight"),
        "num_positions": _size(weights, words.format("position")),
    }


def _bridgeformer(weights: Weights) -> Settings:
    if "video_model.temporal_embed" in weights:
        raise CheckpointError(
            "the checkpoint has frame positions, which BridgeFormer lacks: it is of Frozen or "
            "MILES; convert it with --from frozen"
        )
    return {}


def _ucofia(weights: Weights) -> Settings:
    num_frames = _size(weights, "frame_logit_weight")
    scorer = "visual_token_selector.score_predictor.in_conv.0.weight"
    is_wide = _size(weights, scorer) > _size(weights, "local_mat_weight")
    return {
        "selection_context": "video" if is_wide else "frame",
        **_temporal(weights),
        "num_frames": num_frames,
        "num_words": _size(weights, "word_mat_weight"),
        "num_tokens": _size(weights, "pixel_mat_weight") // num_frames - 1,
    }


def _prost(weights: Weights) -> Settings:
    return {
        "num_frames": _size(weights, "frame_decoder.V"),
        "num_phrases": _size(weights, "word_prototype_weight.2.weight"),
        "num_objects": 1 + _size(weights, "patch_prototype_weight.2.weight"),
        "num_events": _size(weights, "event_decoder.V"),
        "num_layers": depth_of(weights, "event_decoder.event_decoder.layers."),
    }


def _glscl(weights: Weights) -> Settings:
    decoder = "transformer_decoder_noun.layers."
    return {
        **_temporal(weights),
        "num_concepts": _size(weights, "spatial_queries"),
        "num_decoder_layers": depth_of(weights, decoder),
        "num_decoder_heads": 8,  # Fixed in the official code.
        "feed_forward": _size(weights, f"{decoder}0.linear1.weight"),
    }


def _tempme(weights: Weights) -> Settings:
    blocks, table = "clip.visual.transformer.resblocks.", ".TVPt_Video_Positional_embedding"
    merge_blocks = sorted(
        int(name.removeprefix(blocks).split(".")[0])
        for name in weights
        if name.startswith(blocks) and name.endswith(table)
    )
    if not merge_blocks:
        raise CheckpointError(
            "the checkpoint has no positions of clips: it is not of TempMe, or was trained with "
            "frame_pos=0, which is not supported"
        )
    return {
        "num_frames": _size(weights, f"{blocks}{merge_blocks[0]}{table}", 1),
        "rank": _size(weights, f"{blocks}0.attn.TVPt_LoRA_a"),
        "merge_blocks": tuple(merge_blocks),
    }


def _proxies(weights: Weights) -> Settings:
    end = "vision_model.embeddings.added_cls"
    name = next((name for name in weights if name.endswith(end)), None)
    if name is None:
        raise CheckpointError("the checkpoint has no added proxies; is it of CLIP-ViP?")
    count = _size(weights, name.replace("added_cls", "temporal_embedding"), 1)
    return {"num_positions": count, "num_proxies": 1 + _size(weights, name)}


def _tvproxynet(weights: Weights) -> Settings:
    layers = "text_proxy.proxy_decoder.event_decoder.layers."
    return {
        **_proxies(weights),
        "num_layers": depth_of(weights, layers),
        "hidden_dim": _size(weights, f"{layers}0.linear1.weight"),
        "num_read": _size(weights, "text_proxy.dash_weights.weight", 1),
    }


INFERENCE: dict[str, Callable[[Weights], Settings]] = {
    "bridgeformer": _bridgeformer,
    "clip4clip": _clip4clip,
    "clipbert": _clipbert,
    "clipvip": _proxies,
    "drl": _temporal,
    "eaglenet": _eaglenet,
    "frozen": lambda weights: {"num_frames": _size(weights, "video_model.temporal_embed", 1)},
    "glscl": _glscl,
    "prost": _prost,
    "tempme": _tempme,
    "tmass": lambda weights: {
        "num_frames": _size(weights, "stochastic.std_branch.linear_proj.weight", 1)
    },
    "ts2net": _temporal,
    "tvproxynet": _tvproxynet,
    "ucofia": _ucofia,
    "xpool": lambda weights: {},
}
"""Functions by method that infer settings from names and shapes of a checkpoint."""


# Methods over stored features of several experts; texts are features too.


def _expert_names(settings: Settings, count: int) -> list[str]:
    experts = settings["experts"]
    names = experts.split(",") if isinstance(experts, str) else [str(name) for name in experts]
    if len(names) != count or names != sorted(set(names)):
        raise UsageError(
            f"--set experts={','.join(names)}: expected {count} names in alphabetical order, as "
            "in the official code"
        )
    return names


def _frames_expert(settings: Settings, names: Iterable[str]) -> str:
    """Return the expert whose tokens are used for moments; scores do not depend on it."""
    choices = list(names)
    frames = settings.get("frames", choices[0])
    if frames not in choices:
        raise UsageError(f"--set frames={frames}: unknown expert; use one of: {', '.join(choices)}")
    return str(frames)


def _ce(weights: Weights, settings: Settings) -> tuple[ExpertConfig, Settings]:
    maps = [
        weights[f"ce.video_dim_reduce.{index}.fc.weight"]
        for index in range(depth_of(weights, "ce.video_dim_reduce."))
    ]
    if not maps:
        raise CheckpointError("the checkpoint has no maps of experts; is it of CE?")
    names = _expert_names(settings, len(maps))
    num_centres = {
        name.split(".")[1]: value.shape[1]
        for name, value in weights.items()
        if name.startswith("pooling.") and name.endswith(".clusters")
    }
    if not set(num_centres) < set(names):
        raise UsageError(
            f"the checkpoint has VLAD of the experts {', '.join(sorted(num_centres))}; pass all "
            "experts in alphabetical order: --set experts=NAME,NAME,..."
        )
    widths = {
        name: value.shape[1] // num_centres.get(name, 1)
        for name, value in zip(names, maps, strict=True)
    }
    words_dim, num_clusters = weights["text_pooling.clusters"].shape
    text_centres = weights["text_pooling.clusters2"].shape[2]
    frames = _frames_expert(settings, (name for name in names if name not in num_centres))
    dim = maps[0].shape[0]
    return ExpertConfig(widths, frames, words_dim, words_dim, dim=dim), {
        "dim": dim,
        "text_centres": text_centres,
        "text_ghosts": num_clusters - text_centres,
        "centres": num_centres,
        "sequential": True,
    }


def _mmt(weights: Weights, settings: Settings) -> tuple[ExpertConfig, Settings]:
    start, end = "video_dim_reduce.", ".fc.weight"
    widths = {
        name.removeprefix(start).removesuffix(end): value.shape[1]
        for name, value in sorted(weights.items())
        if name.startswith(start) and name.endswith(end)
    }
    if not widths:
        raise CheckpointError("the checkpoint has no maps of experts; is it of MMT?")
    text_dim = _size(weights, f"text_GU.{next(iter(widths))}.fc.weight", 1)
    positions = "vid_bert.embeddings.position_embeddings.weight"
    dim = _size(weights, positions, 1)
    frames = _frames_expert(settings, widths)
    return ExpertConfig(widths, frames, text_dim, text_dim, dim=dim), {
        "dim": dim,
        "num_layers": depth_of(weights, "vid_bert.encoder.layer."),
        "hidden_dim": _size(weights, "vid_bert.encoder.layer.0.intermediate.dense.weight"),
        "num_positions": _size(weights, positions),
    }


def _hgr(weights: Weights, settings: Settings) -> tuple[ExpertConfig, Settings]:
    words_dim = _size(weights, "text_encoder.rnn.weight_ih_l0", 1)
    dim, width = weights["video_encoder.level_embeds.0.weight"].shape
    frames = str(settings.get("frames", "frames"))
    return ExpertConfig({frames: width}, frames, words_dim, words_dim, dim=dim), {
        "dim": dim,
        "num_graph_layers": depth_of(weights, "text_encoder.gcn.layers."),
    }


def _t2vlad(weights: Weights, settings: Settings) -> tuple[ExpertConfig, Settings]:
    maps = [
        _size(weights, f"ce.video_dim_reduce.{index}.fc.weight", 1)
        for index in range(depth_of(weights, "ce.video_dim_reduce."))
    ]
    if not maps:
        raise CheckpointError("the checkpoint has no maps of experts; is it of T2VLAD?")
    names = _expert_names(settings, len(maps))
    words_dim, num_clusters = weights["text_pooling.clusters"].shape
    num_centres = _size(weights, "text_pooling.clusters2", 2)
    frames = _frames_expert(settings, names)
    widths = dict(zip(names, maps, strict=True))
    return ExpertConfig(widths, frames, words_dim, words_dim, dim=words_dim), {
        "dim": words_dim,
        "num_centres": num_centres,
        "num_ghosts": num_clusters - num_centres,
        "num_heads": 4,  # Fixed in the official code.
    }


EXPERT_INFERENCE: dict[str, Callable[[Weights, Settings], tuple[ExpertConfig, Settings]]] = {
    "ce": _ce,
    "hgr": _hgr,
    "mmt": _mmt,
    "t2vlad": _t2vlad,
}
"""Functions by method that infer the widths of experts and settings from a checkpoint."""
