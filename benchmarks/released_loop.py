"""A straightforward re-creation of the released training step, written by us to measure against.

It does what the authors' loop does and none of what makes ours fast: every pair gets its own copy
of the frames, of the candidates and of a full adjacency for each relation; noise is drawn on the
host; both graph layers compute all messages although only edge weights of the last are read; the
Langevin chain goes through autograd; attention is eager; tower weights and Adam state are fp16.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from eaglenet.core.types import PairBatch
from eaglenet.encoders.clip import ClipEncoder


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
            hidden = self.projections[index](nodes).unflatten(-1, (self.heads, self.head_dim))
            scores = (hidden @ self.left[index]).transpose(1, 2)[..., None]
            scores = scores + (hidden @ self.right[index]).transpose(1, 2)[:, :, None]
            scores = F.leaky_relu(scores, 0.1)  # [pairs, heads, nodes, nodes]
            near = adjacency[:, index, None]
            weights = scores.masked_fill(near == 0, -6e4).softmax(dim=-1) * near
            total = total + torch.einsum("phij,pjhd->pihd", weights, hidden)
            edges.append(scores)
        merged = total.mean(dim=2) if self.is_last else F.relu(total.flatten(2))
        return merged, edges[1]


class ReleasedLoop(nn.Module):
    """Towers and head of the released code, as one module with one ``loss``."""

    def __init__(
        self, encoder: ClipEncoder, *, num_frames: int, candidates: int = 20, steps: int = 20
    ) -> None:
        super().__init__()
        dim = encoder.dim
        self.encoder = encoder
        self.num_frames, self.candidates, self.steps = num_frames, candidates, steps
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
        drawn = (pair_text + radius * noise).transpose(0, 1)
        nodes = torch.cat([pair_frames + self.position, pair_text[:, None], drawn], dim=1)
        adjacency = self._adjacency(nodes.device).repeat(len(nodes), 1, 1, 1)
        hidden, _ = self.graph[0](nodes, adjacency)
        hidden = F.dropout(hidden, 0.5)
        _, edges = self.graph[1](hidden, adjacency)
        block = edges.mean(dim=1)[:, : self.num_frames, self.num_frames :]
        weights = block.mean(dim=1).softmax(dim=-1)
        enriched = torch.einsum("pn,pnd->pd", weights, nodes[:, self.num_frames :])
        pooled = self._pool(enriched, pair_frames)
        scores = F.cosine_similarity(enriched, pooled, dim=-1).view(texts, videos)
        pointer = F.normalize(F.normalize(pooled, dim=-1) - pair_text, dim=-1)
        support = pair_text + pointer * radius
        support_scores = F.cosine_similarity(support, pooled, dim=-1).view(texts, videos)
        total = self._sigmoid(scores) + 0.8 * self._sigmoid(support_scores)
        return total + self._energy(text, frames) + self._energy(F.normalize(text, dim=-1), frames)

    def _adjacency(self, device: torch.device) -> Tensor:
        kind = torch.arange(self.num_frames + 1 + self.candidates) < self.num_frames
        frame_frame = kind[:, None] & kind[None, :]
        text_text = ~kind[:, None] & ~kind[None, :]
        blocks = torch.stack([text_text, ~(frame_frame | text_text), frame_frame])
        return blocks.float().to(device)[None]

    def _pool(self, query: Tensor, frames: Tensor) -> Tensor:
        asked = self.maps[0](self.norms[0](query))
        normed = self.norms[0](frames)
        logits = torch.einsum("pd,pfd->pf", asked, self.maps[1](normed)) / asked.shape[-1] ** 0.5
        mixed = torch.einsum("pf,pfd->pd", logits.softmax(dim=-1), self.maps[2](normed))
        mixed = self.norms[1](self.maps[3](mixed))
        return self.norms[2](mixed + F.dropout(self.maps[4](mixed), 0.3))

    def _sigmoid(self, scores: Tensor) -> Tensor:
        label = 2 * torch.eye(len(scores), device=scores.device) - 1
        logits = self.temperature.exp() * scores + self.bias
        return -F.logsigmoid(label * logits).sum() / len(scores)

    def energies(self, text: Tensor, frames: Tensor) -> Tensor:
        """Bilinear energy of matched pairs, pooled over frames."""
        mapped = self.energy_map(F.normalize(text, dim=-1))
        return -torch.einsum("pd,pfd->pf", mapped, F.normalize(frames, dim=-1)).mean(dim=1)

    def chain(self, text: Tensor, frames: Tensor) -> tuple[Tensor, Tensor]:
        """Langevin steps through autograd, noise from the host."""
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
        drawn = self.energies(*self.chain(*start))
        mapped = self.energy_map(F.normalize(text, dim=-1))
        every = -torch.einsum("td,vfd->tvf", mapped, F.normalize(frames, dim=-1)).mean(dim=-1)
        own = every.diagonal()
        others = every[~torch.eye(len(every), dtype=torch.bool, device=every.device)]
        in_batch = own.mean() - others.mean() + own.square().mean() + others.square().mean()
        sampled = own.mean() - drawn.mean() + own.square().mean() + drawn.square().mean()
        return 0.5 * (in_batch + sampled)
