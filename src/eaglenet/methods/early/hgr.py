"""HGR: a text as a graph of event, verbs and nouns, each matched with frames."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from eaglenet.core.errors import ConfigError, UsageError
from eaglenet.core.types import Encoder, Expert, TextFeatures, TextGraph, VideoFeatures
from eaglenet.encoders.base import TextSource, VideoSource
from eaglenet.layers.masking import masked_softmax
from eaglenet.methods.base import register
from eaglenet.methods.configs import MethodConfig
from eaglenet.methods.early.expert_base import ExpertMethod, words_width
from eaglenet.methods.tower_base import unit_videos


class WordGRU(nn.Module):
    """Bidirectional GRU over the real words; returns the mean of both directions."""

    def __init__(self, in_dim: int, dim: int, *, dropout: float = 0.2) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.forward_network = nn.GRU(in_dim, dim, batch_first=True)
        self.backward_network = nn.GRU(in_dim, dim, batch_first=True)
        for network in (self.forward_network, self.backward_network):
            for name, parameter in network.named_parameters():
                if "weight" in name:
                    nn.init.orthogonal_(parameter)
                else:
                    nn.init.zeros_(parameter)

    def forward(
        self, words: Float[Tensor, "texts words width"], mask: Bool[Tensor, "texts words"]
    ) -> Float[Tensor, "texts words dim"]:
        """Return the states of the words; zeros for padding."""
        words = self.dropout(words.masked_fill(~mask[..., None], 0.0))
        forward_states, _ = self.forward_network(words)
        # Real words come first in reverse order, so that padding is read after them.
        indices = torch.arange(mask.shape[1], device=mask.device)
        reverse = (mask.sum(dim=1, keepdim=True) - 1 - indices).clamp_min(0)
        backward_states, _ = self.backward_network(words.take_along_dim(reverse[..., None], dim=1))
        backward_states = backward_states.take_along_dim(reverse[..., None], dim=1)
        mean: Tensor = (forward_states + backward_states) / 2
        return mean.masked_fill(~mask[..., None], 0.0)


class RolePooling(nn.Module):
    """Attention pooling sum_i softmax_i(a . x_i) x_i over the real entries."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.query = nn.Linear(dim, 1, bias=False)

    def forward(
        self, values: Float[Tensor, "sets entries dim"], mask: Bool[Tensor, "sets entries"]
    ) -> Float[Tensor, "sets dim"]:
        weights = masked_softmax(self.query(values).squeeze(-1), mask)
        return torch.einsum("ne,ned->nd", weights, values)


class RoleGraphLayer(nn.Module):
    r"""Attention of each node ``i`` over the nodes ``j`` with an edge to it.

    .. math:: g'_i = \mathrm{LN}\Big(g_i + \mathrm{drop}\big(W_c \sum_j b_{ij} g_j\big)\Big), \qquad
        b_{ij} = \mathrm{softmax}_j \frac{\langle W_q g_i, W_k g_j \rangle}{\sqrt{d/2}}

    The key map has no bias, which the softmax would cancel.
    """

    def __init__(self, dim: int, *, dropout: float) -> None:
        super().__init__()
        self.query = nn.Linear(dim, dim // 2)
        self.key = nn.Linear(dim, dim // 2, bias=False)
        self.mix = nn.Linear(dim, dim, bias=False)
        self.dropout = nn.Dropout(dropout)
        self.norm = nn.LayerNorm(dim)

    def forward(
        self, nodes: Float[Tensor, "texts nodes dim"], edges: Bool[Tensor, "texts nodes nodes"]
    ) -> Float[Tensor, "texts nodes dim"]:
        logits = self.query(nodes) @ self.key(nodes).transpose(1, 2)
        weights = masked_softmax(logits / self.key.out_features**0.5, edges)
        messages = self.dropout(self.mix(weights @ nodes))
        result: Tensor = self.norm(nodes + messages)
        return result


class RoleGraph(nn.Module):
    """Graph attention over the nodes of a text.

    A node is the maximum over its words times the embedding of its role; the whole text is pooled
    by attention. Nodes without words are masked.
    """

    def __init__(
        self, dim: int, *, num_roles: int, num_layers: int = 1, dropout: float = 0.5
    ) -> None:
        super().__init__()
        self.pooling = RolePooling(dim)
        self.roles = nn.Parameter(torch.randn(num_roles, dim))
        self.layers = nn.ModuleList(RoleGraphLayer(dim, dropout=dropout) for _ in range(num_layers))

    def forward(
        self,
        words: Float[Tensor, "texts words dim"],
        mask: Bool[Tensor, "texts words"],
        graph: TextGraph,
    ) -> tuple[Float[Tensor, "texts nodes dim"], Bool[Tensor, "texts nodes"]]:
        """Return the nodes, the whole text first, and a mask of those that exist."""
        num_padding = max(words.shape[1] - graph.spans.shape[2], 0)
        spans = F.pad(graph.spans, (0, num_padding))[..., : words.shape[1]] & mask[:, None]
        exists = spans.any(dim=-1)
        nodes = self._nodes(words, spans, graph.roles)
        sentence = self.pooling(words, mask)
        nodes = torch.cat([sentence[:, None], nodes[:, 1:]], dim=1)
        exists = torch.cat([exists.new_ones(len(exists), 1), exists[:, 1:]], dim=1)
        edges = graph.edges & exists[:, None, :] & exists[:, :, None]
        for layer in self.layers:
            nodes = layer(nodes, edges)
        return nodes, exists

    def _nodes(
        self,
        words: Float[Tensor, "texts words dim"],
        spans: Bool[Tensor, "texts nodes words"],
        roles: Int[Tensor, "texts nodes"],
    ) -> Float[Tensor, "texts nodes dim"]:
        lowest = torch.finfo(words.dtype).min
        largest = words[:, None].masked_fill(~spans[..., None], lowest).amax(dim=2)
        largest = largest.masked_fill(~spans.any(dim=-1)[..., None], 0.0)
        return largest * self.roles[roles]


NUM_ROLES = 16
LEVELS = ("video", "verb", "noun")


@dataclass(frozen=True)
class HGRConfig(MethodConfig):
    """Settings of HGR.

    num_verbs: number of verb nodes, which follow the node of the text; the others are nouns.
    num_graph_layers: layers of attention over the edges of the graph.
    sharpness: factor of the logits of the attention of nodes over frames.
    """

    dim: int = 512
    num_verbs: int = 4
    num_graph_layers: int = 1
    word_dropout: float = 0.2
    graph_dropout: float = 0.5
    frame_dropout: float = 0.2
    sharpness: float = 4.0
    margin: float = 0.2

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.dim < 2:
            raise ConfigError(f"dim is {self.dim}; it must be 2 or more")


def node_similarities(
    nodes: Float[Tensor, "texts nodes dim"],
    frames: Float[Tensor, "videos frames dim"],
    mask: Bool[Tensor, "videos frames"],
    *,
    sharpness: float,
) -> Float[Tensor, "texts videos nodes"]:
    r"""Return the cosine of each node with the mean of the frames that it attends to.

    .. math:: \beta_m = \mathrm{softmax}_m(4\,\mathrm{unit}_m([c_m]_+)), \quad c_m = \cos(n, f_m),
        \qquad \cos\Big(n, \sum_m \beta_m f_m\Big)

    Computed from the products of nodes and frames and the Gram matrix of the frames, without
    vectors per pair.
    """
    products = torch.einsum("tnd,vfd->tvnf", F.normalize(nodes, dim=-1), frames)
    lengths = frames.norm(dim=-1).clamp_min(1e-10)
    cosines = (products / lengths[None, :, None]).masked_fill(~mask[None, :, None], 0.0)
    positive = F.normalize(cosines.clamp_min(0.0), dim=-1, eps=1e-10)
    weights = masked_softmax(sharpness * positive, mask[None, :, None])
    gram = frames @ frames.transpose(1, 2)
    squares = torch.einsum("tvnf,vfg,tvng->tvn", weights, gram, weights)
    along = (weights * products).sum(dim=-1)
    return along / squares.clamp_min(1e-12).sqrt()


@register(HGRConfig, paper="HGR (Chen et al., CVPR 2020)", checked_by="golden", reads_experts=True)
class HGR(ExpertMethod):
    """``s`` is the mean of three levels: text and video, verbs and frames, nouns and frames.

    ``encode_text`` returns the text, and verbs and nouns in ``words``. ``encode_video`` returns the
    pooled video in ``video``, and in ``tokens`` the tokens of all experts for verbs, then for
    nouns; the paper has one expert. Texts need graphs (`data.role_graphs`).

    Paper: words are frozen features instead of fine-tuned GloVe vectors. Roles come from rules
    instead of a BERT tagger.
    """

    name = "hgr"
    has_hardest_negatives = True
    config: HGRConfig
    score_tile = (64, 64)

    def __init__(self, encoder: Encoder, config: HGRConfig) -> None:
        if not hasattr(encoder, "experts"):
            raise ConfigError(
                "hgr needs words and graphs of texts, which towers and features of frames do not "
                "have; use encoder.kind=experts"
            )
        super().__init__(encoder, config)
        dim = config.dim
        self.words = WordGRU(words_width(encoder), dim, dropout=config.word_dropout)
        self.graph = RoleGraph(
            dim,
            num_roles=NUM_ROLES,
            num_layers=config.num_graph_layers,
            dropout=config.graph_dropout,
        )
        self.maps = nn.ModuleDict(
            {
                level: nn.ModuleDict(
                    {name: nn.Linear(width, dim) for name, width in self.widths.items()}
                )
                for level in LEVELS
            }
        )
        self.pooling = RolePooling(dim)
        self.dropout = nn.Dropout(config.frame_dropout)

    def _encode_text(self, texts: TextSource) -> TextFeatures:
        text, words, mask = self.read_text(texts)
        if text.graph is None:
            raise UsageError(
                "hgr needs graphs of verbs and nouns, which these texts do not have; write "
                "graphs.npz into the features folder (docs/how-to/experts.md)"
            )
        nodes, exists = self.graph(self.words(words, mask), mask, text.graph)
        return TextFeatures(
            sentence=nodes[:, 0],
            words=nodes[:, 1:] * exists[:, 1:, None].to(nodes.dtype),
            words_mask=exists[:, 1:],
        )

    def _encode_video(self, videos: VideoSource) -> VideoFeatures:
        video, experts = self.read_experts(videos)
        mask = torch.cat([expert.mask for expert in experts.values()], dim=1)
        streams = {level: self._stream(level, experts) for level in LEVELS}
        frame_tokens = experts[self.frames_expert].values
        return VideoFeatures(
            frames=self.maps["noun"][self.frames_expert](frame_tokens),  # type: ignore[index]
            mask=video.mask,
            video=self.pooling(streams["video"], mask),
            tokens=torch.cat([streams["verb"], streams["noun"]], dim=1),
            tokens_mask=torch.cat([mask, mask], dim=1),
        )

    def _stream(
        self, level: str, experts: Mapping[str, Expert]
    ) -> Float[Tensor, "videos tokens dim"]:
        """Return all tokens of all experts, mapped for a level; zeros for padding."""
        token_list = []
        for name, expert in experts.items():
            values = expert.values.masked_fill(~expert.mask[..., None], 0.0)
            vectors = self.dropout(self.maps[level][name](values))  # type: ignore[index]
            token_list.append(vectors.masked_fill(~expert.mask[..., None], 0.0))
        return torch.cat(token_list, dim=1)

    def score(self, text: TextFeatures, video: VideoFeatures) -> Float[Tensor, "texts videos"]:
        sentence, verbs, nouns = self.levels(text, video)
        return (sentence + verbs + nouns) / 3

    def levels(
        self, text: TextFeatures, video: VideoFeatures
    ) -> tuple[
        Float[Tensor, "texts videos"], Float[Tensor, "texts videos"], Float[Tensor, "texts videos"]
    ]:
        """Return the similarities of text and video, verbs and frames, nouns and frames."""
        if text.words is None or text.words_mask is None:
            raise UsageError("the texts have no nodes; encode them with encode_text")
        if video.video is None or video.tokens is None or video.tokens_mask is None:
            raise UsageError("the videos have no tokens; encode them with encode_video")
        mask = video.tokens_mask.chunk(2, dim=1)[0]
        sentence = F.normalize(text.sentence, dim=-1) @ F.normalize(video.video, dim=-1).T
        num_verbs, means = self.config.num_verbs, []
        for frames, nodes in zip(
            video.tokens.chunk(2, dim=1), (slice(0, num_verbs), slice(num_verbs, None)), strict=True
        ):
            exists = text.words_mask[:, nodes].to(sentence.dtype)[:, None]
            similarities = node_similarities(
                text.words[:, nodes], frames, mask, sharpness=self.config.sharpness
            )
            total = (similarities * exists).sum(dim=-1)
            means.append(total / exists.sum(dim=-1).clamp_min(1.0))
        return sentence, means[0], means[1]

    def coarse_vectors(self, features: TextFeatures | VideoFeatures) -> Float[Tensor, "n dim"]:
        """Return unit texts or pooled videos: the first of the three levels."""
        if isinstance(features, TextFeatures):
            return F.normalize(features.sentence, dim=-1)
        return unit_videos(features)

    def joint_vectors(self, features: TextFeatures | VideoFeatures) -> Float[Tensor, "n joint_dim"]:
        return self.coarse_vectors(features)

    def frame_scores(
        self, text: TextFeatures, video: VideoFeatures
    ) -> Float[Tensor, "texts videos frames"]:
        """Score each frame by the best of the text and its nouns."""
        if text.words is None or text.words_mask is None:
            raise UsageError("the texts have no nodes; encode them with encode_text")
        first = self.config.num_verbs
        nouns = torch.cat([text.sentence[:, None], text.words[:, first:]], dim=1)
        exists = torch.cat(
            [text.words_mask.new_ones(len(nouns), 1), text.words_mask[:, first:]], dim=1
        )
        frames = F.normalize(video.frames, dim=-1)
        cosines = torch.einsum("tnd,vfd->tvfn", F.normalize(nouns, dim=-1), frames)
        best = cosines.masked_fill(~exists[:, None, None], float("-inf")).amax(dim=-1)
        return best.masked_fill(~video.mask[None], float("-inf"))
