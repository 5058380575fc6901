"""Transformer blocks of towers, and attention pooling."""

from __future__ import annotations

import functools
import importlib.util
import logging
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

from eaglenet.core.errors import ConfigError
from eaglenet.core.types import SLOPE, quick_gelu
from eaglenet.encoders.clip_config import Activation, TowerConfig

logger = logging.getLogger(__name__)

# Token shift: some tokens of a frame come from the previous or the next frame (TS2-Net).


def shift_stride(num_tokens: int) -> int:
    """Return g = floor(n / 7), the distance between shifted tokens; n counts the class token."""
    stride = num_tokens // 7
    if stride == 0:
        raise ConfigError(
            f"token shift needs at least 7 tokens per frame, got {num_tokens}; "
            "use a smaller patch or switch token shift off"
        )
    return stride


def shift_tokens(
    tokens: Float[Tensor, "images tokens width"],
    num_frames: int,
    frame_mask: Bool[Tensor, "videos frames"] | None = None,
) -> Float[Tensor, "images tokens width"]:
    """Replace tokens by those of neighbouring frames; images are videos times frames, in order.

    Tokens 1, 1 + g, 1 + 2g, ... come from the previous frame, and 4, 4 + g, ... from the next one.
    The first frame has no previous one and keeps its tokens, and so does the last one. The class
    token (0) never moves. No token moves between a real and a padded frame; without ``frame_mask``
    all frames are real. If both lists contain a token (g = 1 or 3), it comes from the next frame.
    """
    if tokens.shape[0] % num_frames:
        raise ConfigError(
            f"{tokens.shape[0]} images cannot be whole videos of {num_frames} frames; "
            "pass the number of frames of a video"
        )
    stride = shift_stride(tokens.shape[1])
    videos = tokens.reshape(
        len(tokens) // num_frames, num_frames, *tokens.shape[1:]
    )  # [videos, frames, tokens, width]
    result = videos.clone()
    earlier, later = videos[:, :-1], videos[:, 1:]
    # Read from `videos`, not from `result`, so that tokens move by one frame only.
    if frame_mask is None:
        result[:, 1:, 1::stride] = earlier[:, :, 1::stride]
        result[:, :-1, 4::stride] = later[:, :, 4::stride]
        return result.flatten(0, 1)
    is_pair_real = (frame_mask[:, :-1] & frame_mask[:, 1:])[..., None, None]
    result[:, 1:, 1::stride] = torch.where(is_pair_real, earlier, later)[:, :, 1::stride]
    # The result may contain tokens of the previous frame, which stay where no token moves.
    result[:, :-1, 4::stride] = torch.where(is_pair_real, later, result[:, :-1])[:, :, 4::stride]
    return result.flatten(0, 1)


# QuickGELU fused into the product before it, on Hopper GPUs. cuBLAS has no QuickGELU, so the widest
# tensor of a block of CLIP is written, read and written again, even with torch.compile. When fused,
# it is written once: CLIP B/32 encodes 3 to 4% more frames per second on an H200 (768 frames at a
# time). The first call imports Triton.

MIN_ROWS = 16384
"""Minimum rows. With fewer, starting the kernel takes longer than it saves: 96 frames of CLIP B/32
(4,800 rows) took 3.1 ms instead of 2.2 ms on an H200; layers of 10,000 rows are 10% faster."""
CAPABILITY = (9, 0)
"""Hopper, for which the kernel is tuned; older devices have no copy engine."""
HAS_TRITON = importlib.util.find_spec("triton") is not None and torch.version.hip is None
"""Set at import, since torch.compile cannot. AMD devices also report capability (9, 0)."""
STEP = 8
"""bfloat16 numbers in 16 bytes; rows must start at a multiple of 16 bytes for the copy engine."""


@torch.library.custom_op(
    "eaglenet::quick_gelu_product",
    mutates_args=(),
    schema="(Tensor rows, Tensor weight, Tensor bias) -> Tensor",
)
def quick_gelu_product(rows: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return quick_gelu(rows weight^T + bias) of bfloat16 tensors, rounded once.

    A custom operation, which torch.compile does not trace. Triton needs a C compiler and a writable
    folder; after a failure it is not tried again.
    """
    global HAS_TRITON
    if HAS_TRITON:
        output = rows.new_empty(len(rows), len(weight))
        try:
            from eaglenet.encoders.quick_gelu_kernel import launch

            with torch.cuda.device_of(rows):
                launch(_align(rows), _align(weight), bias.contiguous(), output)
            return output
        except Exception as error:
            HAS_TRITON = False
            logger.warning("CLIP runs without its Triton kernel, a little slower: %s", error)
    # A compiled tower still calls this operation after Triton has failed.
    return quick_gelu(F.linear(rows, weight, bias))


@quick_gelu_product.register_fake
def _shape(rows: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return rows.new_empty(rows.shape[0], weight.shape[0])


def _align(matrix: Tensor) -> Tensor:
    matrix = matrix.contiguous()
    return matrix.clone() if matrix.data_ptr() % (STEP * matrix.element_size()) else matrix


def can_fuse_quick_gelu(tokens: Tensor, layer: nn.Linear) -> bool:
    """Return whether ``quick_gelu_product`` can replace ``layer`` and QuickGELU, and is faster.

    It has no gradients; callers must not need them.
    """
    return (
        tokens.is_cuda
        and not torch.is_autocast_enabled("cuda")
        and tokens.dtype == layer.weight.dtype == layer.bias.dtype == torch.bfloat16
        and tokens.numel() >= MIN_ROWS * tokens.shape[-1]
        and (layer.in_features % STEP, layer.out_features % STEP) == (0, 0)
        and has_kernel(tokens.device)
    )


def has_kernel(device: torch.device) -> bool:
    """Return whether the kernel runs on a device; a constant for torch.compile."""
    properties = torch.cuda.get_device_properties(device)
    return HAS_TRITON and (properties.major, properties.minor) == CAPABILITY


AttentionMask = Bool[Tensor, "..."] | Float[Tensor, "..."]
"""Broadcasts to [sequences, heads, queries, keys]: True where to attend, or scores to add."""


Rotation = tuple[Float[Tensor, "tokens head"], Float[Tensor, "tokens head"]]
"""Cosines and sines of the rotation of each pair of numbers of a head, per token."""


def rotate(
    values: Float[Tensor, "sequences heads tokens head"], rotation: Rotation
) -> Float[Tensor, "sequences heads tokens head"]:
    """Apply rotary positions: rotate (x_2i, x_2i+1) by an angle that depends on the token."""
    cosines, sines = rotation
    quarter_turn = torch.stack([-values[..., 1::2], values[..., ::2]], dim=-1).flatten(-2)
    return (values * cosines + quarter_turn * sines).to(values.dtype)


SHORT_SEQUENCE = 64
"""Maximum number of tokens for which the memory-efficient kernel is the fastest. Forward and
backward pass of 768 sequences (bf16, 12 heads of 64, H200) of 50 tokens: 0.61 ms, cuDNN 0.82 ms; of
197 tokens: 6.1 ms, cuDNN 3.1 ms."""


def attention_kernel(num_tokens: int | None) -> AbstractContextManager[Any]:
    """Return a context that selects the fastest attention on a CUDA GPU; None: another device.

    Outside of compiled code, respects a caller who has disabled that kernel.
    """
    is_short = num_tokens is not None and num_tokens <= SHORT_SEQUENCE
    is_allowed = torch.compiler.is_compiling() or torch.backends.cuda.mem_efficient_sdp_enabled()
    if is_short and is_allowed and torch.version.hip is None:
        # Without set_priority: leaving such a context does not restore the order of an outer one.
        return sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH])
    return nullcontext()


class Attention(nn.Module):
    """Multi-head self-attention with one fused projection.

    softmax(q k^T / sqrt(width / heads)) v, then ``out``.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(
        self,
        tokens: Float[Tensor, "sequences tokens width"],
        *,
        is_causal: bool = False,
        mask: AttentionMask | None = None,
        num_queries: int | None = None,
        rotation: Rotation | None = None,
    ) -> Float[Tensor, "sequences queries width"]:
        """Return the outputs of all tokens, or of the first ``num_queries``."""
        # Strided views of one buffer, which the fused kernels read without a copy.
        sequences, length, width = tokens.shape
        parts = self.qkv(tokens).view(sequences, length, 3, self.heads, width // self.heads)
        # [sequences, heads, tokens, width / heads] each
        query, key, value = (part.transpose(1, 2) for part in parts.unbind(2))
        if rotation is not None:
            query, key = rotate(query, rotation), rotate(key, rotation)
        if num_queries is not None:
            query = query[:, :, :num_queries]
        with attention_kernel(length if tokens.is_cuda else None):
            values_of_queries = F.scaled_dot_product_attention(
                query, key, value, attn_mask=mask, is_causal=is_causal
            )
        result: Tensor = self.out(values_of_queries.transpose(1, 2).flatten(2))
        return result


class FeedForward(nn.Module):
    """down(activation(up(x)))."""

    def __init__(self, width: int, hidden_width: int, activation: Activation) -> None:
        super().__init__()
        self.up = nn.Linear(width, hidden_width)
        self.down = nn.Linear(hidden_width, width)
        self.activation = activation

    def forward(self, tokens: Float[Tensor, "*batch width"]) -> Float[Tensor, "*batch width"]:
        # Not in training, which encodes a split batch first without and then with gradients; nor on
        # a CPU, where products with a factor take 1.5 times as long (oneDNN has none).
        if tokens.is_cuda and not (self.training or torch.is_grad_enabled()):
            if self.activation == "quick_gelu":
                if can_fuse_quick_gelu(tokens, self.up):
                    return self._in_triton_product(tokens)
                if not torch.compiler.is_compiling():
                    return self._in_one_pass(tokens)
            elif self._can_use_cublas(tokens):
                return self._in_cublas_product(tokens)
        result: Tensor = self.down(activate(self.up(tokens), self.activation))
        return result

    def _can_use_cublas(self, tokens: Tensor) -> bool:
        """Return whether cuBLAS's GELU, an approximation by tanh, can replace the activation.

        It differs from the exact GELU by at most an eighth of the rounding error of bf16 (root mean
        square, inputs with standard deviations of 0.1 to 4); in fp32 it would be the larger error.
        """
        if torch.is_autocast_enabled("cuda") or tokens.dtype != self.up.weight.dtype:
            return False
        return self.activation == "gelu_tanh" or tokens.dtype == torch.bfloat16

    def _in_cublas_product(
        self, tokens: Float[Tensor, "*batch width"]
    ) -> Float[Tensor, "*batch width"]:
        """Fuse the activation into the first product, so the widest tensor is written once."""
        flat = tokens.flatten(0, -2)
        hidden_states = torch._addmm_activation(self.up.bias, flat, self.up.weight.T, use_gelu=True)
        result = torch.addmm(self.down.bias, hidden_states, self.down.weight.T)
        return result.view(tokens.shape)

    def _in_triton_product(
        self, tokens: Float[Tensor, "*batch width"]
    ) -> Float[Tensor, "*batch width"]:
        """Fuse QuickGELU into the first product, with the Triton kernel."""
        flat = tokens.flatten(0, -2)
        hidden_states = quick_gelu_product(flat, self.up.weight, self.up.bias)
        result = torch.addmm(self.down.bias, hidden_states, self.down.weight.T)
        return result.view(tokens.shape)

    def _in_one_pass(self, tokens: Float[Tensor, "*batch width"]) -> Float[Tensor, "*batch width"]:
        """Compute quick_gelu(x) = silu(1.702 x) / 1.702 with the factors in the products.

        Written out, the activation reads and writes the widest tensor of a block three times.
        """
        flat = tokens.flatten(0, -2)
        hidden_states = torch.addmm(SLOPE * self.up.bias, flat, self.up.weight.T, alpha=SLOPE)
        hidden_states = F.silu(hidden_states, inplace=True)
        result = torch.addmm(self.down.bias, hidden_states, self.down.weight.T, alpha=1 / SLOPE)
        return result.view(tokens.shape)


def activate(values: Float[Tensor, "*shape"], activation: Activation) -> Float[Tensor, "*shape"]:
    """Apply CLIP's quick GELU, GELU, or its approximation by tanh."""
    if activation == "quick_gelu":
        return quick_gelu(values)
    return F.gelu(values, approximate="tanh" if activation == "gelu_tanh" else "none")


class ResidualBlock(nn.Module):
    """x + attention(ln_1(x)), then x + mlp(ln_2(x)).

    With ``token_shift``, the input of the attention is shifted in time.
    """

    def __init__(self, config: TowerConfig) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(config.width, eps=config.norm_eps)
        self.attention = Attention(config.width, config.heads)
        self.ln_2 = nn.LayerNorm(config.width, eps=config.norm_eps)
        self.mlp = FeedForward(config.width, config.mlp_width, config.activation)
        self.token_shift = False

    def forward(
        self,
        tokens: Float[Tensor, "sequences tokens width"],
        *,
        num_frames: int = 1,
        frame_mask: Bool[Tensor, "videos frames"] | None = None,
        is_causal: bool = False,
        mask: AttentionMask | None = None,
        num_queries: int | None = None,
        rotation: Rotation | None = None,
    ) -> Float[Tensor, "sequences queries width"]:
        """Return the outputs of all tokens, or of the first ``num_queries``."""
        states = self.ln_1(tokens)
        if self.token_shift:
            states = shift_tokens(states, num_frames, frame_mask)
        states = self.attention(
            states, is_causal=is_causal, mask=mask, num_queries=num_queries, rotation=rotation
        )
        return self.finish(tokens[:, :num_queries], states)

    def finish(
        self, tokens: Float[Tensor, "*batch width"], output: Float[Tensor, "*batch width"]
    ) -> Float[Tensor, "*batch width"]:
        """Add both residual branches; ``output`` is that of the attention."""
        return self.add_mlp(self.add_attention(tokens, output))

    def add_attention(
        self, tokens: Float[Tensor, "*batch width"], output: Float[Tensor, "*batch width"]
    ) -> Float[Tensor, "*batch width"]:
        """Add the branch of the attention, given its output."""
        return tokens + output

    def add_mlp(self, tokens: Float[Tensor, "*batch width"]) -> Float[Tensor, "*batch width"]:
        """Add the branch of the feed-forward network."""
        result: Tensor = tokens + self.mlp(self.ln_2(tokens))
        return result


def run_block(
    block: nn.Module, tokens: Tensor, *, is_checkpointed: bool, **options: object
) -> Tensor:
    """Call a block; if checkpointed, recompute its activations in the backward pass."""
    if is_checkpointed and torch.is_grad_enabled():
        # Blocks draw no random numbers, so there is no generator state to preserve.
        result: Tensor = checkpoint(
            functools.partial(block, **options),
            tokens,
            use_reentrant=False,
            preserve_rng_state=False,
        )
        return result
    result = block(tokens, **options)
    return result


def run_blocks(tower: Any, tokens: Tensor, **options: object) -> Tensor:
    """Run the blocks of a tower; training recomputes the first ``gradient_checkpointing``."""
    for index, block in enumerate(tower.blocks):
        is_checkpointed = tower.training and index < tower.gradient_checkpointing
        tokens = run_block(block, tokens, is_checkpointed=is_checkpointed, **options)
    return tokens


def make_blocks(config: TowerConfig) -> nn.ModuleList:
    """Create the blocks of a tower."""
    return nn.ModuleList(ResidualBlock(config) for _ in range(config.layers))


def initialise_blocks(blocks: nn.ModuleList, generator: torch.Generator) -> None:
    """Initialise blocks like CLIP: residual branches get smaller with depth."""
    for block in blocks:
        if not isinstance(block, ResidualBlock):
            continue
        width = block.attention.out.in_features
        branch = width**-0.5 * (2 * len(blocks)) ** -0.5
        for linear, deviation in (
            (block.attention.qkv, width**-0.5),
            (block.attention.out, branch),
            (block.mlp.up, (2 * width) ** -0.5),
            (block.mlp.down, branch),
        ):
            nn.init.normal_(linear.weight, std=deviation, generator=generator)
            nn.init.zeros_(linear.bias)


class AttentionPooling(nn.Module):
    r"""``y = out(sum_i a_i v_i)``, then ``y + mlp(norm(y))``; ``a = softmax(q k_i / sqrt(d))``.

    The query ``q`` is learnt, and the same for all inputs. The scores of a head are therefore
    products of the tokens with one vector, ``W_k^T q`` (the bias of the keys cancels in the
    softmax), and values are projected after averaging: no token is multiplied by a square matrix.
    """

    def __init__(self, config: TowerConfig, *, heads: int, mlp_width: int) -> None:
        super().__init__()
        width = config.width
        self.heads = heads
        self.probe = nn.Parameter(torch.zeros(width))
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.key.bias.requires_grad_(False)  # It is in the files, but has no effect.
        self.value = nn.Linear(width, width)
        self.out = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width, eps=config.norm_eps)
        self.mlp = FeedForward(width, mlp_width, config.activation)

    def forward(
        self,
        tokens: Float[Tensor, "sequences tokens width"],
        bias: Float[Tensor, "sequences tokens"] | None = None,
    ) -> Float[Tensor, "sequences width"]:
        """Pool each sequence; ``bias`` is added to the scores of its tokens in all heads."""
        width, heads = tokens.shape[-1], self.heads
        query = self.query(self.probe).view(heads, 1, width // heads)
        # [heads, width]: W_k^T q of each head.
        directions = (query @ self.key.weight.view(heads, width // heads, width)).squeeze(1)
        scores = tokens @ (directions * (width // heads) ** -0.5).T
        scores = scores.float() if bias is None else scores.float() + bias[..., None]
        weights = scores.softmax(dim=1).to(tokens.dtype)
        means = weights.transpose(1, 2) @ tokens  # [sequences, heads, width]
        values = self.value.weight.view(heads, width // heads, width)
        vectors = torch.einsum("shw,hdw->shd", means, values).flatten(1) + self.value.bias
        vectors = self.out(vectors)
        result: Tensor = vectors + self.mlp(self.norm(vectors))
        return result

    def initialise(self, generator: torch.Generator) -> None:
        deviation = len(self.probe) ** -0.5
        nn.init.normal_(self.probe, std=deviation, generator=generator)
        layers = (self.query, self.key, self.value, self.out, self.mlp.up, self.mlp.down)
        for layer in layers:
            nn.init.normal_(layer.weight, std=layer.in_features**-0.5, generator=generator)
            nn.init.zeros_(layer.bias)
