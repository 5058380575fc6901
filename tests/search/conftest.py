"""Stores and models that the search tests share."""

from pathlib import Path

import pytest

from eaglenet.search.engine import Engine
from synthetic_store import BagMethod, make_store


@pytest.fixture(scope="session")
def store_folder(bag: BagMethod, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six files of three clips; not to be written to."""
    folder = tmp_path_factory.mktemp("store") / "store"
    make_store(folder, bag)
    return folder


@pytest.fixture(scope="session")
def engine(store_folder: Path, bag: BagMethod) -> Engine:
    """The store, open for searching."""
    return Engine.open(store_folder, bag)
