"""One training step: encode, gather, losses, backward. No host synchronisation anywhere in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, cast

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
from eaglenet.research.training.augmentation import augment
from eaglenet.research.training.config import Precision, TrainingConfig
from eaglenet.research.training.distributed import World, gather, gather_tensor

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
    gpus = [device] if device.type == "cuda" else []
    parts: list[Features] = []
    random_states: list[list[Tensor]] = []
    with torch.no_grad():
        for piece in pieces:
            random_states.append([torch.get_rng_state(), *map(torch.cuda.get_rng_state, gpus)])
            parts.append(encode(piece))
    text = _leaves(TextFeatures.concatenate([part[0] for part in parts]))
    video = _leaves(VideoFeatures.concatenate([part[1] for part in parts]))
    losses = compute_losses(text, video)
    losses.total.backward()
    start = 0
    for piece, (random_state, *gpu_states) in zip(pieces, random_states, strict=True):
        rows = slice(start, start + len(piece.video_ids))
        start = rows.stop
        with torch.random.fork_rng(gpus):
            torch.set_rng_state(random_state)
            for gpu_state in gpu_states:
                torch.cuda.set_rng_state(gpu_state, device)
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
    return _detached(losses)


def _detached(losses: Losses) -> Losses:
    terms = {name: value.detach() for name, value in losses.terms.items()}
    return Losses(terms, dict(losses.weights))


def _leaves(record: Any) -> Any:
    def leaf(value: Tensor) -> Tensor:
        return value.detach().requires_grad_() if value.is_floating_point() else value

    return record.map_tensors(leaf)


def _floats(record: TensorRecord) -> list[Tensor]:
    return [value for value in record.tensors() if value.is_floating_point()]


HALF_TYPES = (torch.bfloat16, torch.float16)


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


def training_losses(
    method: Method,
    batch: PairBatch,
    config: TrainingConfig,
    world: World,
    *,
    seed: int = 0,
    is_coarse: bool = False,
) -> Losses:
    """Forward and backward pass: losses of the joined batch; gradients lie in the parameters.

    Gradients of several ranks still have to be averaged (``distributed.average_gradients``).
    ``seed`` sets the default generators once for encoding and once for the losses, so that the
    noise of the losses does not depend on how the batch was shared or cut for encoding.
    ``is_coarse`` takes :func:`coarse_losses` instead of the method's own.
    """
    step = Step(method, config, world, seed, is_coarse)
    with fast_products(batch.video_ids.device, config.precision):
        torch.manual_seed(2 * seed)
        batch = augment(batch, config.augment, method.frame_spec.num_frames)
        if config.accumulate == 1:
            return step.backward(batch)
        pieces = split_batch(batch, config.accumulate)
        if config.accumulation == "whole":
            return backward_in_pieces(
                pieces, step.encode, lambda text, video: step.losses(text, video, batch.video_ids)
            )
        parts = [
            replace(step, seed=seed + index).backward(piece, 1.0 / len(pieces))
            for index, piece in enumerate(pieces)
        ]
    means = {
        name: torch.stack([part.terms[name] for part in parts]).mean() for name in parts[0].terms
    }
    return Losses(means, parts[0].weights)


@dataclass(frozen=True)
class Step:
    """The parts of a training step; see :func:`training_losses`."""

    method: Method
    config: TrainingConfig
    world: World
    seed: int
    is_coarse: bool

    def encode(self, batch: PairBatch) -> Features:
        """Features of a batch; whatever the towers computed in, they come out at least in fp32."""
        with autocast(batch.video_ids.device, self.config.precision):
            text = self.method.encode_text(batch.texts)
            video = self.method.encode_video(batch.videos)
            if self.method.needs_ids:
                video = replace(video, ids=batch.video_ids)
        return _widened(text), _widened(video)

    def losses(self, text: TextFeatures, video: VideoFeatures, video_ids: Tensor) -> Losses:
        """Losses of the features of all ranks."""
        joined_ids = gather_tensor(video_ids, self.world)
        if self.config.positives == "own_pair":
            joined_ids = torch.arange(len(joined_ids), device=joined_ids.device)
        positives = joined_ids[:, None] == joined_ids[None, :]
        joined_text = gather(text, self.world, self.config.gradients)
        joined_video = gather(video, self.world, self.config.gradients)
        torch.manual_seed(2 * self.seed + 1)
        if self.is_coarse:
            return coarse_losses(self.method, joined_text, joined_video, positives)
        return self.method.losses(joined_text, joined_video, positives)

    def backward(self, batch: PairBatch, scale: float = 1.0) -> Losses:
        losses = self.losses(*self.encode(batch), batch.video_ids)
        (losses.total * scale).backward()
        return _detached(losses)


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
