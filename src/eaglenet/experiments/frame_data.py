"""Folders of frames as a row of the table of data, for towers and for heads on frozen towers.

A model that reads pictures gets the pictures. A model that reads features gets those of the towers
``data.options.towers``, which are made once and kept as features folders in the run's cache (of a
comparison: one for all its runs; ``data.cache`` names another place).
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

from eaglenet.data.features import FeatureSplit
from eaglenet.data.frame_source import (
    FRAMES,
    OPTIONS,
    load_items,
    look_at_pictures,
    open_pictures,
)
from eaglenet.data.sources import DataChoice, Opening, Source, SourceSpec, add_source
from eaglenet.encoders import ENCODERS
from eaglenet.experiments.feature_data import feature_source, read_features
from eaglenet.experiments.feature_writing import write_features
from eaglenet.locking import hold_lock
from eaglenet.methods.folder import PACKAGED, WEIGHTS, is_packaged, load
from eaglenet.run_folder import MODEL

TOWERS = "small"


def open_frames(data: DataChoice, split: str, opening: Opening) -> Source:
    """Pictures, or features of them, as the model reads."""
    if not ENCODERS[opening.reader.encoder.family].reads_features:
        return open_pictures(data, split, opening)
    return feature_source(open_features(data, split, opening).to(opening.device))


def open_features(data: DataChoice, split: str, opening: Opening) -> FeatureSplit:
    """Features of a split, made now where they are not there yet."""
    data.refuse_options(OPTIONS)
    folder = feature_folder(data, split, opening.cache)
    if not folder.exists():
        load_items(data, split)  # what is wrong with the folder is told before towers are loaded
        folder.parent.mkdir(parents=True, exist_ok=True)
        with hold_lock(folder.parent / f".{split}.lock", wait=True):
            if not folder.exists():  # another run may have made it meanwhile
                make_features(data, split, opening, folder)
    return read_features(folder, opening.reader)


def make_features(data: DataChoice, split: str, opening: Opening, folder: Path) -> None:
    """Encode a split with the towers that ``data.options.towers`` names."""
    name = str(data.options.get("towers") or TOWERS)
    towers = load(name, device=opening.device)
    size, resize = towers.frame_spec.size, towers.frame_spec.resize
    spec = replace(data.frames, size=size, resize=resize)
    towers.frame_spec = spec
    words = min(data.max_words, towers.encoder.context_length or data.max_words)
    source = open_pictures(
        replace(data, frames=spec, max_words=words),
        split,
        Opening(towers, opening.cache, opening.device, opening.progress),
    )
    write_features(
        towers,
        source,
        folder,
        model=name,
        dataset=FRAMES,
        split=split,
        words=True,
        progress=opening.progress,
    )


def feature_folder(data: DataChoice, split: str, cache: Path) -> Path:
    """Where features are kept: another folder for other frames, captions or towers."""
    base = Path(data.cache).expanduser() if data.cache else cache
    towers = str(data.options.get("towers") or TOWERS)
    root = data.options.get("test_root") if split == "test" else None
    root_folder = data.folder(str(root) if root else None).resolve()
    kind = data.options.get("captions", "")
    key = f"{root_folder} {weights_of(towers)} {kind} {data.frames.num_frames}".encode()
    return base / f"{root_folder.name}-{hashlib.sha256(key).hexdigest()[:8]}" / split


def weights_of(towers: str) -> str:
    """A hash of the weights of a model folder: features of other weights are not found again."""
    folder = PACKAGED / towers if is_packaged(towers) else Path(towers).expanduser()
    for path in (folder / WEIGHTS, folder / MODEL / WEIGHTS):
        if path.is_file():
            with path.open("rb") as file:
                return hashlib.file_digest(file, "sha256").hexdigest()
    return towers


def choose_on_validation(data: DataChoice) -> str:
    """The test split is looked at only by those who ask for it."""
    return "val"


add_source(
    SourceSpec(
        FRAMES,
        "Folders of frames with captions (`eaglenet data frames`)",
        open=open_frames,
        look=look_at_pictures,
        default_split=choose_on_validation,
        keeps_frames=True,
        gives_features=True,
    )
)
