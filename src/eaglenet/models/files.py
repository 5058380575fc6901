"""Files of a model folder, and the models that come with the package. Does not import torch."""

from __future__ import annotations

from pathlib import Path

from eaglenet.core.run_folder import MODEL, WHOLE_MODEL

CONFIG, WEIGHTS = "config.json", "model.safetensors"
HEAD = "head"
"""Folder inside a model folder with a method that re-ranks shortlists."""
SCALES = "::scales"
"""Suffix of the scales of a matrix stored in int8, one per row."""
PACKAGED = Path(__file__).parent
"""Models that come with the package, by name."""


def is_packaged(name_or_folder: str | Path) -> bool:
    """Return whether this names a model of the package. A path, even ``./demo``, does not."""
    return (
        isinstance(name_or_folder, str)
        and name_or_folder.isidentifier()
        and (PACKAGED / name_or_folder / CONFIG).is_file()
    )


def local_folder(name_or_folder: str | Path) -> Path:
    """Folder of a packaged model by its name, or the path that was given."""
    if is_packaged(name_or_folder):
        return PACKAGED / str(name_or_folder)
    return Path(name_or_folder).expanduser()


def model_folder(name_or_folder: str | Path) -> Path | None:
    """Folder with the files of a packaged model, a model folder or a run; None for other names."""
    folder = local_folder(name_or_folder)
    folders = (folder, folder / WHOLE_MODEL, folder / MODEL)
    return next((each for each in folders if (each / CONFIG).is_file()), None)


def head_folder(model: str | Path) -> Path | None:
    """Folder of the head of a model; None if it has none."""
    folder = local_folder(model)
    heads = (folder / HEAD, folder / MODEL / HEAD)
    return next((head for head in heads if (head / CONFIG).is_file()), None)
