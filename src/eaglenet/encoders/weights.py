"""Reading of model folders: JSON files, and weights in one file or in shards."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from eaglenet.core import untrusted
from eaglenet.core.errors import CheckpointError, ModelNotFoundError, UsageError
from eaglenet.encoders.hub import OPEN_CLIP_CONFIG, OPEN_CLIP_WEIGHTS, WEIGHT_FILES, shard_names

# Deferred weights, which are read when they are used, so an unused tower costs nothing.

MAPPED_BYTES = 2**26
"""Bytes read through one mapping of a file; its pages count as memory until it is closed."""

_ON_DEMAND: ContextVar[bool] = ContextVar("weights_on_demand", default=False)


@contextmanager
def reading_on_demand() -> Iterator[None]:
    """Read files of weights lazily: their shapes now, their values on use.

    Modules with such weights must be materialised before they compute.
    """
    token = _ON_DEMAND.set(True)
    try:
        yield
    finally:
        _ON_DEMAND.reset(token)


def is_on_demand() -> bool:
    """Return whether weights are read as :class:`DeferredTensor`."""
    return _ON_DEMAND.get()


class DeferredTensor(Tensor):
    """A weight whose shape is known and whose values are read each time they are used.

    Torch sees it on the meta device. Rearranging and casting return another deferred tensor; other
    operations read the values. Operations in place are refused, since their result would be lost.
    """

    _read: Callable[[], Tensor]
    _is_new: bool = False
    """True if the values are computed, so they share no memory with a view or a file."""
    _before_cast: DeferredTensor | None = None

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func in WITHOUT_VALUES:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        if func in DEFERRABLE and _can_be_deferred(func, args, kwargs):
            return _defer(func, args, kwargs)
        name = getattr(func, "__name__", "")
        if name.endswith("_") and not name.endswith("__") and isinstance(args[0], cls):
            raise UsageError(f"{name}: a weight that is read on demand cannot be changed in place")
        keywords = dict(zip(kwargs, _with_values(kwargs.values()), strict=True))
        return func(*_with_values(args), **keywords)

    def read(self) -> Tensor:
        """Return the values; the tensor may be a view of a larger one."""
        return self._read()


REARRANGING = frozenset(
    {Tensor.detach, Tensor.reshape, Tensor.flatten, Tensor.__getitem__, Tensor.T.__get__}  # type: ignore[attr-defined]
)
CASTING = frozenset({Tensor.to, Tensor.float})
COMPUTING = frozenset({Tensor.mul, torch.cat})
DEFERRABLE = REARRANGING | CASTING | COMPUTING | {Tensor.chunk, torch.as_strided}
WITHOUT_VALUES = frozenset(
    {Tensor.numel, Tensor.element_size, Tensor.is_floating_point, Tensor.size, Tensor.dim}
    | {Tensor.__len__, Tensor.requires_grad_}
    | {
        getattr(Tensor, name).__get__
        for name in ("shape", "dtype", "ndim", "is_meta", "requires_grad", "grad_fn")
    }
)


def defer_tensor(like: Tensor, read: Callable[[], Tensor]) -> DeferredTensor:
    """Return a weight with the shape and type of ``like`` and the values that ``read`` returns."""
    return _with_reader(_shape(like.shape, like.dtype), read)


def _shape(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def _with_reader(shape: Tensor, read: Callable[[], Tensor]) -> DeferredTensor:
    tensor: DeferredTensor = torch.Tensor._make_subclass(DeferredTensor, shape)
    tensor._read = read
    return tensor


def deferred_file(path: Path, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Defer the weights of a safetensors file; ``weights`` are mapped views of it."""
    file = _MappedFile(path, weights)
    return {name: defer_tensor(value, partial(file.read, name)) for name, value in weights.items()}


class _MappedFile:
    """A safetensors file, mapped again after ``MAPPED_BYTES``, so few pages stay in memory."""

    def __init__(self, path: Path, weights: Mapping[str, Tensor]) -> None:
        self._path = path
        self._look_up: Callable[[str], Tensor] = weights.__getitem__
        self._read_bytes = 0

    def read(self, name: str) -> Tensor:
        from safetensors import safe_open

        try:
            if self._read_bytes > MAPPED_BYTES:
                self._look_up = safe_open(self._path, framework="pt").get_tensor
                self._read_bytes = 0
            value = self._look_up(name)
        except Exception as error:  # A file that was replaced meanwhile can fail in any way.
            raise CheckpointError(f"{self._path}: {name} cannot be read ({error})") from error
        self._read_bytes += value.nbytes
        return value


def materialise(module: nn.Module, *, without: nn.Module | None = None) -> None:
    """Read the deferred weights of a module, except those of the module ``without`` inside it."""
    excluded_modules = set() if without is None else set(without.modules())
    for owner in module.modules():
        if owner not in excluded_modules:
            _replace(owner, _own_values)


def release_weights(module: nn.Module) -> None:
    """Release the weights of a module, deferred or not; keep their shapes."""
    for owner in module.modules():
        _replace(owner, lambda each: _shape(each.shape, each.dtype))
    module.to("meta")


def is_deferred(module: nn.Module) -> bool:
    """Return whether a module has deferred weights."""
    return any(isinstance(each, DeferredTensor) for each in module.parameters())


def _replace(owner: nn.Module, change: Callable[[DeferredTensor], Tensor]) -> None:
    parameters: dict[str, Any] = owner._parameters  # Torch regards a deferred one as a Parameter.
    for name, weight in parameters.items():
        if isinstance(weight, DeferredTensor):
            parameters[name] = nn.Parameter(change(weight), weight.requires_grad)
    for name, buffer in owner._buffers.items():
        if isinstance(buffer, DeferredTensor):
            owner._buffers[name] = change(buffer)


def _own_values(weight: DeferredTensor) -> Tensor:
    """Return the values; copy views, which would keep their whole memory."""
    values = weight.read()
    return values if weight._is_new else values.clone()


def _defer(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the result of ``func`` as a deferred tensor."""
    first = args[0]

    def compute() -> Any:
        return func(*_with_values(args), **kwargs)

    if func in CASTING:
        dtype = torch.float32 if func is Tensor.float else args[1]
        if dtype is first.dtype:
            return first
        cast = _with_reader(_shape(first.shape, dtype), compute)
        cast._before_cast, cast._is_new = first, True
        return cast
    if func is Tensor.detach:
        with torch._C.DisableTorchFunctionSubclass():
            same = _with_reader(func(first), first._read)
        same._before_cast, same._is_new = first._before_cast, first._is_new
        return same
    if func in REARRANGING and first._before_cast is not None:
        # Cast last, so that rows of a large weight are read without casting all of it.
        return func(first._before_cast, *args[1:], **kwargs).to(first.dtype)
    with torch._C.DisableTorchFunctionSubclass():
        shapes = _shapes(func, args, kwargs)
    if isinstance(shapes, Tensor):
        result = _with_reader(shapes, compute)
        result._is_new = func in COMPUTING
        return result
    return tuple(
        _with_reader(shape, partial(lambda index: compute()[index], index))
        for index, shape in enumerate(shapes)
    )


def _shapes(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the shapes of the result of ``func``, as tensors on the meta device.

    Only views are computed by torch: for other operations on this device, it imports its compiler,
    which takes seconds.
    """
    if func is torch.cat:
        parts = args[0]
        rows = sum(len(part) for part in parts)
        return _shape((rows, *parts[0].shape[1:]), parts[0].dtype)
    if func is Tensor.mul:
        return _shape(np.broadcast_shapes(*(part.shape for part in args)), args[0].dtype)
    return func(_shape(args[0].shape, args[0].dtype), *args[1:], **kwargs)


def _can_be_deferred(
    func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> bool:
    """Return whether the arguments are deferred, and used like by readers of weights."""
    if func is Tensor.to:
        return not kwargs and [type(each) for each in args[1:]] == [torch.dtype]
    if func not in COMPUTING:
        return True
    parts = args[0] if func is torch.cat else args
    is_deferred = all(isinstance(part, DeferredTensor) for part in parts)
    return is_deferred and not kwargs and len({part.dtype for part in parts}) == 1


def _with_values(arguments: Iterable[Any]) -> tuple[Any, ...]:
    return tuple(map(_with_value, arguments))


def _with_value(argument: Any) -> Any:
    if isinstance(argument, DeferredTensor):
        return argument.read()
    if isinstance(argument, list):
        return list(_with_values(argument))
    return argument


def model_type(folder: Path) -> str | None:
    """Return ``model_type`` of a folder's ``config.json``; "" if it has none, None without file."""
    path = folder / "config.json"
    return str(read_json(path).get("model_type", "")) if path.is_file() else None


def open_clip_trunk(folder: Path) -> str:
    """Return the name of the timm trunk of a folder of open_clip; "" if it has none."""
    values = read_optional_json(folder / OPEN_CLIP_CONFIG) or {}
    vision = values.get("model_cfg", values).get("vision_cfg", {})
    return str(vision.get("timm_model_name", "")) if isinstance(vision, dict) else ""


def read_open_clip_weights(folder: Path) -> dict[str, Tensor]:
    """Read the weights of a folder in open_clip's layout."""
    return read_weights(folder, OPEN_CLIP_WEIGHTS)


def read_json(path: Path) -> dict[str, Any]:
    try:
        return untrusted.read_object(path, untrusted.MAX_VOCABULARY)
    except (ValueError, OSError) as error:
        raise CheckpointError(f"{path}: not JSON ({error})") from error


def read_optional_json(path: Path) -> dict[str, Any] | None:
    return read_json(path) if path.is_file() else None


def read_weights(folder: Path, names: tuple[str, ...] = WEIGHT_FILES) -> dict[str, Tensor]:
    """Read the first of the files ``names`` that exists, with all its shards."""
    for name in names:
        path = folder / name
        if not path.is_file():
            continue
        if not name.endswith(".index.json"):
            return read_weight_file(path)
        shards = shard_names(read_json(path), path)
        missing = [shard for shard in shards if not (folder / shard).is_file()]
        if missing:
            raise ModelNotFoundError(f"{folder}: {name} names files that do not exist: {missing}")
        return {k: v for shard in shards for k, v in read_weight_file(folder / shard).items()}
    raise ModelNotFoundError(
        f"{folder} has a configuration but no weights; looked for {', '.join(names)}"
    )


ModuleT = TypeVar("ModuleT", bound=nn.Module)


def make_encoder(
    kind: Callable[[Any], ModuleT], config: Any, weights: Mapping[str, Tensor], location: Path
) -> ModuleT:
    """Build an encoder with these weights in fp32, in eval mode."""
    with torch.device("meta"):
        module = kind(config)
    for name, value in module.state_dict().items():
        if name not in weights:
            raise CheckpointError(f"{location}: no weight for {name}")
        if weights[name].shape != value.shape:
            raise CheckpointError(
                f"{location}: {name} is {list(weights[name].shape)}, config.json says "
                f"{list(value.shape)}"
            )
    state = {name: weights[name].float() for name in module.state_dict()}
    module.load_state_dict(state, assign=True)
    return module.eval()


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """Read a safetensors file; inside :func:`reading_on_demand`, the weights are deferred."""
    import safetensors.torch

    weights: dict[str, Tensor] = safetensors.torch.load_file(path)
    return deferred_file(path, weights) if is_on_demand() else weights


def read_torch_file(path: Path) -> Any:
    """Read a file of ``torch.save`` with tensors and plain containers only; runs no code."""
    is_zip = zipfile.is_zipfile(path)
    if is_zip:
        untrusted.check_zip(path)
    try:
        return torch.load(
            path, map_location="cpu", weights_only=True, mmap=is_zip and is_on_demand()
        )
    except Exception as error:  # A damaged file can fail in any way.
        # Without torch's text, which advises to load files that run code.
        name = type(error).__name__
        cause = "" if name == "UnpicklingError" else f" ({name})"
        raise ValueError(f"not a file of tensors{cause}") from error


def read_weight_file(path: Path) -> dict[str, Tensor]:
    try:
        if path.suffix == ".safetensors":
            return read_safetensors(path)
        weights = read_torch_file(path)
        if isinstance(weights, dict) and isinstance(weights.get("state_dict"), dict):
            weights = weights["state_dict"]
        if not isinstance(weights, dict) or not all(
            isinstance(name, str) and isinstance(value, Tensor) for name, value in weights.items()
        ):
            raise ValueError("expected names and tensors")
        untrusted.check_tensor_bytes(weights.values(), path)
        if not is_on_demand():
            return weights
        return {name: defer_tensor(value, value.clone) for name, value in weights.items()}
    except Exception as error:  # A damaged file can fail in any way.
        raise CheckpointError(f"{path}: the weights cannot be read ({error})") from error
