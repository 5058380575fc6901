"""Which file names say that they are a video's."""

from __future__ import annotations

# fmt: off
VIDEO_SUFFIXES = frozenset({
    ".mp4", ".webm", ".mkv", ".avi", ".mov", ".m4v", ".mpg", ".mpeg", ".wmv", ".flv", ".3gp",
    ".3g2", ".3gpp", ".mts", ".m2ts", ".ts", ".ogv", ".qt", ".asf", ".divx", ".vob", ".f4v",
    ".mxf",
})
# fmt: on
"""Endings in small letters, with their dot."""
