"""A straightforward re-creation of the released scoring loop, written by us to measure against.

Batches of 8 texts x 8 videos; every pair gets its own copy of the frames, of the candidates and of
a full adjacency for each relation; noise is drawn on the host; both graph layers compute all
messages although only edge weights of the last are read. It takes its weights from one of our
models, so that its scores can be compared.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from eaglenet.core.types import TextFeatures, VideoFeatures
from eaglenet.methods.eaglenet import EagleNet
from released_loop import RepeatedGraphLayer

BATCH = 8


class ReleasedScoring(nn.Module):
    """Scores of a model in the released configuration, as the released code computes them."""

    def __init__(self, method: EagleNet) -> None:
        super().__init__()
        config, graph = method.config, method.graph
        if graph is None or config.mask_frames or config.head_size != "split":
            raise ValueError("the released code has no such configuration; take a released preset")
        self.num_frames, self.candidates = config.num_frames, config.num_candidates
        self.log_radius, self.pooling = method.stochastic.log_radius, method.pooling
        self.position = graph.position
        dim, heads = config.dim, config.num_heads
        first = RepeatedGraphLayer(dim, heads=heads, head_dim=dim // heads, is_last=False)
        last = RepeatedGraphLayer(dim, heads=heads, head_dim=dim, is_last=True)
        hidden = graph.layers[0]
        for index, name in enumerate(("text_text", "text_frame", "frame_frame")):
            take_relation(first, index, getattr(hidden, name))
        first.residual.weight = hidden.residual.weight  # type: ignore[assignment, union-attr]
        take_relation(last, 1, graph.edges.relation)
        self.layers = nn.ModuleList([first, last]).to(method.noise.device)
        kind = torch.arange(self.num_frames + 1 + self.candidates) < self.num_frames
        frame_frame, text_text = kind[:, None] & kind, ~kind[:, None] & ~kind
        blocks = torch.stack([text_text, ~(frame_frame | text_text), frame_frame])
        self.register_buffer("adjacency", blocks.float().to(method.noise.device))

    def score_all(self, text: TextFeatures, video: VideoFeatures, bank: Tensor | None) -> Tensor:
        """Scores on the host, a batch at a time; ``bank`` replaces the noise, to compare scores."""
        rows = []
        for sentences in text.sentence.split(BATCH):
            row = [
                self.batch(sentences, frames, bank).cpu() for frames in video.frames.split(BATCH)
            ]
            rows.append(torch.cat(row, dim=1))
        return torch.cat(rows)

    def batch(self, sentences: Tensor, frames: Tensor, bank: Tensor | None) -> Tensor:
        texts, videos, dim = len(sentences), len(frames), sentences.shape[-1]
        pair_text = sentences[:, None].expand(-1, videos, -1).reshape(-1, dim)
        pair_frames = frames[None].expand(texts, -1, -1, -1).reshape(-1, *frames.shape[1:])
        similarity = F.cosine_similarity(pair_text[:, None], pair_frames, dim=-1)
        radius = self.log_radius(similarity).exp()
        noise = torch.rand(self.candidates, len(pair_text), dim).to(sentences.device)
        if bank is not None:
            noise = bank[:, None].expand_as(noise)
        drawn = (pair_text + radius * noise).transpose(0, 1)
        placed = pair_frames if self.position is None else pair_frames + self.position
        nodes = torch.cat([placed, pair_text[:, None], drawn], dim=1)
        adjacency = self.adjacency.repeat(len(nodes), 1, 1, 1)
        hidden, _ = self.layers[0](nodes, adjacency)
        _, edges = self.layers[1](hidden, adjacency)
        block = edges.mean(dim=1)[:, : self.num_frames, self.num_frames :]
        weights = block.mean(dim=1).softmax(dim=-1)
        enriched = torch.einsum("pn,pnd->pd", weights, nodes[:, self.num_frames :])
        pooled = self._pool(enriched, pair_frames)
        return F.cosine_similarity(enriched, pooled, dim=-1).float().view(texts, videos)

    def _pool(self, query: Tensor, frames: Tensor) -> Tensor:
        pooling = self.pooling
        normed = pooling.input_norm(frames)
        asked = pooling.query(pooling.input_norm(query))
        logits = torch.einsum("pd,pfd->pf", asked, pooling.key(normed)) / asked.shape[-1] ** 0.5
        mixed = torch.einsum("pf,pfd->pd", logits.softmax(dim=-1), pooling.value(normed).float())
        mixed = pooling.attention_norm(pooling.output(mixed))
        pooled: Tensor = pooling.output_norm(mixed + pooling.feed_forward(mixed))
        return pooled


def take_relation(layer: RepeatedGraphLayer, index: int, relation: nn.Module) -> None:
    """Use a relation's weights for relation ``index`` of a repeated layer."""
    layer.projections[index].weight = relation.projection.weight  # type: ignore[assignment, union-attr]
    layer.left[index] = relation.query
    layer.right[index] = relation.key
