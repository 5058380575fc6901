"""Repairing a store brings back what was searched before."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from eaglenet.cli.main import app
from eaglenet.core.errors import StoreError
from eaglenet.search.engine import Engine
from synthetic_store import BagMethod, make_store


@pytest.mark.parametrize("name", ["my store", "it's a store", "$HOME; store"])
@pytest.mark.parametrize("kind", ["labels", "vectors", "codes"])
def test_repair_command_of_the_message_works(
    name: str, kind: str, bag: BagMethod, tmp_path: Path
) -> None:
    """As it stands in the message, whatever the store's folder is called."""
    location = tmp_path / name
    store = make_store(location, bag, num_files=2)
    expected = Engine.open(location, bag).search("red car", keep_duplicates=True)
    (path,) = (location / "segments").glob(f"*.{kind}")
    content = bytearray(path.read_bytes())
    content[20] ^= 1
    path.write_bytes(content)
    with pytest.raises(StoreError, match=path.name) as refused:
        store.verify()
    program, *arguments = shlex.split(str(refused.value).split("store with: ")[1])
    assert program == "eaglenet"
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    hits = Engine.open(location, bag).search("red car", keep_duplicates=True)
    if kind == "codes":  # Computed again from the vectors.
        assert hits == expected
    else:  # Nothing else has what was lost; the file is indexed again.
        assert {hit.path for hit in hits} == {"/videos/1.mp4"}
        rest = [hit for hit in expected if hit.path == "/videos/1.mp4"]
        assert [hit.clip_id for hit in hits] == [hit.clip_id for hit in rest]
        assert [hit.score for hit in hits] == pytest.approx([hit.score for hit in rest], abs=1e-6)
