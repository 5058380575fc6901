"""HGR: a sentence as a graph of events, actions and things, each matched with frames."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from eaglenet.core.errors import ConfigError, UsageError
from eaglenet.core.types import (
    Clips,
    Encoder,
    Expert,
    Losses,
    RightPairs,
    TextFeatures,
    Tokens,
    VideoFeatures,
)
from eaglenet.layers.masking import masked_softmax
from eaglenet.layers.role_graph import RoleGraph, RolePooling, WordGRU
from eaglenet.losses.margin import margin_loss
from eaglenet.methods.base import METHODS, MethodSpec
from eaglenet.methods.early.expert_base import ExpertMethod, words_width

NUM_ROLES = 16
LEVELS = ("video", "verb", "noun")


@dataclass(frozen=True)
class HGRConfig:
    """Settings of HGR.

    num_verbs: nodes after the sentence that are verbs; the others are nouns.
    num_graph_layers: layers of attention over the edges of the graph.
    sharpness: of a node's attention over frames.
    """

    num_frames: int = 12
    dim: int = 512
    num_verbs: int = 4
    num_graph_layers: int = 1
    word_dropout: float = 0.2
    graph_dropout: float = 0.5
    frame_dropout: float = 0.2
    sharpness: float = 4.0
    margin: float = 0.2


def node_similarities(
    nodes: Float[Tensor, "texts nodes dim"],
    frames: Float[Tensor, "videos frames dim"],
    mask: Bool[Tensor, "videos frames"],
    *,
    sharpness: float,
) -> Float[Tensor, "texts videos nodes"]:
    r"""Cosine of each node with the frames that it attends to.

    .. math:: \beta_m = \mathrm{softmax}_m(4\,\mathrm{unit}_m([c_m]_+)), \quad c_m = \cos(n, f_m),
        \qquad \cos\Big(n, \sum_m \beta_m f_m\Big)

    The products of nodes and frames and the Gram matrix of the frames are all it takes: nothing is
    as wide as a frame and as many as the pairs.
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


class HGR(ExpertMethod):
    """``s`` is the mean of three levels: sentence and video, verbs and frames, nouns and frames.

    ``encode_text`` gives the sentence and in ``words`` the verbs and nouns; ``encode_video`` gives
    in ``video`` the pooled video and in ``tokens`` what verbs look at, then what nouns look at:
    the tokens of all experts, of which the paper has one. Texts need graphs (`data.role_graphs`):
    without them two thirds of the score would be nothing.

    Paper: words are frozen features instead of a fine-tuned table of GloVe vectors. Roles come from
    rules, not from a labelling BERT.
    """

    name = "hgr"
    config: HGRConfig

    def __init__(self, encoder: Encoder, config: HGRConfig) -> None:
        super().__init__(encoder, num_frames=config.num_frames)
        self.config = config
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

    def _encode_text(self, texts: Tokens | TextFeatures) -> TextFeatures:
        text, words, mask = self.read_text(texts)
        if text.graph is None:
            raise UsageError(
                "HGR reads graphs of verbs and nouns and these texts have none; write graphs.npz "
                "into the features folder (docs/how-to/experts.md)"
            )
        nodes, exists = self.graph(self.words(words, mask), mask, text.graph)
        return TextFeatures(
            sentence=nodes[:, 0],
            words=nodes[:, 1:] * exists[:, 1:, None].to(nodes.dtype),
            words_mask=exists[:, 1:],
        )

    def _encode_video(self, videos: Clips | VideoFeatures) -> VideoFeatures:
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
        """Every token of every expert through the map of its level; zeros where none is real."""
        parts = []
        for name, expert in experts.items():
            values = expert.values.masked_fill(~expert.mask[..., None], 0.0)
            vectors = self.dropout(self.maps[level][name](values))  # type: ignore[index]
            parts.append(vectors.masked_fill(~expert.mask[..., None], 0.0))
        return torch.cat(parts, dim=1)

    def score(self, text: TextFeatures, video: VideoFeatures) -> Float[Tensor, "texts videos"]:
        sentence, verbs, nouns = self.levels(text, video)
        return (sentence + verbs + nouns) / 3

    def levels(
        self, text: TextFeatures, video: VideoFeatures
    ) -> tuple[
        Float[Tensor, "texts videos"], Float[Tensor, "texts videos"], Float[Tensor, "texts videos"]
    ]:
        """Similarity of the sentence with the video, of verbs and of nouns with frames."""
        if text.words is None or text.words_mask is None:
            raise UsageError("texts without nodes: make them with encode_text")
        if video.video is None or video.tokens is None or video.tokens_mask is None:
            raise UsageError("videos without streams of tokens: make them with encode_video")
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

    def losses(self, text: TextFeatures, video: VideoFeatures, positives: RightPairs) -> Losses:
        scores = self.score(text, video)
        return Losses({"margin": margin_loss(scores, positives, self.config.margin, hardest=True)})

    def coarse_vectors(self, features: TextFeatures | VideoFeatures) -> Float[Tensor, "n dim"]:
        """Sentence and pooled video: the first of the three levels."""
        if isinstance(features, TextFeatures):
            return F.normalize(features.sentence, dim=-1)
        if features.video is None:
            raise UsageError("videos without a pooled vector: make them with encode_video")
        return F.normalize(features.video, dim=-1)

    def joint_vectors(self, features: TextFeatures | VideoFeatures) -> Float[Tensor, "n joint_dim"]:
        return self.coarse_vectors(features)

    def frame_scores(
        self, text: TextFeatures, video: VideoFeatures
    ) -> Float[Tensor, "texts videos frames"]:
        """The best of a sentence's nouns and itself at each frame."""
        if text.words is None or text.words_mask is None:
            raise UsageError("texts without nodes: make them with encode_text")
        first = self.config.num_verbs
        nouns = torch.cat([text.sentence[:, None], text.words[:, first:]], dim=1)
        exists = torch.cat(
            [text.words_mask.new_ones(len(nouns), 1), text.words_mask[:, first:]], dim=1
        )
        frames = F.normalize(video.frames, dim=-1)
        cosines = torch.einsum("tnd,vfd->tvfn", F.normalize(nouns, dim=-1), frames)
        best = cosines.masked_fill(~exists[:, None, None], float("-inf")).amax(dim=-1)
        return best.masked_fill(~video.mask[None], float("-inf"))

    @property
    def score_tile(self) -> tuple[int, int]:
        return (64, 64)


def build(config: HGRConfig, encoder: Encoder) -> HGR:
    """HGR on a folder whose texts have words and graphs."""
    if not hasattr(encoder, "experts"):
        raise ConfigError(
            "hgr needs words and graphs of sentences, which towers do not make; it cannot run on "
            "frozen features of frames and sentences alone: use encoder.kind=experts"
        )
    return HGR(encoder, config)


METHODS.add(
    HGR.name,
    MethodSpec(
        config_class=HGRConfig,
        build=build,
        paper="HGR (Chen et al., CVPR 2020)",
        checked="golden",
        reads_experts=True,
    ),
)
