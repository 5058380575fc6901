"""Where the store is when nobody says where."""

from pathlib import Path

import pytest

from eaglenet.core import platform


def test_the_data_folder_follows_the_rules_of_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    """XDG on Linux, and what other systems have."""
    monkeypatch.setenv("HOME", "/home/someone")
    monkeypatch.setattr(platform.sys, "platform", "linux")
    monkeypatch.setenv("XDG_DATA_HOME", "/data")
    assert platform.data_folder() == Path("/data/eaglenet")
    for ignored in ("", "not/absolute"):
        monkeypatch.setenv("XDG_DATA_HOME", ignored)
        assert platform.data_folder() == Path("/home/someone/.local/share/eaglenet")
    monkeypatch.setattr(platform.sys, "platform", "darwin")
    assert platform.data_folder() == Path("/home/someone/Library/Application Support/eaglenet")
    monkeypatch.setattr(platform.sys, "platform", "win32")
    monkeypatch.setenv("LOCALAPPDATA", "/local")
    assert platform.data_folder() == Path("/local/eaglenet")


def test_a_variable_names_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", "/data")
    monkeypatch.delenv(platform.STORE_VARIABLE, raising=False)
    assert platform.default_store() == "/data/eaglenet/store"
    monkeypatch.setenv(platform.STORE_VARIABLE, "mine")
    assert platform.default_store() == "mine"
