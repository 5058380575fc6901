"""A store of schema 1, made by the eaglenet before recording dates, is brought up to date."""

import shutil
import sqlite3
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from typing import cast

import pytest
from made_store import CLIPS, changes_of, make_file, path_of

from eaglenet.core.errors import StoreError, StoreLockedError
from eaglenet.store.database import connect
from eaglenet.store.disk import writer_lock
from eaglenet.store.schema import OldSchemaError, require_version
from eaglenet.store.store import LocalStore


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    archive = Path(__file__).with_name("store_of_schema_1.tgz")
    with tarfile.open(archive) as files:
        files.extractall(tmp_path)
    return tmp_path / "store"


def test_opening_it_adds_the_columns_and_keeps_everything(folder: Path) -> None:
    store = LocalStore.open(folder)
    assert store.database.value("PRAGMA user_version") == 2
    assert store.files() == [make_file(number) for number in range(3)]
    assert store.verify().clips == 3 * CLIPS
    files = store.snapshot().files()
    assert files.cameras == [None] * 3
    assert files.dates.tolist() == files.modification_times.tolist()
    with LocalStore.write(folder) as writer:
        writer.commit(changes_of(3))
        described_file = make_file(0, recorded=1.5e9, latitude=48, longitude=-11.5, camera="Apple")
        writer.commit(type(changes_of(3))(files=[described_file]))
    store.verify()
    assert store.files()[0] == described_file
    files = store.snapshot().files()
    assert (files.dates[0], files.latitudes[0], files.cameras[0]) == (1.5e9, 48, "Apple")


def test_several_processes_open_it_at_once(folder: Path) -> None:
    code = "import sys; from eaglenet.store.store import LocalStore as S; S.open(sys.argv[1])"
    command = [sys.executable, "-c", code, str(folder)]
    with writer_lock(folder):
        readers = [subprocess.Popen(command, stderr=subprocess.PIPE) for _ in range(3)]
        time.sleep(0.5)
    for reader in readers:
        _, errors = reader.communicate(timeout=60)
        assert (reader.returncode, errors) == (0, b"")
    assert LocalStore.open(folder).verify().clips == 3 * CLIPS


def test_a_store_that_is_upgraded_while_it_is_opened_is_not_damaged(folder: Path) -> None:
    connection = connect(folder)

    class Slow:
        """A reader that another process overtakes between two of its statements."""

        def execute(self, statement: str) -> sqlite3.Cursor:
            if "sqlite_master" in statement:
                LocalStore.open(folder)
            return connection.execute(statement)

        def rollback(self) -> None:
            connection.rollback()

    with pytest.raises(OldSchemaError):
        require_version(cast("sqlite3.Connection", Slow()), folder)
    require_version(connection, folder)
    connection.close()


def test_a_store_that_is_written_to_is_not_upgraded(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eaglenet.store.store.UPGRADE_ATTEMPTS", 2)
    with writer_lock(folder), pytest.raises(StoreLockedError, match="is being written to"):
        LocalStore.open(folder)


def test_a_damaged_row_is_not_carried_over_and_repair_takes_the_others(folder: Path) -> None:
    connection = sqlite3.connect(folder / "store.db")
    connection.execute("UPDATE files SET duration = 1 WHERE id = 2")
    connection.commit()
    connection.close()
    before = (folder / "store.db").read_bytes()
    with pytest.raises(StoreError, match=f"eaglenet store repair --store {folder}"):
        LocalStore.open(folder)
    assert (folder / "store.db").read_bytes() == before
    LocalStore.repair(folder)
    assert [file.path for file in LocalStore.open(folder).files()] == [path_of(0), path_of(2)]


def test_a_read_only_store_names_the_command(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.access", lambda path, mode: False)
    with pytest.raises(StoreError, match="needs 2; upgrade it with: eaglenet store upgrade"):
        LocalStore.open(folder)
    shutil.rmtree(folder)
