"""Weights of the compared methods' official repositories under our names.

:func:`translate` reads a state dict of the authors' code for a method that was built with the same
sizes (`official.tables`). What the official code stores without effect is listed with the reason in
:data:`UNUSED`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import torch

from eaglenet.core.errors import CheckpointError
from eaglenet.methods.base import Method
from eaglenet.methods.official.parts import State, WeightReader, Weights
from eaglenet.methods.official.tables import TABLES

UNUSED: dict[str, dict[str, str]] = {
    "": {
        r".*k_proj\.bias": "cancels in the softmax over frames",
        r"clip\.(input_resolution|context_length|vocab_size)": "sizes, read from the weights",
        r".*num_batches_tracked": "counter of batch normalisation",
        r".*position_ids": "indices 0, 1, 2, ...",
    },
    "prost": {
        r"frame_prototype_weight\..*": "never called",
        r"transformerClip\..*|frame_position_embeddings\..*": "never called",
        r".*self_attn_vis\..*": "never called",
        r"frame_decoder\..*\.(self_attn\..*|norm5\..*)": "never called in the frame decoder",
    },
    "clip4clip": {r"clip\.visual\.conv1\.weight": "replaced by the map over three frames"},
    "drl": {r".*_weight_fc\.2\.bias": "cancels in the softmax"},
    "tmass": {r"stochastic\.std_branch\.learnable_scalar": "never read"},
    "glscl": {
        r"weight_fc\..*": "its output is not used",
        r"noun_queries|.*decoder_(layer_noun|layer_spatial|spatial)\..*": "not used when shared",
    },
    "hgr": {
        r"text_encoder\.embedding\.we\.weight": "words arrive as features here",
        r".*(ft_attn|edge_attn_key)\.bias": "cancels in the softmax",
    },
    "mmt": {
        r"txt_bert\..*": "its text tower, which is not here; store its output as sentence features",
        r"vid_bert\.pooler\..*": "its output is not used",
    },
    "t2vlad": {r"text_pooling\.clusters1": "never used"},
    "tvproxynet": {
        r"(.*\.)?dash_(factor|weights\..*)": "length of the step with the other value of dash",
    },
}
"""Weights without effect by method (empty: any method), as patterns, with the reason."""


@dataclass(frozen=True)
class OfficialWeights:
    """Weights under our names, and the official ones that have no effect, with the reason."""

    state: State
    unused: dict[str, str]


def translate(method: Method, weights: Weights, **options: Any) -> OfficialWeights:
    """Official weights under the names of ``method``, which was built with the same settings.

    Towers that the checkpoint does not hold are left out of the result. An official weight that is
    neither read nor known to have no effect is an error.
    """
    if method.name not in TABLES:
        raise CheckpointError(
            f"no table of official weights for {method.name}; known: {', '.join(sorted(TABLES))}"
        )
    read = WeightReader(weights)
    state = TABLES[method.name](read, method, **options)
    patterns = {**UNUSED[""], **UNUSED.get(method.name, {})}
    unused, unknown = {}, []
    for name in sorted(set(weights) - read.names_read):
        reason = next((why for p, why in patterns.items() if re.fullmatch(p, name)), None)
        if reason is None:
            unknown.append(name)
        else:
            unused[name] = reason
    if unknown:
        raise CheckpointError(
            f"{len(unknown)} weights are not understood: {', '.join(unknown[:8])}; this is not a "
            f"checkpoint of {method.name}, or its settings are others"
        )
    return OfficialWeights(state, unused)


@torch.no_grad()
def load_official(method: Method, weights: Weights, **options: Any) -> dict[str, str]:
    """Copy official weights into ``method``; returns those without effect, with the reason."""
    translated = translate(method, weights, **options)
    state = method.state_dict()
    for name, value in translated.state.items():
        if name not in state or state[name].numel() != value.numel():
            expected = list(state[name].shape) if name in state else "no such weight"
            raise CheckpointError(
                f"{name}: the checkpoint has {list(value.shape)}, the model {expected}; build it "
                "with the settings of the checkpoint"
            )
        state[name] = value.reshape(state[name].shape).to(state[name].dtype)
    method.load_state_dict(state)
    return translated.unused
