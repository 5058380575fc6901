"""EagleNet on the towers people would choose today: SigLIP 2 and PE-Core."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from eaglenet.core.types import FrameSpec
from eaglenet.research.experiments.experiment import EncoderChoice, Experiment
from eaglenet.research.recipes.benchmarks import DATASETS, main_result
from eaglenet.research.recipes.registry import add_recipe


@dataclass(frozen=True)
class TowerRow:
    """A tower of a recipe: the hub id, what it is called, and the sizes its head needs.

    max_words: most tokens of a text that the tower takes.
    """

    source: str
    title: str
    dim: int
    size: int
    max_words: int


ROWS = {
    "siglip2-b32": TowerRow("google/siglip2-base-patch32-256", "SigLIP 2 B/32", 768, 256, 64),
    "siglip2-b16": TowerRow("google/siglip2-base-patch16-224", "SigLIP 2 B/16", 768, 224, 64),
    "siglip2-l16": TowerRow("google/siglip2-large-patch16-256", "SigLIP 2 L/16", 1024, 256, 64),
    "pe-s16": TowerRow("timm/PE-Core-S-16-384", "PE-Core S/16", 512, 384, 32),
    "pe-b16": TowerRow("timm/PE-Core-B-16", "PE-Core B/16", 1024, 224, 32),
    "pe-l14": TowerRow("timm/PE-Core-L-14-336", "PE-Core L/14", 1024, 336, 32),
}
NOTES = (
    "The main result's settings on another tower; no published row to compare with. Frames are "
    "squeezed to a square, as the tower was trained. {start}"
)
SIGLIP_START = "The sigmoid loss starts from the scale and bias that the tower was trained with."
PE_START = (
    "PE-Core was trained with a softmax loss, whose scale belongs to no bias: the sigmoid loss "
    "starts where it does on CLIP."
)


def notes_of(tower: str) -> str:
    return NOTES.format(start=SIGLIP_START if tower.startswith("siglip") else PE_START)


def tower_result(dataset: str, tower: str) -> Experiment:
    """The main result of a dataset on one of these towers."""
    row, base = ROWS[tower], main_result(dataset, "b16")
    frames = FrameSpec(num_frames=base.data.frames.num_frames, size=row.size, resize="stretch")
    words = min(row.max_words, base.data.max_words)
    return replace(
        base,
        name=f"{dataset}-{tower}",
        method_config=replace(base.method_config, dim=row.dim),
        encoder=EncoderChoice("pretrained", row.source),
        data=replace(base.data, frames=frames, max_words=words),
        # Towers of more tokens or more width than CLIP's B/16: every block is recomputed.
        training=replace(base.training, checkpointed_blocks=0),
        notes=notes_of(tower),
    )


def register() -> None:
    """A recipe for each dataset and tower."""
    for dataset in DATASETS:
        for tower, row in ROWS.items():
            add_recipe(
                f"{dataset}-{tower}",
                partial(tower_result, dataset, tower),
                f"EagleNet on {dataset}, {row.title} ({row.source}).\n{notes_of(tower)}",
            )
