"""Every compared method with public code equals that code: outputs, losses, gradients.

The numbers were made by the authors' own classes (`golden_peers`). Cases with padding run with
``padding="official"``; cases without also with ``"masked"``, the default.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from official_cases import ADAPTERS, Results, official_method, table_options, weights_for
from torch import Tensor

from eaglenet.encoders.blocks import shift_tokens
from eaglenet.methods import Method
from eaglenet.methods.official.checkpoint import translate
from eaglenet.methods.prost import local_mask
from eaglenet.research.evaluation.postprocessing import (
    sinkhorn_levels,
    sinkhorn_norm,
    sinkhorn_offsets,
)
from golden_peers import FILES, Golden, load_peer, peer_cases

OUTPUT_TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}
"""Of an entry, or relative to the largest one where that is above 1, by the precision of a file."""
GRADIENT_TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-9}
"""Relative to the largest entry of the array."""
ROUNDED = {"ucofia"}
"""Two softmaxes at temperature 0.01 multiply rounding by up to 10,000: gradients of the official
code in float32 differ from those in float64 by up to 2.6e-3. Ours may differ from theirs by 3 times
what float32 changes in ours. A file in float64 has the tolerance of all others."""
NO_PADDING = {"full", "theta", "linear", "six_texts_four_videos", "last_frame_repeated"}


def with_padding() -> list[tuple[str, str, str]]:
    cases = []
    for name, case in peer_cases():
        cases.append((name, case, "official"))
        if case.split("/")[-1] in NO_PADDING:
            cases.append((name, case, "masked"))
    return cases


def distance(ours: Tensor, theirs: Tensor) -> float:
    """Largest difference; relative to the largest entry where that is above 1."""
    assert ours.shape == theirs.shape
    if not theirs.numel():
        return 0.0
    ours, theirs = ours.detach().double(), theirs.double()
    return float((ours - theirs).abs().max() / theirs.abs().max().clamp_min(1.0))


def gradients_of(
    golden: Golden, case: str, method: Method
) -> list[tuple[str, Tensor, Tensor, Tensor]]:
    """Name, our gradient, theirs under our name, and which entries the file has."""
    weights = weights_for(golden, case)
    golden_values = golden.below(f"{case}/gradients/weights")
    options = table_options(golden)
    empty = {name: torch.zeros_like(value) for name, value in weights.items()}
    ones = {name: torch.ones_like(value) for name, value in golden_values.items()}
    theirs = translate(method, {**empty, **golden_values}, **options).state
    state = translate(method, {**empty, **ones}, **options).state
    rows = []
    for name, parameter in method.named_parameters():
        if name in theirs and state[name].any():
            assert parameter.grad is not None, name
            shape = parameter.shape
            rows.append(
                (name, parameter.grad, theirs[name].reshape(shape), state[name].reshape(shape) > 0)
            )
    return rows


@dataclass
class Run:
    """Outputs, loss and gradients of ours in one precision, beside the official gradients."""

    results: Results
    ours: dict[str, Tensor]
    theirs: dict[str, Tensor]


def run(golden: Golden, case: str, padding: str, dtype: torch.dtype) -> Run:
    method = official_method(golden, case, padding, dtype)
    to_inputs = golden.below(f"{case}/gradients/inputs")
    inputs = {}
    for key, value in golden.below(f"{case}/inputs").items():
        value = value.to(dtype) if value.is_floating_point() else value
        inputs[key] = value.clone().requires_grad_() if key in to_inputs else value
    results = ADAPTERS[golden.method][1](method, golden, case, inputs)
    if not to_inputs:
        return Run(results, {}, {})
    assert results.loss is not None
    results.loss.backward()
    ours = {f"input {key}": gradient_of(inputs[key]) for key in to_inputs}
    theirs = {f"input {key}": value.flatten() for key, value in to_inputs.items()}
    for key, gradient, official, state in gradients_of(golden, case, method):
        ours[key], theirs[key] = gradient[state], official[state]
    assert len(theirs) > len(to_inputs)
    return Run(results, ours, theirs)


def gradient_of(value: Tensor) -> Tensor:
    assert value.grad is not None
    return value.grad.flatten()


@pytest.mark.parametrize(("name", "case", "padding"), with_padding())
def test_equals_the_official_code(name: str, case: str, padding: str) -> None:
    golden = load_peer(name)
    golden_values = run(golden, case, padding, golden.dtype)
    outputs = golden.below(f"{case}/outputs")
    ours = dict(golden_values.results.outputs)
    if golden_values.results.loss is not None:
        ours["loss"] = golden_values.results.loss
    for key in set(outputs) - set(golden_values.results.skipped):
        assert distance(ours[key], outputs[key]) <= OUTPUT_TOLERANCE[golden.dtype], key
    double = (
        run(golden, case, padding, torch.float64) if golden.method in ROUNDED else golden_values
    )
    for key, theirs in golden_values.theirs.items():
        largest = theirs.abs().max()
        rounding = (golden_values.ours[key] - double.ours[key]).abs().max()
        limit = max(GRADIENT_TOLERANCE[golden.dtype] * largest, 3 * rounding)
        assert (golden_values.ours[key] - theirs).abs().max() <= limit, key


PROST, TS2NET, UCOFIA = (
    [name for name in FILES if name.startswith(f"{method}-")]
    for method in ("prost", "ts2net", "ucofia")
)


@pytest.mark.parametrize("name", PROST)
def test_frame_queries_of_prost_attend_to_the_official_runs(name: str) -> None:
    golden = load_peer(name)
    options, constants = golden.options, golden.below("constants")
    mask = torch.ones(1, options["frames"], dtype=torch.bool)
    object_mask = local_mask(mask, options["objects"], reach=options["reach"])[0]
    assert torch.equal(object_mask, constants["frame_decoder_allowed"])
    for key, runs in constants.items():
        if not key.startswith("allowed_runs"):
            continue
        frames, objects = int(key.split("_")[2]), int(key.split("_")[4])
        near = local_mask(torch.ones(1, frames, dtype=torch.bool), objects)[0]
        for row, (first, end) in zip(near, runs.tolist(), strict=True):
            assert row.nonzero()[:, 0].tolist() == list(range(first, end))


@pytest.mark.parametrize("name", TS2NET)
def test_tokens_shift_as_in_the_official_code(name: str) -> None:
    for key, source in load_peer(name).below("constants").items():
        assert key.startswith("shift_source")
        frames, tokens = source.shape
        values = torch.arange(frames * tokens, dtype=torch.float32).reshape(frames, tokens, 1)
        assert torch.equal(shift_tokens(values, frames)[..., 0].int(), source), key


@pytest.mark.parametrize("direction", ["text_to_video", "video_to_text"])
@pytest.mark.parametrize("name", [name for name in UCOFIA if load_peer(name).below("sk_norm")])
def test_sk_norm_equals_the_official_code(name: str, direction: str) -> None:
    golden = load_peer(name)
    golden_values = golden.below(f"sk_norm/{direction}")
    rounds = golden.options["sinkhorn_rounds"]
    levels = [golden_values[f"level{index}_scores"] for index in (1, 2, 3)]
    banks = [golden_values[f"level{index}_bank"] for index in (1, 2, 3)]
    for index, (scores, bank) in enumerate(zip(levels, banks, strict=True), start=1):
        is_text_to_video = direction == "text_to_video"
        bias = sinkhorn_offsets(bank if is_text_to_video else bank.T, iterations=rounds)
        assert distance(bias, golden_values[f"level{index}_bias"]) <= OUTPUT_TOLERANCE[golden.dtype]
        ours = sinkhorn_norm(scores, bank, direction=direction, temperature=1.0, iterations=rounds)
        expected = scores + (bias[None, :] if is_text_to_video else bias[:, None])
        assert torch.equal(ours, expected)
    ours = sinkhorn_levels(levels, banks, direction=direction, iterations=rounds)
    assert distance(ours, golden_values["scores"]) <= OUTPUT_TOLERANCE[golden.dtype]
