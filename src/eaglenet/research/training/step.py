"""Training step: encode, gather, losses, backward; it does not synchronise with the device."""

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

Encode = Callable[[PairBatch], tuple[TextFeatures, VideoFeatures]]
ComputeLosses = Callable[[TextFeatures, VideoFeatures], Losses]
Features = tuple[TextFeatures, VideoFeatures]


def split_batch(batch: PairBatch, num_chunks: int) -> list[PairBatch]:
    """Split a batch into ``num_chunks`` of nearly equal size."""
    indices = torch.arange(len(batch.video_ids), device=batch.video_ids.device)
    return [
        PairBatch(batch.texts[chunk], batch.videos[chunk], batch.video_ids[chunk])
        for chunk in indices.tensor_split(num_chunks)
        if len(chunk)
    ]


def backward_in_chunks(
    chunks: Sequence[PairBatch],
    encode: Encode,
    compute_losses: ComputeLosses,
) -> Losses:
    """Compute the losses of a batch that does not fit into memory, and accumulate its gradients.

    Each chunk is encoded twice: without gradients for the losses of the whole batch, then with
    gradients, in the same random state.
    """
    device = chunks[0].video_ids.device
    gpus = [device] if device.type == "cuda" else []
    features: list[Features] = []
    random_states: list[list[Tensor]] = []
    with torch.no_grad():
        for chunk in chunks:
            random_states.append([torch.get_rng_state(), *map(torch.cuda.get_rng_state, gpus)])
            features.append(encode(chunk))
    text = _leaves(TextFeatures.concatenate([pair[0] for pair in features]))
    video = _leaves(VideoFeatures.concatenate([pair[1] for pair in features]))
    losses = compute_losses(text, video)
    losses.total.backward()
    start = 0
    for chunk, (random_state, *gpu_states) in zip(chunks, random_states, strict=True):
        rows = slice(start, start + len(chunk.video_ids))
        start = rows.stop
        with torch.random.fork_rng(gpus):
            torch.set_rng_state(random_state)
            for gpu_state in gpu_states:
                torch.cuda.set_rng_state(gpu_state, device)
            chunk_features = encode(chunk)
        outputs: list[Tensor] = []
        gradients: list[Tensor] = []
        for leaves, chunk_record in zip((text, video), chunk_features, strict=True):
            for leaf, output in zip(_floats(leaves), _floats(chunk_record), strict=True):
                if output.requires_grad and leaf.grad is not None:
                    outputs.append(output)
                    gradients.append(leaf.grad[rows])
        if outputs:
            torch.autograd.backward(outputs, gradients)
    return _detach(losses)


def _detach(losses: Losses) -> Losses:
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
    """Return the autocast context of a precision: ``auto`` is bf16 on a GPU, fp32 on a CPU.

    ``fp16_weights`` is for towers whose matrices are stored in fp16 (``halve_towers``).
    """
    if precision == "fp16_weights":
        return torch.autocast(device.type, torch.float16)
    is_half = precision in ("bf16", "fp8_gradients") or (
        precision == "auto" and device.type == "cuda"
    )
    return torch.autocast(device.type, torch.bfloat16) if is_half else nullcontext()


@contextmanager
def fast_products(device: torch.device, precision: Precision) -> Iterator[None]:
    """Use TF32 for fp32 products on a GPU, unless everything is computed in fp32."""
    if device.type != "cuda" or precision == "fp32":
        yield
        return
    previous = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(previous)


def training_losses(
    method: Method,
    batch: PairBatch,
    config: TrainingConfig,
    world: World,
    *,
    seed: int = 0,
    is_coarse: bool = False,
) -> Losses:
    """Compute the losses of the batch of all ranks, and the gradients of the parameters.

    With several ranks, gradients must then be averaged (``distributed.average_gradients``).
    ``seed`` sets the default generators once for encoding and once for the losses, so that the
    noise of the losses does not depend on how the batch is divided into ranks and chunks. Each rank
    augments and drops out its part of the batch in its own way.
    ``is_coarse`` uses :func:`coarse_losses` instead of the losses of the method.
    """
    step = Step(method, config, world, seed, is_coarse)
    with fast_products(batch.video_ids.device, config.precision):
        torch.manual_seed(encoding_seed(seed, world))
        batch = augment(batch, config.augment, method.frame_spec.num_frames)
        if config.accumulate == 1:
            return step.backward(batch)
        chunks = split_batch(batch, config.accumulate)
        if config.accumulation == "whole":
            return backward_in_chunks(
                chunks, step.encode, lambda text, video: step.losses(text, video, batch.video_ids)
            )
        losses = []
        for index, chunk in enumerate(chunks):
            if index > 0:
                # The losses of the previous chunk left the same random state on all ranks.
                torch.manual_seed(encoding_seed(seed + index, world))
            losses.append(replace(step, seed=seed + index).backward(chunk, 1.0 / len(chunks)))
    columns = {name: [entry.terms[name] for entry in losses] for name in losses[0].terms}
    means = {name: torch.stack(values).mean() for name, values in columns.items()}
    return Losses(means, losses[0].weights)


RANK_STRIDE = 2_654_435_761
"""Distance of the seeds of two ranks: 2^32 divided by the golden ratio, because a generator of the
CPU reads the last 32 bits of its seed."""


def encoding_seed(seed: int, world: World) -> int:
    """Return the seed of the generators while ``world.rank`` encodes; even, those of losses odd."""
    return 2 * (seed + RANK_STRIDE * world.rank)


@dataclass(frozen=True)
class Step:
    """A training step; see :func:`training_losses`."""

    method: Method
    config: TrainingConfig
    world: World
    seed: int
    is_coarse: bool

    def encode(self, batch: PairBatch) -> Features:
        """Encode a batch; half-precision features are converted to fp32."""
        with autocast(batch.video_ids.device, self.config.precision):
            # Videos first: a GPU computes them while the host starts the small kernels of texts.
            video = self.method.encode_video(batch.videos)
            text = self.method.encode_text(batch.texts)
            if self.method.needs_ids:
                video = replace(video, ids=batch.video_ids)
        return _widen(text), _widen(video)

    def losses(self, text: TextFeatures, video: VideoFeatures, video_ids: Tensor) -> Losses:
        """Compute the losses of the features of all ranks."""
        all_ids = gather_tensor(video_ids, self.world)
        if self.config.positives == "own_pair":
            all_ids = torch.arange(len(all_ids), device=all_ids.device)
        positives = all_ids[:, None] == all_ids[None, :]
        all_texts = gather(text, self.world, self.config.gradients)
        all_videos = gather(video, self.world, self.config.gradients)
        torch.manual_seed(2 * self.seed + 1)
        if self.is_coarse:
            return coarse_losses(self.method, all_texts, all_videos, positives)
        return self.method.losses(all_texts, all_videos, positives)

    def backward(self, batch: PairBatch, scale: float = 1.0) -> Losses:
        losses = self.losses(*self.encode(batch), batch.video_ids)
        (losses.total * scale).backward()
        return _detach(losses)


def coarse_losses(
    method: Method, text: TextFeatures, video: VideoFeatures, positives: Tensor
) -> Losses:
    """Compute the softmax loss of the cosines of coarse vectors, at the encoder's temperature.

    It aligns towers that were not trained together before a head is trained; in the paper, the
    training of CLIP does this.
    """
    scale = cast(HasLogitScale, method.encoder).logit_scale.detach().exp()
    logits = scale * method.coarse_vectors(text) @ method.coarse_vectors(video).T
    loss = (cross_entropy(logits, positives) + cross_entropy(logits.T, positives.T)) / 2
    return Losses({"coarse": loss}, {"coarse": 1.0})


def _widen(features: Any) -> Any:
    return features.map_tensors(lambda value: value.float() if value.dtype in HALF_TYPES else value)


class FiniteWatch:
    """Detector of NaN and infinity in loss terms.

    :meth:`record` is asynchronous; :meth:`check` copies a small tensor to the host, and may raise.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.names: tuple[str, ...] = ()
        self.first_bad = torch.empty(0, dtype=torch.long, device=device)

    def record(self, step: int, values: dict[str, Tensor]) -> None:
        """Store, on the device, the first step at which each term is not finite."""
        names = tuple(values)
        if names != self.names:
            self.check()
            self.names = names
            self.first_bad = torch.full((len(names),), -1, dtype=torch.long, device=self.device)
        is_bad = ~torch.stack([value.detach() for value in values.values()]).isfinite()
        self.first_bad = torch.where(is_bad & (self.first_bad < 0), step, self.first_bad)

    def check(self) -> None:
        """Raise :class:`NonFiniteError` if any recorded term was not finite."""
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
            "was written after it: lower the learning rates, or check the data of that step"
        )
