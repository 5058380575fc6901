"""Conversion of official checkpoints to models of this package.

Names and shapes of the weights determine most settings; :data:`UNDETERMINED` lists the others,
which the caller must pass. Padding is treated as in the authors' code.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic

import torch
from torch import Tensor

from eaglenet.core.errors import CheckpointError, EagleNetError, UsageError
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
from eaglenet.encoders.weight_names import (
    WRAPPED_ATTENTION,
    clip_config,
    depth_of,
    from_openai,
    hub_text,
    hub_vision,
)
from eaglenet.methods.base import METHODS, EvaluationHabits, Method, SomeMethod
from eaglenet.methods.eaglenet import RELEASED_FRAMES, EagleNet, EagleNetConfig
from eaglenet.methods.official.parts import State, WeightReader, Weights, from_paddle
from eaglenet.methods.official.tables import TABLES

UNUSED: dict[str, dict[str, str]] = {
    "": {
        r".*k_proj\.bias": "cancels in the softmax over frames",
        r"clip\.(input_resolution|context_length|vocab_size)": "sizes, read from the weights",
        r".*num_batches_tracked": "counter of batch normalisation",
        r".*position_ids": "indices 0, 1, 2, ...",
    },
    "bridgeformer": {
        r"bridge_proj\..*|video_model\.norm2\..*|"
        r"video_model\.blocks\.\d+\.(crossattn|bridgeattn|bridge_mlp|norm[4-7])\..*": "the bridge, "
        "which is used in pre-training only",
    },
    "prost": {
        r"frame_prototype_weight\..*": "never called",
        r"transformerClip\..*|frame_position_embeddings\..*": "never called",
        r".*self_attn_vis\..*": "never called",
        r"frame_decoder\..*\.(self_attn\..*|norm5\..*)": "never called in the frame decoder",
    },
    "clip4clip": {
        r"clip\.visual\.conv1\.weight": "replaced by the map over three frames",
        r"frame_position_embeddings\.weight": "never called with the LSTM",
    },
    "clipbert": {
        r"cnn\.feature\.(proposal_generator|roi_heads)\..*": "detection of objects, never called",
        r".*visual_embeddings\.position_embeddings\.weight": "never read",
    },
    "eaglenet": {
        r"transformerClip\..*": "a temporal transformer that the forward pass never calls",
        r"frame_position_embeddings\..*": "positions of that transformer",
        r"stochastic\.std_branch\.learnable_scalar": "never read, and never initialised",
    },
    "drl": {r".*_weight_fc\.2\.bias": "cancels in the softmax"},
    "tmass": {r"stochastic\.std_branch\.learnable_scalar": "never read"},
    "glscl": {
        r"weight_fc\..*": "its output is not used",
        r"noun_queries|.*decoder_(layer_noun|layer_spatial|spatial)\..*": "not used when shared",
    },
    "hgr": {
        r"text_encoder\.embedding\.we\.weight": "words are features here",
        r".*(ft_attn|edge_attn_key)\.bias": "cancels in the softmax",
    },
    "mmt": {
        r"txt_bert\..*": "its text tower is not supported; store its output as text features",
        r"vid_bert\.pooler\..*": "its output is not used",
    },
    "t2vlad": {
        r"text_pooling\.clusters1": "never used",
        r"text_bert\..*": "its text tower is not supported; store its output as text features",
    },
    "ts2net": {r"(text_token_selector|visual_prompt_encoder)\..*": "never called"},
    "tvproxynet": {
        r"(.*\.)?dash_(factor|weights\..*)": "length of the step with the other value of dash"
    },
    "ucofia": {r"word_logit_weight|frame_mat_weight2?|word_mat_weight_for_pixel": "never used"},
}
"""Weights without effect by method (empty: any method), as patterns, with the reason."""


@dataclass(frozen=True)
class OfficialWeights:
    """Weights under our names, and official weights without effect, with the reason."""

    state: State
    unused_weights: dict[str, str]


def translate(method: Method, weights: Weights, **options: Any) -> OfficialWeights:
    """Return official weights under the names of ``method``, built with the same settings.

    Towers that the checkpoint does not contain are left out. Raises ``CheckpointError`` for a
    weight that is neither used nor known to have no effect.
    """
    if method.name not in TABLES:
        raise CheckpointError(
            f"no table of official weights for {method.name}; methods with a table: "
            f"{', '.join(sorted(TABLES))}"
        )
    read = WeightReader(weights)
    state = TABLES[method.name](read, method, **options)
    patterns = {**UNUSED[""], **UNUSED.get(method.name, {})}
    unused_weights, unknown = {}, []
    for name in sorted(set(weights) - read.names_read):
        reason = read.unused_weights.get(name)
        reason = reason or next((why for p, why in patterns.items() if re.fullmatch(p, name)), None)
        if reason is None:
            unknown.append(name)
        else:
            unused_weights[name] = reason
    if unknown:
        raise CheckpointError(
            f"{len(unknown)} unknown weights: {', '.join(unknown[:8])}; this is not a checkpoint "
            f"of {method.name}, or it has other settings"
        )
    return OfficialWeights(state, unused_weights)


@torch.no_grad()
def load_official(method: Method, weights: Weights, **options: Any) -> dict[str, str]:
    """Copy official weights into ``method``; return those without effect, with the reason."""
    official_weights = translate(method, weights, **options)
    state = method.state_dict()
    for name, value in official_weights.state.items():
        if name not in state or state[name].numel() != value.numel():
            shape = list(state[name].shape) if name in state else "no such weight"
            raise CheckpointError(
                f"{name}: the checkpoint has {list(value.shape)}, the model {shape}; build it "
                "with the settings of the checkpoint"
            )
        state[name] = value.reshape(state[name].shape).to(state[name].dtype)
    method.load_state_dict(state)
    return official_weights.unused_weights


Settings = dict[str, Any]

UNDETERMINED: dict[str, Settings] = {
    "bridgeformer": {"num_frames": 4},
    "ce": {"experts": "audio,face,i3d,ocr,r2p1d,resnext,scene,senet,speech"},
    "clip4clip": {"num_frames": 12},
    "clipbert": {"num_frames": 32, "pooling": "lse", "image_size": 448, "max_words": 20},
    # Frame positions are stretched: for ActivityNet 12 positions serve 32 frames.
    "clipvip": {"num_frames": 12},
    "drl": {"num_frames": 12},
    "eaglenet": {"num_layers": 2, "prior": "uniform", "num_candidates": 20, "negative_slope": 0.1},
    "glscl": {"num_frames": 12, "temperature": 3.0},
    "hgr": {"num_verbs": 4, "sharpness": 4.0},
    "mmt": {"num_heads": 4, "max_tokens": 30, "keep_missing": True},
    "t2vlad": {"experts": "audio,face,flow,ocr,rgb,s3d,scene,speech"},
    # Positions show how many clips there are before each join, not after the last.
    "tempme": {"num_merged": 2, "across": 0.3, "within": 0.1, "groups": "2-2-3"},
    "tmass": {"prior": "uniform", "noise_scale": 1.0, "num_candidates": 20, "num_heads": 1},
    "ts2net": {"num_frames": 12, "num_tokens": 3},
    # The checkpoint contains the weights for both values of dash.
    "tvproxynet": {"num_frames": 12, "dash": "theta", "text_sign": 1.0, "leader_sign": 1.0},
    "xpool": {"num_frames": 12, "num_heads": 1},
}
"""Settings that change scores but cannot be inferred from a checkpoint, with the value of the
authors for MSR-VTT and ViT-B/32."""

ONE_VALUE: dict[str, Settings] = {
    "clipbert": {"num_frm": 2, "fps": 2},
    "ce": {"use_mish": 1, "include_self": 1, "l2renorm": 0, "keep_missing_modalities": 0},
    "hgr": {"attn_fusion": "embed"},
    "mmt": {"vid_inp": "both", "pos_enc": "tint", "out_tok": "mxp"},
}
"""Official settings that change scores and leave no trace, with the only value that is supported:
that of all published configurations."""

NO_CONVERSION: dict[str, str] = {
    "teachtext": "its students are models of CE; convert them with --from ce",
}
"""Methods with official code whose checkpoints cannot be converted, with the reason."""

REPLAY = ("ebm.replay_buffer_txt", "ebm.replay_buffer_vid")
MAX_WORDS, MAX_LONG_WORDS = 32, 64
"""Tokens per text in the released scripts; the second for DiDeMo, with 64 frames per video."""

FP16_TOWERS = {
    "clip4clip", "clipbert", "clipvip", "drl", "glscl", "prost", "ts2net", "tvproxynet", "ucofia",
}  # fmt: skip
"""Methods whose official code runs the towers in half precision."""


WHOLE_TEXTS = {"bridgeformer", "frozen"}
"""Methods whose official code reads all tokens that the text tower takes."""


@dataclass(frozen=True)
class OfficialConversion(Generic[SomeMethod]):
    """Converted model, and the weights of the checkpoint without effect, with the reason."""

    method: SomeMethod
    unused_weights: dict[str, str]


def convert_official(
    name: str,
    weights: Weights,
    settings: Mapping[str, Any] | None = None,
    *,
    max_words: int | None = None,
    **options: Any,
) -> OfficialConversion[Method]:
    """Convert an official checkpoint into a method in eval mode.

    Args:
        settings: fields of the config of the method; all of ``UNDETERMINED[name]`` and
            ``ONE_VALUE[name]`` are required.
        max_words: tokens per text in evaluation; ignored for :data:`WHOLE_TEXTS`.
        options: options of the table of weights of the method (`official.tables`).
    """
    if name in NO_CONVERSION:
        raise UsageError(f"checkpoints of {name} cannot be converted: {NO_CONVERSION[name]}")
    if name not in INFERENCE and name not in EXPERT_INFERENCE:
        raise UsageError(
            f"no official checkpoints of {name!r} are known; choose one of "
            f"{', '.join(sorted({*INFERENCE, *EXPERT_INFERENCE}))}"
        )
    settings = dict(settings or {})
    one_value = ONE_VALUE.get(name, {})
    needs = {**UNDETERMINED.get(name, {}), **one_value}
    unset = {key: value for key, value in needs.items() if key not in settings}
    if unset:
        advice = " ".join(f"--set {key}={_as_text(value)}" for key, value in unset.items())
        raise UsageError(
            f"the checkpoint does not determine {', '.join(unset)}; pass them (values of the "
            f"authors for MSR-VTT: {advice})"
        )
    for key, only_value in one_value.items():
        value = settings.pop(key)
        if value != only_value:
            raise UsageError(
                f"--set {key}={_as_text(value)}: checkpoints of {name} trained with it are not "
                f"supported, only those with {key}={only_value}"
            )
    method, unused_weights = _convert(name, weights, settings, **options)
    is_clip_bridge = name == "bridgeformer" and isinstance(method.encoder, ClipEncoder)
    precision = "fp16" if name in FP16_TOWERS or is_clip_bridge else "fp32"
    if name in WHOLE_TEXTS:
        max_words = method.encoder.context_length
    max_words = settings.get("max_words", max_words)
    habits = {"max_words": max_words, "precision": precision}
    method.habits = from_plain(EvaluationHabits, habits)
    return OfficialConversion(method.eval(), unused_weights)


def _as_text(value: Any) -> str:
    """Return a value as it is written after ``--set``."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def convert_eaglenet(weights: Weights, **settings: Any) -> OfficialConversion[EagleNet]:
    """Convert a checkpoint of the released EagleNet, with the evaluation settings of its authors.

    Graph, layers, energy, frame positions, number of frames and loss are inferred from the weights.
    Other settings default to those of the released scripts. Energy pooling and loss weights matter
    in training only.
    """
    layers = depth_of(weights, "gnn.layers.")
    if settings.get("num_layers", 1) > layers:
        raise CheckpointError(
            f"num_layers is {settings['num_layers']}, but the checkpoint has {layers} layers"
        )
    method, unused_weights = _convert("eaglenet", weights, settings)
    assert isinstance(method, EagleNet)
    _fill_replay(method, weights)
    method.frame_spec = dataclasses.replace(method.frame_spec, **RELEASED_FRAMES)
    max_words = MAX_LONG_WORDS if method.config.num_frames >= 64 else MAX_WORDS
    method.habits = EvaluationHabits(max_words, "fp16")
    return OfficialConversion(method.eval(), unused_weights)


def _convert(
    name: str, weights: Weights, settings: Settings, **options: Any
) -> tuple[Method, dict[str, str]]:
    """Build a method for the names and shapes of its weights, and load them."""
    try:
        return _build(name, weights, settings, **options)
    except EagleNetError:
        raise
    except Exception as error:  # Untrusted weights and settings can be wrong in any way.
        lines = str(error).splitlines() or [type(error).__name__]
        raise CheckpointError(
            f"not a checkpoint of {name}, or not with these settings ({lines[0]:.200}); check "
            "--from and --set, and that the file has the weights of the whole model"
        ) from error


def _build(
    name: str, weights: Weights, settings: Settings, **options: Any
) -> tuple[Method, dict[str, str]]:
    weights = _plain_names(weights)
    if "visual.class_embedding" in weights:  # BridgeFormer on CLIP.
        weights = {f"clip.{key}": value for key, value in weights.items()}
    config_class = METHODS[name].config_class
    encoder: Encoder
    if name in EXPERT_INFERENCE:
        widths, inferred_settings = EXPERT_INFERENCE[name](weights, settings)
        encoder = ExpertEncoder(widths)
    else:
        inferred_settings = INFERENCE[name](weights)
        encoder = _resnet_bert(weights, settings) if name == "clipbert" else _encoder(weights)
    values = {"padding": "official", **inferred_settings, **settings}
    if "groups" in values:
        values["groups"] = _clip_groups(values["groups"])
    field_names = {item.name for item in dataclasses.fields(config_class)}
    known_names = field_names | {"experts", "frames"} | set(UNDETERMINED.get(name, ()))
    unknown = sorted(set(settings) - known_names)
    if unknown:
        raise UsageError(f"--set {unknown[0]}: {name} has no such setting")
    config = from_plain(config_class, {k: v for k, v in values.items() if k in field_names})
    method = METHODS[name].build(config, encoder)
    floats = {key: value.float() for key, value in weights.items()}
    return method, load_official(method, floats, **options)


def _plain_names(weights: Weights) -> dict[str, Tensor]:
    """Return weights in the layout of torch, without the wrapper of shifted attention in names.

    PaddlePaddle transposes linear maps, and has other names of batch statistics.
    """
    if any(name.endswith("._variance") for name in weights):
        weights = from_paddle(weights)
    plain: dict[str, Tensor] = {}
    for name, value in weights.items():
        short = name.replace(WRAPPED_ATTENTION, ".attn.")
        if short in plain and not torch.equal(plain[short], value):
            raise CheckpointError(f"{short} occurs under two names with different values")
        plain[short] = value
    return plain


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


def _fill_replay(method: EagleNet, weights: Weights) -> None:
    """Copy the replay buffer; the official one has the newest rows first, and zeros if empty."""
    if method.replay is not None:
        texts, frames = (weights[name].float() for name in REPLAY)
        is_real = texts.abs().sum(dim=-1) > 0
        method.replay.write(texts[is_real].flip(0), frames[is_real].flip(0))


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


def _clip_groups(text: Any) -> tuple[int, ...]:
    """Parse the groups of clips of TempMe, written like 2-2-3 in the official code."""
    numbers = str(text).split("-")
    if not all(number.isdecimal() and int(number) > 0 for number in numbers):
        raise UsageError(f"--set groups={text}: expected numbers like 2-2-3 (merge_frame_num)")
    return tuple(int(number) for number in numbers)


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
