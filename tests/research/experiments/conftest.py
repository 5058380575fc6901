"""One tiny features folder for all tests here."""

from __future__ import annotations

from pathlib import Path

import pytest

from tiny import write_features


@pytest.fixture(scope="session")
def features(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of stored features, small enough to train on."""
    return write_features(tmp_path_factory.mktemp("features"))
