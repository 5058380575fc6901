"""Names of methods, data, towers and settings, known without torch, which takes seconds to import.

A command refuses a misspelt name with them before it imports anything else.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping

from eaglenet.core.errors import UnknownNameError
from eaglenet.core.registry import has_plugins, unknown_name
from eaglenet.core.settings import split_assignment, unknown_setting
from eaglenet.core.text import did_you_mean
from eaglenet.methods import method_names

DATASETS = (
    "msrvtt", "msvd", "vatex", "didemo", "activitynet", "charades-sta", "qvhighlights", "tgif",
    "lsmdc", "youcook2", "demo", "folder",
)  # fmt: skip
"""Datasets of video files."""
SOURCES = (*DATASETS, "features", "frames")
"""Datasets, and folders of features and of frames."""
DATA = (
    "demo", "folder", "frames", "features", "experts", "msrvtt", "didemo", "msvd", "vatex",
    "activitynet", "lsmdc", "youcook2", "qvhighlights", "charades-sta", "tgif",
)  # fmt: skip
"""Values of the data axis of recipes."""
TOWERS = (
    "clip-b32", "clip-b16", "siglip2-b32", "siglip2-b16", "siglip2-l16", "pe-s16", "pe-b16",
    "pe-l14",
)  # fmt: skip
"""Pretrained towers."""
PROTOCOLS: Mapping[str, str] = {
    "paper": "the EagleNet paper's epochs, batch, frames and words for every method",
    "released": "the same in the settings of the released code; the epoch chosen on test",
    "original": "the settings that the method's own authors published",
    "equal": "one small budget for every method",
}
OTHER_TOWERS: Mapping[str, str] = {
    "experts": "stored features of several experts",
    "small": "the towers of `small`, trained along; no download",
    "small-frozen": "the frozen towers of `small`; their features are computed once",
    "adapters": "trained adapters over stored features",
    "shared": "stored features of one space for texts and frames, as they are",
    "random": "small towers from random weights",
}
TOWER_RECIPES = ("small",)
"""Recipes that train towers."""
TABLES = ("components", "energy", "pooling", "graph", "coefficient", "edges")
"""Ablation tables of the paper."""
SECTIONS = ("name", "method", "method_config", "encoder", "data", "training", "notes")
"""Settings of an experiment; most have inner settings."""


def refuse_unknown_names(
    *,
    methods: Iterable[str] = (),
    data: str = "",
    dataset: str = "",
    tower: str = "",
    protocol: str = "",
    table: str = "",
    settings: Iterable[str] | None = None,
) -> None:
    """Raise for a name that nothing can know; does nothing if a plug-in may know it.

    Without effect once torch is imported, because the lookup of the name gives the same error.
    dataset: a dataset of video files, ``features`` or ``frames``.

    Raises:
        UnknownNameError: a name is unknown.
        ConfigError: a setting is not of the form ``section.field=value``, or has no such section.
    """
    if "torch" in sys.modules or has_plugins():
        return
    known_methods = method_names()
    for method in methods:
        if method not in known_methods:
            raise unknown_name("method", method, known_methods, is_open=True)
    if data and data not in DATA:
        raise unknown_data(data)
    if dataset and dataset not in SOURCES:
        raise unknown_name("dataset", dataset, SOURCES, is_open=True)
    for axis, value, names in (
        ("tower", tower, (*TOWERS, *OTHER_TOWERS)),
        ("protocol", protocol, tuple(PROTOCOLS)),
        ("table", table, TABLES),
    ):
        if value and value not in names:
            raise unknown_choice(axis, value, names)
    for assignment in settings or ():
        path, _ = split_assignment(assignment, "training.epochs=3")
        section = path.partition(".")[0]
        if section not in SECTIONS:
            raise unknown_setting(section, section, SECTIONS)


def unknown_data(name: str) -> UnknownNameError:
    return UnknownNameError(
        f"unknown data {name!r}{did_you_mean(name, DATA)} (choose one of {', '.join(DATA)}, or "
        "a dataset of a plug-in: --import MODULE)"
    )


def unknown_choice(axis: str, name: str, names: Iterable[str]) -> UnknownNameError:
    """Return the error about a tower, a protocol or a table."""
    choices = list(names)
    return UnknownNameError(
        f"unknown {axis} {name!r}{did_you_mean(name, choices)} (choose one of {', '.join(choices)})"
    )
