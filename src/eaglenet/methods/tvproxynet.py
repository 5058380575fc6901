"""TV-ProxyNet: each video moves the text to a proxy nearer to the meaning of the text."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from eaglenet.core.errors import ConfigError
from eaglenet.core.types import Losses, RightPairs, TextFeatures, VideoFeatures
from eaglenet.encoders.base import VideoSource
from eaglenet.encoders.clip import ClipEncoder
from eaglenet.encoders.video_tower import VideoProxies
from eaglenet.layers.masking import Padding, check_heads, first_right_video
from eaglenet.losses import PROXY_BOUNDS, SoftmaxLoss
from eaglenet.methods.base import register
from eaglenet.methods.configs import MethodConfig
from eaglenet.methods.tower_base import TowerMethod, freeze_frame_embedding, unit_videos


class ProxyDecoderLayer(nn.Module):
    r"""Cross-attention and a feed-forward network, over all pairs.

    .. math:: x = \mathrm{LN}(q),\quad m = \mathrm{LN}(y),\quad
        x \leftarrow \mathrm{LN}(x + \mathrm{attend}(x, m)),\quad
        x \leftarrow \mathrm{LN}(x + W_2\,\mathrm{ReLU}(W_1 x))

    The residual of the attention is the normalised query. Keys have no bias, which the softmax
    would cancel. The attention to a single token is always 1, without queries and keys.
    """

    def __init__(
        self,
        dim: int,
        *,
        num_tokens: int,
        dropout: float,
        num_heads: int = 1,
        hidden_dim: int | None = None,
    ) -> None:
        super().__init__()
        check_heads(dim, num_heads)
        hidden_dim = hidden_dim or dim
        self.num_heads = num_heads
        self.query_norm = nn.LayerNorm(dim)
        self.memory_norm = nn.LayerNorm(dim)
        if num_tokens > 1:
            self.query = nn.Linear(dim, dim)
            self.key = nn.Linear(dim, dim, bias=False)
        self.value = nn.Linear(dim, dim)
        self.output = nn.Linear(dim, dim)
        self.attention_norm = nn.LayerNorm(dim)
        self.network = nn.Sequential(
            nn.Linear(dim, hidden_dim), nn.ReLU(), nn.Dropout(dropout), nn.Linear(hidden_dim, dim)
        )
        self.output_norm = nn.LayerNorm(dim)
        self.dropout = nn.Dropout(dropout)
        self.num_tokens = num_tokens

    def forward(
        self, queries: Float[Tensor, "texts videos dim"], memory: Float[Tensor, "videos tokens dim"]
    ) -> Float[Tensor, "texts videos dim"]:
        queries = self.query_norm(queries)
        memory = self.memory_norm(memory)
        heads = (self.num_heads, -1)
        if self.num_tokens > 1:
            query = self.query(queries).unflatten(-1, heads)
            key = self.key(memory).unflatten(-1, heads)
            logits = torch.einsum("tvhe,vkhe->tvhk", query, key)
            weights = (logits / math.sqrt(key.shape[-1])).softmax(dim=-1)
        else:
            weights = queries.new_ones(*queries.shape[:2], self.num_heads, 1)
        weights = self.dropout(weights)
        value = self.value(memory).unflatten(-1, heads)
        attention_output = torch.einsum("tvhk,vkhe->tvhe", weights, value).flatten(2)
        states = self.attention_norm(queries + self.dropout(self.output(attention_output)))
        return self.output_norm(states + self.dropout(self.network(states)))  # type: ignore[no-any-return]


class ProxyDecoder(nn.Module):
    """Stack of :class:`ProxyDecoderLayer` with a final normalisation."""

    def __init__(
        self,
        dim: int,
        *,
        num_tokens: int,
        num_layers: int = 2,
        dropout: float = 0.1,
        num_heads: int = 1,
        hidden_dim: int | None = None,
    ) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            ProxyDecoderLayer(
                dim,
                num_tokens=num_tokens,
                dropout=dropout,
                num_heads=num_heads,
                hidden_dim=hidden_dim,
            )
            for _ in range(num_layers)
        )
        self.norm = nn.LayerNorm(dim)

    def forward(
        self, queries: Float[Tensor, "texts dim"], memory: Float[Tensor, "videos tokens dim"]
    ) -> Float[Tensor, "texts videos dim"]:
        states = queries[:, None, :].expand(-1, memory.shape[0], -1)
        for layer in self.layers:
            states = layer(states, memory)
        return self.norm(states)  # type: ignore[no-any-return]


Dash = Literal["theta", "linear"]


@dataclass(frozen=True)
class TVProxyNetConfig(MethodConfig):
    """Settings of TV-ProxyNet.

    num_proxies: number of proxy tokens of the tower.
    num_read: number of proxy tokens that the text reads (the authors use 4 for MSR-VTT, 1 for
        DiDeMo and ActivityNet). The dash ``theta`` uses all of them.
    num_layers, num_heads, hidden_dim: size of the decoder that reads them; None: the joint width.
    num_positions: number of frame positions of the tower, as in CLIP-ViP.
    text_sign, leader_sign: direction of the move, ``unit(text_sign t - leader_sign c)`` (the
        authors use 1, 1 for ViT-B/32 and -1, -1 for ViT-B/16 on MSR-VTT).
    dash: length of the move: one learned factor (``theta``) or one per dimension (``linear``).
    proxy_weight, positive_weight: weights of the two proxy losses.
    fusion: weight of the score of the proxy at inference. Fixed here; the script of the authors
        searches it on the test split.
    padding: ``official`` counts padded frames as real, as the tower of the authors does.
    """

    num_proxies: int = 4
    num_read: int = 4
    num_positions: int = 12
    num_layers: int = 2
    num_heads: int = 1
    hidden_dim: int | None = None
    dropout: float = 0.1
    text_sign: float = 1.0
    leader_sign: float = 1.0
    dash: Dash = "theta"
    proxy_weight: float = 0.5
    positive_weight: float = 0.25
    fusion: float = 0.5
    padding: Padding = "masked"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.num_read <= self.num_proxies:
            raise ConfigError(
                f"num_read is {self.num_read}, but there are {self.num_proxies} proxies; "
                f"choose 1 to {self.num_proxies}"
            )
        self.require_positive("num_positions")


@register(TVProxyNetConfig, paper="TV-ProxyNet (Xiao et al., AAAI 2025)", checked_by="golden")
class TVProxyNet(TowerMethod):
    r"""Text proxies on the tower of CLIP-ViP.

    .. math:: \pi_{tv} = \hat t + \rho_{tv} \circ \mathrm{unit}(\delta \hat t - \eta c_{tv}), \quad
        s = \cos(t, v) + \omega \cos(\pi_{tv}, v)

    The leader :math:`c_{tv}` is the output of a decoder over the proxies of the video with the text
    as query; the dash is :math:`\rho = \exp(\theta\, \mathrm{mean}_m \cos(t, y_m))`.
    ``encode_video`` stores the proxies in ``VideoFeatures.tokens`` and the class token in
    ``VideoFeatures.video``.
    """

    name = "tvproxynet"
    config: TVProxyNetConfig

    def __init__(self, encoder: ClipEncoder, config: TVProxyNetConfig) -> None:
        super().__init__(encoder, config)
        width, dim = encoder.vision.config.width, encoder.dim
        self.proxies = VideoProxies(
            width, num_added=config.num_proxies - 1, num_positions=config.num_positions
        )
        self.proxy_projection = nn.Linear(width, dim, bias=False)
        self.leader = ProxyDecoder(
            dim,
            num_tokens=config.num_read,
            num_layers=config.num_layers,
            dropout=config.dropout,
            num_heads=config.num_heads,
            hidden_dim=config.hidden_dim,
        )
        if config.dash == "theta":
            self.theta = nn.Parameter(torch.rand(()))
        else:
            self.dash = nn.Linear(config.num_read, dim)
        self.loss = SoftmaxLoss(bounds=PROXY_BOUNDS)

    @classmethod
    def prepare(cls, config: TVProxyNetConfig, encoder: ClipEncoder) -> None:
        freeze_frame_embedding(encoder.vision)

    def _encode_video(self, videos: VideoSource) -> VideoFeatures:
        encoding = self.proxies.encode(
            self.encoder.vision, videos, all_frames=self.config.padding == "official"
        )
        # Projected from the last hidden states, without the final normalisation of the tower.
        tokens = self.proxy_projection(encoding.proxies)
        mask = torch.ones(tokens.shape[:2], dtype=torch.bool, device=tokens.device)
        return dataclasses.replace(encoding.features, tokens=tokens, tokens_mask=mask)

    def text_proxies(
        self, sentence: Float[Tensor, "texts dim"], tokens: Float[Tensor, "videos tokens dim"]
    ) -> Float[Tensor, "texts videos dim"]:
        """Return the text of every pair, moved by the leader and the dash; ``sentence`` is unit."""
        leader = self.leader(sentence, tokens[:, : self.config.num_read])
        direction = self.config.text_sign * sentence[:, None] - self.config.leader_sign * leader
        cosines = torch.einsum("td,vkd->tvk", sentence, F.normalize(tokens, dim=-1))
        if self.config.dash == "theta":
            length = (self.theta * cosines.mean(dim=-1, keepdim=True)).exp()
        else:
            length = self.dash(cosines[..., : self.config.num_read]).exp()
        return sentence[:, None] + length * F.normalize(direction, dim=-1)

    def _match(
        self, text: TextFeatures, video: VideoFeatures
    ) -> tuple[
        Float[Tensor, "texts dim"], Float[Tensor, "videos dim"], Float[Tensor, "texts videos dim"]
    ]:
        """Return unit texts, unit videos and unit text proxies."""
        if video.tokens is None:
            raise ConfigError(
                "tvproxynet needs video features with proxies; encode them with its encode_video"
            )
        sentence = F.normalize(text.sentence, dim=-1)
        proxies = F.normalize(self.text_proxies(sentence, video.tokens), dim=-1)
        return sentence, self.coarse_vectors(video), proxies

    def score(self, text: TextFeatures, video: VideoFeatures) -> Float[Tensor, "texts videos"]:
        sentence, vectors, proxies = self._match(text, video)
        by_proxy = torch.einsum("tvd,vd->tv", proxies, vectors)
        return sentence @ vectors.T + self.config.fusion * by_proxy

    def losses(self, text: TextFeatures, video: VideoFeatures, positives: RightPairs) -> Losses:
        """Return the losses of plain texts, of pair proxies, and of the proxy of the right pair.

        Weighted by 2, because the authors add both directions of each loss, averaged here.
        """
        sentence, vectors, proxies = self._match(text, video)
        right_videos = first_right_video(positives)
        texts = torch.arange(len(text), device=right_videos.device)
        right_proxies = proxies[texts, right_videos]
        return Losses(
            {
                "plain": self.loss(sentence @ vectors.T, positives),
                "proxy": self.loss(torch.einsum("tvd,vd->tv", proxies, vectors), positives),
                "positive_proxy": self.loss(right_proxies @ vectors.T, positives),
            },
            {
                "plain": 2.0,
                "proxy": 2.0 * self.config.proxy_weight,
                "positive_proxy": 2.0 * self.config.positive_weight,
            },
        )

    def coarse_vectors(self, features: TextFeatures | VideoFeatures) -> Float[Tensor, "n dim"]:
        if isinstance(features, TextFeatures):
            return super().coarse_vectors(features)
        return unit_videos(features)
