"""The mean of unit frames, where there is nothing to average."""

from __future__ import annotations

import pytest
import torch

from eaglenet.layers.masking import mean_pooling


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_padded_zeros_and_empty_videos_stay_finite_in_every_precision(dtype: torch.dtype) -> None:
    frames = torch.zeros(2, 3, 4, dtype=dtype)
    frames[0, 0, 0], frames[0, 1, 1] = 3.0, 0.5
    mask = torch.tensor([[True, True, False], [False, False, False]])
    videos = mean_pooling(frames, mask).double()
    # unit((1, 1) / 2), and the zero vector of a video without a frame.
    expected = torch.tensor([[0.5**0.5, 0.5**0.5, 0, 0], [0, 0, 0, 0]], dtype=torch.float64)
    torch.testing.assert_close(videos, expected, rtol=1e-2, atol=0.0)
