"""A store that an earlier version made in Lance tables is recognised, and converted as it was.

``store_before_sqlite.tgz`` was written by that version: three videos of plain colours and a copy of
one, a broken file, subtitles, tags, and a hubness bank of two texts.
"""

from __future__ import annotations

import json
import shutil
import tarfile
from pathlib import Path

import pytest
from typer.testing import CliRunner

from eaglenet.cli.main import app
from eaglenet.core.errors import StoreError
from eaglenet.indexing.maintenance import upgrade_store
from eaglenet.search import torch_model
from eaglenet.search.engine import Engine
from eaglenet.store.store import LocalStore, open_store
from synthetic_store import BagMethod

HITS = {
    "red": [
        ("copy.mp4", 0.66667),
        ("long.mp4", 0.32796),
        ("second.mkv", 0.32275),
        ("long.mp4", 0.31771),
        ("long.mp4", 0.31282),
    ],
    "blue dog": [
        ("second.mkv", 0.84066),
        ("long.mp4", -0.52098),
        ("long.mp4", -0.52098),
        ("copy.mp4", -0.72609),
        ("long.mp4", -0.90124),
    ],
}
"""File and score, as the version that made the store printed them."""


@pytest.fixture
def old_store(tmp_path: Path) -> Path:
    pytest.importorskip("lancedb")
    with tarfile.open(Path(__file__).with_name("store_before_sqlite.tgz")) as archive:
        archive.extractall(tmp_path)
    return tmp_path / "store"


def test_converted_store_gives_the_same_hits(
    old_store: Path, bag: BagMethod, monkeypatch: pytest.MonkeyPatch
) -> None:
    upgrade = upgrade_store(old_store)
    identity = open_store(old_store).manifest.identity
    # Torch's normal numbers differ in the last digit from one kind of processor to another.
    monkeypatch.setattr(torch_model, "model_identity", lambda method: identity)
    assert (upgrade.clips, upgrade.incomplete_files) == (5, ())
    engine = Engine.open(old_store, bag)
    for query, expected in HITS.items():
        hits = engine.search(query, k=10, keep_duplicates=True)
        found = [(Path(hit.path).name, hit.score) for hit in hits]
        for one, other in zip(sorted(found), sorted(expected), strict=True):
            assert one == (other[0], pytest.approx(other[1], abs=2e-5))
    assert [hit.path for hit in engine.search("drive", modalities="speech")] == ["/videos/copy.mp4"]
    tags = {file.path: file.tags for file in open_store(old_store).files()}
    assert tags["/videos/first.mp4"] == ("home", "car")
    assert len(tags) == 5
    assert str(engine.snapshot.hubness_bank) == "2 texts given, weight 1"
    old = old_store.with_name("store.old")
    assert upgrade.old_folder == old
    assert (old / "clips.lance").is_dir()
    assert upgrade_store(old_store).old_folder is None


def test_error_names_the_command_that_converts(old_store: Path) -> None:
    with pytest.raises(StoreError, match="eaglenet store upgrade --store") as caught:
        open_store(old_store)
    assert str(caught.value).endswith(str(old_store))
    with pytest.raises(StoreError, match="eaglenet store upgrade --store"):
        LocalStore.repair(old_store)
    result = CliRunner().invoke(app, ["store", "upgrade", "--store", str(old_store)])
    assert result.exit_code == 0, result.output
    assert "5 clips" in result.output
    open_store(old_store).verify()


@pytest.mark.parametrize("part", ["manifest.json", "clips.lance", "files.lance", "bank"])
def test_damaged_old_store_is_refused_and_stays(part: str, old_store: Path) -> None:
    """Never a wrong answer: the error says how to index again."""
    paths = sorted(path for path in old_store.rglob("*") if path.is_file())
    (path, *_) = [
        path
        for path in paths
        if path.relative_to(old_store).parts[0].startswith(part)
        and (part[0] in "mb" or "data" in path.parts)
    ]
    content = bytearray(path.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 40] = bytes(40)
    path.write_bytes(bytes(content))
    with pytest.raises(StoreError, match=r"eaglenet index .*--store") as caught:
        upgrade_store(old_store)
    assert "\n" not in str(caught.value)
    assert (old_store / "clips.lance").is_dir()


def test_lost_clips_are_indexed_again(old_store: Path) -> None:
    import lancedb

    table = lancedb.connect(str(old_store)).open_table("clips")
    table.delete("number = 1")
    upgrade = upgrade_store(old_store)
    assert (upgrade.clips, upgrade.incomplete_files) == (2, ("/videos/long.mp4",))
    with LocalStore.write(old_store) as writer:
        assert list(writer.incomplete_contents().values()) == [frozenset({0, 2})]


def test_interrupted_conversion_is_continued(
    old_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("eaglenet.indexing.maintenance._copy_transcripts", interrupt)
        with pytest.raises(KeyboardInterrupt):
            upgrade_store(old_store)
    assert (old_store / "clips.lance").is_dir()
    assert upgrade_store(old_store).clips == 5


def test_without_the_reader_the_extra_is_named(
    old_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "lancedb", None)
    result = CliRunner().invoke(app, ["store", "upgrade", "--store", str(old_store)])
    assert result.exit_code != 0
    assert "eaglenet[lance]" in str(result.exception)


def test_command_to_index_again_has_roots_and_model(old_store: Path) -> None:
    values = json.loads((old_store / "manifest.json").read_text())
    shutil.rmtree(old_store / "files.lance")
    (old_store / "manifest.json").write_text(json.dumps({**values, "dim": 0, "check": None}))
    with pytest.raises(StoreError, match=r"mv .* && eaglenet index /videos --model bag --store"):
        upgrade_store(old_store)
