"""Conversion of official checkpoints to models of this package.

Names and shapes of the weights determine most settings; :data:`UNDETERMINED` lists the others,
which the caller must pass. Padding is treated as in the authors' code.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic

import torch
from torch import Tensor

from eaglenet.core.errors import CheckpointError, EagleNetError, UsageError
from eaglenet.core.settings import from_plain
from eaglenet.encoders.clip import ClipEncoder
from eaglenet.encoders.weight_names import WRAPPED_ATTENTION, depth_of
from eaglenet.methods.base import METHODS, EvaluationHabits, Method, SomeMethod
from eaglenet.methods.eaglenet import RELEASED_FRAMES, EagleNet
from eaglenet.methods.official.parts import State, WeightReader, Weights, from_paddle
from eaglenet.methods.official.settings import EXPERT_INFERENCE, INFERENCE, REPLAY, Settings, infer
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
    encoder, inferred_settings = infer(name, weights, settings)
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


def _fill_replay(method: EagleNet, weights: Weights) -> None:
    """Copy the replay buffer; the official one has the newest rows first, and zeros if empty."""
    if method.replay is not None:
        texts, frames = (weights[name].float() for name in REPLAY)
        is_real = texts.abs().sum(dim=-1) > 0
        method.replay.write(texts[is_real].flip(0), frames[is_real].flip(0))


def _clip_groups(text: Any) -> tuple[int, ...]:
    """Parse the groups of clips of TempMe, written like 2-2-3 in the official code."""
    numbers = str(text).split("-")
    if not all(number.isdecimal() and int(number) > 0 for number in numbers):
        raise UsageError(f"--set groups={text}: expected numbers like 2-2-3 (merge_frame_num)")
    return tuple(int(number) for number in numbers)
