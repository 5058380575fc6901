"""A compiled step is the plain step, dropout included."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import torch
from eaglenet.encoders.clip import ClipEncoder
from eaglenet.encoders.clip_config import ClipConfig, TextConfig, VisionConfig
from eaglenet.methods.eaglenet import EagleNet
from eaglenet.methods.eaglenet import EagleNetConfig
from eaglenet.research.training.config import TrainingConfig
from eaglenet.research.training.distributed import World
from eaglenet.research.training.step import training_losses
from eaglenet.core.types import Clips, PairBatch, Tokens

towers = ClipConfig(
    dim=16,
    vision=VisionConfig(image_size=16, patch_size=4, width=16, layers=3, heads=2, mlp_width=32),
    text=TextConfig(vocabulary_size=50, width=16, layers=2, heads=2, mlp_width=32),
)
ids = torch.randint(1, 49, (3, 7))
ids[:, -1] = 49
frames = torch.randint(0, 256, (3, 4, 3, 16, 16), dtype=torch.uint8)
mask = torch.ones(3, 4, dtype=torch.bool)
batch = PairBatch(
    Tokens(ids, torch.ones_like(ids, dtype=torch.bool)),
    Clips(frames, mask, torch.zeros(3, 4)),
    torch.arange(3),
)
found = []
for is_compiled in (False, True):
    torch.manual_seed(0)
    config = EagleNetConfig.for_script("msrvtt-b16", dim=16, num_frames=4, num_heads=2)
    method = EagleNet.build(config, ClipEncoder(towers)).train()
    method.encoder.set_gradient_checkpointing(1)
    if is_compiled:
        method.compile(backend="aot_eager", options=None)
    losses = training_losses(method, batch, TrainingConfig(precision="fp32"), World(), seed=1)
    norms = [p.grad.norm() for p in method.parameters() if p.grad is not None]
    found.append((losses.total, torch.stack(norms)))
torch.testing.assert_close(found[1], found[0], rtol=1e-5, atol=1e-5)
print(float(found[0][0]))
"""


@pytest.mark.slow
def test_a_compiled_step_has_the_loss_and_gradients_of_the_plain_one() -> None:
    # In a process of its own: the shape checks of these tests cannot be traced.
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
