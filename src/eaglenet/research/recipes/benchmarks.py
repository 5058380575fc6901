"""Protocols for datasets of videos: the EagleNet paper's, its released code's, the authors' own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from eaglenet.core.types import FrameSpec
from eaglenet.encoders.features import ExpertConfig
from eaglenet.research.data.sources import DataChoice
from eaglenet.research.experiments.experiment import EncoderChoice, MethodSettings, Settings, Setup
from eaglenet.research.recipes.authors import (
    ADAPTERS,
    EXPERT_ROWS,
    MASKS_FRAMES,
    ORIGINALS,
)
from eaglenet.research.training.config import TrainingConfig


@dataclass(frozen=True)
class Tower:
    """A pretrained tower: its name on the hub, and the sizes that recipes need.

    max_words: tokens that its text tower reads at most.
    """

    source: str
    title: str
    dim: int
    size: int = 224
    max_words: int = 77

    @property
    def is_clip(self) -> bool:
        return self.source.startswith("openai/clip")


TOWERS: Mapping[str, Tower] = {
    "clip-b32": Tower("openai/clip-vit-base-patch32", "CLIP ViT-B/32", 512),
    "clip-b16": Tower("openai/clip-vit-base-patch16", "CLIP ViT-B/16", 512),
    "siglip2-b32": Tower("google/siglip2-base-patch32-256", "SigLIP 2 B/32", 768, 256, 64),
    "siglip2-b16": Tower("google/siglip2-base-patch16-224", "SigLIP 2 B/16", 768, 224, 64),
    "siglip2-l16": Tower("google/siglip2-large-patch16-256", "SigLIP 2 L/16", 1024, 256, 64),
    "pe-s16": Tower("timm/PE-Core-S-16-384", "PE-Core S/16", 512, 384, 32),
    "pe-b16": Tower("timm/PE-Core-B-16", "PE-Core B/16", 1024, 224, 32),
    "pe-l14": Tower("timm/PE-Core-L-14-336", "PE-Core L/14", 1024, 336, 32),
}

SUPPORT = (
    "The support text has an elementwise radius instead of the paper's norm, which harms training "
    "(docs/reference/paper_map.md)."
)
ACTIVATED = "Edge weights are read after the LeakyReLU, so that frame-to-frame relations count."
PAPER = (
    "The EagleNet paper's protocol with modern settings: 5 epochs, 64 pairs per batch, AdamW, fp32 "
    "weights under bf16 autocast, 1e-6 for CLIP and 1e-4 for the rest, the epoch chosen on "
    "validation."
)
RELEASED = (
    "The paper's protocol in the settings of the released code: BERT-style Adam without bias "
    "correction, per-tensor and global clipping, embeddings frozen, tower weights and their Adam "
    "state in fp16, 1e-7 / 1e-4, the epoch chosen on TEST. The rate of 1e-7 only moves CLIP "
    "because its fp16 second moments underflow; with fp32 weights it freezes CLIP: use "
    "`--protocol paper` then."
)
ORIGINAL = (
    "Settings of the method's own authors; 1e-6 for CLIP where they train fp16 weights at 1e-7."
)
EXPERTS = (
    "Settings of the method's own authors on their experts; 500 videos held out choose the epoch."
)
PAPER_DATA = ("msrvtt", "didemo", "msvd", "vatex", "folder")
NO_ROW = "The paper has no row on this dataset."
OTHER_TOWERS = (
    "No published row to compare with. Frames are squeezed to a square, as the tower was trained. "
)
SIGMOID_START = "The sigmoid loss starts from the scale and bias that the tower was trained with."
SOFTMAX_START = (
    "PE-Core was trained with a softmax loss, whose scale belongs to no bias: the sigmoid loss "
    "starts where it does on CLIP."
)

EAGLENET: Settings = {
    # Read before the LeakyReLU, as printed, frame-to-frame edges would have no effect.
    "edge_weights": "activated",
    # The printed one spoils training: `layers.stochastic_text`.
    "support": "elementwise",
}
PARAGRAPHS = ("didemo", "activitynet")
"""Datasets whose queries are paragraphs of up to 64 words."""
LONG = (*PARAGRAPHS, "qvhighlights")
"""Datasets whose videos are read in 64 frames instead of 12."""
# The paper prefers bilinear overall; its DiDeMo row (51.5) is the MLP's.
ENERGY = {"didemo": "mlp"}
# A rate for CLIP would hardly move adapters that start at nothing.
METHOD_TRAINING: MethodSettings = {"tempme": ADAPTERS, "rap": ADAPTERS, "tfvl": ADAPTERS}
RELEASED_OPTIONS: Mapping[str, Mapping[str, Any]] = {
    # Nothing is held out of the training list, because test chooses the epoch.
    "msrvtt": {"hold_out": 0},
    "didemo": {"window": "first_31_seconds"},
}


def paper_setup(method: str, dataset: str, tower: str) -> Setup:
    """EagleNet's frames, words, epochs and batch for every method; modern settings."""
    spec, is_long = TOWERS[tower], dataset in LONG
    frames = FrameSpec(num_frames=64 if is_long else 12)
    notes = [PAPER if dataset in PAPER_DATA else PAPER + " " + NO_ROW]
    if not spec.is_clip:
        frames = replace(frames, size=spec.size, resize="stretch")
        start = SIGMOID_START if tower.startswith("siglip") else SOFTMAX_START
        notes.append(OTHER_TOWERS + start)
    if method == "eaglenet":
        notes += [ACTIVATED, SUPPORT]
    training = TrainingConfig(
        compile=True,
        checkpointing=True,
        # Three blocks of ViT-B/16 recomputed: 38 instead of 49 GiB for 5% of the time. Long videos
        # have five times the frames, and other towers more tokens or width: all blocks are.
        checkpointed_blocks=3 if spec.is_clip and not is_long else 0,
        deterministic=False,  # as measured; the same bits again would cost time
        batch_size=32 if dataset == "folder" else 64,  # a few hundred captions are enough
        **METHOD_TRAINING.get(method, {}),
    )
    return Setup(
        encoder=EncoderChoice("pretrained", spec.source),
        data=DataChoice(
            dataset,
            frames=frames,
            max_words=min(spec.max_words, 64 if dataset in PARAGRAPHS else 32),
        ),
        training=training,
        dim=spec.dim,
        notes=" ".join(notes),
        config=_method_settings(method, dataset),
    )


def _method_settings(method: str, dataset: str) -> Settings:
    if method == "eaglenet":
        return {**EAGLENET, "energy": ENERGY.get(dataset, "bilinear")}
    return {"num_words": 64} if method == "ucofia" and dataset in PARAGRAPHS else {}


def released_setup(method: str, dataset: str, tower: str) -> Setup:
    """The paper's protocol in the settings of CLIP4Clip's code, in which the paper ran methods."""
    from eaglenet.methods.eaglenet import RELEASED_FRAMES, EagleNetConfig

    paper = paper_setup(method, dataset, tower)
    size = tower.removeprefix("clip-")
    script = f"msrvtt-{size}" if dataset == "msrvtt" else dataset
    short = {"short": "mask"} if method in MASKS_FRAMES else {}
    frames = FrameSpec(num_frames=paper.data.frames.num_frames, **{**RELEASED_FRAMES, **short})
    # Four chunks with matrices of their own: 16 pairs, not 64, meet each other.
    split = {"accumulate": 4, "accumulation": "split"} if dataset == "didemo" else {}
    training: dict[str, Any] = {
        "lr_encoder": 1e-7,
        "lr_head": 1e-4,
        "optimizer": "bert_adam",
        "schedule": "released",
        "precision": "fp16_weights",
        "positives": "own_pair",
        "freeze": "embeddings",
        "gradients": "local",
        "select": "test",
        **split,
        **METHOD_TRAINING.get(method, {}),
    }
    is_eaglenet = method == "eaglenet"
    return replace(
        paper,
        config=vars(EagleNetConfig.released(script)) if is_eaglenet else paper.config,
        data=replace(paper.data, frames=frames, options=RELEASED_OPTIONS.get(dataset, {})),
        training=TrainingConfig(**training),
        notes=RELEASED,
    )


def original_setup(method: str, dataset: str, tower: str) -> Setup:
    """The published settings of the method's own authors."""
    if tower == "experts":
        return _expert_setup(method, dataset)
    settings = ORIGINALS[method]
    training, config, options = dict(settings.training), dict[str, Any](), dict[str, Any]()
    num_frames, max_words = settings.num_frames, settings.max_words
    for change in settings.changes_for(dataset, tower):
        training |= change.training
        config |= change.config
        options |= change.options
        num_frames = change.num_frames or num_frames
        max_words = change.max_words or max_words
    return Setup(
        encoder=EncoderChoice("pretrained", TOWERS[tower].source),
        data=DataChoice(
            dataset,
            options=options,
            frames=FrameSpec(num_frames=num_frames, **settings.frames),
            max_words=max_words,
            jitter=settings.jitter,
        ),
        training=TrainingConfig(**training),
        dim=TOWERS[tower].dim,
        notes=ORIGINAL,
        config=config,
    )


def _expert_setup(method: str, dataset: str) -> Setup:
    row = EXPERT_ROWS[method, dataset]
    dim = int(row.config["dim"])
    return Setup(
        encoder=EncoderChoice(
            "experts",
            config=ExpertConfig(row.experts, row.frames, row.words_dim, row.words_dim, dim=dim),
        ),
        # A folder holds one split. The test videos lie in another, which the command names.
        data=DataChoice("features", options={"test_root": ""}, frames=FrameSpec(num_frames=30)),
        training=TrainingConfig(**row.training),
        dim=dim,
        notes=EXPERTS,
        config=row.config,
    )
