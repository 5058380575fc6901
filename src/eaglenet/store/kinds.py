"""Kinds of stores by the scheme of their location; plain paths are ``file``.

A kind of store is a class that meets :class:`eaglenet.store.base.Store`. The module of a kind is
imported when a location needs it: a local store loads nothing of object storage.
"""

from __future__ import annotations

import re
from pathlib import Path

from eaglenet.core.object_storage import SCHEMES
from eaglenet.core.registry import Registry
from eaglenet.store.base import Store
from eaglenet.store.store import LocalStore

STORES: Registry[type[Store]] = Registry(
    "kind of store",
    is_open=True,
    modules=dict.fromkeys(SCHEMES, "eaglenet.cluster.bucket"),
)
"""A module adds its class with ``STORES.add(scheme, class)``."""
STORES.add("file", LocalStore)


def kind_of(location: str | Path) -> type[Store]:
    """The class that opens stores at such a location."""
    # One letter would be the drive of a Windows path.
    scheme = re.match(r"([a-z][a-z0-9+.-]+)://", str(location))
    return STORES[scheme.group(1) if scheme else "file"]


def open_store(location: str | Path) -> Store:
    """Open the store at a path or URL."""
    return kind_of(location).open(str(location))
