"""BridgeFormer: a video tower without new weights, and questions about words in training."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from eaglenet.core.errors import ConfigError, UsageError
from eaglenet.core.types import Losses, RightPairs, TextFeatures, Tokens, VideoFeatures
from eaglenet.encoders import ENCODERS
from eaglenet.encoders.base import TextSource, TowerEncoder, VideoSource
from eaglenet.encoders.blocks import Attention, FeedForward
from eaglenet.encoders.clip import TextTower, take_positions
from eaglenet.encoders.clip_config import TowerConfig
from eaglenet.encoders.video_tower import SpaceTime, grouped_attention, split_heads
from eaglenet.layers.masking import Padding
from eaglenet.losses import fixed_softmax_loss
from eaglenet.methods.base import register
from eaglenet.methods.configs import MethodConfig
from eaglenet.methods.tower_base import SpaceTimeMethod


class BridgeBlock(nn.Module):
    r"""Attention of a question to the patches of one visual block, then self-attention.

    The first token of the question attends to all patches, its words to each frame separately. With
    the output b of the previous block, r' = r + b:

    .. math:: b' = r' + \mathrm{Space}(\mathrm{LN}_7 r'), \qquad
        b'' = b' + \mathrm{MLP}(\mathrm{LN}_6 b')
    """

    def __init__(self, config: TowerConfig) -> None:
        super().__init__()
        width = config.width
        self.heads = config.heads
        self.question_norm, self.patch_norm, self.space_norm, self.mlp_norm = (
            nn.LayerNorm(width, eps=config.norm_eps) for _ in range(4)
        )
        self.query = nn.Linear(width, width)
        self.key_value = nn.Linear(width, 2 * width)
        self.out = nn.Linear(width, width)
        self.space = Attention(width, config.heads)
        self.mlp = FeedForward(width, config.mlp_width, config.activation)

    def read(
        self,
        first: Float[Tensor, "pairs 1 width"],
        words: Float[Tensor, "pairs words width"],
        patches: Float[Tensor, "pairs frames patches width"],
        mask: Bool[Tensor, "pairs frames"],
    ) -> tuple[Float[Tensor, "pairs 1 width"], Float[Tensor, "pairs frames words width"]]:
        """Return the attention of the question to the patches."""
        pairs, frames, count, _ = patches.shape
        key, value = self.key_value(self.patch_norm(patches)).chunk(2, dim=-1)
        patch_mask = mask.repeat_interleave(count, dim=1)
        # All patches of a video without a real frame, because attention to nothing would be NaN.
        has_frame = patch_mask.any(dim=1, keepdim=True)
        patch_mask = torch.where(has_frame, patch_mask, torch.ones_like(patch_mask))
        from_video = F.scaled_dot_product_attention(
            split_heads(self.query(self.question_norm(first)), self.heads),
            split_heads(key.flatten(1, 2), self.heads),
            split_heads(value.flatten(1, 2), self.heads),
            attn_mask=patch_mask[:, None, None, :],
        )
        query = self.query(self.question_norm(words))[:, None].expand(-1, frames, -1, -1)
        from_frames = F.scaled_dot_product_attention(
            split_heads(query.flatten(0, 1), self.heads),
            split_heads(key.flatten(0, 1), self.heads),
            split_heads(value.flatten(0, 1), self.heads),
        )
        first = self.out(from_video.transpose(1, 2).flatten(2))
        tokens: Tensor = self.out(from_frames.transpose(1, 2).flatten(2))
        return first, tokens.view(pairs, frames, *words.shape[1:])

    def forward(
        self,
        first: Float[Tensor, "pairs 1 width"],
        tokens: Float[Tensor, "pairs frames words width"],
        mask: Bool[Tensor, "pairs frames words"],
    ) -> tuple[Float[Tensor, "pairs 1 width"], Float[Tensor, "pairs frames words width"]]:
        """Apply self-attention per frame, with a first token that attends to everything."""
        first_output, output = grouped_attention(
            self.space, self.space_norm(first), self.space_norm(tokens), mask
        )
        first, tokens = first + first_output, tokens + output
        return (first + self.mlp(self.mlp_norm(first)), tokens + self.mlp(self.mlp_norm(tokens)))


class Bridge(nn.Module):
    """One bridge block per visual block; the first token of the last one is the answer."""

    def __init__(self, config: TowerConfig, text_width: int, dim: int) -> None:
        super().__init__()
        self.map = nn.Linear(text_width, config.width)
        self.blocks = nn.ModuleList(BridgeBlock(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width, eps=config.norm_eps)
        self.project = nn.Linear(config.width, dim)

    def forward(
        self,
        questions: Float[Tensor, "pairs levels words width"],
        ends: Int[Tensor, "pairs"],
        words_mask: Bool[Tensor, "pairs words"],
        patches: Float[Tensor, "pairs blocks frames patches channels"],
        frames_mask: Bool[Tensor, "pairs frames"],
    ) -> Float[Tensor, "pairs dim"]:
        """Return the answers; level ``b levels / blocks`` of the question reads visual block b.

        The first token of the question is its end token, which has read all words.
        """
        levels, count = questions.shape[1], len(self.blocks)
        mask = frames_mask[:, :, None] & words_mask[:, None, :]
        mapped_questions = self.map(questions)
        first: Tensor | None = None
        tokens: Tensor | None = None
        for index, block in enumerate(self.blocks):
            level = mapped_questions[:, index * levels // count]
            end = take_positions(level, ends)[:, None]
            new_first, new_tokens = block.read(end, level, patches[:, index], frames_mask)  # type: ignore[operator]
            first = new_first if first is None else first + new_first
            tokens = new_tokens if tokens is None else tokens + new_tokens
            first, tokens = block(first, tokens, mask)
        if first is None:
            raise AssertionError("a tower has at least one block")
        result: Tensor = self.project(self.norm(first[:, 0]))
        return result


def question_states(
    tower: TextTower, ids: Int[Tensor, "texts words"]
) -> Float[Tensor, "texts levels words width"]:
    """Return the inputs of every block of the text tower; level 0 are the embeddings."""
    states, inputs = tower.embed(ids), []
    for block in tower.blocks:
        inputs.append(states)
        states = block(states, is_causal=True)
    return torch.stack(inputs, dim=1)


def make_questions(
    ids: Int[Tensor, "texts words"], ends: Int[Tensor, "texts"], *, mask_token: int
) -> tuple[Int[Tensor, "texts words"], Int[Tensor, "texts words"]]:
    """Return questions with one masked word, and answers: three masked words and that word.

    The word is a random one between the first token and the end.
    """
    texts = torch.arange(len(ids), device=ids.device)
    num_words = (ends - 1).clamp_min(1)
    position = 1 + (torch.rand(len(ids), device=ids.device) * num_words).long().clamp_max(
        num_words - 1
    )
    position = torch.minimum(position, (ends - 1).clamp_min(0))
    questions = ids.clone()
    questions[texts, position] = mask_token
    answers = torch.zeros_like(ids)
    length = min(6, ids.shape[1])
    answer = torch.stack(
        [
            ids[:, 0],
            *(torch.full_like(ids[:, 0], mask_token) for _ in range(3)),
            ids[texts, position],
            ids[texts, ends],
        ],
        dim=1,
    )
    answers[:, :length] = answer[:, -length:]
    answers[:, 0] = ids[:, 0]
    return questions, answers


@dataclass(frozen=True)
class BridgeFormerConfig(MethodConfig):
    """Settings of BridgeFormer.

    bridge_weight: weight of the questions about masked words (MCQ); 0: no bridge, as in
        fine-tuning. Questions need a causal text tower whose end token reads the text: that of CLIP
        or PE-Core.
    mask_token: id of a masked word; by default padding, because CLIP has no mask token.
    padding: ``official`` counts padded frames as real, as the code of the authors does.
    """

    num_frames: int = 4
    temperature: float = 0.05
    bridge_weight: float = 0.0
    mask_token: int = 0
    padding: Padding = "masked"


@register(BridgeFormerConfig, paper="BridgeFormer (Ge et al., CVPR 2022)", checked="golden")
class BridgeFormer(SpaceTimeMethod):
    """Blocks of the image tower over all frames, without attention over time or frame positions.

    Patches attend to their frame and the class token, which attends to everything. Without a class
    token (SigLIP), only the head combines frames.

    With ``bridge_weight``, training also asks questions: a caption with one masked word reads the
    patches of every block and has to predict the vector of that word.

    Paper: pre-trained on CC3M and WebVid-2M, with questions about noun and verb phrases of a
    tagger; here it starts from the towers of the encoder, and any word may be masked (uncertain
    whether that helps; off by default). The text tower of CLIP is narrower than its visual tower,
    so questions go through a linear map. The fine-tuning of the authors was not released; recipes
    follow Frozen (uncertain).
    """

    name = "bridgeformer"
    config: BridgeFormerConfig

    def __init__(self, encoder: TowerEncoder, config: BridgeFormerConfig) -> None:
        super().__init__(encoder, config)
        self.space_time = SpaceTime(self.tower)
        self.bridge = (
            Bridge(self.tower.config, need_questions(encoder).config.width, encoder.dim)
            if config.bridge_weight
            else None
        )

    def _encode_text(self, texts: TextSource) -> TextFeatures:
        """Encode texts; in training, also questions (``words``) and answers (``keys``)."""
        text = super()._encode_text(texts)
        if self.bridge is None or not self.training or not isinstance(texts, Tokens):
            return text
        tower = need_questions(self.encoder)
        tokens = texts.to(self.device)
        ends = tower.end_positions(tokens.ids)
        questions, answers = make_questions(tokens.ids, ends, mask_token=self.config.mask_token)
        states = question_states(tower, questions)
        return dataclasses.replace(
            text,
            words=states.flatten(1, 2),
            words_mask=tokens.mask.repeat(1, states.shape[1]),
            keys=tower(answers),
            tokens=dataclasses.replace(tokens, ids=ends[:, None].expand_as(tokens.ids)),
        )

    def _encode_video(self, videos: VideoSource) -> VideoFeatures:
        """Encode videos; in training with a bridge, also the input patches of every block."""
        if self.bridge is None or not self.training:
            return super()._encode_video(videos)
        patches: list[Tensor] = []
        video = self.read_frames(videos, patches)
        return dataclasses.replace(video, patches=torch.cat(patches, dim=2))

    def losses(self, text: TextFeatures, video: VideoFeatures, positives: RightPairs) -> Losses:
        losses = super().losses(text, video, positives)
        if self.bridge is None or text.keys is None or video.patches is None:
            return losses
        answers = F.normalize(self.answers(text, video), dim=-1)
        right_answers = F.normalize(text.keys[:, 0], dim=-1)
        term = fixed_softmax_loss(right_answers @ answers.T, positives, self.config.temperature)
        return Losses({**losses.terms, "bridge": term}, {"bridge": self.config.bridge_weight})

    def answers(self, text: TextFeatures, video: VideoFeatures) -> Float[Tensor, "pairs dim"]:
        """Return the answer to the question of each text from its video."""
        if self.bridge is None or text.words is None or text.tokens is None:
            raise UsageError("the texts have no questions; encode them in training mode")
        if video.patches is None:
            raise UsageError(
                "the videos have no patches of each block; encode them in training mode"
            )
        levels = len(need_questions(self.encoder).blocks)
        blocks = self.encoder.num_blocks
        questions = text.words.unflatten(1, (levels, -1))
        patches = video.patches.unflatten(2, (blocks, -1)).transpose(1, 2)
        result: Tensor = self.bridge(
            questions, text.tokens.ids[:, 0], text.tokens.mask, patches, video.mask
        )
        return result


def need_questions(encoder: TowerEncoder) -> TextTower:
    """Return the text tower, whose end token reads all words; ``ConfigError`` if it has none."""
    if not isinstance(encoder.text, TextTower):
        raise ConfigError(
            f"{BridgeFormer.name} with bridge_weight needs the text tower of CLIP, which "
            f"{ENCODERS[encoder.family].title} does not have; set bridge_weight=0, or use a CLIP "
            "or PE-Core model"
        )
    return encoder.text
