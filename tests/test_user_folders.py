"""Default locations of the store and the cache."""

from pathlib import Path

import pytest
from platformdirs.macos import MacOS
from platformdirs.windows import Windows

from eaglenet.core import platform


def test_data_folder_follows_xdg(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    monkeypatch.setenv("XDG_DATA_HOME", "/data")
    assert platform.data_folder() == Path("/data/eaglenet")
    for invalid in ("", "not/absolute"):
        monkeypatch.setenv("XDG_DATA_HOME", invalid)
        assert platform.data_folder() == Path("/home/someone/.local/share/eaglenet")


def test_data_folder_on_other_systems(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/Users/someone")
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    macos = MacOS("eaglenet", appauthor=False).user_data_dir
    assert macos == "/Users/someone/Library/Application Support/eaglenet"
    monkeypatch.setattr("platformdirs.windows.get_win_folder", lambda _: "C:\\Local")
    assert Windows("eaglenet", appauthor=False).user_data_dir.startswith("C:\\Local")


def test_variable_names_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", "/data")
    monkeypatch.delenv(platform.STORE_VARIABLE, raising=False)
    assert platform.default_store() == "/data/eaglenet/store"
    monkeypatch.setenv(platform.STORE_VARIABLE, "mine")
    assert platform.default_store() == "mine"
