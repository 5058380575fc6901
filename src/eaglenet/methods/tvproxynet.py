"""TV-ProxyNet: each video turns the text into a proxy of it that lies nearer to what is meant."""

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
    r"""Cross-attention and a small network, over all pairs.

    .. math:: x = \mathrm{LN}(q),\quad m = \mathrm{LN}(y),\quad
        x \leftarrow \mathrm{LN}(x + \mathrm{attend}(x, m)),\quad
        x \leftarrow \mathrm{LN}(x + W_2\,\mathrm{ReLU}(W_1 x))

    The residual of the attention starts from the normalised query. Keys have no bias: the softmax
    cancels it. A single token is always attended to fully, so then there is no query and no key.
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
            nn.Linear(dim, hidden_dim),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(hidden_dim, dim),
        )
        self.output_norm = nn.LayerNorm(dim)
        self.dropout = nn.Dropout(dropout)
        self.num_tokens = num_tokens

    def forward(
        self,
        queries: Float[Tensor, "texts videos dim"],
        memory: Float[Tensor, "videos tokens dim"],
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
        attended = torch.einsum("tvhk,vkhe->tvhe", weights, value).flatten(2)
        states = self.attention_norm(queries + self.dropout(self.output(attended)))
        return self.output_norm(states + self.dropout(self.network(states)))  # type: ignore[no-any-return]


class ProxyDecoder(nn.Module):
    """Layers of :class:`ProxyDecoderLayer` and a last normalisation."""

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
        self,
        queries: Float[Tensor, "texts dim"],
        memory: Float[Tensor, "videos tokens dim"],
    ) -> Float[Tensor, "texts videos dim"]:
        states = queries[:, None, :].expand(-1, memory.shape[0], -1)
        for layer in self.layers:
            states = layer(states, memory)
        return self.norm(states)  # type: ignore[no-any-return]


Dash = Literal["theta", "linear"]


@dataclass(frozen=True)
class TVProxyNetConfig(MethodConfig):
    """Settings of TV-ProxyNet.

    num_proxies: proxy tokens of the tower; num_read: number of them that the text reads (the
        authors: 4 for MSR-VTT, 1 for DiDeMo and ActivityNet). The dash ``theta`` looks at all.
    num_layers, num_heads, hidden_dim: of the decoder that reads them; None takes the joint width.
    num_positions: rows of the tower's table of frame positions, as in CLIP-ViP.
    text_sign, leader_sign: direction of the move, ``unit(text_sign t - leader_sign c)`` (the
        authors: 1, 1 for ViT-B/32 and -1, -1 for ViT-B/16 on MSR-VTT).
    dash: length of the move, one learned factor (``theta``) or one per dimension (``linear``).
    proxy_weight, positive_weight: weights of the two proxy losses.
    fusion: weight of the proxy's score beside the plain one at inference. Fixed here and never
        searched on a test split, as the authors' script does.
    padding: ``official`` counts padded frames as real, as the authors' tower does.
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


@register(TVProxyNetConfig, paper="TV-ProxyNet (Xiao et al., AAAI 2025)", checked="golden")
class TVProxyNet(TowerMethod):
    r"""Text proxies over CLIP-ViP's tower.

    .. math:: \pi_{tv} = \hat t + \rho_{tv} \circ \mathrm{unit}(\delta \hat t - \eta c_{tv}), \quad
        s = \cos(t, v) + \omega \cos(\pi_{tv}, v)

    The leader :math:`c_{tv}` is a decoder's reading of the video's proxies with the text as query,
    the dash :math:`\rho = \exp(\theta\, \mathrm{mean}_m \cos(t, y_m))`. ``encode_video`` stores
    the proxies in ``VideoFeatures.tokens`` and the class token in ``VideoFeatures.video``.
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
        encoded = self.proxies.encode(
            self.encoder.vision, videos, all_frames=self.config.padding == "official"
        )
        # Of the last hidden states as they are, without the tower's last normalisation.
        tokens = self.proxy_projection(encoded.proxies)
        mask = torch.ones(tokens.shape[:2], dtype=torch.bool, device=tokens.device)
        return dataclasses.replace(encoded.features, tokens=tokens, tokens_mask=mask)

    def text_proxies(
        self,
        sentence: Float[Tensor, "texts dim"],
        tokens: Float[Tensor, "videos tokens dim"],
    ) -> Float[Tensor, "texts videos dim"]:
        """The text of every pair, moved by the director and the dash; ``sentence`` is unit."""
        read = tokens[:, : self.config.num_read]
        leader = self.leader(sentence, read)
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
        """Unit texts, unit videos and unit text proxies."""
        if video.tokens is None:
            raise ConfigError(
                "tvproxynet was given video features without proxies; "
                "make them with this method's own encode_video"
            )
        sentence = F.normalize(text.sentence, dim=-1)
        proxies = F.normalize(self.text_proxies(sentence, video.tokens), dim=-1)
        return sentence, self.coarse_vectors(video), proxies

    def score(self, text: TextFeatures, video: VideoFeatures) -> Float[Tensor, "texts videos"]:
        sentence, vectors, proxies = self._match(text, video)
        by_proxy = torch.einsum("tvd,vd->tv", proxies, vectors)
        return sentence @ vectors.T + self.config.fusion * by_proxy

    def losses(self, text: TextFeatures, video: VideoFeatures, positives: RightPairs) -> Losses:
        """Plain text, pair proxies, and each text's own proxy against all videos.

        The authors sum the two directions of each; the loss here is their mean, hence the 2.
        """
        sentence, vectors, proxies = self._match(text, video)
        own = first_right_video(positives)
        own_proxies = proxies[torch.arange(len(text), device=own.device), own]
        return Losses(
            {
                "plain": self.loss(sentence @ vectors.T, positives),
                "proxy": self.loss(torch.einsum("tvd,vd->tv", proxies, vectors), positives),
                "positive_proxy": self.loss(own_proxies @ vectors.T, positives),
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
