"""Stored features and folders of frames as sources of training and evaluation."""

from __future__ import annotations

import glob
import hashlib
import json
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from eaglenet.core.errors import ConfigError, UsageError, shell_quote
from eaglenet.core.files import atomic_folder, expand_home, hold_lock
from eaglenet.core.progress import Progress, report_progress
from eaglenet.core.types import Expert, TextFeatures, TextGraph, Tokens
from eaglenet.encoders import ENCODERS
from eaglenet.encoders.features import ExpertConfig, FeatureEncoder
from eaglenet.encoders.hardware import Precision, autocast_for, choose_precision
from eaglenet.methods.base import Method
from eaglenet.models.files import MODEL, WEIGHTS, WHOLE_MODEL, local_folder
from eaglenet.models.folder import load, save, save_head, with_head
from eaglenet.research.data.experts import add_experts, load_expert_folder
from eaglenet.research.data.features import (
    INDEX_FILE,
    FeatureSplit,
    differing_origins,
    load_feature_folder,
    read_index,
    save_feature_folder,
)
from eaglenet.research.data.frame_folder import FRAMES, OPTIONS, inspect_frames, open_clips
from eaglenet.research.data.frame_folder import INDEX_FILE as FRAMES_INDEX
from eaglenet.research.data.records import check_split_name, hold_out_ids
from eaglenet.research.data.role_graphs import expand_to_tokens, role_graphs
from eaglenet.research.data.sources import (
    DataChoice,
    OpenContext,
    Source,
    SourceSpec,
    add_source,
    load_records,
    open_videos,
)
from eaglenet.research.training.epochs import fetch_batches, index_chunks

WORDS = "words"
"""Name of the first model's token features in a folder of experts; its frames are ``FRAMES``."""


@torch.inference_mode()
def write_features(
    method: Method,
    source: Source,
    output: Path,
    *,
    model: str,
    dataset: str,
    split: str,
    experts: Mapping[str, tuple[str, Expert]] | None = None,
    words: bool = False,
    precision: Precision = "fp32",
    progress: Progress | None = None,
) -> Path:
    """Encode ``source`` with ``method`` and write a features folder atomically.

    model: name of the method's model. experts: name and features of other models, by expert. words:
    also write token features, token ids and graphs of the texts, which ``experts`` adds too.
    precision: of the products of the image tower.
    """
    text_chunks = index_chunks(source.num_texts, 256)
    video_chunks = index_chunks(source.num_videos, 8)
    texts = encode_batches(
        method.encode_text,
        fetch_batches(source.texts, text_chunks, f"encoding {split} texts", progress),
        method.device,
    )
    with autocast_for(method.device, precision):
        videos = encode_batches(
            method.encode_video,
            fetch_batches(source.videos, video_chunks, f"encoding {split} videos", progress),
            method.device,
        )
    other_experts = dict(experts or {})
    has_words = bool(other_experts or words)
    if has_words:
        report_progress(progress, f"encoding words of {split} texts", 0, source.num_texts)
    vectors = _encode_words(method, source, method.device) if has_words else {}
    with atomic_folder(output) as partial:
        folder = save_feature_folder(
            partial / output.name,
            texts,
            videos,
            video_of_text=source.video_of_text,
            video_ids=source.video_ids,
            captions=source.captions,
            frame_spec=method.frame_spec,
            model=model,
            dataset=dataset,
            split=split,
            protocol=source.protocol.family,
        )
        if has_words:
            add_experts(
                folder,
                {name: features for name, (_, features) in other_experts.items()},
                models={name: expert for name, (expert, _) in other_experts.items()}
                | dict.fromkeys(vectors, model),
                frames=FRAMES,
                frames_model=model,
                words=vectors,
                token_ids=_token_ids(source),
                graphs=_graphs(method, source, vectors[WORDS][1]) if vectors else None,
                graph_words=WORDS,
            )
        for path in folder.iterdir():
            path.replace(partial / path.name)
        folder.rmdir()
    return output


def encode_batches(
    encode: Callable[[Any], Any], batches: Iterator[Any], device: torch.device
) -> Any:
    """Encode all batches; return their features on the CPU."""
    features = [encode(batch.to(device)).to("cpu", torch.float32) for batch in batches]
    return type(features[0]).concatenate(features)


def _token_ids(source: Source) -> list[list[int]] | None:
    """Return the token ids of the captions; None if the source has features instead of tokens."""
    all_ids: list[list[int]] = []
    for chunk in index_chunks(source.num_texts, 256):
        tokens = source.texts(chunk)
        if not isinstance(tokens, Tokens):
            return None
        all_ids += [ids[mask].tolist() for ids, mask in zip(tokens.ids, tokens.mask, strict=True)]
    return all_ids


def _graphs(method: Method, source: Source, mask: Tensor) -> TextGraph:
    """Make the role graphs of the captions, over their tokens."""
    captions = [caption.split() for caption in source.captions]
    vocabulary = sorted({word for caption in captions for word in caption})
    counts = method.tokenize([*vocabulary, ""]).mask.sum(dim=1)
    num_special = int(counts[-1])  # A start and an end token, or only an end token.
    num_tokens = {
        word: max(int(count) - num_special, 0)
        for word, count in zip(vocabulary, counts[:-1], strict=True)
    }
    max_length = max(len(caption) for caption in captions)
    return expand_to_tokens(
        role_graphs(captions, max_length),
        [[num_tokens[word] for word in caption] for caption in captions],
        int(mask.sum(dim=1).max()),
        first=1 if num_special > 1 else 0,
    )


def _encode_words(
    method: Method, source: Source, device: torch.device
) -> dict[str, tuple[Tensor, Tensor]]:
    """Encode the tokens of all texts; empty if the text tower has no token features."""
    if not method.encoder.abilities.words:
        return {}
    # In half precision, as they are stored: the tokens of 80,000 captions take gigabytes.
    batches = [
        method.encoder.encode_text(source.texts(chunk).to(device), words=True).to(
            "cpu", torch.float16
        )
        for chunk in index_chunks(source.num_texts, 256)
    ]
    text = TextFeatures.concatenate(batches)
    if text.words is None or text.words_mask is None:
        return {}
    return {WORDS: (text.words, text.words_mask)}


FEATURES = "features"
FEATURE_SPLITS = ("train", "val", "test")


def open_features(data: DataChoice, split: str, context: OpenContext) -> Source:
    """Open the training or validation videos of a folder, or the separate folder of test videos."""
    check_split_name(FEATURES, split, FEATURE_SPLITS)
    data.refuse_options({"test_root"})
    if split == "test":
        root = data.options.get("test_root")
        if not root:
            raise UsageError(
                "a features folder has no test split; name the folder of the test videos with "
                "--set data.options.test_root=FOLDER, or `eaglenet evaluate RUN --features FOLDER`"
            )
        features = read_features(data.folder(str(root)), context.reader)
    else:
        train, validation = read_features(data.folder(), context.reader).hold_out(data.val_videos)
        features = train if split == "train" else validation
    return feature_source(features.to(context.device))


def feature_source(split: FeatureSplit) -> Source:
    """Make a source from stored features, on their device."""
    return Source(
        texts=split.text_batch,
        videos=split.video_batch,
        video_of_text=split.video_of_text,
        captions=split.captions,
        video_ids=split.video_ids,
        protocol=split.protocol,
    )


def read_features(folder: Path, reader: Method) -> FeatureSplit:
    """Read a features folder for a model, with the experts or token features that it reads."""
    config = reader.encoder.config
    if isinstance(config, ExpertConfig):
        return check_experts(load_expert_folder(folder, words=config.words), config)
    # Token features of the model that encoded the texts.
    index = read_index(folder)
    kinds, model = index.get("words") or {}, index.get("model")
    words = next((name for name, entry in kinds.items() if model and entry["model"] == model), "")
    if words:
        return check_features(load_expert_folder(folder, words=words), reader)
    return check_features(load_feature_folder(folder), reader)


def check_experts(features: FeatureSplit, config: ExpertConfig) -> FeatureSplit:
    """Raise unless the folder has the experts and token features of the model."""
    widths = features.expert_widths
    expected_widths = dict(sorted(config.experts.items()))
    if any(widths.get(name) != width for name, width in expected_widths.items()):
        text = json.dumps(widths)
        raise ConfigError(
            f"the folder has the experts {text}, the model takes {json.dumps(expected_widths)}: "
            "--set " + shell_quote(f"encoder.config.experts={text}")
        )
    if features.frames_expert != config.frames:
        raise ConfigError(
            f"the folder's frames are {features.frames_expert!r}, the model's {config.frames!r}: "
            "--set " + shell_quote(f"encoder.config.frames={features.frames_expert}")
        )
    for name, width, expected_width in (
        ("text_dim", features.text_dim, config.text_dim),
        ("words_dim", features.words_dim, config.words_dim),
    ):
        if width != expected_width:
            raise ConfigError(
                f"the folder has {name} {width}, the model takes {expected_width}: "
                "--set " + shell_quote(f"encoder.config.{name}={width}")
            )
    return features


def check_features(features: FeatureSplit, reader: Method) -> FeatureSplit:
    """Raise unless the widths and the number of frames of features fit the model."""
    encoder = reader.encoder
    if not isinstance(encoder, FeatureEncoder):
        raise ConfigError("this model reads texts and videos, not stored features")
    config = encoder.config
    text_dim, frame_dim = features.text_dim, features.frame_dim
    if (text_dim, frame_dim) != (config.text_dim, config.frame_dim):
        raise ConfigError(
            f"the features are {text_dim} wide for texts and {frame_dim} for frames, the model "
            f"takes {config.text_dim} and {config.frame_dim}: --set "
            f"encoder.config.text_dim={text_dim:d} --set encoder.config.frame_dim={frame_dim:d}"
        )
    limit = getattr(reader.config, "num_frames", None)
    if limit is not None and features.max_frames > limit:
        raise ConfigError(
            f"the features have up to {features.max_frames} frames per video, the model takes "
            f"{limit}: --set data.frames.num_frames={features.max_frames:d}"
        )
    return features


def feature_notes(data: DataChoice, features: FeatureSplit) -> list[str]:
    """Return notes on videos that the run used, and on features computed in another way."""
    root = expand_home(data.root)
    if data.dataset != FEATURES or not (root / INDEX_FILE).is_file():
        return []
    index = read_index(root)
    ids, video_ids = index["video_ids"], features.video_ids
    held_out = hold_out_ids(ids, data.val_videos)
    notes = differing_origins(index, features.metadata)
    for name, used_ids in (("trained on", set(ids) - held_out), ("selected on", held_out)):
        count = len(used_ids.intersection(video_ids))
        if count:
            notes.append(
                f"{count:,} of the {len(video_ids):,} videos are among those that the run was "
                f"{name}: not a score on unseen videos"
            )
    return notes


def refuse_selection_videos(data: DataChoice, video_ids: Sequence[str]) -> None:
    """Raise if test videos of stored features were used to choose the epoch."""
    if data.dataset != FEATURES:
        return
    held_out = hold_out_ids(read_index(data.folder())["video_ids"], data.val_videos)
    count = len(held_out.intersection(video_ids))
    if count:
        raise UsageError(
            f"{count:,} of the {len(video_ids):,} videos in data.options.test_root="
            f"{data.options['test_root']} chose the epoch of this run: not a test score; name a "
            "folder of other videos with `eaglenet evaluate RUN --features FOLDER`"
        )


add_source(
    SourceSpec(
        FEATURES,
        "Stored features of any dataset",
        open=open_features,
        splits=FEATURE_SPLITS,
        open_all=lambda folder, reader: feature_source(read_features(folder, reader)),
        default_split=lambda data: "test" if "test_root" in data.options else "val",
        is_features=True,
    )
)


TOWERS = "small"


def open_frames(data: DataChoice, split: str, context: OpenContext) -> Source:
    """Open frames for towers, or features of frozen towers for a head."""
    if not ENCODERS[context.reader.encoder.family].reads_features:
        return open_clips(data, split, context)
    data.refuse_options(OPTIONS)
    name, key = _frames_key(data, split)
    return _cached_features(data, split, context, name, key, open_clips)


def _frames_key(data: DataChoice, split: str) -> tuple[str, str]:
    """Return the name of a frame folder, and everything that its features depend on."""
    root = data.options.get("test_root") if split == "test" else None
    root_folder = data.folder(str(root) if root else None).resolve()
    weights, kind = weights_of(towers_of(data)), data.options.get("captions", "")
    index = root_folder / FRAMES_INDEX  # Written last, so it changes with the frames.
    content = _version(index if index.is_file() else None)
    key = [str(root_folder), content, weights, kind, data.frames.num_frames, data.max_words]
    return root_folder.name, json.dumps(key)


def towers_of(data: DataChoice) -> str:
    """Return the name of the frozen towers that encode the data for a head."""
    return str(data.options.get("towers") or TOWERS)


def _cached_features(
    data: DataChoice,
    split: str,
    context: OpenContext,
    name: str,
    key: str,
    open_pixels: Callable[[DataChoice, str, OpenContext], Source],
    *,
    is_shared: bool = False,
) -> Source:
    """Open the features of a split in the cache; compute them if they are missing.

    With ``is_shared``, ``key`` includes everything that the features depend on, and features in the
    cache of a neighbouring run are used too.
    """
    folder = _features_folder(data, split, context.cache, name, key, is_shared=is_shared)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with hold_lock(folder.parent / f".{split}.lock", wait=True):
        if not folder.exists():
            make_features(data, split, context, folder, open_pixels)
    return feature_source(read_features(folder, context.reader).to(context.device))


def _features_folder(
    data: DataChoice, split: str, cache: Path, name: str, key: str, *, is_shared: bool
) -> Path:
    base = expand_home(data.cache) if data.cache else cache.absolute()
    subfolder = Path(f"{name}-{hashlib.sha256(key.encode()).hexdigest()[:8]}", split)
    folder = base / subfolder
    if is_shared and not folder.exists():
        neighbours = base.parent.parent.glob(f"*/{base.name}/{glob.escape(str(subfolder))}")
        folder = next(iter(sorted(neighbours)), folder)
    return folder


def open_video_features(data: DataChoice, split: str, context: OpenContext) -> Source:
    """Open the features of videos by the frozen towers of ``small``; they are computed once."""
    config = context.reader.encoder.config
    if not getattr(config, "identity", True):
        raise ConfigError(
            f"data.dataset={data.dataset} has texts and videos, but the encoder reads stored "
            "features: --set encoder.kind=pretrained, or another family with towers"
        )
    key = _videos_key(data, split)
    return _cached_features(data, split, context, data.dataset, key, open_videos, is_shared=True)


def are_features_stored(data: DataChoice, split: str, cache: Path) -> bool:
    """Return whether a run on frozen towers finds the features of a split."""
    if data.dataset == FRAMES:
        return _features_folder(
            data, split, cache, *_frames_key(data, split), is_shared=False
        ).exists()
    key = _videos_key(data, split)
    return _features_folder(data, split, cache, data.dataset, key, is_shared=True).exists()


def _videos_key(data: DataChoice, split: str) -> str:
    """Describe everything that the features of videos depend on."""
    records = load_records(data, split).select_present()
    videos = [(asdict(video), _version(video.path)) for video in records.videos]
    key = [weights_of(TOWERS), asdict(data.frames), data.max_words, videos]
    return json.dumps(key, default=str)


def _version(path: Path | None) -> tuple[int, int]:
    if path is None:
        return (0, 0)
    status = path.stat()
    return status.st_size, status.st_mtime_ns


def save_with_towers(run: Path) -> None:
    """Save the selected head of a run together with the towers of ``small``."""
    with tempfile.TemporaryDirectory(dir=run) as head:
        save_head(load(str(run / MODEL)), head)
        save(with_head(load(TOWERS), head), run / WHOLE_MODEL, storage="int8")


def make_features(
    data: DataChoice,
    split: str,
    context: OpenContext,
    folder: Path,
    open_pixels: Callable[[DataChoice, str, OpenContext], Source],
) -> None:
    """Encode a split with the towers named by ``data.options.towers``."""
    name = towers_of(data)
    towers = load(name, device=context.device)
    size, resize = towers.frame_spec.size, towers.frame_spec.resize
    spec = replace(data.frames, size=size, resize=resize)
    towers.frame_spec = spec
    max_words = min(data.max_words, towers.encoder.context_length or data.max_words)
    source = open_pixels(
        replace(data, frames=spec, max_words=max_words),
        split,
        OpenContext(towers, context.cache, context.device, context.progress),
    )
    write_features(
        towers,
        source,
        folder,
        model=name,
        dataset=data.dataset,
        split=split,
        words=True,
        precision=tower_precision(context.device),
        progress=context.progress,
    )


def tower_precision(device: torch.device) -> Precision:
    """Return the precision of frozen image towers: bf16 where the device multiplies it, else fp32.

    A frame keeps a cosine of 0.9999 with fp32. On a CPU with AMX, bf16 takes a third of the time.
    """
    return "bf16" if choose_precision(device) == "bf16" else "fp32"


def weights_of(towers: str) -> str:
    """Hash the weights of a model; features of other weights must not be reused."""
    folder = local_folder(towers)
    for path in (folder / WEIGHTS, folder / MODEL / WEIGHTS):
        if path.is_file():
            with path.open("rb") as file:
                return hashlib.file_digest(file, "sha256").hexdigest()
    return towers


add_source(
    SourceSpec(
        FRAMES,
        "Folders of frames with captions (`eaglenet data frames`)",
        open=open_frames,
        inspect=inspect_frames,
        default_split=lambda data: "val",  # The test split is scored only on request.
        keeps_frames=True,
        gives_features=True,
    )
)
