"""Checks of signatures while tests run: shapes by jaxtyping, everything else by beartype alone.

jaxtyping compares the sizes of one signature with each other. To say more in its messages it binds
the arguments of each call and checks them twice, which takes most of the time of a test of a small
model. Here beartype checks them once, in a context of jaxtyping's that holds the sizes of the call.
A signature without shapes needs no such context.

A function inside another is made at every call of that one. Its check is written and compiled the
first time only: it takes a millisecond, which moving a few tensors would else cost every time.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any, get_args

import jaxtyping
import torch
from beartype import BeartypeConf, beartype
from jaxtyping._storage import get_shape_memo

_shapes_checked = jaxtyping.jaxtyped
_sizes_of_a_call = jaxtyping.jaxtyped("context")
_types_checked = beartype(conf=BeartypeConf(violation_type=jaxtyping.TypeCheckError))
_CHECKED_FUNCTION = "__beartype_func"
"""The keyword by whose default a check of beartype's knows what it calls."""
_is_instance_of_any = type(jaxtyping.AbstractArray).__instancecheck__
_SIMPLE_AXIS = re.compile(r"[a-z][a-z0-9_]*|[0-9]+")
_plans: dict[type, tuple[list[str | int], set[torch.dtype]]] = {}
_inner_checks: dict[CodeType, FunctionType | None] = {}
"""Checks of functions inside others by their code; none where there is nothing to check."""


def check_signatures(modules: list[str]) -> Any:
    """Check all that is imported from now on out of ``modules``, until it is uninstalled."""
    jaxtyping.jaxtyped = _checked
    type(jaxtyping.AbstractArray).__instancecheck__ = _is_instance
    return jaxtyping.install_import_hook(modules, "beartype.beartype")


def _checked(*, typechecker: Callable[..., Any]) -> Callable[[Any], Any]:
    """What jaxtyping's import hook puts around each function and class."""

    def decorate(target: Any) -> Any:
        if inspect.isfunction(target) and target.__code__ in _inner_checks:
            return _checked_again(target)
        if inspect.isfunction(target):
            types = _annotations(target)
            if types is not None and not any(map(has_shape, types)):
                return _noted(_types_checked(target), target)
            if types is not None and not inspect.isgeneratorfunction(target):
                return _checked_in_context(target)
        return _shapes_checked(target, typechecker=typechecker)

    return decorate


def _checked_in_context(function: FunctionType) -> Any:
    """``function`` with sizes that are compared within each call."""
    check = _types_checked(function)

    @functools.wraps(function)
    def checked(*arguments: Any, **options: Any) -> Any:
        with _sizes_of_a_call:
            return check(*arguments, **options)

    return checked


def _is_instance(shape: Any, value: Any) -> bool:
    """Check a tensor against a shape of names and sizes; everything else is left to jaxtyping.

    That copies all sizes of the call before each check, and compares dtypes by their names.
    """
    plan = _plans.get(shape)
    if plan is None:
        plan = _plans[shape] = _plan_of(shape)
    axes, dtypes = plan
    if not axes or not isinstance(value, torch.Tensor):
        return bool(_is_instance_of_any(shape, value))
    if value.dtype not in dtypes or value.dim() != len(axes):
        return False
    known = get_shape_memo()[0]
    new = []
    for axis, size in zip(axes, value.shape, strict=True):
        if isinstance(axis, str) and axis not in known:
            known[axis] = size
            new.append(axis)
        elif size != (known[axis] if isinstance(axis, str) else axis):
            for name in new:
                del known[name]
            return False
    return True


def _plan_of(shape: Any) -> tuple[list[str | int], set[torch.dtype]]:
    """The names and sizes of the axes, and the dtypes; no axes where there is anything else."""
    words = shape.dim_str.split()
    is_simple = shape.array_type is torch.Tensor and all(map(_SIMPLE_AXIS.fullmatch, words))
    names = shape.dtypes if isinstance(shape.dtypes, list | tuple) else []
    if not is_simple or not names or not all(isinstance(name, str) for name in names):
        return [], set()
    dtypes = {getattr(torch, name) for name in names if hasattr(torch, name)}
    return [int(word) if word.isdigit() else word for word in words], dtypes


def _noted(check: Any, target: FunctionType) -> Any:
    """``check``, kept for the next function of the same code where ``target`` is an inner one."""
    if "<locals>" in target.__qualname__:
        if check is target:
            _inner_checks[target.__code__] = None
        elif (check.__kwdefaults__ or {}).get(_CHECKED_FUNCTION) is target:
            _inner_checks[target.__code__] = check
    return check


def _checked_again(target: FunctionType) -> Any:
    """The check that was written for the same code, around this function."""
    check = _inner_checks[target.__code__]
    if check is None:
        return target
    again = FunctionType(check.__code__, check.__globals__, target.__name__, check.__defaults__)
    again.__kwdefaults__ = {**(check.__kwdefaults__ or {}), _CHECKED_FUNCTION: target}
    again.__wrapped__ = target  # type: ignore[attr-defined]
    return again


def has_shape(annotation: Any) -> bool:
    """Whether a type is an array of a shape, or holds one."""
    if inspect.isclass(annotation) and issubclass(annotation, jaxtyping.AbstractArray):
        return True
    return any(map(has_shape, get_args(annotation)))


def _annotations(function: Callable[..., Any]) -> list[Any] | None:
    """The types in a signature; none where one of them is not defined yet."""
    types = []
    for annotation in function.__annotations__.values():
        if isinstance(annotation, str):
            try:
                annotation = eval(annotation, function.__globals__)
            except NameError:
                return None
        types.append(annotation)
    return types
