"""Files whose frame times require decoding: a chunk continues the run of an earlier one."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from chunks import FRAMES, SPEC, WINDOWS, assert_equal, decode_in_chunks, open_files
from videos import read_numbers, write_numbered

from eaglenet.video.decoding import decode_windows
from eaglenet.video.reader import MAX_OPEN, OPEN_FILES, DecodedRun
from eaglenet.video.source import VideoSource, open_video
from sampling import one_in

FILMS: dict[str, dict[str, Any]] = {
    "h264.avi": {"with_audio": True},
    "mpeg4.avi": {"code": "mpeg4"},
    "h264 in order.avi": {"options": {"bf": "0"}},
    "mpeg4 in order.avi": {"code": "mpeg4", "options": {"bf": "0"}, "with_audio": True},
    "bare.h264": {},
}
OVERLAPPING = [(start, start + 3.5) for start in range(0, 24, 2)]
"""Each piece of two begins before the last frame of the one before it."""
REORDERED = ("h264.avi", "mpeg4.avi")


@pytest.fixture(autouse=True)
def _close_files() -> Iterator[None]:
    """Close files that a test left open."""
    yield
    OPEN_FILES.close()


@pytest.fixture(scope="module")
def films(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Write all videos once."""
    folder = tmp_path_factory.mktemp("films")
    return {name: write_numbered(folder / name, FRAMES, **how) for name, how in FILMS.items()}


def with_holes(content: bytearray) -> bytearray:
    chance = random.Random(5)
    for _ in range(6):
        place = chance.randrange(len(content) // 8, len(content) * 9 // 10)
        content[place : place + 20] = chance.randbytes(20)
    return content


DAMAGES: dict[str, Callable[[bytearray], bytearray]] = {
    "whole": lambda content: content,
    "holes": with_holes,
    "cut": lambda content: content[: len(content) * 17 // 20],
    "holes and cut": lambda content: with_holes(content)[: len(content) * 17 // 20],
}


@pytest.mark.parametrize(("name", "damage"), one_in(5, itertools.product(FILMS, DAMAGES)))
def test_continued_run_equals_decoding_from_the_start(
    films: dict[str, Path], name: str, damage: str, tmp_path: Path
) -> None:
    """Chunks in order with and without overlap, backwards, in random order, and every second one.

    The frames depend only on the video and the chunk, not on other chunks.
    """
    path = tmp_path / name
    path.write_bytes(DAMAGES[damage](bytearray(films[name].read_bytes())))
    shuffled_windows = random.Random(1).sample(WINDOWS, len(WINDOWS))
    apart = [(start, start + 0.75) for start in range(24)]
    for orders in ([OVERLAPPING], [WINDOWS, WINDOWS[::-1], shuffled_windows], [apart, apart[::3]]):
        expected = decode_in_chunks(
            path, keep_open=False, windows=orders[0], at_once=len(orders[0])
        )
        assert len(expected) > 3
        for windows in orders:
            selection = {window: expected[window] for window in windows if window in expected}
            assert len(selection) > 3
            assert_equal(decode_in_chunks(path, keep_open=True, windows=windows), selection)


def test_run_gives_the_right_frames(films: dict[str, Path]) -> None:
    for name in REORDERED:
        for video in decode_in_chunks(films[name], keep_open=True).values():
            assert read_numbers(video.frames) == (video.seconds * 25).round().int().tolist()


def test_alternating_between_two_files(films: dict[str, Path]) -> None:
    expected = {name: decode_in_chunks(films[name], keep_open=False) for name in REORDERED}
    for window in WINDOWS:
        for name in REORDERED:
            (video,) = decode_windows(
                films[name], SPEC, [window], threads=1, thumbnail_size=24, keep_open=True
            )
            assert_equal({window: video}, {window: expected[name][window]})
            assert sum(open_files(other) for other in REORDERED if other != name) == 0


@pytest.mark.parametrize("name", REORDERED)
def test_each_run_decodes_the_file_once(
    films: dict[str, Path], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Decoding each of six chunks from the start would take three times as many frames."""
    sent_packets = []
    original = VideoSource.send

    def send(self: VideoSource, packet: Any, *, keep: bool = True) -> list[Any]:
        sent_packets.append(packet)
        return original(self, packet, keep=keep)

    monkeypatch.setattr(VideoSource, "send", send)
    decode_in_chunks(films[name], keep_open=True, windows=OVERLAPPING)
    assert FRAMES < len(sent_packets) < 2 * FRAMES + 20
    sent_packets.clear()
    decode_in_chunks(films[name], keep_open=True, windows=WINDOWS)
    assert len(sent_packets) < FRAMES + 20
    sent_packets.clear()
    decode_in_chunks(films[name], keep_open=False, windows=WINDOWS)
    assert len(sent_packets) > 3 * FRAMES


def test_keeps_at_most_two_runs(films: dict[str, Path]) -> None:
    path = films["h264.avi"]
    decode_in_chunks(path, keep_open=True, windows=WINDOWS[::-1])
    assert open_files(path.name) == MAX_OPEN
    with pytest.raises(MemoryError), open_video(path, threads=1, keep_open=True):
        raise MemoryError
    assert open_files(path.name) == 0
    decode_in_chunks(path, keep_open=True)
    OPEN_FILES.close()
    assert open_files(path.name) == 0


def test_run_of_a_changed_file_is_dropped(films: dict[str, Path], tmp_path: Path) -> None:
    path = tmp_path / "film.avi"
    path.write_bytes(films["h264.avi"].read_bytes())
    decode_in_chunks(path, keep_open=True, windows=WINDOWS[:4])
    path.write_bytes(films["mpeg4.avi"].read_bytes())
    expected = decode_in_chunks(path, keep_open=False, windows=WINDOWS[4:])
    assert_equal(decode_in_chunks(path, keep_open=True, windows=WINDOWS[4:]), expected)


def test_file_changed_during_a_run_leaves_no_run(films: dict[str, Path], tmp_path: Path) -> None:
    path = tmp_path / "film.avi"
    path.write_bytes(films["h264.avi"].read_bytes())
    with open_video(path, threads=1, keep_open=True) as source:
        with source.decoded_run(0) as run:
            assert next(run.pick([0]))[1] is not None
            path.write_bytes(films["h264.avi"].read_bytes())
        assert open_files(path.name) == 1
    assert open_files(path.name) == 0


def test_run_of_a_deleted_file_is_closed(films: dict[str, Path], tmp_path: Path) -> None:
    path = tmp_path / "film.avi"
    path.write_bytes(films["h264.avi"].read_bytes())
    decode_in_chunks(path, keep_open=True)
    assert open_files(path.name) > 0
    path.unlink()
    decode_in_chunks(films["mpeg4.avi"], keep_open=True)
    assert open_files(f"{path.name} (deleted)") == 0


def test_run_knows_which_times_it_passed(films: dict[str, Path]) -> None:
    """For any time it has not passed, a run returns the same frame as one from the start."""
    with open_video(films["mpeg4.avi"], threads=1) as source:
        run = DecodedRun(source)
        assert run.can_show(0)
        list(run.pick([500]))
        assert run.can_show(500)
        assert not run.can_show(499)
        ((_, again),) = run.pick([500])
        ((_, last),) = run.pick([10**6])
        assert run.can_show(10**6)
        (_, fresh), (_, end) = DecodedRun(source).pick([500, 10**6])
    assert (again.pts, last.pts) == (fresh.pts, end.pts)
    assert (again.to_ndarray() == fresh.to_ndarray()).all()
