"""Repairing never makes it worse."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from synthetic_store import (
    BagMethod,
    content_of,
    make_store,
)
from typer.testing import CliRunner

from eaglenet.cli.main import app
from eaglenet.core.errors import StoreError
from eaglenet.indexing.maintenance import repair
from eaglenet.search.engine import Engine


@pytest.mark.parametrize("table", ["clips", "files"])
def test_repair_of_damaged_tables_keeps_searchable_clips(
    table: str, bag: BagMethod, tmp_path: Path
) -> None:
    make_store(tmp_path, bag, num_files=2)
    expected = [hit.clip_id for hit in Engine.open(tmp_path, bag).search("red car")]
    for path in (tmp_path / f"{table}.lance" / "data").iterdir():
        path.write_bytes(b"garbage")
    with pytest.raises(StoreError, match=r"tables of .* are damaged"):
        repair(tmp_path)
    assert [hit.clip_id for hit in Engine.open(tmp_path, bag).search("red car")] == expected


def test_repair_never_loses_searchable_clips(bag: BagMethod, tmp_path: Path) -> None:
    _, tables = make_store(tmp_path, bag, num_files=2)
    tables.remove_contents([content_of(0)])
    tables.sync()
    with pytest.raises(StoreError, match="lack 3 clips of 1 indexed files"):
        repair(tmp_path)
    tables.remove_files(["/videos/0.mp4"])
    tables.sync()
    with pytest.raises(StoreError, match="hold 3 clips, but 6 can be searched"):
        repair(tmp_path)
    assert len(Engine.open(tmp_path, bag).search("red car", k=50)) == 6


@pytest.mark.parametrize("name", ["my store", "it's a store", "$HOME; store"])
def test_repair_command_of_the_message_works(name: str, bag: BagMethod, tmp_path: Path) -> None:
    """As it stands in the message, whatever the store's folder is called."""
    location = tmp_path / name
    make_store(location, bag, num_files=2)
    expected = [hit.clip_id for hit in Engine.open(location, bag).search("red car")]
    (location / "snapshot" / "current.json").write_text("{")
    with pytest.raises(StoreError) as refused:
        Engine.open(location, bag)
    program, *arguments = shlex.split(str(refused.value).split("rebuild it with: ")[1])
    assert program == "eaglenet"
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert [hit.clip_id for hit in Engine.open(location, bag).search("red car")] == expected
