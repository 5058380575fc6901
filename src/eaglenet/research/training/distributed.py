"""Training with several processes; the only module that uses ``torch.distributed``.

Every rank encodes its part of the batch, gathers all features, and computes the whole loss with the
same random state, so that replay buffers and noise stay equal without communication. The backward
pass of the gather sums over ranks, and the gradients of parameters are then averaged: with W ranks,

    (1/W) sum_r J_r^T (W dL/dx_r) = sum_r J_r^T dL/dx_r      for parameters of the encoder
    (1/W) sum_r dL/dw = dL/dw                                for parameters of the loss

which is the gradient of one process with the whole batch (``gradients="sum"``). Common code does
not sum in the backward pass (``gradients="local"``): the encoder then gets 1/W of that gradient.
One device needs no process group.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal, Self, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from eaglenet.core.errors import ConfigError, DistributedError, UsageError
from eaglenet.core.types import TensorRecord
from eaglenet.encoders.hardware import best_device

Record = TypeVar("Record", bound=TensorRecord)
GatherGradients = Literal["sum", "local"]
BUCKET_ELEMENTS = 1 << 24
"""Gradients averaged in one message: 64 MiB in fp32."""
LONG_WAIT_HOURS = 48
CPU = torch.device("cpu")
TIMEOUT_VARIABLE = "EAGLENET_TIMEOUT_SECONDS"


@dataclass(frozen=True)
class World:
    """Rank and device of this process; as a context manager, leaves the process group on exit."""

    rank: int = 0
    size: int = 1
    device: torch.device = CPU

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        if self.size > 1 and dist.is_initialized():
            dist.destroy_process_group()


def join(device: str = "auto", *, timeout_seconds: float | None = None) -> World:
    """Join the processes started by ``torchrun``; a single process only chooses its device."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    rank = int(os.environ.get("RANK", "0"))
    target = _choose_device(device, int(os.environ.get("LOCAL_RANK", "0")))
    if size == 1:
        return World(device=target)
    seconds = timeout_seconds or float(os.environ.get(TIMEOUT_VARIABLE, "600"))
    address = f"{os.environ.get('MASTER_ADDR', '?')}:{os.environ.get('MASTER_PORT', '?')}"
    backend = "nccl" if target.type == "cuda" else "gloo"
    if not dist.is_initialized():
        try:
            dist.init_process_group(
                backend, rank=rank, world_size=size, timeout=timedelta(seconds=seconds)
            )
        except (RuntimeError, ValueError) as error:
            raise DistributedError(
                f"rank {rank} of {size} could not connect to the others at {address} within "
                f"{seconds:.0f} s ({_first_line(error)}); check that all processes were started "
                f"with torchrun, or increase {TIMEOUT_VARIABLE}"
            ) from error
    return World(rank, size, target)


def gather(record: Record, world: World, gradients: GatherGradients = "sum") -> Record:
    """Concatenate the records of all ranks in rank order; differentiable."""
    if world.size == 1:
        return record
    return record.map_tensors(lambda value: gather_tensor(value, world, gradients))


def gather_tensor(value: Tensor, world: World, gradients: GatherGradients = "sum") -> Tensor:
    """Concatenate tensors of equal size of all ranks in rank order; differentiable."""
    if world.size == 1:
        return value
    if value.requires_grad:
        return _Gather.apply(value, world, gradients)  # type: ignore[no-untyped-call,no-any-return]
    return _all_gather(value, world)


def gather_uneven(record: Record, num_total: int, world: World) -> Record:
    """Gather rows ``rank, rank + size, ...`` of all ranks in order; not differentiable."""
    if world.size == 1:
        return record
    rows_per_rank = -(-num_total // world.size)

    def gather_rows(value: Tensor) -> Tensor:
        padding = value.new_zeros(rows_per_rank - len(value), *value.shape[1:])
        rows = _all_gather(torch.cat([value, padding]), world)
        by_rank = rows.view(world.size, rows_per_rank, *value.shape[1:])
        return by_rank.transpose(0, 1).flatten(0, 1)[:num_total]

    return record.map_tensors(gather_rows)


def average_gradients(parameters: Iterable[nn.Parameter], world: World) -> None:
    """Replace every gradient by its mean over all ranks, in buckets.

    Skips sharded parameters, whose gradients the backward pass has averaged.
    """
    if world.size == 1:
        return
    bucket: list[Tensor] = []
    num_elements = 0
    for parameter in parameters:
        if parameter.grad is None or is_sharded(parameter):
            continue
        if bucket and (
            num_elements + parameter.grad.numel() > BUCKET_ELEMENTS
            or parameter.grad.dtype != bucket[0].dtype
        ):
            _average_bucket(bucket, world)
            bucket, num_elements = [], 0
        bucket.append(parameter.grad)
        num_elements += parameter.grad.numel()
    if bucket:
        _average_bucket(bucket, world)


def is_sharded(value: Tensor) -> bool:
    """Return whether a tensor is distributed over the ranks."""
    return isinstance(value, DTensor)


def shard_towers(encoder: nn.Module, world: World) -> int:
    """Distribute weights, gradients and optimizer state of the towers' blocks (FSDP2).

    A block is gathered for its forward and backward pass. Parameters outside of blocks, a few
    percent of a large tower, are not distributed. Returns the number of blocks.
    """
    if world.size == 1:
        return 0
    blocks = _tower_blocks(encoder)
    if not blocks:
        raise ConfigError("training.shard: this encoder has no blocks: --set training.shard=false")
    mesh = _call("sharding weights", world, init_device_mesh, world.device.type, (world.size,))
    for block in blocks:
        fully_shard(block, mesh=mesh, reshard_after_forward=True)
    return len(blocks)


def _tower_blocks(encoder: nn.Module) -> list[nn.Module]:
    """Return the members of the outermost module lists in the towers."""
    blocks: list[nn.Module] = []
    inner: set[int] = set()
    for name in getattr(encoder, "tower_names", ()):
        for module in getattr(encoder, name).modules():
            if isinstance(module, nn.ModuleList) and id(module) not in inner:
                blocks += [block for block in module if any(True for _ in block.parameters())]
                inner |= {id(child) for block in module for child in block.modules()}
    return blocks


@contextmanager
def whole_weights(module: nn.Module) -> Iterator[None]:
    """Gather the sharded blocks within the ``with`` block, where ranks may make different calls.

    All ranks must enter it.
    """
    blocks = [child for child in module.modules() if isinstance(child, FSDPModule)]
    for block in blocks:
        block.set_reshard_after_forward(False)
        block.unshard()
    try:
        yield
    finally:
        for block in blocks:
            block.set_reshard_after_forward(True)
            block.reshard()


def whole_state(value: Any, world: World) -> Any:
    """Gather all sharded tensors of a state dict. All ranks must call it."""
    if isinstance(value, Mapping):
        return {name: whole_state(entry, world) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(whole_state(entry, world) for entry in value)
    if isinstance(value, DTensor):
        return _call("gathering weights", world, value.detach().full_tensor)  # type: ignore[attr-defined]
    return value


def load_whole_state(
    method: nn.Module,
    optimizer: torch.optim.Optimizer,
    weights: Mapping[str, Tensor],
    state: dict[str, Any],
) -> None:
    """Load results of :func:`whole_state`, from any number of ranks, into method and optimizer."""
    targets = method.state_dict()
    method.load_state_dict({name: _like(w, targets.get(name)) for name, w in weights.items()})
    parameters = [value for group in optimizer.param_groups for value in group["params"]]
    moments = {
        index: {name: _like(moment, parameters[int(index)]) for name, moment in values.items()}
        for index, values in state["state"].items()
    }
    optimizer.load_state_dict({**state, "state": moments})


def _like(value: Any, target: Tensor | None) -> Any:
    """Shard a tensor like ``target`` if ``target`` is sharded and has the same shape."""
    if not isinstance(target, DTensor) or not isinstance(value, Tensor):
        return value
    if value.shape != target.shape:
        return value
    # Every rank has the whole tensor, so no communication is needed.
    return distribute_tensor(
        value.to(target.device), target.device_mesh, target.placements, src_data_rank=None
    )


def clip_gradients(parameters: Iterable[nn.Parameter], max_norm: float, world: World) -> Tensor:
    """Scale all gradients to a joint norm of at most ``max_norm``; return the original norm."""
    weights = [weight for weight in parameters if weight.grad is not None]
    if not any(map(is_sharded, weights)):
        return torch.nn.utils.clip_grad_norm_(weights, max_norm)
    # Keyed by whether the weight is sharded: for sharded weights, this rank has a part of the sum.
    squares = {True: torch.zeros((), device=world.device), False: torch.zeros(())}
    for weight in weights:
        grad = weight.grad.to_local() if isinstance(weight.grad, DTensor) else weight.grad
        assert grad is not None
        key = is_sharded(weight)
        squares[key] = squares[key].to(grad.device) + grad.float().square().sum()
    sharded_square = sum_over_ranks(squares[True], world)
    norm = (sharded_square + squares[False].to(sharded_square.device)).sqrt()
    factor = (max_norm / (norm + 1e-6)).clamp(max=1.0)
    for weight in weights:
        assert weight.grad is not None
        # As a Python number, because a plain tensor cannot scale a sharded one.
        weight.grad.mul_(float(factor))
    return norm


def broadcast_state(module: nn.Module, world: World, *, buffers_only: bool = False) -> None:
    """Copy the buffers, and the parameters unless ``buffers_only``, of rank 0 to all ranks."""
    if world.size == 1:
        return
    tensors: list[Tensor] = list(module.buffers())
    if not buffers_only:
        tensors += list(module.parameters())
    for tensor in tensors:
        _call("broadcasting state", world, dist.broadcast, tensor.data, src=0)


def sum_over_ranks(value: Tensor, world: World) -> Tensor:
    """Return the sum of a tensor over all ranks, on its device."""
    if world.size == 1:
        return value
    total = value.to(world.device, copy=True)
    _call("summing over the ranks", world, dist.all_reduce, total)
    return total.to(value.device)


def barrier(world: World, purpose: str) -> None:
    """Wait for all ranks; ``purpose`` is named in the error of a timeout."""
    if world.size > 1:
        _call(purpose, world, dist.barrier)


def wait_for_main(world: World, purpose: str) -> None:
    """Wait for work of rank 0 that may take hours, such as decoding a dataset."""
    if world.size == 1:
        return
    limit = timedelta(hours=LONG_WAIT_HOURS)
    group = _call(purpose, world, dist.new_group, backend="gloo", timeout=limit)
    _call(purpose, world, dist.barrier, group=group)
    dist.destroy_process_group(group)


def _average_bucket(bucket: list[Tensor], world: World) -> None:
    flat = torch.cat([gradient.reshape(-1) for gradient in bucket])
    _call("averaging gradients", world, dist.all_reduce, flat)
    flat /= world.size
    position = 0
    for gradient in bucket:
        gradient.copy_(flat[position : position + gradient.numel()].view_as(gradient))
        position += gradient.numel()


class _Gather(torch.autograd.Function):
    """All-gather; its backward pass returns this rank's rows, summed over ranks for ``sum``."""

    @staticmethod
    def forward(context: Any, value: Tensor, world: World, kind: GatherGradients) -> Tensor:
        context.world, context.kind = world, kind
        return _all_gather(value, world)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        world: World = context.world
        total = gradients[0].contiguous().clone()
        if context.kind == "sum":
            _call("summing feature gradients", world, dist.all_reduce, total)
        rows_per_rank = total.shape[0] // world.size
        return total[world.rank * rows_per_rank :][:rows_per_rank], None, None


def _all_gather(value: Tensor, world: World) -> Tensor:
    # Gloo does not support bool.
    message = value.to(torch.uint8) if value.dtype == torch.bool else value
    message = message.contiguous()
    results = [torch.empty_like(message) for _ in range(world.size)]
    _call("gathering features", world, dist.all_gather, results, message)
    return torch.cat(results).to(value.dtype)


def _call(purpose: str, world: World, function: Any, *arguments: Any, **options: Any) -> Any:
    try:
        return function(*arguments, **options)
    except RuntimeError as error:
        raise DistributedError(
            f"rank {world.rank} of {world.size} failed while {purpose} ({_first_line(error)}); "
            "another rank has probably stopped: see its message"
        ) from error


def _choose_device(device: str, local_rank: int) -> torch.device:
    if device == "auto":
        device = best_device()
    try:
        target = torch.device(device)
    except RuntimeError:
        raise UsageError(f"device {device!r} is unknown; use auto, cpu, cuda or cuda:1") from None
    if target.type != "cuda":
        return target
    index = local_rank if target.index is None else target.index
    if index >= torch.cuda.device_count():
        raise UsageError(
            f"device {device}: GPU {index} was requested, there are {torch.cuda.device_count()}; "
            "use auto or cpu, or start fewer processes"
        )
    torch.cuda.set_device(index)
    return torch.device("cuda", index)


def _first_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
