"""Kernels run under Triton's interpreter here, in half of its time."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any

import pytest


def patched_once(patch: Callable[[FunctionType], Any]) -> Callable[[FunctionType], Any]:
    """``patch``, which the interpreter calls for a kernel, called once for each module in it.

    It exchanges all functions of Triton's language for those of the interpreter. The interpreter
    does it anew for every function that a kernel calls, which takes longer than the kernel, and
    never takes it back: each call wraps what the last one put there, so all get slower and slower.
    """
    patched: list[dict[str, Any]] = []
    scopes: list[Any] = []

    def once(function: FunctionType) -> Any:
        if any(function.__globals__ is names for names in patched):
            return None  # Whoever calls a function within a kernel does not look at it.
        scope = patch(function)
        patched.append(function.__globals__)
        if len(patched) > 1:
            scopes.append(scope)
            return None
        restore = scope.restore

        def put_back() -> None:
            while scopes:
                scopes.pop().restore()
            restore()
            patched.clear()

        scope.restore = put_back
        return scope

    return once


@pytest.fixture(scope="session", autouse=True)
def _quick_interpreter() -> Iterator[None]:
    """Triton's interpreter exchanges its language once for a kernel (``patched_once``)."""
    if importlib.util.find_spec("triton") is None:
        yield
        return
    from triton.runtime import interpreter

    with pytest.MonkeyPatch.context() as changes:
        if hasattr(interpreter, "_patch_lang"):
            changes.setattr(interpreter, "_patch_lang", patched_once(interpreter._patch_lang))
        yield
