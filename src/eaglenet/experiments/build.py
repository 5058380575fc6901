"""From an experiment to the objects it names: encoder, method, splits. Bad input stops here."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import torch

from eaglenet.data import DATASETS, Split
from eaglenet.data.batches import CachedPairs
from eaglenet.data.experts import ExpertSplit, load_expert_folder
from eaglenet.data.features import FeatureSplit, load_feature_folder
from eaglenet.data.records import check_options, check_split_name
from eaglenet.encoders import ENCODERS
from eaglenet.encoders.experts import ExpertConfig
from eaglenet.encoders.features import FeatureEncoder
from eaglenet.errors import ConfigError, DatasetError, ModelNotFoundError, UsageError
from eaglenet.experiments.experiment import PRETRAINED, DataChoice, EncoderChoice, Experiment
from eaglenet.methods import METHODS
from eaglenet.methods.base import Method, evaluating
from eaglenet.progress import Progress
from eaglenet.training.distributed import World
from eaglenet.training.sources import (
    Source,
    cached_source,
    feature_source,
    memory_source,
    pair_samplers,
)
from eaglenet.types import Clips, Encoder, Tokenizer

logger = logging.getLogger(__name__)
FEATURES = "features"
DEMO = "demo"


def build_method(experiment: Experiment) -> Method:
    """The method with fresh (or pretrained) weights; random ones come from the seed."""
    spec = METHODS[experiment.method]
    if experiment.encoder.kind == "experts" and not spec.reads_experts:
        raise ConfigError(
            f"{experiment.method} reads frames and sentences, not several experts; set "
            "encoder.kind=features to train it on the frames of such a folder"
        )
    encoder, tokenizer = build_encoder(experiment.encoder, experiment.training.seed)
    if experiment.encoder.logit_scale is not None and hasattr(encoder, "logit_scale"):
        encoder.logit_scale.data.fill_(experiment.encoder.logit_scale)
    torch.manual_seed(experiment.training.seed)
    method = spec.build(experiment.method_config, encoder)
    method.tokenizer = tokenizer
    method.frame_spec = experiment.data.frames
    if experiment.encoder.kind == FEATURES:
        _check_runs_on_features(method)
    return method


def build_encoder(choice: EncoderChoice, seed: int) -> tuple[Encoder, Tokenizer | None]:
    """An encoder and its tokenizer (None for stored features)."""
    if choice.kind == PRETRAINED:
        from eaglenet.encoders.loading import load_pretrained

        return load_pretrained(choice.source)
    spec = ENCODERS[choice.kind]
    if choice.config is None:
        raise ConfigError(f"encoder.kind={choice.kind} needs encoder.config, which is not set")
    encoder = spec.build(choice.config, seed=seed)
    return encoder, None if spec.reads_features else build_tokenizer(choice.source)


def build_tokenizer(source: str) -> Tokenizer:
    """The demo world's tokenizer, or the one in a folder."""
    if source == DEMO:
        from eaglenet.data.demo.dataset import demo_tokenizer_folder

        source = str(demo_tokenizer_folder())
    from eaglenet.encoders.loading import read_tokenizer

    tokenizer = read_tokenizer(Path(source))
    if tokenizer is None:
        raise ModelNotFoundError(f"encoder.source={source}: no tokenizer.json in this folder")
    return tokenizer


def check_data(data: DataChoice) -> None:
    """Refuse a dataset that is not known or not there, before weights are fetched for it."""
    if data.dataset == DEMO:
        return
    if data.dataset != FEATURES:
        DATASETS[data.dataset]
    _folder(data.root, data)


def check_fit(method: Method, data: DataChoice) -> None:
    """Send one made-up pair through the model: what does not fit fails before hours of decoding."""
    spec = data.frames
    if spec.num_frames < 1 or spec.size < 1:
        raise ConfigError(
            f"data.frames asks for {spec.num_frames} frames of {spec.size} pixels; expected at "
            "least 1 of both"
        )
    if method.tokenizer is None or data.dataset == FEATURES:
        return
    clip = Clips(
        torch.zeros(1, spec.num_frames, 3, spec.size, spec.size, dtype=torch.uint8),
        torch.ones(1, spec.num_frames, dtype=torch.bool),
        torch.arange(spec.num_frames, dtype=torch.float32)[None],
    )
    try:
        with evaluating(method), torch.no_grad(), torch.random.fork_rng():
            tokens = method.tokenize(["a"], data.max_words)
            text = method.encode_text(tokens.to(method.device))
            method.score(text, method.encode_video(clip.to(method.device)))
    except (UsageError, ValueError) as error:
        raise ConfigError(
            f"data.frames ({spec.num_frames} frames of {spec.size} pixels) and data.max_words "
            f"({data.max_words}) do not fit the model: {error}"
        ) from error


def load_source(
    data: DataChoice,
    split: str,
    method: Method,
    *,
    cache: Path,
    device: torch.device,
    progress: Progress | None = None,
) -> Source:
    """One split, ready for batches; frames are decoded into ``cache`` where they are not yet."""
    if data.dataset == FEATURES:
        return feature_source(load_features(data, split, method).to(device))
    if method.tokenizer is None:
        raise ConfigError(
            f"data.dataset={data.dataset} has sentences and videos, but the encoder reads stored "
            "features; set encoder.kind to pretrained or clip"
        )
    if data.dataset == DEMO:
        return _demo_source(data, split, method)
    return _cached_frames(data, split, method, cache, progress)


def describe_data(experiment: Experiment, method: Method, world: World) -> dict[str, Any]:
    """What is found of each split that training needs, without decoding any video.

    Refuses data of which the processes of ``world`` could make no batch.
    """
    data = experiment.data
    found: dict[str, Any] = {}
    for split in ("train", experiment.training.select):
        pairs: Source | Split
        if data.dataset in (FEATURES, DEMO):
            pairs = load_source(data, split, method, cache=Path(), device=torch.device("cpu"))
            found[split] = pairs.describe()
        else:
            records = _load_records(data, split)
            found[split] = _describe_records(records)
            pairs = records.present()
        if split == "train":
            pair_samplers(experiment.training, pairs.video_of_text, world)
    return found


def _describe_records(records: Split) -> dict[str, Any]:
    return {
        "protocol": records.protocol.name,
        "texts": len(records.texts),
        "videos_found": len(records) - len(records.missing),
        "videos_missing": len(records.missing),
    }


def load_features(data: DataChoice, split: str, method: Method) -> FeatureSplit:
    """Training or held-out part of a features folder; ``test`` needs ``data.options.test_root``."""
    check_split_name(FEATURES, split, ("train", "val", "test"))
    _refuse_options(data, {"test_root"})
    if split == "test":
        root = data.options.get("test_root")
        if not root:
            raise UsageError(
                "a features folder holds no test split; name another folder of the same form with "
                "data.options.test_root=FOLDER, or `eaglenet evaluate RUN --features FOLDER`"
            )
        return read_features(_folder(str(root), data), method)
    whole = read_features(_folder(data.root, data), method)
    train, validation = whole.hold_out(data.val_videos)
    return train if split == "train" else validation


def read_features(folder: Path, method: Method) -> FeatureSplit:
    """A features folder as the model reads it, with its experts where it reads those."""
    config: Any = getattr(method.encoder, "config", None)
    if isinstance(config, ExpertConfig):
        return check_experts(load_expert_folder(folder, words=config.words), config)
    return check_features(load_feature_folder(folder), method)


def check_experts(features: ExpertSplit, config: ExpertConfig) -> ExpertSplit:
    """Refuse a folder whose experts or words are not those the model was built for."""
    given = features.expert_widths
    wanted = dict(sorted(config.experts.items()))
    if any(given.get(name) != width for name, width in wanted.items()):
        told = json.dumps(given)
        raise ConfigError(
            f"the folder has the experts {told}, the model takes {json.dumps(wanted)}: "
            f"--set 'encoder.config.experts={told}'"
        )
    if features.frames_expert != config.frames:
        raise ConfigError(
            f"the folder's frames are {features.frames_expert!r}, the model's {config.frames!r}: "
            f"--set encoder.config.frames={features.frames_expert}"
        )
    for name, found, expected in (
        ("text_dim", features.text_dim, config.text_dim),
        ("words_dim", features.words_dim, config.words_dim),
    ):
        if found != expected:
            raise ConfigError(
                f"the folder has {name} {found}, the model takes {expected}: "
                f"--set encoder.config.{name}={found}"
            )
    return features


def check_features(features: FeatureSplit, method: Method) -> FeatureSplit:
    """Refuse features whose width or number of frames the model was not built for."""
    encoder = method.encoder
    if not isinstance(encoder, FeatureEncoder):
        raise ConfigError("this model reads sentences and videos, not stored features")
    expected = (encoder.config.text_dim, encoder.config.frame_dim)
    given = (features.text_dim, features.frame_dim)
    if given != expected:
        raise ConfigError(
            f"the features are {given[0]} wide for sentences and {given[1]} for frames, the model "
            f"takes {expected[0]} and {expected[1]}: --set encoder.config.text_dim={given[0]} "
            f"--set encoder.config.frame_dim={given[1]}"
        )
    most = getattr(method.config, "num_frames", None)
    if most is not None and features.max_frames > most:
        raise ConfigError(
            f"the features have up to {features.max_frames} frames a video, the model takes "
            f"{most}; set method_config.num_frames={features.max_frames}"
        )
    return features


def _check_runs_on_features(method: Method) -> None:
    for needs, what in ((method.needs_words, "word"), (method.needs_patches, "patch")):
        if needs:
            raise ConfigError(
                f"{method.name} needs {what} features, which a features folder does not offer; "
                "train it on videos"
            )


def _load_records(data: DataChoice, split: str) -> Split:
    spec = DATASETS[data.dataset]
    _refuse_options(data, {*spec.options, "video_folders"})
    return spec.load(_folder(data.root, data), split, **data.options)


def _refuse_options(data: DataChoice, known: set[str]) -> None:
    for name in data.options:
        if name not in known:
            raise ConfigError(
                f"data.options.{name}: {data.dataset} has no such option (known: "
                f"{', '.join(sorted(known))}); data.options={{}} clears what a recipe sets"
            )


def _cached_frames(
    data: DataChoice, split: str, method: Method, cache: Path, progress: Progress | None
) -> Source:
    from eaglenet.data.frame_cache import FrameCache, cache_folder, estimate

    records = _load_records(data, split).present()
    base = Path(data.cache).expanduser() if data.cache else cache
    folder = cache_folder(base, records.dataset, data.frames)
    size = estimate(records, data.frames)
    logger.info("frames of %s: up to %.2f GB in %s", split, size / 1e9, folder)

    frames = FrameCache.build(records, data.frames, folder, workers=data.workers, progress=progress)
    pairs = CachedPairs(records, frames, method.tokenize, max_words=data.max_words)
    return cached_source(pairs)


def _demo_source(data: DataChoice, split: str, method: Method) -> Source:
    from eaglenet.data.demo.dataset import demo_split, render_clips

    world = demo_split(split, **check_options(DEMO, demo_split, data.options))
    clips = render_clips(world, data.frames)
    tokens = method.tokenize(world.texts, data.max_words)
    return memory_source(world, tokens, clips)


def _folder(root: str, data: DataChoice) -> Path:
    if not root:
        raise DatasetError(
            f"data.root is not set; say where {data.dataset} lies: --set data.root=FOLDER"
        )
    folder = Path(root).expanduser()
    if not folder.exists():
        raise DatasetError(f"data.root={root}: no such folder or file")
    return folder
