"""Shapes in signatures are checked in every test; tests are single-threaded and offline."""

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRITON_INTERPRET", "1")

from jaxtyping import install_import_hook

# Triton reads the source of its kernels, so that one module stays unwrapped.
CHECKED = [
    "eaglenet.types",
    "eaglenet.layers",
    "eaglenet.energy",
    "eaglenet.losses",
    "eaglenet.encoders",
    "eaglenet.methods",
    "eaglenet.evaluation",
]
hook = install_import_hook(CHECKED, "beartype.beartype")
hook.install() if hasattr(hook, "install") else None

import torch

torch.set_num_threads(1)
