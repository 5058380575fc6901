"""Straightforward re-creations of the released training step and scoring loop, for comparison.

They do what the authors' code does, without the optimizations of this package: every pair gets its
own copy of the frames, of the candidates and of a full adjacency for each relation; noise is drawn
on the host; both graph layers compute all messages, although only the edge weights of the last are
used. In training, the Langevin chain also goes through autograd, attention is unfused, and tower
weights and Adam state are fp16. Scoring takes the weights of one of our models, in batches of
8 texts x 8 videos, so that its scores can be compared.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from eaglenet.core.types import PairBatch, TextFeatures, VideoFeatures
from eaglenet.encoders.clip import ClipEncoder
from eaglenet.methods.eaglenet import EagleNet

BATCH = 8


class RepeatedGraphLayer(nn.Module):
    """RGAT over [pairs, nodes, dim] with a dense adjacency [pairs, relations, nodes, nodes]."""

    def __init__(self, dim: int, *, heads: int, head_dim: int, is_last: bool) -> None:
        super().__init__()
        self.heads, self.head_dim, self.is_last = heads, head_dim, is_last
        self.projections = nn.ModuleList(
            nn.Linear(dim, heads * head_dim, bias=False) for _ in range(3)
        )
        self.left = nn.ParameterList(nn.Parameter(0.05 * torch.randn(head_dim)) for _ in range(3))
        self.right = nn.ParameterList(nn.Parameter(0.05 * torch.randn(head_dim)) for _ in range(3))
        self.residual = nn.Linear(dim, head_dim, bias=False)

    def forward(self, nodes: Tensor, adjacency: Tensor) -> tuple[Tensor, Tensor]:
        total = self.residual(nodes)[:, :, None]
        edges = []
        for index in range(3):
            heads = self.projections[index](nodes).unflatten(-1, (self.heads, self.head_dim))
            scores = (heads @ self.left[index]).transpose(1, 2)[..., None]
            scores = scores + (heads @ self.right[index]).transpose(1, 2)[:, :, None]
            scores = F.leaky_relu(scores, 0.1)  # [pairs, heads, nodes, nodes]
            near = adjacency[:, index, None]
            weights = scores.masked_fill(near == 0, -6e4).softmax(dim=-1) * near
            total = total + torch.einsum("phij,pjhd->pihd", weights, heads)
            edges.append(scores)
        output = total.mean(dim=2) if self.is_last else F.relu(total.flatten(2))
        return output, edges[1]


class ReleasedLoop(nn.Module):
    """Towers and head of the released code, with the loss of a training step."""

    def __init__(self, encoder: ClipEncoder, *, num_frames: int) -> None:
        super().__init__()
        dim = encoder.dim
        self.encoder = encoder
        self.num_frames, self.candidates, self.steps = num_frames, 20, 20
        self.radius = nn.Linear(num_frames, dim)
        self.position = nn.Parameter(torch.randn(num_frames, dim))
        self.graph = nn.ModuleList(
            [
                RepeatedGraphLayer(dim, heads=4, head_dim=dim // 4, is_last=False),
                RepeatedGraphLayer(dim, heads=4, head_dim=dim, is_last=True),
            ]
        )
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(3))
        self.maps = nn.ModuleList(nn.Linear(dim, dim) for _ in range(5))
        self.energy_map = nn.Linear(dim, dim)
        self.temperature = nn.Parameter(torch.tensor(4.77))
        self.bias = nn.Parameter(torch.tensor(-12.93))

    def loss(self, batch: PairBatch) -> Tensor:
        text = self.encoder.encode_text(batch.texts).sentence.float()
        frames = self.encoder.encode_video(batch.videos).frames.float()
        texts, videos, dim = len(text), len(frames), text.shape[-1]
        # Every pair gets its own copy of everything.
        pair_text = text[:, None].expand(-1, videos, -1).reshape(-1, dim)
        pair_frames = frames[None].expand(texts, -1, -1, -1).reshape(-1, *frames.shape[1:])
        similarity = F.cosine_similarity(pair_text[:, None], pair_frames, dim=-1)
        radius = self.radius(similarity).exp()
        noise = torch.rand(self.candidates, len(pair_text), dim).to(text.device)
        candidates = (pair_text + radius * noise).transpose(0, 1)
        nodes = torch.cat([pair_frames + self.position, pair_text[:, None], candidates], dim=1)
        adjacency = self._adjacency(nodes.device).repeat(len(nodes), 1, 1, 1)
        states, _ = self.graph[0](nodes, adjacency)
        states = F.dropout(states, 0.5)
        _, edges = self.graph[1](states, adjacency)
        block = edges.mean(dim=1)[:, : self.num_frames, self.num_frames :]
        weights = block.mean(dim=1).softmax(dim=-1)
        enriched_text = torch.einsum("pn,pnd->pd", weights, nodes[:, self.num_frames :])
        pooled_video = self._pool(enriched_text, pair_frames)
        scores = F.cosine_similarity(enriched_text, pooled_video, dim=-1).view(texts, videos)
        pointer = F.normalize(F.normalize(pooled_video, dim=-1) - pair_text, dim=-1)
        support = pair_text + pointer * radius
        support_scores = F.cosine_similarity(support, pooled_video, dim=-1).view(texts, videos)
        total = self._sigmoid(scores) + 0.8 * self._sigmoid(support_scores)
        return total + self._energy(text, frames) + self._energy(F.normalize(text, dim=-1), frames)

    def _adjacency(self, device: torch.device) -> Tensor:
        kind = torch.arange(self.num_frames + 1 + self.candidates) < self.num_frames
        frame_frame = kind[:, None] & kind[None, :]
        text_text = ~kind[:, None] & ~kind[None, :]
        blocks = torch.stack([text_text, ~(frame_frame | text_text), frame_frame])
        return blocks.float().to(device)[None]

    def _pool(self, query: Tensor, frames: Tensor) -> Tensor:
        query = self.maps[0](self.norms[0](query))
        inputs = self.norms[0](frames)
        logits = torch.einsum("pd,pfd->pf", query, self.maps[1](inputs)) / query.shape[-1] ** 0.5
        values = torch.einsum("pf,pfd->pd", logits.softmax(dim=-1), self.maps[2](inputs))
        values = self.norms[1](self.maps[3](values))
        return self.norms[2](values + F.dropout(self.maps[4](values), 0.3))

    def _sigmoid(self, scores: Tensor) -> Tensor:
        label = 2 * torch.eye(len(scores), device=scores.device) - 1
        logits = self.temperature.exp() * scores + self.bias
        return -F.logsigmoid(label * logits).sum() / len(scores)

    def energies(self, text: Tensor, frames: Tensor) -> Tensor:
        """Return the bilinear energy of each pair, averaged over frames."""
        query = self.energy_map(F.normalize(text, dim=-1))
        return -torch.einsum("pd,pfd->pf", query, F.normalize(frames, dim=-1)).mean(dim=1)

    def chain(self, text: Tensor, frames: Tensor) -> tuple[Tensor, Tensor]:
        """Run Langevin steps through autograd, with noise from the host."""
        for parameter in self.energy_map.parameters():
            parameter.requires_grad_(False)
        for _ in range(self.steps):
            text = text.detach().requires_grad_()
            frames = frames.detach().requires_grad_()
            self.energies(text, frames).sum().backward()  # type: ignore[no-untyped-call]
            assert text.grad is not None
            assert frames.grad is not None
            text = text.data - text.grad + 0.005 * torch.randn(text.shape).to(text.device)
            frames = frames.data - frames.grad + 0.005 * torch.randn(frames.shape).to(text.device)
        for parameter in self.energy_map.parameters():
            parameter.requires_grad_(True)
        return text, frames

    def _energy(self, text: Tensor, frames: Tensor) -> Tensor:
        start = torch.rand(text.shape).to(text.device), torch.rand(frames.shape).to(text.device)
        samples = self.energies(*self.chain(*start))
        query = self.energy_map(F.normalize(text, dim=-1))
        every = -torch.einsum("td,vfd->tvf", query, F.normalize(frames, dim=-1)).mean(dim=-1)
        own = every.diagonal()
        others = every[~torch.eye(len(every), dtype=torch.bool, device=every.device)]
        in_batch = own.mean() - others.mean() + own.square().mean() + others.square().mean()
        from_chain = own.mean() - samples.mean() + own.square().mean() + samples.square().mean()
        return 0.5 * (in_batch + from_chain)


class ReleasedScoring(nn.Module):
    """Scoring of a model in the released configuration, as in the released code."""

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
        first_layer = graph.layers[0]
        for index, name in enumerate(("text_text", "text_frame", "frame_frame")):
            take_relation(first, index, getattr(first_layer, name))
        first.residual.weight = first_layer.residual.weight  # type: ignore[assignment, union-attr]
        take_relation(last, 1, graph.edges.relation)
        self.layers = nn.ModuleList([first, last]).to(method.noise.device)
        kind = torch.arange(self.num_frames + 1 + self.candidates) < self.num_frames
        frame_frame, text_text = kind[:, None] & kind, ~kind[:, None] & ~kind
        blocks = torch.stack([text_text, ~(frame_frame | text_text), frame_frame])
        self.register_buffer("adjacency", blocks.float().to(method.noise.device))

    def score_all(self, text: TextFeatures, video: VideoFeatures, bank: Tensor | None) -> Tensor:
        """Score all pairs in batches; ``bank`` replaces the random noise."""
        rows = []
        for vectors in text.sentence.split(BATCH):
            row = [self.batch(vectors, frames, bank).cpu() for frames in video.frames.split(BATCH)]
            rows.append(torch.cat(row, dim=1))
        return torch.cat(rows)

    def batch(self, text: Tensor, frames: Tensor, bank: Tensor | None) -> Tensor:
        texts, videos, dim = len(text), len(frames), text.shape[-1]
        pair_text = text[:, None].expand(-1, videos, -1).reshape(-1, dim)
        pair_frames = frames[None].expand(texts, -1, -1, -1).reshape(-1, *frames.shape[1:])
        similarity = F.cosine_similarity(pair_text[:, None], pair_frames, dim=-1)
        radius = self.log_radius(similarity).exp()
        noise = torch.rand(self.candidates, len(pair_text), dim).to(text.device)
        if bank is not None:
            noise = bank[:, None].expand_as(noise)
        candidates = (pair_text + radius * noise).transpose(0, 1)
        frame_nodes = pair_frames if self.position is None else pair_frames + self.position
        nodes = torch.cat([frame_nodes, pair_text[:, None], candidates], dim=1)
        adjacency = self.adjacency.repeat(len(nodes), 1, 1, 1)
        states, _ = self.layers[0](nodes, adjacency)
        _, edges = self.layers[1](states, adjacency)
        block = edges.mean(dim=1)[:, : self.num_frames, self.num_frames :]
        weights = block.mean(dim=1).softmax(dim=-1)
        enriched_text = torch.einsum("pn,pnd->pd", weights, nodes[:, self.num_frames :])
        pooled_video = self._pool(enriched_text, pair_frames)
        scores = F.cosine_similarity(enriched_text, pooled_video, dim=-1)
        return scores.float().view(texts, videos)

    def _pool(self, query: Tensor, frames: Tensor) -> Tensor:
        pooling = self.pooling
        inputs = pooling.input_norm(frames)
        query = pooling.query(pooling.input_norm(query))
        logits = torch.einsum("pd,pfd->pf", query, pooling.key(inputs)) / query.shape[-1] ** 0.5
        values = torch.einsum("pf,pfd->pd", logits.softmax(dim=-1), pooling.value(inputs).float())
        values = pooling.attention_norm(pooling.output(values))
        result: Tensor = pooling.output_norm(values + pooling.feed_forward(values))
        return result


def take_relation(layer: RepeatedGraphLayer, index: int, relation: nn.Module) -> None:
    """Use the weights of ``relation`` for relation ``index`` of a repeated layer."""
    layer.projections[index].weight = relation.projection.weight  # type: ignore[assignment, union-attr]
    layer.left[index] = relation.query
    layer.right[index] = relation.key
