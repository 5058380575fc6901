"""The log of a store on object storage, operation by operation."""

from __future__ import annotations

import numpy as np
import pytest

from eaglenet.cluster.log import (
    HEAD,
    LEASE,
    Chunk,
    Head,
    _holder,
    append,
    decode,
    encode,
    read_spans,
)
from eaglenet.cluster.mirror import Position, merge_operations
from eaglenet.store.disk import DamageError
from eaglenet.store.object_storage import ObjectFolder
from eaglenet.store.records import Changes, Source, SourceLines, SourceWindows
from object_storage import Gate

KEY = ("0" * 32, "subtitle", "")
WINDOWS = SourceWindows(
    KEY,
    "test 1",
    np.array([0, 2], np.uint32),
    np.array([2, 1], np.uint32),
    np.eye(2, 5, dtype="f4"),
)  # type: ignore[arg-type]


def test_windows_are_in_the_log_as_they_were_committed() -> None:
    empty = SourceWindows(KEY, "test 1", *np.zeros((2, 0), np.uint32), np.zeros((0, 5), "f4"))  # type: ignore[arg-type]
    ((_, operation),) = decode(encode(Changes(windows=[WINDOWS, empty])))
    assert isinstance(operation, Changes)
    first, second = operation.windows
    assert (first.key, first.encoder, second.vectors.shape) == (KEY, "test 1", (0, 5))
    assert np.array_equal(first.first_lines, WINDOWS.first_lines)
    assert np.array_equal(first.num_lines, WINDOWS.num_lines)
    assert np.array_equal(first.vectors, WINDOWS.vectors)


def test_windows_are_not_joined_with_later_lines_of_their_source() -> None:
    lines = Changes(transcripts=[SourceLines(Source(*KEY, 0, 0, "test", "done"), [])])  # type: ignore[arg-type]
    windows = Changes(windows=[WINDOWS])
    operations = [lines, windows, lines, lines]
    joined = list(merge_operations((Position("x", n), each) for n, each in enumerate(operations)))
    assert [position.end for position, _ in joined] == [0, 1, 3]
    assert joined[1][1] is windows


def test_appends_leave_few_chunks_and_write_each_byte_a_few_times(
    location: str, storage: Gate
) -> None:
    folder, before = ObjectFolder(location), storage.bytes_in
    chunks: tuple[Chunk, ...] = ()
    content = bytes(range(250)) * 40
    for number in range(40):
        chunks = append(folder, "features", chunks, content)
        assert chunks[-1].end == (number + 1) * len(content)
        assert len(chunks) <= 9
    assert b"".join(chunk.read(folder) for chunk in chunks) == 40 * content
    assert storage.bytes_in - before < 3 * 40 * len(content)


def test_spans_are_read_without_the_bytes_between_them(location: str, storage: Gate) -> None:
    folder = ObjectFolder(location)
    content = np.random.default_rng(0).bytes(2**22)
    chunks = append(folder, "features", (), content)
    starts = list(range(2**22 - 1000, 0, -(2**17)))
    spans = [(start, start + 1000) for start in starts] + [(0, 0), (5, 9)]
    before = storage.bytes_out
    assert read_spans(folder, chunks, spans) == [content[start:end] for start, end in spans]
    assert storage.bytes_out - before < 2 * 1000 * len(spans)


def test_a_deep_head_is_damaged(location: str, storage: Gate) -> None:
    """JSON that is nested too deeply for Python is no traceback."""
    folder = ObjectFolder(location)
    folder.write(HEAD, b"[" * 100_000)
    with pytest.raises(DamageError, match="is damaged"):
        Head.read(folder)
    folder.write(LEASE, b"[" * 100_000)
    assert _holder(folder.read(LEASE)[0]) == "another eaglenet"
