"""How two towers are trained on pairs, as one frozen value that refuses impossible numbers."""

from __future__ import annotations

from dataclasses import dataclass

from eaglenet.core.errors import ConfigError


@dataclass(frozen=True)
class PairTrainingConfig:
    """How long, how fast, on what share of what; the recipe ``small`` changes some of it.

    steps: batches seen; the rates fall to zero over them on a cosine.
    seconds: end sooner, after so much time, the rates falling accordingly; 0 for no limit.
    batch_items, video_share: images and videos in a batch, and the share of videos among them.
    frames_per_video: random frames of each video, whose mean stands for it.
    lr_towers, lr_heads: peak rates of the two towers and of projections and temperature.
    soft_targets: share of the target that goes to sentences of like meaning, as the text tower saw
        it before training: of two "a man is talking" neither is wrong for the other's video.
    soft_temperature: of those likenesses.
    machine_share: how often a captioner's sentence is taken although people wrote one.
    layer_decay: factor of a block's rate for each block above it; embeddings come lowest.
    word_dropout: share of words hidden. text_dropout: share of each text branch's numbers set to 0.
    drop_path: share of images for which a visual branch is left out. patch_dropout: share of
        patches left out, where the tower does not pool them.
    average: decay of the running mean of all weights, which is what is evaluated and saved.
    crop: smallest share of a picture's area that a random crop keeps.
    unlabelled_items: pictures without sentences beside a batch, if the run has any: what the model
        saw in them before training should stay (:func:`.distillation.agreement_loss`).
    compile_blocks: let torch compile the visual blocks (a GPU; about half a minute at the start).
    """

    steps: int = 12000
    seconds: float = 0.0
    batch_items: int = 1536
    video_share: float = 0.4
    frames_per_video: int = 2
    lr_towers: float = 7e-5
    lr_heads: float = 1e-3
    weight_decay: float = 0.05
    warmup_steps: int = 200
    soft_targets: float = 0.2
    soft_temperature: float = 0.05
    machine_share: float = 0.3
    layer_decay: float = 1.0
    word_dropout: float = 0.1
    text_dropout: float = 0.0
    drop_path: float = 0.1
    patch_dropout: float = 0.0
    average: float = 0.9995
    crop: float = 0.4
    clip_norm: float = 1.0
    evaluate_every: int = 1000
    unlabelled_items: int = 0
    compile_blocks: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("steps", "batch_items", "frames_per_video", "evaluate_every"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}, should be at least 1")
        if self.unlabelled_items < 0:
            raise ConfigError(f"unlabelled_items is {self.unlabelled_items}, should not be below 0")
        for name in (
            "video_share",
            "soft_targets",
            "machine_share",
            "word_dropout",
            "text_dropout",
            "drop_path",
            "patch_dropout",
        ):
            if not 0 <= getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}, should be in 0 ... 1")
        if not 0 < self.layer_decay <= 1:
            raise ConfigError(f"layer_decay is {self.layer_decay}, should be above 0, at most 1")
        if not 0 < self.crop <= 1 or not 0 <= self.average < 1 or self.soft_temperature <= 0:
            raise ConfigError(
                "crop should be in 0 ... 1, average below 1, soft_temperature above 0"
            )
