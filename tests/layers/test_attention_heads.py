"""Attention with several heads equals torch's own, which the official code uses."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from eaglenet.core.errors import ConfigError
from eaglenet.layers.frame_pooling import FramePooling
from eaglenet.methods.prost import CrossAttention
from eaglenet.methods.tvproxynet import ProxyDecoderLayer

DIM, TOKENS = 12, 5
EXACT = {"rtol": 0.0, "atol": 1e-10}


def random(*shape: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


@torch.no_grad()
def attention_like(layer: nn.Module, num_heads: int) -> nn.MultiheadAttention:
    """torch's attention with the weights of a layer's query, key, value and output."""
    attention = nn.MultiheadAttention(DIM, num_heads, batch_first=True).double()
    parts = [layer.get_submodule(name) for name in ("query", "key", "value")]
    attention.in_proj_weight.copy_(torch.cat([part.weight for part in parts]))  # type: ignore[list-item]
    biases = [torch.zeros(DIM) if part.bias is None else part.bias for part in parts]
    attention.in_proj_bias.copy_(torch.cat(biases))  # type: ignore[arg-type]
    attention.out_proj.load_state_dict(layer.get_submodule("output").state_dict())
    return attention


@pytest.mark.parametrize("num_heads", [1, 2, 4])
@torch.no_grad()
def test_prototypes_attend_as_torch_does(num_heads: int) -> None:
    torch.manual_seed(0)
    layer = CrossAttention(DIM, dropout=0.0, num_heads=num_heads).double()
    queries, memory = random(3, 2, DIM, seed=1), random(3, TOKENS, DIM, seed=2)
    mask = torch.tensor([[True] * TOKENS, [True, False, True, False, True], [True] * TOKENS])
    expected, _ = attention_like(layer, num_heads)(
        queries, memory, memory, key_padding_mask=~mask, need_weights=False
    )
    torch.testing.assert_close(layer(queries, memory, mask[:, None]), expected, **EXACT)


@pytest.mark.parametrize("num_heads", [1, 2, 4])
@torch.no_grad()
def test_proxies_are_read_as_torch_does(num_heads: int) -> None:
    torch.manual_seed(0)
    layer = ProxyDecoderLayer(
        DIM, num_tokens=TOKENS, dropout=0.0, num_heads=num_heads, hidden_dim=7
    ).double()
    queries, memory = random(3, 2, DIM, seed=1), random(2, TOKENS, DIM, seed=2)
    attention = attention_like(layer, num_heads)
    for row in range(3):
        query, tokens = layer.query_norm(queries[row][:, None]), layer.memory_norm(memory)
        outputs, _ = attention(query, tokens, tokens, need_weights=False)
        states = layer.attention_norm(query + outputs)
        expected = layer.output_norm(states + layer.network(states))[:, 0]
        torch.testing.assert_close(layer(queries, memory)[row], expected, **EXACT)


@pytest.mark.parametrize("num_heads", [1, 2, 4])
@torch.no_grad()
def test_frames_are_pooled_as_torch_does(num_heads: int) -> None:
    torch.manual_seed(0)
    layer = FramePooling(DIM, dropout=0.0, num_heads=num_heads).double()
    for number, parameter in enumerate(layer.parameters()):
        parameter += 0.3 * random(*parameter.shape, seed=number)
    text, frames = random(3, DIM, seed=1), random(2, TOKENS, DIM, seed=2)
    mask = torch.tensor([[True] * TOKENS, [True, True, True, False, False]])
    attention = attention_like(layer, num_heads)
    for row in range(3):
        query = layer.input_norm(text[row]).expand(2, 1, DIM)
        tokens_in = layer.input_norm(frames)
        outputs, _ = attention(
            query, tokens_in, tokens_in, key_padding_mask=~mask, need_weights=False
        )
        states = layer.attention_norm(outputs[:, 0])
        expected = layer.output_norm(states + layer.feed_forward(states))
        torch.testing.assert_close(layer(text, frames, mask)[row], expected, **EXACT)


@pytest.mark.parametrize("num_heads", [0, -4, 5])
def test_impossible_numbers_of_heads_are_refused(num_heads: int) -> None:
    with pytest.raises(ConfigError, match=f"{num_heads} heads do not divide a width of 12"):
        CrossAttention(DIM, dropout=0.0, num_heads=num_heads)
