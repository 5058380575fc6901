"""Setups with an equal, small budget for every method: demo world, features, frames, experts."""

from __future__ import annotations

from dataclasses import replace

from eaglenet.core.types import FrameSpec
from eaglenet.encoders.clip_config import ClipConfig, TextConfig, VisionConfig
from eaglenet.encoders.features import ExpertConfig, FeatureConfig
from eaglenet.methods import METHODS
from eaglenet.research.data.sources import DataChoice
from eaglenet.research.experiments.experiment import EncoderChoice, MethodSettings, Setup
from eaglenet.research.recipes.benchmarks import EAGLENET
from eaglenet.research.training.config import TrainingConfig

# Demo world: small CLIP towers from random weights, minutes on two cores.

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
# Few candidates and narrow heads keep a step of the pair-conditioned methods under half a second.
# Token shift: pooling over frames is blind to their order, so frames must see their neighbours.
# Softmax: the sigmoid loss learns more slowly with towers that know nothing yet (docs/lab/demo.md).
DEMO_CONFIG: MethodSettings = {
    "eaglenet": {
        **EAGLENET, "token_shift": True, "num_candidates": 4, "prior": "uniform",
        "radius_bias": True, "head_size": "split", "graph_dropout": 0.1, "pool_dropout": 0.1,
        "langevin_steps": 5, "loss": "softmax", "initial_temperature": 2.66, "initial_bias": -6.0,
    },
    # Towers from random weights have no score of their own yet that would be worth keeping.
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
    # Towers from random weights must train, whatever an adapter would leave frozen.
    "tempme": {"frozen": False},
    "rap": {"frozen": False},
    "tfvl": {"frozen": False},
    "shenet": {"num_regions": 4},
    "video_colbert": {"num_query_tokens": DEMO_WORDS},
}  # fmt: skip
# From random towers neither the margin over the hardest wrong pair nor a pair's yes or no leaves
# chance in ten epochs: mean pooling brings the towers together for half of the budget.
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
# (sentences) and 512 (frames) need encoder.config.text_dim and encoder.config.frame_dim.

# Search on 500 held-out videos (docs/lab/features.md) with mean pooling, one seed, t2v R@1/5/10:
# linear adapters 7.4/21.1/30.1 without dropout, 10.0/26.4/37.4 with 0.5 on the input and
# 10.3/27.2/37.8 with 0.3 of the frames left out too; a hidden layer of 1024 12.6/31.6/42.1, of 2048
# 13.2/32.2/42.3. Batch (512 to 2048), rate (5e-4 to 2e-3), decay and a width of 1024 instead
# of 512 each moved R@1 by 0.4 or less. encoder.config.hidden=0 gives linear adapters.
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
    epochs=12,  # coarse ones included, everywhere
    batch_size=512,
    lr_head=1e-3,
    lr_encoder=1e-3,
    log_every=50,
    checkpoint_every=0,
)
# Narrow heads, as in the released code: a quarter of the memory, so that batches can be larger.
FEATURE_EAGLENET = {
    **EAGLENET, "head_size": "split", "shared_residual": True,
    # Adapters that have met give right pairs a cosine of 0.36 and others 0.18.
    "initial_temperature": 3.5, "initial_bias": -12.0,
}  # fmt: skip
# A batch of B pairs makes B x B pooled videos (and candidates, for EagleNet): memory bounds B.
# Attention with the text as its query starts behind mean pooling where text and frames have never
# met, so the adapters meet first.
POOLED = {"epochs": 4, "batch_size": 256, "coarse_epochs": 8, "coarse_batch_size": 512}
FEATURE_METHOD_TRAINING: MethodSettings = {
    "eaglenet": {"epochs": 2, "batch_size": 128, "coarse_epochs": 10, "coarse_batch_size": 512},
    "xpool": POOLED,
    "tmass": POOLED,
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


# Folders of frames: heads on the frozen towers of `small`, whose features are computed once, or
# the towers trained along, from pixels, with the paper's low rate.

SMALL_DIM = 384
SMALL_SCALE = 3.264
"""Logarithm of the factor that `small` learnt for its cosines."""
FRAMES_TRAINING = TrainingConfig(
    epochs=3,
    batch_size=128,
    lr_head=3e-4,
    lr_encoder=3e-4,  # of the temperature alone: the features stay as they are
    log_every=50,
    checkpoint_every=0,
)
# Sentences of `small` have a length of 4, the noise of a candidate text one of 20: unscaled, a
# candidate would be noise alone. Other methods look at directions, or normalise first.
FRAMES_CONFIG: MethodSettings = {
    "tmass": {"unit_features": True},
    "eaglenet": {
        **EAGLENET, "unit_features": True, "head_size": "split", "shared_residual": True,
        # Right pairs have a cosine of 0.42 by the towers alone, others 0.14.
        "initial_temperature": SMALL_SCALE, "initial_bias": -11.0,
    },
    "supportset": {"vocabulary_size": 27_626},  # tokens of `small`
}  # fmt: skip


def frames_setup(method: str, dataset: str, tower: str) -> Setup:
    if tower == "small":
        encoder = EncoderChoice("pretrained", "small")
        training = replace(FRAMES_TRAINING, lr_encoder=1e-6, lr_head=1e-4, batch_size=64)
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
"""Logarithm of 100, the factor that CLIP and its successors learn for their cosines."""
SHARED_CONFIG: MethodSettings = {
    **FRAMES_CONFIG,
    "eaglenet": {**FRAMES_CONFIG["eaglenet"], "initial_temperature": CLIP_SCALE},
}


def shared_setup(method: str, dataset: str, tower: str) -> Setup:
    """Stored features of a model whose texts and frames lie in one space, left as they are.

    The widths are those of the folder (`Experiment.override`).
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
    """Own videos on the towers of the package, which need no network, trained along or frozen."""
    frames = frames_setup(method, dataset, tower)
    # Steps on stored features take a fraction of a second: few videos can be seen more often.
    epochs = 20 if tower == "small-frozen" else 5
    return replace(
        frames,
        data=replace(frames.data, dataset=dataset),
        training=replace(frames.training, epochs=epochs, batch_size=32),
        notes="Your own videos and captions on the towers of `small`.",
    )


# Experts of the demo world (`eaglenet data demo-experts`). Methods that read frames alone get the
# expert that shows moments. Other folders need encoder.config.experts, frames, text_dim, words_dim.

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
    from eaglenet.research.data.demo.experts import FRAMES_EXPERT, TOKENS, WIDTHS, WORDS
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
