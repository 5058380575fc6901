"""Compiled operators of torchvision where its wheel was built for another torch.

PyPI's torchvision for Linux is linked with CUDA. Beside a torch without CUDA its operators cannot
be loaded, and importing torchvision, which transformers and open_clip do, fails. The transforms of
images that these libraries use are Python and need no operator.
"""

from __future__ import annotations

import functools
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

import torch

from eaglenet.core.process import module_path

OPERATORS = ("nms", "qnms")
"""Operators that must exist when torchvision is imported."""


@functools.cache
def declare_operators() -> Any:
    """Declare the operators that cannot be loaded, so that torchvision can be imported.

    A declared operator has no implementation: calling it raises an error. Operators that can be
    loaded are left alone. Returns the declarations, which end with their last reference.
    """
    # Not of the current folder, whose files may be anyone's: a library runs code when it is loaded.
    package = PathFinder.find_spec("torchvision", module_path())
    if package is None or package.origin is None:
        return None
    library = PathFinder.find_spec("_C", [str(Path(package.origin).parent)])
    if library is None or library.origin is None:
        return None
    try:
        torch.ops.load_library(library.origin)
    except OSError:
        declarations = torch.library.Library("torchvision", "FRAGMENT")
        for name in OPERATORS:
            declarations.define(f"{name}(Tensor dets, Tensor scores, float threshold) -> Tensor")
        return declarations
    return None
