"""One tiny features folder for all tests here."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from tiny import write_features


@pytest.fixture(scope="session")
def features(tmp_path_factory):
    return write_features(tmp_path_factory.mktemp("features"))
