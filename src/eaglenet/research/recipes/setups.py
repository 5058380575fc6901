"""Setups of all protocols.

Datasets of videos have the protocols of the EagleNet paper, of its released code and of the authors
of each method. The demo world, stored features, frames and experts have the protocol ``equal``: one
small budget for all methods.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from eaglenet.core.types import FrameSpec
from eaglenet.encoders.clip_config import ClipConfig, TextConfig, VisionConfig
from eaglenet.encoders.features import ExpertConfig, FeatureConfig
from eaglenet.methods import METHODS
from eaglenet.research.data.sources import DataChoice
from eaglenet.research.experiments.experiment import EncoderChoice, MethodSettings, Settings, Setup
from eaglenet.research.recipes.authors import ADAPTERS, EXPERT_ROWS, MASKS_FRAMES, ORIGINALS
from eaglenet.research.training.config import TrainingConfig


@dataclass(frozen=True)
class Tower:
    """A pretrained tower and its sizes.

    source: name on the hub. size: side of a frame in pixels. max_words: context length of its text
    tower in tokens.
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
    # As printed (before the LeakyReLU), frame-to-frame edges would have no effect.
    "edge_weights": "activated",
    # The printed form harms training: `layers.stochastic_text`.
    "support": "elementwise",
}
PARAGRAPHS = ("didemo", "activitynet")
"""Datasets whose queries are paragraphs of up to 64 words."""
LONG = (*PARAGRAPHS, "qvhighlights")
"""Datasets whose videos are read in 64 frames instead of 12."""
# The paper prefers bilinear energy; its DiDeMo row (51.5) is with the MLP.
ENERGY = {"didemo": "mlp"}
# The low rate of CLIP would hardly change adapters, which start at zero.
METHOD_TRAINING: MethodSettings = {"tempme": ADAPTERS, "rap": ADAPTERS, "tfvl": ADAPTERS}
RELEASED_OPTIONS: Mapping[str, Mapping[str, Any]] = {
    # No validation videos: the epoch is chosen on the test split.
    "msrvtt": {"hold_out": 0},
    "didemo": {"window": "first_31_seconds"},
}


def paper_setup(method: str, dataset: str, tower: str) -> Setup:
    """Return the EagleNet paper's frames, tokens, epochs and batch, for any method."""
    spec, is_long = TOWERS[tower], dataset in LONG
    frames = FrameSpec(num_frames=64 if is_long else 12)
    notes = [PAPER if dataset in PAPER_DATA else PAPER + " " + NO_ROW]
    if not spec.is_clip:
        frames = replace(frames, size=spec.size, resize="stretch")
        start = SIGMOID_START if tower.startswith("siglip") else SOFTMAX_START
        notes.append(OTHER_TOWERS + start)
    config: Settings = {}
    if method == "eaglenet":
        notes += [ACTIVATED, SUPPORT]
        config = {**EAGLENET, "energy": ENERGY.get(dataset, "bilinear")}
    elif method == "ucofia" and dataset in PARAGRAPHS:
        config = {"num_words": 64}
    training = TrainingConfig(
        compile=True,
        checkpointing=True,
        # Recomputing three blocks of ViT-B/16 takes 38 instead of 49 GiB for 5% of the time. Long
        # videos and larger towers recompute all blocks (0).
        checkpointed_blocks=3 if spec.is_clip and not is_long else 0,
        deterministic=False,  # Deterministic kernels are slower.
        batch_size=32 if dataset == "folder" else 64,  # A few hundred captions fill some batches.
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
        config=config,
    )


def released_setup(method: str, dataset: str, tower: str) -> Setup:
    """Return the settings of the released code, which is based on CLIP4Clip, for any method."""
    from eaglenet.methods.eaglenet import RELEASED_FRAMES, EagleNetConfig

    paper = paper_setup(method, dataset, tower)
    size = tower.removeprefix("clip-")
    script = f"msrvtt-{size}" if dataset == "msrvtt" else dataset
    short = {"short": "mask"} if method in MASKS_FRAMES else {}
    frames = FrameSpec(num_frames=paper.data.frames.num_frames, **{**RELEASED_FRAMES, **short})
    # Four chunks with separate score matrices contrast 16 pairs, not 64.
    accumulation = {"accumulate": 4, "accumulation": "split"} if dataset == "didemo" else {}
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
        **accumulation,
        **METHOD_TRAINING.get(method, {}),
    }
    is_eaglenet = method == "eaglenet"
    return replace(
        paper,
        config=vars(EagleNetConfig.for_script(script)) if is_eaglenet else paper.config,
        data=replace(paper.data, frames=frames, options=RELEASED_OPTIONS.get(dataset, {})),
        training=TrainingConfig(**training),
        notes=RELEASED,
    )


def original_setup(method: str, dataset: str, tower: str) -> Setup:
    """Return the settings that the authors of the method published."""
    if tower == "experts":
        return _expert_setup(method, dataset)
    settings = ORIGINALS[method]
    training, config, options = dict(settings.training), dict[str, Any](), dict[str, Any]()
    frames = dict(settings.frames)
    num_frames, max_words = settings.num_frames, settings.max_words
    for change in settings.changes_for(dataset, tower):
        training |= change.training
        config |= change.config
        options |= change.options
        frames |= change.frames
        num_frames = change.num_frames or num_frames
        max_words = change.max_words or max_words
    return Setup(
        encoder=EncoderChoice("pretrained", TOWERS[tower].source),
        data=DataChoice(
            dataset,
            options=options,
            frames=FrameSpec(num_frames=num_frames, **frames),
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
        # A folder has one split; the user must name the folder of the test videos.
        data=DataChoice("features", options={"test_root": ""}, frames=FrameSpec(num_frames=30)),
        training=TrainingConfig(**row.training),
        dim=dim,
        notes=EXPERTS,
        config=row.config,
    )


# Demo world: small CLIP towers with random weights; trains in minutes on two cores.

DEMO_FRAMES = FrameSpec(num_frames=8, size=32)
DEMO_WORDS = 24
DEMO_TOWERS = ClipConfig(
    dim=64,
    vision=VisionConfig(
        image_size=32,
        patch_size=8,
        width=64,
        layers=3,
        heads=4,
        mlp_width=256,
        frame_positions=DEMO_FRAMES.num_frames,
    ),
    text=TextConfig(
        vocabulary_size=690, context_length=32, width=64, layers=2, heads=4, mlp_width=256
    ),
)
DEMO_TRAINING = TrainingConfig(
    epochs=10,
    batch_size=64,
    lr_encoder=2e-3,
    lr_head=2e-3,
    weight_decay=0.05,
    captions="one",
    neighbours=True,
    eval_every=2,
)
# Few candidates and narrow heads: a step of pair-conditioned methods takes under half a second.
# Token shift: pooling over frames ignores their order, so frames must see their neighbours.
# Softmax: the sigmoid loss learns more slowly with random towers (docs/lab/demo.md).
DEMO_CONFIG: MethodSettings = {
    "eaglenet": {
        **EAGLENET, "token_shift": True, "num_candidates": 4, "prior": "uniform",
        "radius_bias": True, "head_size": "split", "graph_dropout": 0.1, "pool_dropout": 0.1,
        "langevin_steps": 5, "loss": "softmax", "initial_temperature": 2.66, "initial_bias": -6.0,
    },
    # The coarse score and the bank need trained towers.
    "wordframe": {"coarse": False, "bank": 0},
    "xpool": {"dropout": 0.1},
    "tmass": {"num_candidates": 4, "dropout": 0.1},
    "ce": {"text_centres": 8, "margin": 0.2},
    "mmt": {"num_layers": 2, "hidden_dim": 256, "margin": 0.2},
    "hit": {"num_layers": 2, "text_layers": 1, "hidden_dim": 256, "bank_size": 256},
    "clipbert": {"num_layers": 2, "num_heads": 4, "hidden_dim": 128, "frames_per_clip": 4},
    "pair_reader": {"num_layers": 2, "num_heads": 4, "hidden_dim": 128},
    "supportset": {"hidden_dim": 128, "caption_weight": 1.0},
    "teachtext": {"student_config": {"text_centres": 8, "margin": 0.2}},
    # Random towers must be trained.
    "tempme": {"frozen": False},
    "rap": {"frozen": False},
    "tfvl": {"frozen": False},
    "shenet": {"num_regions": 4},
    "video_colbert": {"num_query_tokens": DEMO_WORDS},
}  # fmt: skip
# With random towers, neither the loss of the hardest wrong pair (supportset) nor binary matching
# (clipbert) rises above chance in ten epochs: half of the budget trains the towers by mean pooling.
HALF_COARSE = {"epochs": 5, "coarse_epochs": 5, "eval_every": 1}
DEMO_METHOD_TRAINING: MethodSettings = {"supportset": HALF_COARSE, "clipbert": HALF_COARSE}


def demo_setup(method: str, dataset: str, tower: str) -> Setup:
    return Setup(
        encoder=EncoderChoice("clip", "demo", DEMO_TOWERS, logit_scale=2.66),
        data=DataChoice(
            "demo",
            options={"train": 6000, "val": 200},
            frames=DEMO_FRAMES,
            max_words=DEMO_WORDS,
        ),
        training=replace(DEMO_TRAINING, **DEMO_METHOD_TRAINING.get(method, {})),
        dim=DEMO_TOWERS.dim,
        notes="Small towers from random weights on the demo world.",
        config=DEMO_CONFIG.get(method, {}),
    )


# Stored features: heads over small adapters to a common width. Folders with widths other than 384
# (texts) and 512 (frames) need encoder.config.text_dim and encoder.config.frame_dim.

# Sizes chosen on 500 held-out videos (docs/lab/features.md) with mean pooling, one seed, t2v
# R@1/5/10: linear adapters (hidden=0) 7.4/21.1/30.1; with input dropout 0.5 10.0/26.4/37.4; with
# frame dropout 0.3 too 10.3/27.2/37.8; hidden layer of 1024 12.6/31.6/42.1, of 2048 13.2/32.2/42.3.
# Batch (512 to 2048), rate (5e-4 to 2e-3), decay and a width of 1024 each changed R@1 by at most
# 0.4.
FEATURE_ADAPTERS = FeatureConfig(
    text_dim=384,
    frame_dim=512,
    dim=512,
    scaling="layer_norm",
    dropout=0.4,
    hidden=2048,
    hidden_dropout=0.4,
    frame_dropout=0.3,
)
FEATURE_TRAINING = TrainingConfig(
    epochs=12,  # For all methods, including coarse epochs.
    batch_size=512,
    lr_head=1e-3,
    lr_encoder=1e-3,
    log_every=50,
    checkpoint_every=0,
)
# Narrow heads, as in the released code, take a quarter of the memory and allow larger batches.
FEATURE_EAGLENET = {
    **EAGLENET, "head_size": "split", "shared_residual": True,
    # After the coarse epochs, the mean cosine of right pairs is 0.36, of others 0.18.
    "initial_temperature": 3.5, "initial_bias": -12.0,
}  # fmt: skip
# Memory limits the batch: B pairs need B x B pooled videos (and candidates, for EagleNet). With
# random adapters, attention from texts to frames starts worse than mean pooling, so coarse epochs
# train the adapters first.
POOLING_TRAINING = {"epochs": 4, "batch_size": 256, "coarse_epochs": 8, "coarse_batch_size": 512}
FEATURE_METHOD_TRAINING: MethodSettings = {
    "eaglenet": {"epochs": 2, "batch_size": 128, "coarse_epochs": 10, "coarse_batch_size": 512},
    "xpool": POOLING_TRAINING,
    "tmass": POOLING_TRAINING,
}


def feature_setup(method: str, dataset: str, tower: str) -> Setup:
    return Setup(
        encoder=EncoderChoice("features", config=FEATURE_ADAPTERS, logit_scale=3.5),
        data=DataChoice("features", frames=FrameSpec(num_frames=12), val_videos=500),
        training=replace(FEATURE_TRAINING, **FEATURE_METHOD_TRAINING.get(method, {})),
        dim=FEATURE_ADAPTERS.dim,
        notes="Stored features under trained adapters; 500 videos held out choose the epoch.",
        config=FEATURE_EAGLENET if method == "eaglenet" else {},
    )


# Folders of frames: heads on the frozen towers of `small`, whose features are computed once, or the
# towers trained too, from pixels, with the paper's low rate.

SMALL_DIM = 384
SMALL_SCALE = 3.264
"""Logarithm of the temperature that `small` learnt for its cosines."""
FRAMES_TRAINING = TrainingConfig(
    epochs=3,
    batch_size=128,
    lr_head=3e-4,
    lr_encoder=3e-4,  # Applies to the temperature only; stored features do not change.
    log_every=50,
    checkpoint_every=0,
)
# Text features of `small` have norm 4, the noise of candidate texts norm 20: without unit features,
# candidates would be mostly noise. Other methods use directions, or normalise first.
FRAMES_CONFIG: MethodSettings = {
    "tmass": {"unit_features": True},
    "eaglenet": {
        **EAGLENET, "unit_features": True, "head_size": "split", "shared_residual": True,
        # With the towers alone, the mean cosine of right pairs is 0.42, of others 0.14.
        "initial_temperature": SMALL_SCALE, "initial_bias": -11.0,
    },
    "supportset": {"vocabulary_size": 27_626},  # That of `small`.
}  # fmt: skip


def frames_setup(method: str, dataset: str, tower: str) -> Setup:
    if tower == "small":
        encoder = EncoderChoice("pretrained", "small")
        training = replace(FRAMES_TRAINING, lr_encoder=1e-6, lr_head=1e-4, batch_size=64)
        training = replace(training, **METHOD_TRAINING.get(method, {}))
    elif METHODS[method].reads_experts:
        widths = ExpertConfig({"frames": SMALL_DIM}, "frames", SMALL_DIM, SMALL_DIM, dim=SMALL_DIM)
        encoder, training = EncoderChoice("experts", config=widths), FRAMES_TRAINING
    else:
        identity = FeatureConfig(SMALL_DIM, SMALL_DIM, SMALL_DIM, identity=True)
        encoder = EncoderChoice("features", config=identity, logit_scale=SMALL_SCALE)
        training = FRAMES_TRAINING
    return Setup(
        encoder=encoder,
        data=DataChoice("frames", frames=FrameSpec(num_frames=12, size=168, resize="stretch")),
        training=training,
        dim=SMALL_DIM,
        notes="Towers of `small`; the folder's validation items choose the epoch.",
        config=FRAMES_CONFIG.get(method, {}),
    )


CLIP_SCALE = 4.6052
"""Logarithm of 100, the temperature that CLIP and its successors learn for their cosines."""
SHARED_CONFIG: MethodSettings = {
    **FRAMES_CONFIG,
    "eaglenet": {**FRAMES_CONFIG["eaglenet"], "initial_temperature": CLIP_SCALE},
}


def shared_setup(method: str, dataset: str, tower: str) -> Setup:
    """Return a setup for stored features of one space for texts and frames, without adapters.

    ``Experiment.override`` sets the widths to those of the folder.
    """
    identity = FeatureConfig(512, 512, 512, identity=True)
    return Setup(
        encoder=EncoderChoice("features", config=identity, logit_scale=CLIP_SCALE),
        data=DataChoice("features", frames=FrameSpec(num_frames=12)),
        training=FRAMES_TRAINING,
        dim=512,
        notes="Features of one space, as they are: before training, mean pooling ranks by the "
        "model's own cosines. Videos held out choose the epoch.",
        config=SHARED_CONFIG.get(method, {}),
    )


def small_folder_setup(method: str, dataset: str, tower: str) -> Setup:
    """Return a setup for the user's own videos on the towers of ``small``, trained or frozen."""
    frames = frames_setup(method, dataset, tower)
    # Steps on stored features are fast, which allows more epochs.
    epochs = 20 if tower == "small-frozen" else 5
    return replace(
        frames,
        data=replace(frames.data, dataset=dataset),
        training=replace(frames.training, epochs=epochs, batch_size=32),
        notes="Your own videos and captions on the towers of `small`.",
    )


# Experts of the demo world (`eaglenet data demo-experts`). Methods that read only frames use the
# expert FRAMES_EXPERT. Other folders need encoder.config.experts, frames, text_dim, words_dim.

EXPERT_DIM = 64
EXPERT_TRAINING = TrainingConfig(
    epochs=12,
    lr_head=2e-3,
    lr_encoder=2e-3,
    weight_decay=1e-3,
    checkpoint_every=0,
    eval_every=2,
)
EXPERT_CONFIG: MethodSettings = {
    "ce": {"text_centres": 8, "centres": {"colour": 2, "sound": 2}, "margin": 0.2},
    "mmt": {"num_layers": 2, "hidden_dim": 128, "text_layers": 1, "margin": 0.2},
    "t2vlad": {"num_centres": 5},
    "supportset": {"text_layers": 1, "hidden_dim": 128, "caption_weight": 1.0},
    "clipbert": {"num_layers": 1, "num_heads": 4, "hidden_dim": 128, "frames_per_clip": 3},
    "hit": {
        "num_layers": 2, "text_layers": 1, "hidden_dim": 128, "bank_size": 256, "momentum": 0.95,
    },
    "teachtext": {"student_config": {"text_centres": 8, "margin": 0.2}},
}  # fmt: skip


def expert_setup(method: str, dataset: str, tower: str) -> Setup:
    from eaglenet.research.data.demo.dataset import FRAMES_EXPERT, TOKENS, WIDTHS, WORDS
    from eaglenet.research.data.demo.world import vocabulary

    experts = ExpertConfig(
        WIDTHS, FRAMES_EXPERT, text_dim=24, words_dim=WORDS["glove"], dim=EXPERT_DIM
    )
    if METHODS[method].reads_experts:
        encoder = EncoderChoice("experts", config=experts)
    else:
        adapters = FeatureConfig(
            experts.text_dim, experts.frame_dim, EXPERT_DIM, scaling="layer_norm"
        )
        encoder = EncoderChoice("features", config=adapters, logit_scale=2.66)
    config = dict(EXPERT_CONFIG.get(method, {}))
    if method == "supportset":
        config["vocabulary_size"] = 3 + len(vocabulary())
    return Setup(
        encoder=encoder,
        data=DataChoice(
            "features", frames=FrameSpec(num_frames=TOKENS[FRAMES_EXPERT]), val_videos=100
        ),
        training=EXPERT_TRAINING,
        dim=EXPERT_DIM,
        notes="Five experts of the demo world; 100 videos held out choose the epoch.",
        config=config,
    )
