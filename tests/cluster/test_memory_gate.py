"""The storage in memory, which most tests use, answers as a server of S3 does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from eaglenet.store.object_storage import ChangedObjectError, MissingObjectError, ObjectFolder
from object_storage import MemoryGate, start_storage


@pytest.fixture
def folders(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[ObjectFolder]]:
    """One folder in a server, and one in memory."""
    pytest.importorskip("obstore")
    pytest.importorskip("moto")
    server, gate = start_storage()
    gates = [gate, MemoryGate().open()]
    for name, value in {
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    made = []
    for each in gates:
        monkeypatch.setenv("AWS_ENDPOINT_URL", each.url)
        made.append(ObjectFolder("s3://bucket/compared"))
    yield made
    for each in gates:
        each.close()
    server.stop()


def test_both_give_the_same_answers(folders: list[ObjectFolder]) -> None:
    def outcome(use: Callable[[ObjectFolder], Any], folder: ObjectFolder) -> Any:
        try:
            return use(folder)
        except (ChangedObjectError, MissingObjectError) as error:
            return type(error), str(error)

    first_tag = folders[0].write("one", b"first")
    calls: list[Callable[[ObjectFolder], Any]] = [
        lambda folder: folder.write("one", b"first"),
        lambda folder: folder.write("log/a b & <c> %20.mp4", bytes(range(256)) * 9),
        lambda folder: folder.write("log/empty", b""),
        lambda folder: folder.read("one"),
        lambda folder: folder.read("log/a b & <c> %20.mp4"),
        lambda folder: folder.tag("one"),
        lambda folder: folder.read_ranges("log/a b & <c> %20.mp4", [(3, 40), (2000, 2304)]),
        lambda folder: [(each.url, each.size, each.etag) for each in folder.list()],
        lambda folder: [each.url for each in folder.list("log/")],
        lambda folder: [each.url for each in folder.list("none/")],
        lambda folder: folder.write_if("one", b"second", None),
        lambda folder: folder.write_if("one", b"second", '"another"'),
        lambda folder: folder.write_if("one", b"second", first_tag),
        lambda folder: folder.write_if("one", b"third", first_tag),
        lambda folder: folder.write_if("two", b"new", None),
        lambda folder: folder.write_if("three", b"new", first_tag),
        lambda folder: folder.remove(["one", "nothing"]),
        lambda folder: folder.read("one"),
        lambda folder: folder.tag("one"),
        lambda folder: folder.read_ranges("one", [(0, 2)]),
        lambda folder: folder.entry("two").size,
        lambda folder: [each.url for each in folder.list()],
    ]
    for number, call in enumerate(calls):
        server, memory = (outcome(call, folder) for folder in folders)
        assert memory == server, number
