"""Storage that cannot be reached, on the command line."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from eaglenet.cli.main import main
from eaglenet.store import object_storage


@pytest.mark.parametrize(
    "command",
    [
        ["store", "info", "--store", "s3://bucket/films"],
        ["index", "s3://bucket/films", "--store", "store", "--model", "demo"],
    ],
    ids=["store", "videos"],
)
def test_reports_unreachable_storage_in_one_line(
    command: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("obstore")
    monkeypatch.setattr(object_storage, "RETRY_SECONDS", 0.1)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION"):
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv(object_storage.ENDPOINT, "http://127.0.0.1:9")  # Nobody listens there.
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["eaglenet", *command])
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 5
    error = capsys.readouterr().err
    assert "\nerror: " in f"\n{error}"
    assert "s3://bucket/films" in error
    assert "Traceback" not in error
