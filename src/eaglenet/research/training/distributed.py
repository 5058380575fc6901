"""Several processes as one: the only file that knows `torch.distributed`.

Every rank encodes its share of the batch, gathers all features, and computes the whole loss with
the same random state, so replay buffers and noise stay equal without being sent. The backward pass
of the gather sums over ranks and the parameters' gradients are then averaged: with W ranks,

    (1/W) sum_r J_r^T (W dL/dx_r) = sum_r J_r^T dL/dx_r      for what a rank's share went through
    (1/W) sum_r dL/dw = dL/dw                                for what every rank computed alike

which is the gradient of one process with the joined batch (``gradients="sum"``). The field's code
gives each rank its own slice of the gradient and sums nothing (``gradients="local"``): what a
rank's share went through then gets 1/W of that gradient, and everything else the whole. One device
needs no process group.
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
from eaglenet.core.hardware import best_device
from eaglenet.core.types import TensorRecord

Record = TypeVar("Record", bound=TensorRecord)
GatherGradients = Literal["sum", "local"]
BUCKET_ELEMENTS = 1 << 24  # 64 MiB of fp32 gradients in one message
LONG_WAIT_HOURS = 48
CPU = torch.device("cpu")
TIMEOUT_VARIABLE = "EAGLENET_TIMEOUT_SECONDS"


@dataclass(frozen=True)
class World:
    """Rank of this process among all, and its device; leaves the others after a ``with`` block."""

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
    """Join the processes that `torchrun` started; alone, just choose the device."""
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
                f"rank {rank} of {size} could not meet the others at {address} within "
                f"{seconds:.0f} s ({_first_line(error)}); check that all processes were started "
                f"with torchrun, or raise {TIMEOUT_VARIABLE}"
            ) from error
    return World(rank, size, target)


def gather(record: Record, world: World, gradients: GatherGradients = "sum") -> Record:
    """The records of all ranks joined in rank order, differentiable."""
    if world.size == 1:
        return record
    return record.map_tensors(lambda value: gather_tensor(value, world, gradients))


def gather_tensor(value: Tensor, world: World, gradients: GatherGradients = "sum") -> Tensor:
    """Equal shares of all ranks, concatenated; differentiable."""
    if world.size == 1:
        return value
    if value.requires_grad:
        return _Gather.apply(value, world, gradients)  # type: ignore[no-untyped-call,no-any-return]
    return _all_gather(value, world)


def gather_uneven(record: Record, num_total: int, world: World) -> Record:
    """Rows ``rank, rank + size, ...`` of each rank put back in order. Without gradients."""
    if world.size == 1:
        return record
    each = -(-num_total // world.size)

    def gather_rows(value: Tensor) -> Tensor:
        filler = value.new_zeros(each - len(value), *value.shape[1:])
        parts = _all_gather(torch.cat([value, filler]), world)
        by_rank = parts.view(world.size, each, *value.shape[1:])
        return by_rank.transpose(0, 1).flatten(0, 1)[:num_total]

    return record.map_tensors(gather_rows)


def average_gradients(parameters: Iterable[nn.Parameter], world: World) -> None:
    """Replace every gradient by its mean over the ranks, in buckets.

    Gradients of sharded parameters have been averaged by the backward pass.
    """
    if world.size == 1:
        return
    bucket: list[Tensor] = []
    filled = 0
    for parameter in parameters:
        if parameter.grad is None or is_sharded(parameter):
            continue
        if bucket and (
            filled + parameter.grad.numel() > BUCKET_ELEMENTS
            or parameter.grad.dtype != bucket[0].dtype
        ):
            _average_bucket(bucket, world)
            bucket, filled = [], 0
        bucket.append(parameter.grad)
        filled += parameter.grad.numel()
    if bucket:
        _average_bucket(bucket, world)


def is_sharded(value: Tensor) -> bool:
    """Tell whether every rank holds a part of a tensor only."""
    return isinstance(value, DTensor)


def shard_towers(encoder: nn.Module, world: World) -> int:
    """Share out the weights, gradients and optimizer state of the towers' blocks (FSDP2).

    A block is put together for its forward and its backward pass. Returns the number of blocks;
    what lies outside them, a few percent of a large tower, stays whole on every rank.
    """
    if world.size == 1:
        return 0
    blocks = _tower_blocks(encoder)
    if not blocks:
        raise ConfigError("training.shard: this encoder has no blocks to share out; set it false")
    mesh = _call("sharing out weights", world, init_device_mesh, world.device.type, (world.size,))
    for block in blocks:
        fully_shard(block, mesh=mesh, reshard_after_forward=True)
    return len(blocks)


def _tower_blocks(encoder: nn.Module) -> list[nn.Module]:
    """Members of the outermost lists of modules in both towers."""
    towers = [getattr(encoder, name, None) for name in ("vision", "text")]
    blocks: list[nn.Module] = []
    inner: set[int] = set()
    for tower in towers:
        for module in tower.modules() if isinstance(tower, nn.Module) else ():
            if isinstance(module, nn.ModuleList) and id(module) not in inner:
                blocks += [block for block in module if any(True for _ in block.parameters())]
                inner |= {id(part) for block in module for part in block.modules()}
    return blocks


@contextmanager
def whole_weights(module: nn.Module) -> Iterator[None]:
    """Put sharded blocks together for the block of code, in which ranks may differ in their calls.

    All ranks have to enter it.
    """
    blocks = [part for part in module.modules() if isinstance(part, FSDPModule)]
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
    """A state dict without sharded tensors. All ranks have to call it."""
    if isinstance(value, Mapping):
        return {name: whole_state(part, world) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(whole_state(part, world) for part in value)
    if isinstance(value, DTensor):
        return _call("gathering weights", world, value.detach().full_tensor)  # type: ignore[attr-defined]
    return value


def load_whole_state(
    method: nn.Module,
    optimizer: torch.optim.Optimizer,
    weights: Mapping[str, Tensor],
    state: dict[str, Any],
) -> None:
    """Load what :func:`whole_state` gave, of any number of ranks, into a method and optimizer."""
    own = method.state_dict()
    method.load_state_dict({name: _like(value, own.get(name)) for name, value in weights.items()})
    parameters = [value for group in optimizer.param_groups for value in group["params"]]
    moments = {
        index: {name: _like(moment, parameters[int(index)]) for name, moment in values.items()}
        for index, values in state["state"].items()
    }
    optimizer.load_state_dict({**state, "state": moments})


def _like(value: Any, target: Tensor | None) -> Any:
    """This rank's part of a whole tensor, if ``target`` is sharded and has its shape."""
    if not isinstance(target, DTensor) or not isinstance(value, Tensor):
        return value
    if value.shape != target.shape:
        return value
    # Every rank has the whole tensor, so nothing is sent.
    return distribute_tensor(
        value.to(target.device), target.device_mesh, target.placements, src_data_rank=None
    )


def clip_gradients(parameters: Iterable[nn.Parameter], max_norm: float, world: World) -> Tensor:
    """Scale all gradients together to ``max_norm`` at most; returns their norm before."""
    members = [value for value in parameters if value.grad is not None]
    if not any(map(is_sharded, members)):
        return torch.nn.utils.clip_grad_norm_(members, max_norm)
    squares = {True: torch.zeros((), device=world.device), False: torch.zeros(())}
    for value in members:
        grad = value.grad.to_local() if isinstance(value.grad, DTensor) else value.grad
        assert grad is not None
        is_part = is_sharded(value)
        squares[is_part] = squares[is_part].to(grad.device) + grad.float().square().sum()
    parts = sum_over_ranks(squares[True], world)
    total = (parts + squares[False].to(parts.device)).sqrt()
    factor = (max_norm / (total + 1e-6)).clamp(max=1.0)
    for value in members:
        assert value.grad is not None
        # A number of the host: a plain tensor cannot scale a sharded one.
        value.grad.mul_(float(factor))
    return total


def broadcast_state(module: nn.Module, world: World, *, buffers_only: bool = False) -> None:
    """Give every rank the parameters and buffers of rank 0."""
    if world.size == 1:
        return
    tensors: list[Tensor] = list(module.buffers())
    if not buffers_only:
        tensors += list(module.parameters())
    for tensor in tensors:
        _call("broadcasting state", world, dist.broadcast, tensor.data, src=0)


def sum_over_ranks(value: Tensor, world: World) -> Tensor:
    """The sum of every rank's tensor, on the tensor's own device."""
    if world.size == 1:
        return value
    summed = value.to(world.device, copy=True)
    _call("summing over the ranks", world, dist.all_reduce, summed)
    return summed.to(value.device)


def barrier(world: World, purpose: str) -> None:
    """Wait for all ranks; a timeout says what for."""
    if world.size > 1:
        _call(purpose, world, dist.barrier)


def wait_for_main(world: World, purpose: str) -> None:
    """A barrier for work of rank 0 that may take hours, such as decoding a dataset."""
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
    """All-gather whose backward gives this rank's rows, summed over all ranks or its own alone."""

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
        each = total.shape[0] // world.size
        return total[world.rank * each : (world.rank + 1) * each], None, None


def _all_gather(value: Tensor, world: World) -> Tensor:
    # Gloo has no bool; uint8 carries the same bits.
    sent = value.to(torch.uint8) if value.dtype == torch.bool else value
    sent = sent.contiguous()
    parts = [torch.empty_like(sent) for _ in range(world.size)]
    _call("gathering features", world, dist.all_gather, parts, sent)
    return torch.cat(parts).to(value.dtype)


def _call(purpose: str, world: World, function: Any, *arguments: Any, **options: Any) -> Any:
    try:
        return function(*arguments, **options)
    except RuntimeError as error:
        raise DistributedError(
            f"rank {world.rank} of {world.size} failed while {purpose} ({_first_line(error)}); "
            "another rank probably stopped: see its message"
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
