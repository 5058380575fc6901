"""A store becomes tables, and tables become a store: other programs read them, nothing is lost."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from index_cases import stored_clips
from typer.testing import CliRunner

from eaglenet.cli.main import app
from eaglenet.core.errors import StoreError, UsageError
from eaglenet.indexing import exchange
from eaglenet.indexing.exchange import export_store, import_store
from eaglenet.store.hubness import HubnessBank
from eaglenet.store.records import Changes, IndexedFile, Line, Source, SourceLines
from eaglenet.store.store import LocalStore
from synthetic_store import DIM, FRAMES, BagMethod, add_file, content_of, make_store

VECTORS = np.eye(2, 24, dtype=np.float32)
FRAME_VALUES = 5 * 24
UNKNOWN = ("recorded", "latitude", "longitude")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six files of three clips, a failed one, subtitles and a hubness bank."""
    folder = tmp_path_factory.mktemp("exchange") / "store"
    make_store(folder, BagMethod())
    content = f"{0:016x}{'f' * 16}"
    lines = [Line(1.0, 2.0, "en", "The red car", "the red car"), Line(3.0, 4.0, "", "é", "e")]
    with LocalStore.write(folder) as writer:
        failed = IndexedFile('/videos/bad, "bad".mp4', 7, 5, "", "failed", "no video stream")
        source = Source(content, "speech", "", 0, 0, "whisper tiny", "done", until=40.0)
        writer.commit(Changes(files=[failed], transcripts=[SourceLines(source, lines)]))
        writer.set_hubness(HubnessBank("given", VECTORS, 0.5, 20.0, ("a dog", "a car")))
        writer.finish()
    return folder


def contents(folder: Path) -> list[object]:
    store = LocalStore.open(folder)
    store.verify()
    snapshot = store.snapshot()
    return [
        stored_clips(folder),
        sorted(store.files(), key=lambda file: file.path),
        list(snapshot.transcripts(("subtitle", "speech", "text"))),
        snapshot.hubness_bank,
        store.manifest,
    ]


@pytest.mark.parametrize("kind", ["parquet", "lance"])
def test_imported_store_is_the_same(kind: str, store: Path, tmp_path: Path) -> None:
    pytest.importorskip({"parquet": "pyarrow", "lance": "lancedb"}[kind])
    rows = export_store(store, tmp_path / "tables", kind)  # type: ignore[arg-type]
    assert rows == {"clips": 18, "files": 7, "sources": 1, "lines": 2, "hubness": 2}
    assert import_store(tmp_path / "tables", tmp_path / "again") == 18
    assert contents(tmp_path / "again") == contents(store)
    assert import_store(tmp_path / "tables", tmp_path / "again") == 18


def test_an_export_is_of_one_version_while_a_writer_works(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pyarrow")
    folder, bag = shutil.copytree(store, tmp_path / "store"), BagMethod()
    expected, write, content = contents(folder), exchange.write_table, f"{0:016x}{'f' * 16}"

    def change_before(target: Path, name: str, *rest: Any) -> int:
        with LocalStore.write(folder) as writer:
            if name == "files":
                frames = torch.ones(2, FRAMES, DIM) / DIM**0.5
                add_file(writer, bag, "/videos/9.mp4", content_of(9), frames)
            if name == "lines":
                writer.commit(Changes(removed_sources=[(content, "speech", "")]))
        return write(target, name, *rest)

    monkeypatch.setattr(exchange, "write_table", change_before)
    rows = export_store(folder, tmp_path / "tables", "parquet")
    assert rows == {"clips": 18, "files": 7, "sources": 1, "lines": 2, "hubness": 2}
    assert import_store(tmp_path / "tables", tmp_path / "again") == 18
    assert contents(tmp_path / "again") == expected


def test_a_transcript_that_lacks_lines_is_refused(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exports that were made while a writer worked, by earlier versions, may have such."""
    pytest.importorskip("pyarrow")
    monkeypatch.setattr(exchange, "_line_chunks", lambda snapshot: iter(()))
    export_store(store, tmp_path / "tables", "parquet")
    with pytest.raises(UsageError, match="has 0 of 2 lines"):
        import_store(tmp_path / "tables", tmp_path / "again")


def test_other_programs_read_the_tables(store: Path, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    export_store(store, tmp_path / "tables", "parquet")
    table = parquet.read_table(tmp_path / "tables" / "clips.parquet")
    vectors = np.stack(table["vector"].to_numpy())
    snapshot = LocalStore.open(store).snapshot()
    assert np.array_equal(vectors, np.concatenate([part for _, part in snapshot.vector_parts()]))
    assert set(table["path"].to_pylist()) == {f"/videos/{number}.mp4" for number in range(6)}


def test_unknown_values_are_null_and_may_be_nan_in_an_import(store: Path, tmp_path: Path) -> None:
    """Earlier versions wrote NaN."""
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    export_store(store, tmp_path / "tables", "parquet")
    path = tmp_path / "tables" / "files.parquet"
    rows = parquet.read_table(path)
    for name in UNKNOWN:
        assert rows[name].null_count == len(rows)
        nan = pyarrow.array([float("nan")] * len(rows))
        rows = rows.set_column(rows.column_names.index(name), name, nan)
    parquet.write_table(rows, path)
    import_store(tmp_path / "tables", tmp_path / "again")
    assert contents(tmp_path / "again") == contents(store)


def test_csv_has_vectors_as_pgvector_reads_them(store: Path, tmp_path: Path) -> None:
    export_store(store, tmp_path / "tables", "csv")
    with (tmp_path / "tables" / "clips.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    snapshot = LocalStore.open(store).snapshot()
    expected = snapshot.vectors_at(np.array([snapshot.row(rows[3]["clip_id"])]))[0]
    assert np.array_equal(np.array(json.loads(rows[3]["vector"]), np.float32), expected)
    spans = {"number", "start", "end", "from_keyframes"}
    assert rows[3].keys() == {"clip_id", "content", "path", "vector", *spans}
    with (tmp_path / "tables" / "files.csv").open(newline="") as stream:
        files = list(csv.DictReader(stream))
    assert '/videos/bad, "bad".mp4' in {row["path"] for row in files}
    assert {row[name] for row in files for name in UNKNOWN} == {""}
    with pytest.raises(UsageError, match="parquet or lance"):
        import_store(tmp_path / "tables", tmp_path / "again")
    assert not (tmp_path / "again").exists()


@pytest.mark.parametrize("failure", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_failed_export_can_be_repeated(
    failure: BaseException, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "tables"

    def fail(folder: Path, name: str, *rest: object) -> int:
        (folder / f"{name}.csv").write_text("half a ta")
        raise failure

    with monkeypatch.context() as patch:
        patch.setattr(exchange, "write_table", fail)
        expected = UsageError if isinstance(failure, OSError) else KeyboardInterrupt
        with pytest.raises(expected) as caught:
            export_store(store, folder, "csv")
    if isinstance(failure, OSError):
        assert str(caught.value) == f"{folder}: cannot be written: No space left on device"
    assert export_store(store, folder, "csv")["clips"] > 0


def test_empty_store_is_exported(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    make_store(tmp_path / "empty", BagMethod(), num_files=0)
    assert export_store(tmp_path / "empty", tmp_path / "tables", "parquet")["clips"] == 0
    assert import_store(tmp_path / "tables", tmp_path / "again") == 0


@pytest.mark.parametrize("part", ["clips", "files", "lines", "sources", "hubness", "export.json"])
def test_incomplete_export_is_refused(part: str, store: Path, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    export_store(store, tmp_path / "tables", "parquet")
    path = tmp_path / "tables" / (part if "." in part else f"{part}.parquet")
    for content in (b"", path.read_bytes()[:-9], None):
        if content is None:
            path.unlink()
        else:
            path.write_bytes(content)
        with pytest.raises(UsageError, match="not a whole export"):
            import_store(tmp_path / "tables", tmp_path / "again")


@pytest.mark.parametrize(
    ("table", "column", "value"),
    [
        ("clips", "content", "../../etc"),
        ("clips", "number", -1),
        ("clips", "number", 0.5),
        ("clips", "number", None),
        ("clips", "number", np.uint64(2**63)),
        ("clips", "end", -1.0),
        ("clips", "start", float("nan")),
        ("clips", "vector", [float("nan")] * 24),
        ("clips", "vector", [7.0] * 24),
        ("clips", "frames", [1.0] * 3),
        ("clips", "frames", [float("nan")] * FRAME_VALUES),
        ("clips", "mask", [False] * 5),
        ("clips", "thumbnail", None),
        ("files", "status", "running"),
        ("files", "size", "large"),
        ("files", "size", None),
        ("files", "size", np.uint64(2**63)),
        ("files", "num_clips", 4),
        ("files", "duration", float("inf")),
        ("files", "recorded", 1e300),
        ("files", "latitude", 91.0),
        ("files", "camera", "a\nb"),
        ("files", "tags", "{"),
        ("sources", "kind", "rumour"),
        ("sources", "until", float("nan")),
        ("lines", "start", None),
        ("lines", "start", float("nan")),
        ("lines", "end", float("inf")),
        ("lines", "text", None),
        ("hubness", "vector", [1.0]),
        ("hubness", "vector", [float("nan")] * 24),
        ("hubness", "vector", [7.0] * 24),
        ("hubness", "vector", [1.0, *[0.0] * 22]),
    ],
)
def test_impossible_values_are_refused(
    table: str, column: str, value: object, store: Path, tmp_path: Path
) -> None:
    """Whoever gives away an export may have changed it."""
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    export_store(store, tmp_path / "tables", "parquet")
    path = tmp_path / "tables" / f"{table}.parquet"
    rows = parquet.read_table(path)
    index = rows.column_names.index(column)
    kind = rows.schema.field(column).type if value is None else None
    if isinstance(value, list):
        kind = pyarrow.list_(rows.schema.field(column).type.value_type, len(value))
    values = pyarrow.array([value] * len(rows), kind)
    # The other columns keep their types, so that only this one can be refused.
    parquet.write_table(rows.set_column(index, column, values), path)
    with pytest.raises(UsageError, match="not a whole export") as caught:
        import_store(tmp_path / "tables", tmp_path / "again")
    assert "\n" not in str(caught.value)


def test_store_of_another_model_is_not_mixed(store: Path, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    export_store(store, tmp_path / "tables", "parquet")
    make_store(tmp_path / "other", BagMethod(seed=3))
    with pytest.raises(StoreError, match="cannot be mixed"):
        import_store(tmp_path / "tables", tmp_path / "other")


def test_commands(store: Path, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    shutil.copytree(store, tmp_path / "store")
    here = ["--store", str(tmp_path / "store")]
    runner, tables = CliRunner(), str(tmp_path / "tables")
    exported = runner.invoke(app, ["store", "export", tables, *here])
    assert (exported.exit_code, "clips 18" in exported.output) == (0, True), exported.output
    again = runner.invoke(app, ["store", "export", tables, *here])
    assert isinstance(again.exception, UsageError)
    new = str(tmp_path / "new")
    imported = runner.invoke(app, ["store", "import", tables, "--store", new])
    assert (imported.exit_code, "18 clips" in imported.output) == (0, True), imported.output
    info = json.loads(runner.invoke(app, ["store", "info", "--json", *here]).stdout)
    parts = info["bytes"]
    assert parts["total"] == sum(size for name, size in parts.items() if name != "total")
    assert {"database", "vectors", "features", "codes", "labels", "thumbnails"} <= parts.keys()
    shown = runner.invoke(app, ["store", "info", *here]).output
    assert "features" in shown
