"""Folders of stored features as data to train and evaluate on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from eaglenet.command_lines import quoted
from eaglenet.data.batches import FeaturePairs
from eaglenet.data.experts import ExpertSplit, load_expert_folder
from eaglenet.data.feature_folder import INDEX_FILE, load_feature_folder, made_otherwise, read_index
from eaglenet.data.features import FeatureSplit
from eaglenet.data.records import check_split_name, hold_out_ids
from eaglenet.data.sources import DataChoice, Opening, Reader, Source, SourceSpec, add_source
from eaglenet.encoders.experts import ExpertConfig
from eaglenet.encoders.feature_encoder import FeatureEncoder
from eaglenet.errors import ConfigError, UsageError

FEATURES = "features"


def open_features(data: DataChoice, split: str, opening: Opening) -> Source:
    """Training or held-out part of a features folder; ``test`` needs ``data.options.test_root``."""
    check_split_name(FEATURES, split, ("train", "val", "test"))
    data.refuse_options({"test_root"})
    if split == "test":
        root = data.options.get("test_root")
        if not root:
            raise UsageError(
                "a features folder holds no test split; name another folder of the same form with "
                "--set data.options.test_root=FOLDER, or `eaglenet evaluate RUN --features FOLDER`"
            )
        part = read_features(data.folder(str(root)), opening.reader)
    else:
        whole = read_features(data.folder(), opening.reader)
        train, validation = whole.hold_out(data.val_videos)
        part = train if split == "train" else validation
    return feature_source(part.to(opening.device))


def open_whole(folder: Path, reader: Reader) -> Source:
    """All videos of a features folder."""
    return feature_source(read_features(folder, reader))


def default_split(data: DataChoice) -> str:
    """The held-out part, unless another folder is named to test on."""
    return "test" if data.options.get("test_root") else "val"


def feature_source(split: FeatureSplit) -> Source:
    """Stored features, on the device that ``split`` lies on."""
    return Source(
        pairs=FeaturePairs(split),
        texts=split.text_batch,
        videos=split.video_batch,
        sentences=split.captions,
        video_ids=split.video_ids,
        protocol=split.protocol,
    )


def read_features(folder: Path, reader: Reader) -> FeatureSplit:
    """A features folder as the model reads it, with its experts where it reads those."""
    config = reader.encoder.config
    if isinstance(config, ExpertConfig):
        return check_experts(load_expert_folder(folder, words=config.words), config)
    words = words_of_towers(read_index(folder))
    if words:
        return check_features(load_expert_folder(folder, words=words), reader)
    return check_features(load_feature_folder(folder), reader)


def words_of_towers(index: Mapping[str, Any]) -> str:
    """The words that the very towers of the sentences gave, which share their space; else none."""
    kinds = index.get("words") or {}
    model = index.get("model")
    return next((name for name, entry in kinds.items() if model and entry["model"] == model), "")


def check_experts(features: ExpertSplit, config: ExpertConfig) -> ExpertSplit:
    """Refuse a folder whose experts or words are not those the model was built for."""
    given = features.expert_widths
    wanted = dict(sorted(config.experts.items()))
    if any(given.get(name) != width for name, width in wanted.items()):
        told = json.dumps(given)
        raise ConfigError(
            f"the folder has the experts {told}, the model takes {json.dumps(wanted)}: "
            "--set " + quoted(f"encoder.config.experts={told}")
        )
    if features.frames_expert != config.frames:
        raise ConfigError(
            f"the folder's frames are {features.frames_expert!r}, the model's {config.frames!r}: "
            "--set " + quoted(f"encoder.config.frames={features.frames_expert}")
        )
    for name, found, expected in (
        ("text_dim", features.text_dim, config.text_dim),
        ("words_dim", features.words_dim, config.words_dim),
    ):
        if found != expected:
            raise ConfigError(
                f"the folder has {name} {found}, the model takes {expected}: "
                "--set " + quoted(f"encoder.config.{name}={found}")
            )
    return features


def check_features(features: FeatureSplit, reader: Reader) -> FeatureSplit:
    """Refuse features whose width or number of frames the model was not built for."""
    encoder = reader.encoder
    if not isinstance(encoder, FeatureEncoder):
        raise ConfigError("this model reads sentences and videos, not stored features")
    expected = (encoder.config.text_dim, encoder.config.frame_dim)
    given = (features.text_dim, features.frame_dim)
    if given != expected:
        raise ConfigError(
            f"the features are {given[0]} wide for sentences and {given[1]} for frames, the model "
            f"takes {expected[0]} and {expected[1]}: --set encoder.config.text_dim={given[0]:d} "
            f"--set encoder.config.frame_dim={given[1]:d}"
        )
    most = getattr(reader.config, "num_frames", None)
    if most is not None and features.max_frames > most:
        raise ConfigError(
            f"the features have up to {features.max_frames} frames per video, the model takes "
            f"{most}: --set method_config.num_frames={features.max_frames:d}"
        )
    return features


def feature_notes(data: DataChoice, given: FeatureSplit) -> list[str]:
    """What of a features folder was part of the training, and how it was made otherwise."""
    root = Path(data.root).expanduser()
    if data.dataset != FEATURES or not (root / INDEX_FILE).is_file():
        return []
    index = read_index(root)
    ids, video_ids = index["video_ids"], given.video_ids
    held_out = hold_out_ids(ids, data.val_videos)
    notes = made_otherwise(index, given.metadata)
    for name, known in (("trained on", set(ids) - held_out), ("selected on", held_out)):
        count = len(known.intersection(video_ids))
        if count:
            notes.append(
                f"{count:,} of the {len(video_ids):,} videos are among those that the run was "
                f"{name}: not a score on unseen videos"
            )
    return notes


add_source(
    SourceSpec(
        FEATURES,
        "Stored features of any dataset",
        open=open_features,
        whole=open_whole,
        default_split=default_split,
        is_features=True,
    )
)
