"""int8 products: their equation, independence of the batch, agreement of towers."""

from __future__ import annotations

import copy
import gc
import os
from pathlib import Path

import pytest
import torch
from torch import nn

from eaglenet.core.errors import UsageError
from eaglenet.encoders import int8
from eaglenet.encoders.clip import ClipEncoder
from eaglenet.encoders.clip_config import ClipConfig, TextConfig, VisionConfig
from eaglenet.encoders.int8 import Int8Linear, int8_tower

pytest.importorskip("onnxruntime", reason="int8 products need onnxruntime")


def small_clip() -> ClipEncoder:
    """Return a CLIP with frames of 32 pixels and 3 blocks of width 24."""
    vision = VisionConfig(image_size=32, patch_size=8, width=24, layers=3, heads=2, mlp_width=40)
    text = TextConfig(width=16, layers=1, heads=2, mlp_width=24)
    return ClipEncoder(ClipConfig(dim=20, vision=vision, text=text), seed=5).eval()


def by_the_equation(layer: nn.Linear, values: torch.Tensor, apart: list[int]) -> torch.Tensor:
    """Compute y = step s (q w) + low s sum w + b + W x of outliers, in float64."""
    weight, bias = layer.weight.detach().double(), layer.bias.detach().double()
    result = torch.zeros(len(values), len(weight), dtype=torch.float64)
    rest = [k for k in range(weight.shape[1]) if k not in apart]
    for row, x in enumerate(values.double()):
        quantised_part = x.clone()
        quantised_part[apart] = 0
        low, step = quantised_part.min(), (quantised_part.max() - quantised_part.min()) / 255
        for j, w in enumerate(weight):
            scale = w[rest].abs().max() / 127
            total = bias[j] + sum(w[a] * x[a] for a in apart)
            for k in rest:
                whole = torch.floor((x[k] - low) / step + 0.5)
                total = total + (step * whole + low) * scale * (w[k] / scale).round()
            result[row, j] = total
    return result


def test_a_layer_is_the_equation() -> None:
    torch.manual_seed(0)
    layer, values = nn.Linear(11, 7), torch.randn(5, 11) * 3
    values[:, 4] = 40.0
    actual = Int8Linear(layer, torch.tensor([4, 9]))(values)
    expected = by_the_equation(layer, values, [4, 9]).float()
    # A value midway between two steps may be rounded in either direction.
    torch.testing.assert_close(actual, expected, atol=0.02, rtol=0)
    assert (actual - expected).abs().median() < 1e-5


def resident_bytes() -> int:
    """Return the resident bytes of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is read from /proc")
def test_layers_keep_nothing_of_what_they_multiplied() -> None:
    """With an arena in each of its fifty layers, a tower kept gigabytes."""
    layers = [Int8Linear(nn.Linear(16, 2048), torch.tensor([0])) for _ in range(8)]
    rows = torch.randn(8000, 16)
    product = 8000 * 2048 * 4
    layers[0](rows[:8])
    before = resident_bytes()
    for layer in layers:
        layer(rows)
    gc.collect()
    assert resident_bytes() - before < 3 * product


def test_an_input_apart_does_not_coarsen_the_others() -> None:
    torch.manual_seed(0)
    layer, values = nn.Linear(48, 30), torch.randn(9, 48)
    values[:, 7] = 500.0
    exact = layer(values).detach()
    errors = [
        (Int8Linear(layer, torch.tensor(apart))(values) - exact).abs().mean()
        for apart in ([7], [8])
    ]
    assert errors[0] < errors[1] / 50


def test_rows_do_not_depend_on_each_other_nor_on_the_number_of_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    layer = Int8Linear(nn.Linear(16, 6), torch.tensor([3]))
    values = torch.randn(301, 16)
    whole = layer(values)
    torch.testing.assert_close(layer(values[:5]), whole[:5], rtol=0, atol=0)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    torch.testing.assert_close(layer(values), whole, rtol=0, atol=0)


def test_a_constant_row_and_a_row_of_zeros_are_finite() -> None:
    layer = nn.Linear(16, 6)
    values = torch.stack([torch.zeros(16), torch.full((16,), 2.5)])
    actual = Int8Linear(layer, torch.tensor([0]))(values)
    torch.testing.assert_close(actual, layer(values).detach(), atol=0.05, rtol=0)


def test_a_tower_gives_the_same_frames_and_stays_as_it_was() -> None:
    tower = small_clip().vision
    before = copy.deepcopy(tower.state_dict())
    twin = int8_tower(tower, 32)
    frames = torch.randint(0, 256, (4, 3, 32, 32), dtype=torch.uint8)
    with torch.no_grad():
        cosines = torch.cosine_similarity(tower(frames)[:, 0], twin(frames)[:, 0])
    assert cosines.min() > 0.999
    assert cosines.min() < 1.0 - 1e-9, "nothing was computed in int8"
    assert sum(isinstance(module, Int8Linear) for module in twin.modules()) == 3 * 4
    for name, value in tower.state_dict().items():
        assert torch.equal(value, before[name])


def test_a_copy_of_an_int8_tower_computes_the_same() -> None:
    twin = int8_tower(small_clip().vision, 32)
    frames = torch.randint(0, 256, (2, 3, 32, 32), dtype=torch.uint8)
    with torch.no_grad():
        assert torch.equal(copy.deepcopy(twin)(frames), twin(frames))


def test_a_tower_whose_frames_come_out_different_is_refused() -> None:
    tower = small_clip().vision
    with torch.no_grad():  # Half of the inputs are large, more than the outliers in fp32.
        for block in tower.blocks:
            block.ln_2.weight[:12] = 1e4
            block.mlp.up.weight[:, :12] = 0.0
            block.mlp.up.weight[:, 12:].mul_(10)
    with pytest.raises(UsageError, match=r"changes the frame vectors .*the precision fp32"):
        int8_tower(tower, 32)


def test_what_is_missing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(int8, "is_installed", lambda: False)
    with pytest.raises(UsageError, match="pip install onnxruntime"):
        int8_tower(small_clip().vision, 32)
