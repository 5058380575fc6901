from pathlib import Path

import pytest
from synthetic_store import BagMethod, make_store

from eaglenet.search.engine import Engine


@pytest.fixture(scope="session")
def bag() -> BagMethod:
    return BagMethod()


@pytest.fixture(scope="session")
def store_folder(bag: BagMethod, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six files of three clips; not to be written to."""
    folder = tmp_path_factory.mktemp("store") / "store"
    make_store(folder, bag)
    return folder


@pytest.fixture(scope="session")
def engine(store_folder: Path, bag: BagMethod) -> Engine:
    return Engine.open(store_folder, bag)
