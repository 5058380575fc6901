"""A features folder small enough to train on in a second, and the experiment that does."""

import json
from pathlib import Path

import numpy as np

from eaglenet.core.types import FrameSpec
from eaglenet.encoders.features import FeatureConfig
from eaglenet.methods.eaglenet import EagleNetConfig
from eaglenet.research.data.sources import DataChoice
from eaglenet.research.experiments.experiment import EncoderChoice, Experiment
from eaglenet.research.training.config import TrainingConfig

TEXT_DIM, FRAME_DIM, DIM, FRAMES, VIDEOS, CAPTIONS = 9, 11, 8, 5, 40, 3


def write_features(folder: Path, *, videos: int = VIDEOS, seed: int = 0, first: int = 0) -> Path:
    """Frames and sentences of a video are noisy views of one hidden vector."""
    folder.mkdir(parents=True, exist_ok=True)
    draw = np.random.default_rng(seed)
    maps = np.random.default_rng(99)
    to_text, to_frame = maps.normal(size=(6, TEXT_DIM)), maps.normal(size=(6, FRAME_DIM))
    hidden = draw.normal(size=(videos, 6))
    counts = [int(draw.integers(1, FRAMES + 1)) for _ in range(videos)]
    counts[0] = FRAMES
    frames = np.repeat(hidden @ to_frame, counts, axis=0)
    texts = np.repeat(hidden @ to_text, CAPTIONS, axis=0)
    frames = frames + 0.1 * draw.normal(size=frames.shape)
    texts = texts + 0.1 * draw.normal(size=texts.shape)
    np.save(folder / "frame_features.npy", frames.astype(np.float32))
    np.save(folder / "sentence_features.npy", texts.astype(np.float32))
    index = {
        "video_ids": [f"video{first + number}" for number in range(videos)],
        "frames_per_video": counts,
        "captions_per_video": [CAPTIONS] * videos,
        "captions": [[f"caption {c} of {v}" for c in range(CAPTIONS)] for v in range(videos)],
    }
    (folder / "index.json").write_text(json.dumps(index))
    return folder


def tiny_experiment(root: Path, **training: object) -> Experiment:
    """EagleNet with its replay buffer, noise and dropout, on a tiny features folder."""
    settings: dict = {
        "epochs": 3, "batch_size": 24, "lr_head": 3e-3, "lr_encoder": 3e-3, "weight_decay": 0.01,
        "checkpoint_every": 2,
    }  # fmt: skip
    return Experiment(
        name="tiny",
        method="eaglenet",
        method_config=EagleNetConfig(
            dim=DIM, num_frames=FRAMES, num_candidates=2, num_heads=2, langevin_steps=3,
            replay_size=30,
        ),
        encoder=EncoderChoice("features", config=FeatureConfig(TEXT_DIM, FRAME_DIM, DIM)),
        data=DataChoice(
            "features", str(root), frames=FrameSpec(num_frames=FRAMES), val_videos=10
        ),
        training=TrainingConfig(**{**settings, **training}),
    )  # fmt: skip


def logged_losses(folder: Path) -> list[dict]:
    """The steps of a run's log, without times."""
    from eaglenet.research.evaluation.run_records import read_log

    return [
        {name: value for name, value in entry.to_dict().items() if name != "seconds"}
        for entry in read_log(folder)
        if entry.event == "step"
    ]
