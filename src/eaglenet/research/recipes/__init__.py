"""A recipe is a Python function that returns a whole experiment.

- ``msrvtt-b16``, ``didemo-b32``, ...: the main results with modern settings (AdamW, bf16 autocast
  over fp32 weights, 1e-6 for CLIP, selection on validation).
- ``msrvtt-b16-released``, ...: the same rows as the authors' scripts run them.
- ``msrvtt-b16-literal``, ...: with edge weights as the paper prints them.
- ``components/frl+eam``, ``energy/mlp``, ...: the paper's ablations on MSR-VTT, ViT-B/16;
  ``didemo-b16/components/...`` on DiDeMo, ``msrvtt-b16-released/...`` in released settings;
  ``demo/...`` and ``features/...`` on the demo world and on stored features.
- ``msrvtt-siglip2-b16``, ``msrvtt-pe-b16``, ...: the main results on SigLIP 2 and PE-Core.
- ``frames/xpool``, ``frames-tuned/xpool``, ...: on folders of frames, from the towers of `small`.
- ``folder-b32``, ``folder-b32/clip4clip``, ``folder-small``, ...: on your own videos.
- ``experts/ce``, ...: on folders of several experts.
- ``msrvtt-experts/ce``, ``msrvtt-b16/frozen``, ...: rows before CLIP with their authors' settings.
- ``msrvtt-b32/xpool``, ``demo/xpool``, ``features/xpool``: the compared methods.

The docstring of a recipe names its command and its source.
"""

from eaglenet.research.recipes import (
    ablations,
    benchmarks,
    demo,
    earlier,
    experts,
    frames,
    own,
    peers,
    stored_features,
    towers,
)
from eaglenet.research.recipes.registry import RECIPES, Recipe, build_recipe, describe_recipe
from eaglenet.research.recipes.rows import TABLES

ablations.register()
benchmarks.register()
demo.register()
earlier.register()
experts.register()
stored_features.register()
frames.register()
own.register()
peers.register()
towers.register()

__all__ = ["RECIPES", "TABLES", "Recipe", "build_recipe", "describe_recipe"]
