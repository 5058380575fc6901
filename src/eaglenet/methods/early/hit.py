"""HiT: features of two levels, contrasted with keys from momentum copies of the networks."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from eaglenet.core.errors import ConfigError, UsageError
from eaglenet.core.types import Encoder, Expert, Losses, RightPairs, TextFeatures, VideoFeatures
from eaglenet.encoders.base import TextSource, VideoSource
from eaglenet.layers.experts import ExpertTokens, require_positions
from eaglenet.layers.masking import masked_mean
from eaglenet.layers.transformer import PostNormStack, WordTransformer
from eaglenet.methods.base import register
from eaglenet.methods.configs import MethodConfig
from eaglenet.methods.early.expert_base import ExpertMethod, words_width

EMPTY = -1


class KeyBank(nn.Module):
    """Ring buffer of the newest ``size`` keys and their videos.

    Keys of the same video are not negatives. Empty rows are masked; keys of unknown videos are
    negatives.
    """

    keys: Tensor
    videos: Tensor
    filled: Tensor
    next_place: Tensor

    def __init__(self, size: int, dim: int) -> None:
        super().__init__()
        self.register_buffer("keys", torch.zeros(size, dim))
        self.register_buffer("videos", torch.full((size,), EMPTY))
        self.register_buffer("filled", torch.zeros(size, dtype=torch.bool))
        self.register_buffer("next_place", torch.zeros((), dtype=torch.int64))

    def negatives(
        self, videos: Int[Tensor, "pairs"] | None, count: int
    ) -> Bool[Tensor, "pairs places"]:
        """Return a mask of the stored keys that are negatives, for each of ``count`` pairs."""
        if videos is None:
            return self.filled.expand(count, -1)
        is_same = (videos[:, None] == self.videos) & (self.videos != EMPTY)
        return self.filled & ~is_same

    @torch.no_grad()
    def push(self, keys: Float[Tensor, "pairs dim"], videos: Int[Tensor, "pairs"] | None) -> None:
        """Store keys; if there are more than ``size``, the last ones."""
        size = len(self.keys)
        newest_keys = keys.detach()[-size:]
        steps = torch.arange(len(newest_keys), device=newest_keys.device)
        rows = (self.next_place + steps) % size
        self.keys[rows] = newest_keys.to(self.keys.dtype)
        self.filled[rows] = True
        self.videos[rows] = EMPTY if videos is None else videos[-size:]
        self.next_place.copy_((self.next_place + len(newest_keys)) % size)


LEVELS = ("feature", "semantic")


@dataclass(frozen=True)
class HiTConfig(MethodConfig):
    """Settings of HiT. All numbers are our choice, without the code of the authors.

    text_layers: blocks over the words; the authors fine-tune BERT.
    momentum: momentum of the copies that make keys. bank_size: stored keys per modality and level.
    feature_weight: weight of the lower level, in the loss and in the score.
    """

    dim: int = 512
    num_layers: int = 4
    text_layers: int = 2
    num_heads: int = 4
    hidden_dim: int = 3072
    num_positions: int = 32
    max_tokens: int = 30
    dropout: float = 0.1
    momentum: float = 0.995
    bank_size: int = 4096
    temperature: float = 0.07
    feature_weight: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_positive("dim", "num_layers", "text_layers", "bank_size")
        require_positions(self.num_positions)
        if not 0 <= self.momentum <= 1:
            raise ConfigError(f"momentum is {self.momentum}; it must be from 0 to 1")
        if self.feature_weight < 0:
            raise ConfigError(f"feature_weight is {self.feature_weight}; it must be 0 or more")


class TextNetwork(nn.Module):
    """Two unit vectors per text: mean after the first block, first token after the last."""

    def __init__(self, in_dim: int, config: HiTConfig) -> None:
        super().__init__()
        self.words = WordTransformer(in_dim, config)
        self.heads = nn.ModuleList(nn.Linear(config.dim, config.dim) for _ in LEVELS)

    def forward(
        self, words: Float[Tensor, "texts words width"], mask: Bool[Tensor, "texts words"]
    ) -> Float[Tensor, "texts levels dim"]:
        states = self.words.layers(words, mask)
        levels = (masked_mean(states[0][:, 1:], mask), states[-1][:, 0])
        vectors = [head(level) for head, level in zip(self.heads, levels, strict=True)]
        return F.normalize(torch.stack(vectors, dim=1), dim=-1)


class VideoNetwork(nn.Module):
    """Two unit vectors per video: means over tokens after the first and the last block."""

    def __init__(self, widths: dict[str, int], config: HiTConfig) -> None:
        super().__init__()
        self.tokens = ExpertTokens(
            widths,
            config.dim,
            num_positions=config.num_positions,
            max_tokens=config.max_tokens,
            dropout=config.dropout,
        )
        self.stack = PostNormStack(config)
        self.heads = nn.ModuleList(nn.Linear(config.dim, config.dim) for _ in LEVELS)

    def forward(self, experts: dict[str, Expert]) -> Float[Tensor, "videos levels dim"]:
        sequence = self.tokens(experts)
        states = self.stack.layers(sequence.tokens, sequence.mask)
        levels = [masked_mean(states[index], sequence.mask) for index in (0, -1)]
        vectors = [head(level) for head, level in zip(self.heads, levels, strict=True)]
        return F.normalize(torch.stack(vectors, dim=1), dim=-1)


@register(
    HiTConfig,
    paper="HiT (Liu et al., ICCV 2021)",
    checked_by="approximate from the abstract",
    reads_experts=True,
)
class HiT(ExpertMethod):
    r"""``s = <q_s, u_s> + lambda <q_f, u_f>`` of the semantic and the feature level.

    .. math:: L_l = \mathrm{CE}(\langle q^l, k_v^l \rangle / T) +
        \mathrm{CE}(\langle u^l, k_t^l \rangle / T), \qquad L = L_s + \lambda L_f

    Each query is contrasted with its key and with keys of earlier steps of the other modality and
    the same level, except keys of the same video.

    Paper: implemented from abstract and figures; pooling, widths, momentum, bank size, temperature
    and weights are our choice. Keys come from momentum copies of the networks above the encoder; a
    tower has no copy. Keys are computed in training mode only.
    """

    name = "hit"
    needs_ids = True
    config: HiTConfig

    def __init__(self, encoder: Encoder, config: HiTConfig) -> None:
        super().__init__(encoder, config)
        self.text_network = TextNetwork(words_width(encoder), config)
        self.video_network = VideoNetwork(self.widths, config)
        self.key_text = copy.deepcopy(self.text_network).requires_grad_(False)
        self.key_video = copy.deepcopy(self.video_network).requires_grad_(False)
        self.text_banks = nn.ModuleList(KeyBank(config.bank_size, config.dim) for _ in LEVELS)
        self.video_banks = nn.ModuleList(KeyBank(config.bank_size, config.dim) for _ in LEVELS)

    def _encode_text(self, texts: TextSource) -> TextFeatures:
        _, words, mask = self.read_text(texts)
        levels = self.text_network(words, mask)
        keys = None
        if self.training:
            with torch.no_grad():
                keys = self.key_text(words, mask)
        return TextFeatures(sentence=self._join_levels(levels), words=levels, keys=keys)

    def _encode_video(self, videos: VideoSource) -> VideoFeatures:
        video, experts = self.read_experts(videos)
        levels = self.video_network(experts)
        keys = None
        if self.training:
            with torch.no_grad():
                keys = self.key_video(experts)
        return VideoFeatures(
            frames=self._moments(experts[self.frames_expert]),
            mask=video.mask,
            video=self._join_levels(levels),
            tokens=levels,
            keys=keys,
        )

    def _join_levels(
        self, levels: Float[Tensor, "rows levels dim"]
    ) -> Float[Tensor, "rows joint_dim"]:
        """Concatenate both levels, so that products of the results are scores."""
        scale = levels.new_tensor([self.config.feature_weight**0.5, 1.0])
        return (levels * scale[:, None]).flatten(1)

    def _moments(self, expert: Expert) -> Float[Tensor, "videos frames dim"]:
        """Return the vectors of single frames by the head of the lower level."""
        tokens = self.video_network.tokens.project(self.frames_expert, expert.values)
        result: Tensor = self.video_network.heads[0](tokens)
        return result.detach() if self.training else result

    def score(self, text: TextFeatures, video: VideoFeatures) -> Float[Tensor, "texts videos"]:
        return text.sentence @ self.joint_vectors(video).T

    def joint_vectors(self, features: TextFeatures | VideoFeatures) -> Float[Tensor, "n joint_dim"]:
        if isinstance(features, TextFeatures):
            return features.sentence
        if features.video is None:
            raise UsageError(
                "the videos have no vectors of two levels; encode them with encode_video"
            )
        return features.video

    def frame_scores(
        self, text: TextFeatures, video: VideoFeatures
    ) -> Float[Tensor, "texts videos frames"]:
        if text.words is None:
            raise UsageError(
                "the texts have no vectors of two levels; encode them with encode_text"
            )
        return super(ExpertMethod, self).frame_scores(TextFeatures(text.words[:, 0]), video)

    def losses(self, text: TextFeatures, video: VideoFeatures, positives: RightPairs) -> Losses:
        """Return the contrastive losses; in training, store the keys and update the copies."""
        if text.words is None or video.tokens is None or text.keys is None or video.keys is None:
            raise UsageError("losses need keys; encode in training mode")
        terms = {}
        for index, level in enumerate(LEVELS):
            banks = (self.video_banks[index], self.text_banks[index])
            sides = (
                (text.words[:, index], video.keys[:, index], banks[0], positives),
                (video.tokens[:, index], text.keys[:, index], banks[1], positives.T),
            )
            losses = [
                self._contrast(query, keys, bank, right, video.ids)  # type: ignore[arg-type]
                for query, keys, bank, right in sides
            ]
            terms[level] = losses[0] + losses[1]
        if self.training:
            self._advance(text, video)
        return Losses(terms, {"feature": self.config.feature_weight})

    def _contrast(
        self,
        queries: Float[Tensor, "pairs dim"],
        keys: Float[Tensor, "pairs dim"],
        bank: KeyBank,
        positives: Bool[Tensor, "pairs pairs"],
        ids: Tensor | None,
    ) -> Float[Tensor, ""]:
        """Return the cross-entropy of the key of each query against other keys."""
        right = (queries * keys.detach()).sum(dim=-1, keepdim=True)
        # A copy, because the bank is written to before the backward pass reads it.
        earlier = queries @ bank.keys.to(queries.dtype, copy=True).T
        is_negative = bank.negatives(ids, len(queries))
        earlier = earlier.masked_fill(~is_negative, torch.finfo(earlier.dtype).min)
        # Keys of this batch are negatives too; otherwise the first steps would have none.
        others = (queries @ keys.detach().T).masked_fill(positives, torch.finfo(right.dtype).min)
        logits = torch.cat([right, others, earlier], dim=1) / self.config.temperature
        return -logits.log_softmax(dim=1)[:, 0].mean()

    @torch.no_grad()
    def _advance(self, text: TextFeatures, video: VideoFeatures) -> None:
        """Store the keys of this step, and update the momentum copies."""
        for banks, keys in ((self.text_banks, text.keys), (self.video_banks, video.keys)):
            for index, bank in enumerate(banks):
                bank.push(keys[:, index], video.ids)  # type: ignore[index,operator]
        for momentum_copy, network in (
            (self.key_text, self.text_network),
            (self.key_video, self.video_network),
        ):
            for target, source in zip(
                momentum_copy.parameters(), network.parameters(), strict=True
            ):
                target.lerp_(source, 1.0 - self.config.momentum)
