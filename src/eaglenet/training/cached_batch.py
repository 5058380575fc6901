"""A contrastive batch larger than memory: the loss and gradients of the whole, encoded in pieces.

1. Encode every piece without a graph and keep its features (and the random state it began with).
2. Compute the loss on all features; its gradient with respect to the features is small to keep.
3. Encode every piece again, now with a graph and the same random state, and send the kept feature
   gradients through it.

The sum over pieces of J_piece^T dL/dfeatures_piece is the gradient of the whole batch, exactly;
summing the losses of small batches is not, because each would see fewer negatives.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from eaglenet.tensor_record import TensorRecord
from eaglenet.types import Losses, PairBatch, TextFeatures, VideoFeatures

Encode = Callable[[PairBatch], tuple[TextFeatures, VideoFeatures]]
ComputeLosses = Callable[[TextFeatures, VideoFeatures], Losses]
Features = tuple[TextFeatures, VideoFeatures]


def split_batch(batch: PairBatch, num_pieces: int) -> list[PairBatch]:
    """Cut a batch into ``num_pieces`` of nearly equal size."""
    rows = torch.arange(len(batch.video_ids), device=batch.video_ids.device)
    return [
        PairBatch(batch.texts[part], batch.videos[part], batch.video_ids[part])
        for part in rows.tensor_split(num_pieces)
        if len(part)
    ]


def backward_in_pieces(
    pieces: Sequence[PairBatch],
    encode: Encode,
    compute_losses: ComputeLosses,
) -> Losses:
    """Losses of the joined ``pieces``, with the gradients of all parameters accumulated."""
    device = pieces[0].video_ids.device
    parts: list[Features] = []
    random_states: list[RandomState] = []
    with torch.no_grad():
        for piece in pieces:
            random_states.append(RandomState.capture(device))
            parts.append(encode(piece))
    text = _leaves(TextFeatures.concatenate([part[0] for part in parts]))
    video = _leaves(VideoFeatures.concatenate([part[1] for part in parts]))
    losses = compute_losses(text, video)
    losses.total.backward()
    start = 0
    for piece, random_state in zip(pieces, random_states, strict=True):
        rows = slice(start, start + len(piece.video_ids))
        start = rows.stop
        with random_state.replayed():
            again = encode(piece)
        outputs: list[Tensor] = []
        gradients: list[Tensor] = []
        for whole, part in zip((text, video), again, strict=True):
            for leaf, output in zip(_floats(whole), _floats(part), strict=True):
                if output.requires_grad and leaf.grad is not None:
                    outputs.append(output)
                    gradients.append(leaf.grad[rows])
        if outputs:
            torch.autograd.backward(outputs, gradients)
    return Losses(
        {name: value.detach() for name, value in losses.terms.items()}, dict(losses.weights)
    )


def _leaves(record: Any) -> Any:
    def leaf(value: Tensor) -> Tensor:
        return value.detach().requires_grad_() if value.is_floating_point() else value

    return record.map_tensors(leaf)


def _floats(record: TensorRecord) -> list[Tensor]:
    return [value for value in record.tensors() if value.is_floating_point()]


@dataclasses.dataclass(frozen=True)
class RandomState:
    """The default generators of the CPU and, where there is one, of a GPU."""

    cpu: Tensor
    cuda: Tensor | None
    device: torch.device

    @classmethod
    def capture(cls, device: torch.device) -> RandomState:
        cuda = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
        return cls(torch.get_rng_state(), cuda, device)

    def restore(self) -> None:
        torch.set_rng_state(self.cpu)
        if self.cuda is not None:
            torch.cuda.set_rng_state(self.cuda, self.device)

    @contextmanager
    def replayed(self) -> Iterator[None]:
        """Run a block from this state, then go on from the present one."""
        present = RandomState.capture(self.device)
        self.restore()
        try:
            yield
        finally:
            present.restore()
