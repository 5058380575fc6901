"""One tiny features folder for all tests here."""

import pytest

from tiny import write_features


@pytest.fixture(scope="session")
def features(tmp_path_factory):
    return write_features(tmp_path_factory.mktemp("features"))
