"""timm and open_clip as oracles, also where torchvision, which only their pictures need, is not."""

from __future__ import annotations

import importlib.util
import sys
import types
from typing import Any

import pytest

NAMES = ("", ".ops", ".ops.misc", ".transforms", ".transforms.functional", ".datasets")


class _AnyName(type):
    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return name


class _Anything(metaclass=_AnyName):
    """Stands for any class of torchvision that is named at import and never used here."""


class _Module(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Anything


def import_oracle(name: str) -> Any:
    """The package ``name``; the test is skipped where it is not installed."""
    if importlib.util.find_spec(name) is None or importlib.util.find_spec("timm") is None:
        pytest.skip(f"{name} is not installed")
    if importlib.util.find_spec("torchvision") is not None:
        return importlib.import_module(name)
    importlib.import_module("transformers")  # which asks, once, whether torchvision is there
    added = [f"torchvision{part}" for part in NAMES]
    for module in added:
        sys.modules[module] = _Module(module)
        parent, _, child = module.rpartition(".")
        if parent:
            setattr(sys.modules[parent], child, sys.modules[module])
    try:
        return importlib.import_module(name)
    finally:
        for module in added:
            del sys.modules[module]
