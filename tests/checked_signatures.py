"""Checks of signatures while tests run: shapes by jaxtyping, everything else by beartype alone.

jaxtyping binds the arguments of each call anew and checks them twice, so that the sizes of one
signature can be compared with each other. A signature without shapes needs none of that; checked
directly, it costs a tenth: a model with a real vocabulary loads in a fifth of the time.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, get_args

import jaxtyping
from beartype import BeartypeConf, beartype

_shapes_checked = jaxtyping.jaxtyped
_types_checked = beartype(conf=BeartypeConf(violation_type=jaxtyping.TypeCheckError))


def check_signatures(modules: list[str]) -> Any:
    """Check all that is imported from now on out of ``modules``, until it is uninstalled."""
    jaxtyping.jaxtyped = _checked
    return jaxtyping.install_import_hook(modules, "beartype.beartype")


def _checked(*, typechecker: Callable[..., Any]) -> Callable[[Any], Any]:
    """What jaxtyping's import hook puts around each function and class."""

    def decorate(target: Any) -> Any:
        if inspect.isfunction(target) and not any(map(has_shape, _annotations(target))):
            return _types_checked(target)
        return _shapes_checked(target, typechecker=typechecker)

    return decorate


def has_shape(annotation: Any) -> bool:
    """Whether a type is an array of a shape, or holds one."""
    if inspect.isclass(annotation) and issubclass(annotation, jaxtyping.AbstractArray):
        return True
    return any(map(has_shape, get_args(annotation)))


def _annotations(function: Callable[..., Any]) -> list[Any]:
    """The types in a signature; one that cannot be told yet counts as a shape."""
    found = []
    for annotation in function.__annotations__.values():
        if isinstance(annotation, str):
            try:
                annotation = eval(annotation, function.__globals__)
            except NameError:
                annotation = jaxtyping.AbstractArray
        found.append(annotation)
    return found
