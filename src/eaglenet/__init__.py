"""Search video with words. The public names; everything heavy is imported on first use."""

from __future__ import annotations

import os
from importlib import import_module
from threading import RLock
from typing import TYPE_CHECKING, Any

from eaglenet.version import __version__

if TYPE_CHECKING:
    from eaglenet.core.frame_spec import FrameSpec
    from eaglenet.core.types import Clips, TextFeatures, Tokens, VideoFeatures
    from eaglenet.indexing.index import index
    from eaglenet.indexing.report import IndexReport
    from eaglenet.methods.base import METHODS, Method
    from eaglenet.models.folder import load, save
    from eaglenet.search.engine import Engine, open
    from eaglenet.search.hit import Hit, Moment
    from eaglenet.search.hits import HitList
    from eaglenet.search.options import Filters, SearchOptions
    from eaglenet.search.query import Query

# onnxruntime 1.31 reports its use to Microsoft and writes ids into the temporary folder, from its
# import on. Nothing leaves the machine: set here, before any module of ours or an extra imports it.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

_HOME = {
    "METHODS": "eaglenet.methods.base",
    "Method": "eaglenet.methods.base",
    "Engine": "eaglenet.search.engine",
    "Filters": "eaglenet.search.options",
    "HitList": "eaglenet.search.hits",
    "IndexReport": "eaglenet.indexing.report",
    "Query": "eaglenet.search.query",
    "SearchOptions": "eaglenet.search.options",
    "index": "eaglenet.indexing.index",
    "load": "eaglenet.models.folder",
    "open": "eaglenet.search.engine",
    "save": "eaglenet.models.folder",
    "Clips": "eaglenet.core.types",
    "FrameSpec": "eaglenet.core.frame_spec",
    "Hit": "eaglenet.search.hit",
    "Moment": "eaglenet.search.hit",
    "TextFeatures": "eaglenet.core.types",
    "Tokens": "eaglenet.core.types",
    "VideoFeatures": "eaglenet.core.types",
}

__all__ = [
    "METHODS",
    "Clips",
    "Engine",
    "Filters",
    "FrameSpec",
    "Hit",
    "HitList",
    "IndexReport",
    "Method",
    "Moment",
    "Query",
    "SearchOptions",
    "TextFeatures",
    "Tokens",
    "VideoFeatures",
    "__version__",
    "index",
    "load",
    "open",
    "save",
]


_IMPORTING = RLock()


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'eaglenet' has no attribute {name!r}")
    # One thread at a time: two that import a package and its module at once wait for each other.
    with _IMPORTING:
        try:
            value = getattr(import_module(_HOME[name]), name)
        except ModuleNotFoundError as error:
            from eaglenet.core.errors import missing_extra

            raise missing_extra(error, f"eaglenet.{name}") or error from error
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
