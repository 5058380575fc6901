"""One training step: encode, gather, losses, backward. No host synchronisation anywhere in it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

import torch
from torch import Tensor

from eaglenet.core.errors import NonFiniteError
from eaglenet.core.types import (
    HasLogitScale,
    Losses,
    PairBatch,
    TensorRecord,
    TextFeatures,
    VideoFeatures,
)
from eaglenet.losses import cross_entropy
from eaglenet.methods.base import Method
from eaglenet.research.training.augmentation import Augmentation, augment
from eaglenet.research.training.distributed import GatherGradients, World, gather, gather_tensor

# A contrastive batch larger than memory: the loss and gradients of the whole, encoded in pieces.

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


Precision = Literal["auto", "bf16", "fp32", "fp16_weights"]
Accumulation = Literal["whole", "split"]
Positives = Literal["same_video", "own_pair"]
Objective = Literal["method", "coarse"]
HALF_TYPES = (torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class StepOptions:
    """Settings of a training step. ``precision`` and ``accumulate`` only change rounding.

    accumulate: number of pieces the batch is encoded in.
    positives: which pairs are right: all captions of a video, or (released code) a caption's own
        pair alone, so that two captions of one video are negatives of each other.
    accumulation: ``whole`` keeps the whole contrastive batch; ``split`` averages the losses of the
        pieces, each with its own smaller matrix (the released DiDeMo setting: 16 of 64 pairs).
    objective: the method's own losses, or :func:`coarse_losses`.
    gradients: of features that several processes gather, see `training.distributed`.
    augment, num_frames: see `training.augmentation`; None takes all frames that are given.
    """

    precision: Precision = "auto"
    accumulate: int = 1
    accumulation: Accumulation = "whole"
    positives: Positives = "same_video"
    objective: Objective = "method"
    gradients: GatherGradients = "sum"
    augment: Augmentation = "none"
    num_frames: int | None = None


def autocast(device: torch.device, precision: Precision) -> AbstractContextManager[Any]:
    """bf16 autocast over fp32 weights on a GPU; plain fp32 on a CPU unless bf16 is asked for.

    ``fp16_weights`` is for towers whose matrices are stored in fp16 (``halve_towers``).
    """
    if precision == "fp16_weights":
        return torch.autocast(device.type, torch.float16)
    is_half = precision == "bf16" or (precision == "auto" and device.type == "cuda")
    return torch.autocast(device.type, torch.bfloat16) if is_half else nullcontext()


@contextmanager
def fast_products(device: torch.device, precision: Precision) -> Iterator[None]:
    """TF32 for the fp32 products of the head, where the towers run in half precision anyway."""
    if device.type != "cuda" or precision == "fp32":
        yield
        return
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def encode_pairs(
    method: Method, batch: PairBatch, precision: Precision = "auto"
) -> tuple[TextFeatures, VideoFeatures]:
    """Features of a batch; whatever the towers computed in, they come out at least in fp32."""
    with autocast(batch.video_ids.device, precision):
        text = method.encode_text(batch.texts)
        video = method.encode_video(batch.videos)
        if method.needs_ids:
            video = replace(video, ids=batch.video_ids)
    return _widened(text), _widened(video)


def training_losses(
    method: Method, batch: PairBatch, options: StepOptions, world: World, *, seed: int = 0
) -> Losses:
    """Forward and backward pass: losses of the joined batch; gradients lie in the parameters.

    Gradients of several ranks still have to be averaged (``distributed.average_gradients``).
    ``seed`` sets the default generators once for encoding and once for the losses, so that the
    noise of the losses does not depend on how the batch was shared or cut for encoding.
    """
    with fast_products(batch.video_ids.device, options.precision):
        return _training_losses(method, batch, options, world, seed)


def _training_losses(
    method: Method, batch: PairBatch, options: StepOptions, world: World, seed: int
) -> Losses:
    torch.manual_seed(2 * seed)
    batch = augment(batch, options.augment, options.num_frames)
    if options.accumulate > 1 and options.accumulation == "split":
        return _backward_split(method, batch, options, world, seed)
    if options.accumulate > 1:
        return backward_in_pieces(
            split_batch(batch, options.accumulate),
            lambda piece: encode_pairs(method, piece, options.precision),
            lambda text, video: _joined_losses(
                method, text, video, batch.video_ids, world, options, seed
            ),
        )
    return _backward(method, batch, options, world, seed, 1.0)


def _backward(
    method: Method,
    batch: PairBatch,
    options: StepOptions,
    world: World,
    seed: int,
    scale: float,
) -> Losses:
    text, video = encode_pairs(method, batch, options.precision)
    losses = _joined_losses(method, text, video, batch.video_ids, world, options, seed)
    (losses.total * scale).backward()
    detached = {name: value.detach() for name, value in losses.terms.items()}
    return Losses(detached, dict(losses.weights))


def _backward_split(
    method: Method, batch: PairBatch, options: StepOptions, world: World, seed: int
) -> Losses:
    pieces = split_batch(batch, options.accumulate)
    parts = [
        _backward(method, piece, options, world, seed + index, 1.0 / len(pieces))
        for index, piece in enumerate(pieces)
    ]
    means = {
        name: torch.stack([part.terms[name] for part in parts]).mean() for name in parts[0].terms
    }
    return Losses(means, parts[0].weights)


def _joined_losses(
    method: Method,
    text: TextFeatures,
    video: VideoFeatures,
    video_ids: Tensor,
    world: World,
    options: StepOptions,
    seed: int,
) -> Losses:
    joined_ids = gather_tensor(video_ids, world)
    if options.positives == "own_pair":
        joined_ids = torch.arange(len(joined_ids), device=joined_ids.device)
    positives = joined_ids[:, None] == joined_ids[None, :]
    joined_text = gather(text, world, options.gradients)
    joined_video = gather(video, world, options.gradients)
    torch.manual_seed(2 * seed + 1)
    if options.objective == "coarse":
        return coarse_losses(method, joined_text, joined_video, positives)
    return method.losses(joined_text, joined_video, positives)


def coarse_losses(
    method: Method, text: TextFeatures, video: VideoFeatures, positives: Tensor
) -> Losses:
    """Softmax loss of the cosines of coarse vectors, at the encoder's own temperature.

    It brings towers that never met into one space before a head learns on top of them: the part
    that CLIP's training plays in the paper.
    """
    scale = cast(HasLogitScale, method.encoder).logit_scale.detach().exp()
    logits = scale * method.coarse_vectors(text) @ method.coarse_vectors(video).T
    loss = (cross_entropy(logits, positives) + cross_entropy(logits.T, positives.T)) / 2
    return Losses({"coarse": loss}, {"coarse": 1.0})


def _widened(features: Any) -> Any:
    return features.map_tensors(lambda value: value.float() if value.dtype in HALF_TYPES else value)


class FiniteWatch:
    """Remembers on the device the first step at which each term was not finite.

    Looking is cheap and asynchronous; :meth:`check` copies one small tensor to the host and raises.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.names: tuple[str, ...] = ()
        self.first_bad = torch.empty(0, dtype=torch.long, device=device)

    def look(self, step: int, values: dict[str, Tensor]) -> None:
        names = tuple(values)
        if names != self.names:
            self.check()
            self.names = names
            self.first_bad = torch.full((len(names),), -1, dtype=torch.long, device=self.device)
        bad = ~torch.stack([value.detach() for value in values.values()]).isfinite()
        self.first_bad = torch.where(bad & (self.first_bad < 0), step, self.first_bad)

    def check(self) -> None:
        """Raise if any term has been NaN or infinite so far."""
        bad_terms = [
            (step, name)
            for step, name in zip(self.first_bad.tolist(), self.names, strict=True)
            if step >= 0
        ]
        if not bad_terms:
            return
        first = min(step for step, _ in bad_terms)
        names = ", ".join(name for step, name in bad_terms if step == first)
        raise NonFiniteError(
            f"{names} became NaN or infinite at step {first}; training stopped and no checkpoint "
            "was written after it: lower the learning rates, or look at the data of that step"
        )
