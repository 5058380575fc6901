"""Shapes in signatures are checked in every test; tests are single-threaded and offline."""

import os
from importlib.util import find_spec

os.environ.setdefault("HF_HUB_OFFLINE", "1")
# Kernels run under Triton's interpreter where there is no GPU.
os.environ.setdefault("TRITON_INTERPRET", "1")

import torch
from jaxtyping import install_import_hook

# Triton reads the source of its kernels, so scoring stays unwrapped.
CHECKED = [
    "eaglenet.types",
    "eaglenet.layers",
    "eaglenet.energy",
    "eaglenet.losses",
    "eaglenet.encoders",
    "eaglenet.methods",
    "eaglenet.evaluation",
]
# A machine that has a GPU but not the development tools still runs its tests, unchecked.
install_import_hook(CHECKED, "beartype.beartype" if find_spec("beartype") else None)
torch.set_num_threads(1)
