"""Messages between processes."""

from __future__ import annotations

import threading
from multiprocessing import Pipe

import numpy as np
import pytest
import torch

from eaglenet.video import worker
from eaglenet.video.worker import MAX_INLINE_BYTES, pack, receive, send


def through(value: object) -> object:
    """Sent and received over a pipe that holds far less than ``value``."""
    ours, theirs = Pipe()
    sender = threading.Thread(target=send, args=(theirs, pack(value)))
    sender.start()
    try:
        return receive(ours)
    finally:
        sender.join()
        ours.close()
        theirs.close()


@pytest.mark.parametrize("way", ["in place", "by messages"])
def test_objects_with_arrays_arrive_unchanged(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if way == "by messages":  # As on systems that cannot read into memory.
        monkeypatch.setattr(worker, "_readv", None)
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (5, 3, 301, 203), generator=generator, dtype=torch.uint8)
    value = {
        "pixels": pixels,
        "view": pixels[1:3],
        "mask": torch.tensor([True, False]),
        "times": np.linspace(0, 1, 2000),
        "empty": torch.zeros(0, 4),
        "name": "clip",
    }
    arrived = through(value)
    assert isinstance(arrived, dict)
    for name in ("pixels", "view", "mask", "empty"):
        assert torch.equal(arrived[name], value[name])
        assert arrived[name].dtype == value[name].dtype
    assert np.array_equal(arrived["times"], value["times"])
    assert arrived["name"] == "clip"
    arrived["pixels"] += 1  # Its own memory.


def test_large_arrays_are_sent_outside_the_pickle() -> None:
    packed = pack(
        (torch.zeros(MAX_INLINE_BYTES, dtype=torch.uint8), np.zeros(MAX_INLINE_BYTES + 1, np.uint8))
    )
    assert [array.nbytes for array in packed.arrays] == [MAX_INLINE_BYTES + 1]
    assert MAX_INLINE_BYTES < len(packed.content) < 2 * MAX_INLINE_BYTES


def test_truncated_message_is_an_error() -> None:
    ours, theirs = Pipe()
    packed = pack(np.ones(10**6, np.uint8))
    half = worker.Message(packed.content, [packed.arrays[0][: 10**5]])
    # It says a million bytes and sends a tenth of them.
    theirs.send((packed.content, [10**6]))
    theirs._send(bytes(half.arrays[0]))  # type: ignore[attr-defined]
    theirs.close()
    with pytest.raises((EOFError, OSError)):
        receive(ours)
    ours.close()
