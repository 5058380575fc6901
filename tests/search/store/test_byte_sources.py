"""Places of a file that are read: the same bytes whether they are few or announced as many."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from eaglenet.search.store.byte_sources import ANNOUNCED, LocalBytes


@pytest.mark.parametrize("count", [1, ANNOUNCED - 1, ANNOUNCED, 5 * ANNOUNCED])
def test_every_span_gets_its_own_bytes(count: int, tmp_path: Path) -> None:
    content = np.random.default_rng(0).integers(0, 256, 40_000, dtype=np.uint8).tobytes()
    (tmp_path / "file").write_bytes(content)
    source = LocalBytes(tmp_path / "file")
    offsets = np.random.default_rng(1).integers(0, 40_000 - 70, count).tolist()
    parts = [bytearray(70) for _ in offsets]
    spans = [(offset, memoryview(part)) for offset, part in zip(offsets, parts, strict=True)]
    assert source.read_into(spans)
    assert [bytes(part) for part in parts] == [content[o : o + 70] for o in offsets]
    assert not source.read_into([*spans, (39_990, memoryview(bytearray(70)))])
