"""TempMe: low-rank training, and merging of similar tokens within and between frames."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor, nn

from eaglenet.core.errors import ConfigError, UsageError
from eaglenet.core.types import Encoder, VideoFeatures
from eaglenet.encoders.base import VideoSource
from eaglenet.encoders.blocks import Attention, ResidualBlock
from eaglenet.encoders.compact import CompactVision, ScaledBlock
from eaglenet.encoders.low_rank import add_low_rank, freeze_tower
from eaglenet.encoders.video_tower import require_clips
from eaglenet.encoders.vision import VisionTower, add_frame_positions
from eaglenet.layers.masking import Padding, frame_weights, real_first
from eaglenet.losses import SoftmaxLoss
from eaglenet.methods.base import register
from eaglenet.methods.configs import MethodConfig
from eaglenet.methods.tower_base import CosineMethod, PatchEncoder, TowerMethod


def frame_groups(num_frames: int, max_groups: int) -> tuple[int, ...]:
    """Return at most ``max_groups`` factors of ``num_frames``, ascending: 12 is 2 x 2 x 3."""
    factors: list[int] = []
    rest, factor = num_frames, 2
    while rest > 1:
        while rest % factor == 0:
            factors.append(factor)
            rest //= factor
        factor += 1
    while len(factors) > max(max_groups, 1):
        factors = sorted([factors[0] * factors[1], *factors[2:]])
    return tuple(factors)


@dataclass(frozen=True)
class MergedTokens:
    """Tokens of each clip, class tokens first, and the number of patches merged into each."""

    tokens: Float[Tensor, "clips tokens width"]
    sizes: Float[Tensor, "clips tokens"]


def merge(
    state: MergedTokens, metric: Float[Tensor, "clips tokens any"], num_merged: int, num_class: int
) -> MergedTokens:
    """Merge similar patches by bipartite soft matching (ToMe).

    Every second patch is linked to the most similar of the others, its target. The ``num_merged``
    most similar links are merged into means weighted by size; class tokens (the first
    ``num_class``) stay. With an even number of class tokens the patches 0, 2, 4, ... are the
    sources of links, with an odd number 1, 3, 5, ...: the same tokens of the whole sequence.
    The result has class tokens, unmerged sources in their order, then targets.
    """
    patches = state.tokens[:, num_class:]
    sizes = state.sizes[:, num_class:]
    num_merged = min(num_merged, patches.shape[1] // 2)
    if num_merged < 1:
        return state
    first = num_class % 2
    sources, targets = slice(first, None, 2), slice(1 - first, None, 2)
    unit = F.normalize(metric[:, num_class:].detach(), dim=-1)
    similarity = unit[:, sources] @ unit[:, targets].transpose(1, 2)
    best, target = similarity.max(dim=-1)
    order = best.argsort(dim=-1, descending=True, stable=True)
    merging = order[:, :num_merged]
    staying = order[:, num_merged:].sort(dim=-1).values
    sums = patches.to(sizes.dtype) * sizes[..., None]
    source_tokens, source_sizes = sums[:, sources], sizes[:, sources]
    into = target.take_along_dim(merging, dim=1)
    merged_tokens = source_tokens.take_along_dim(merging[..., None], dim=1)
    target_tokens = sums[:, targets].scatter_add(
        1, into[..., None].expand_as(merged_tokens), merged_tokens
    )
    target_sizes = sizes[:, targets].scatter_add(
        1, into, source_sizes.take_along_dim(merging, dim=1)
    )
    sizes = torch.cat([source_sizes.take_along_dim(staying, dim=1), target_sizes], dim=1)
    tokens = torch.cat(
        [source_tokens.take_along_dim(staying[..., None], dim=1), target_tokens], dim=1
    )
    tokens = (tokens / sizes[..., None]).to(state.tokens.dtype)
    return MergedTokens(
        torch.cat([state.tokens[:, :num_class], tokens], dim=1),
        torch.cat([state.sizes[:, :num_class], sizes], dim=1),
    )


def attend(
    attention: Attention, state: MergedTokens, tokens: Float[Tensor, "clips tokens width"]
) -> tuple[Float[Tensor, "clips tokens width"], Float[Tensor, "clips tokens head_width"]]:
    """Return attention in which a token counts by its size, and the mean over heads of the keys."""
    clips, length, width = tokens.shape
    parts = attention.qkv(tokens).view(clips, length, 3, attention.heads, width // attention.heads)
    query, key, value = (part.transpose(1, 2) for part in parts.unbind(2))
    bias = state.sizes.log().to(query.dtype)[:, None, None, :]
    output = F.scaled_dot_product_attention(query, key, value, attn_mask=bias)
    return attention.out(output.transpose(1, 2).flatten(2)), key.mean(dim=1)


PatchTower = VisionTower | CompactVision


class TokenMerging(nn.Module):
    """Token merging of TempMe in a vision tower.

    At first, every frame is a clip of its own. Each of ``blocks`` joins groups of neighbouring
    clips into one before its attention.

    Args:
        groups: size of the groups in each of ``blocks``; the product of all divides the frames.
        blocks: indices of the blocks that join clips; by default those directly before the last.
        num_frames: frames per video; by default the product of ``groups``.
        num_merged: patches that merge in each block before the first join.
        across, within: fractions of all tokens that merge when clips are joined, and inside a clip.
        positions: add a learned position of each clip to its tokens before clips are joined.
    """

    def __init__(
        self,
        width: int,
        num_blocks: int,
        groups: tuple[int, ...],
        *,
        num_merged: int,
        blocks: tuple[int, ...] | None = None,
        num_frames: int | None = None,
        across: float = 0.3,
        within: float = 0.1,
        positions: bool = True,
    ) -> None:
        super().__init__()
        if blocks is None:
            if len(groups) >= num_blocks:
                raise ConfigError(
                    f"{len(groups)} groups of frames need more than {len(groups)} blocks, the "
                    f"vision tower has {num_blocks}; use fewer frame_groups"
                )
            blocks = tuple(range(num_blocks - 1 - len(groups), num_blocks - 1))
        if len(blocks) != len(groups) or list(blocks) != sorted({*blocks} & {*range(num_blocks)}):
            raise ConfigError(
                f"clips are joined in blocks {blocks}, groups are {groups}; set one block for "
                f"each group, in order, from 0 to {num_blocks - 1}"
            )
        num_frames = num_frames or math.prod(groups)
        if num_frames % math.prod(groups):
            raise ConfigError(
                f"groups {groups} join {math.prod(groups)} frames, which does not divide the "
                f"{num_frames} frames of a video"
            )
        self.groups = dict(zip(blocks, groups, strict=True))
        self.first = blocks[0] if blocks else num_blocks - 1
        self.num_merged, self.across, self.within = num_merged, across, within
        self.positions = nn.ParameterList()
        for index in range(len(groups) if positions else 0):
            count = num_frames // math.prod(groups[:index])
            self.positions.append(nn.Parameter(torch.zeros(count, width)))

    def forward(
        self, tower: PatchTower, frames: Tensor
    ) -> tuple[Float[Tensor, "videos frames dim"], list[int]]:
        """Return the vector of each frame, and the number of tokens of a video after each block."""
        num_videos, num_frames = frames.shape[:2]
        counts, num_class = [], 1
        for state, num_class in self.blocks(tower, frames):  # noqa: B007
            counts.append(state.tokens.shape[0] * state.tokens.shape[1] // num_videos)
        vectors = tower.read_merged(
            state.tokens[:, :num_class], state.tokens[:, num_class:], state.sizes[:, num_class:]
        )
        return vectors.reshape(num_videos, num_frames, -1), counts

    def blocks(self, tower: PatchTower, frames: Tensor) -> Iterator[tuple[MergedTokens, int]]:
        """Yield the tokens of all clips and the number of class tokens, after each block."""
        num_frames = frames.shape[1]
        tokens = tower.embed(frames.flatten(0, 1))
        if isinstance(tower, VisionTower) and tower.frame_embedding is not None:
            tokens = add_frame_positions(tokens, tower.frame_embedding, num_frames)
        # Half precision cannot represent all numbers of patches that one token may contain.
        dtype = torch.promote_types(tokens.dtype, torch.float32)
        sizes = torch.ones(tokens.shape[:2], dtype=dtype, device=tokens.device)
        state, num_class = MergedTokens(tokens, sizes), 1
        for index, block in enumerate(tower.blocks):
            assert isinstance(block, ResidualBlock | ScaledBlock)
            if index in self.groups:
                state = self._join(state, index, num_class)
                num_class *= self.groups[index]
            state = self._block(block, state, num_class, is_joined=index >= self.first)
            yield state, num_class

    def _join(self, state: MergedTokens, index: int, num_class: int) -> MergedTokens:
        """Join neighbouring clips, class tokens first, and merge similar patches."""
        clips, length = state.sizes.shape
        group = self.groups[index]
        tokens = state.tokens
        if len(self.positions):
            table = self.positions[list(self.groups).index(index)]
            tokens = tokens + table.repeat(clips // len(table), 1)[:, None].to(tokens.dtype)

        def join(values: Tensor) -> Tensor:
            parts = values.reshape(clips // group, group, length, *values.shape[2:])
            classes, patches = parts[:, :, :num_class], parts[:, :, num_class:]
            return torch.cat([classes.flatten(1, 2), patches.flatten(1, 2)], dim=1)

        joint_state = MergedTokens(join(tokens), join(state.sizes))
        num_merged = int(self.across * joint_state.tokens.shape[1])
        return merge(joint_state, join(state.tokens), num_merged, num_class * group)

    def _block(
        self,
        block: ResidualBlock | ScaledBlock,
        state: MergedTokens,
        num_class: int,
        *,
        is_joined: bool,
    ) -> MergedTokens:
        """Run a block of the tower, with a merge between its attention and its feed-forward."""
        output, keys = attend(block.attention, state, block.ln_1(state.tokens))
        state = MergedTokens(block.add_attention(state.tokens, output), state.sizes)
        count = int(self.within * state.tokens.shape[1]) if is_joined else self.num_merged
        state = merge(state, keys, count, num_class)
        return MergedTokens(block.add_mlp(state.tokens), state.sizes)


def spread_frames(
    mask: Bool[Tensor, "videos frames"], num_frames: int
) -> tuple[Int[Tensor, "videos spread"], Int[Tensor, "videos frames"]]:
    """Spread the real frames of each video evenly over ``num_frames`` positions.

    Returns the input frame of each position and the position of each input frame. Frames of a
    shorter video are repeated.
    """
    count = mask.sum(dim=1, keepdim=True).clamp(min=1)
    positions = torch.arange(num_frames, device=mask.device)[None]
    real_index = positions * count // num_frames
    order = mask.cumsum(dim=1) - 1
    sources = real_first(mask)[0].take_along_dim(real_index.expand(len(mask), -1), dim=1)
    back = (order.clamp(min=0) * num_frames + count - 1) // count
    return sources, back.clamp(max=num_frames - 1)


MERGED_FRACTION = 0.05
"""Default fraction of the patches of a frame that merge in each block before the first join."""


@dataclass(frozen=True)
class TempMeConfig(MethodConfig):
    """Settings of TempMe.

    rank: rank of the changes of both towers. frozen: train nothing else of the towers.
    groups: numbers of neighbouring clips that are joined, one for each of ``merge_blocks``; their
        product divides ``num_frames``. None: factors of ``num_frames``, which are 2, 2, 3 for 12
        (the authors' choice) and 4, 4, 4 for 64.
    merge_blocks: blocks (from 0) that join clips; None: those directly before the last.
    num_merged: patches of a frame that merge in each of the first blocks; None: 5% (the authors:
        2 of 49 for ViT-B/32; 10 of 196 for ViT-B/16 is our reading, uncertain).
    across, within: fractions of all tokens that merge when clips are joined, and inside a clip.
    clip_positions: learned positions of the clips before each join.
    padding: ``masked`` spreads the real frames of a short video over all positions; ``official``
        runs padded frames through the tower and leaves them out of the last mean only, as the
        authors' code does.
    """

    rank: int = 8
    frozen: bool = True
    groups: tuple[int, ...] | None = None
    merge_blocks: tuple[int, ...] | None = None
    num_merged: int | None = None
    across: float = 0.3
    within: float = 0.1
    clip_positions: bool = True
    padding: Padding = "masked"


@register(TempMeConfig, paper="TempMe (Shen et al., ICLR 2025)", checked_by="golden")
class TempMe(CosineMethod, TowerMethod):
    """``s(t, v) = cos(t, v)`` with ``v`` the mean of the unit class tokens of the frames.

    Patches merge first inside a frame, then between neighbouring frames, until a video is one set
    of tokens (:class:`TokenMerging`); class tokens never merge. ``VideoFeatures.video`` is ``v``. A
    compact tower computes a frame from its class token and the mean of the video's patches
    (:meth:`CompactVision.read_merged`). The authors' RandAugment is
    ``training.augment=rand_augment``, which the protocol ``original`` sets.
    """

    name = "tempme"
    needs_clip = False
    encoder: PatchEncoder  # type: ignore[assignment]
    config: TempMeConfig

    def __init__(self, encoder: PatchEncoder, config: TempMeConfig) -> None:
        super().__init__(encoder, config)
        vision = encoder.vision.config
        groups = config.groups
        if groups is None:
            groups = frame_groups(config.num_frames, min(3, vision.layers - 1))
        num_merged = config.num_merged
        if num_merged is None:
            num_merged = max(1, round(MERGED_FRACTION * (vision.num_tokens - 1)))
        self.merging = TokenMerging(
            vision.width,
            vision.layers,
            groups,
            blocks=config.merge_blocks,
            num_frames=config.num_frames,
            num_merged=num_merged,
            across=config.across,
            within=config.within,
            positions=config.clip_positions,
        )
        self.loss = SoftmaxLoss()

    @classmethod
    def prepare(cls, config: TempMeConfig, encoder: PatchEncoder) -> None:
        """Add low-rank changes to both towers; with ``frozen``, nothing else of them is trained."""
        if config.frozen:
            freeze_tower(encoder)
        add_low_rank(encoder, config.rank)

    @classmethod
    def build(cls, config: TempMeConfig, encoder: Encoder) -> TempMe:
        """Create the method; with ``frozen``, the scale of the loss is frozen too."""
        method = super().build(config, encoder)
        method.loss.logit_scale.requires_grad_(not config.frozen)
        return method

    def _encode_video(self, videos: VideoSource) -> VideoFeatures:
        clips = require_clips(videos, self.name)
        mask = clips.mask.to(self.device)
        frames = clips.frames.to(self.device, non_blocking=True)
        if self.config.padding == "official":
            return self.encode_padded(frames, mask)
        sources, back = spread_frames(mask, self.config.num_frames)
        frames = frames.take_along_dim(sources[..., None, None, None], dim=1)
        classes, _ = self.merging(self.encoder.vision, frames)
        return VideoFeatures(
            frames=classes.take_along_dim(back[..., None], dim=1),
            mask=mask,
            video=F.normalize(classes, dim=-1).mean(dim=1),
        )

    def encode_padded(
        self,
        frames: Shaped[Tensor, "videos frames 3 rows columns"],
        mask: Bool[Tensor, "videos frames"],
    ) -> VideoFeatures:
        """Encode videos as the authors' code does, which masks padding in the last mean only."""
        if frames.shape[1] != self.config.num_frames:
            raise UsageError(
                f"tempme with padding=official takes {self.config.num_frames} frames per video, "
                f"got {frames.shape[1]}; pad the videos, or set padding=masked"
            )
        classes, _ = self.merging(self.encoder.vision, frames)
        weights = frame_weights(mask, classes.dtype)[..., None]
        video = (F.normalize(classes, dim=-1) * weights).sum(dim=1)
        return VideoFeatures(frames=classes, mask=mask, video=video)
