"""The frames of a window in a damaged file do not depend on other requests."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from chunks import SPEC, assert_equal
from videos import write_numbered

from eaglenet.video.decoding import DecodedVideo, decode_windows, probe
from eaglenet.video.reader import OPEN_FILES
from eaglenet.video.sampling import Window
from sampling import one_in

FRAMES = 25 * 8
WINDOWS = [(start / 2, start / 2 + 2.0) for start in range(0, 14, 3)]
"""Of which each overlaps the next by half a second."""
GROUPS = {"x264-params": "open-gop=1:keyint=60:bframes=3"}
FILMS: dict[str, Callable[[Path], Path]] = {
    "open group.mkv": lambda path: write_numbered(path, FRAMES, options=GROUPS),
    "open group.ts": lambda path: write_numbered(path, FRAMES, options=GROUPS),
    "hevc.mkv": lambda path: write_numbered(path, FRAMES, code="hevc"),
    "in order.avi": lambda path: write_numbered(path, FRAMES, options={"bf": "0"}),
    "reordered.avi": lambda path: write_numbered(path, FRAMES),
}


@pytest.fixture(autouse=True)
def _close_files() -> Iterator[None]:
    """Close files that a test left open."""
    yield
    OPEN_FILES.close()


@pytest.fixture(scope="module", params=list(FILMS))
def film(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a video in each container."""
    return FILMS[request.param](tmp_path_factory.mktemp("films") / request.param)


def in_calls(
    path: Path, calls: Sequence[Sequence[Window]], *, keep_open: bool = False
) -> dict[Window | None, DecodedVideo]:
    """Decode some windows per call; windows with too few frames are missing."""
    options = {"threads": 1, "skip_damaged": True, "thumbnail_size": 24}
    return {
        video.window: video
        for windows in calls
        for video in decode_windows(path, SPEC, windows, keep_open=keep_open, **options)
    }


@pytest.mark.parametrize("seed", one_in(4, range(7)))
def test_window_frames_depend_only_on_file_and_window(
    film: Path, seed: int, tmp_path: Path
) -> None:
    """Decode windows alone, all at once, in pairs from both ends, and every second one."""
    chance = random.Random(seed)
    content = bytearray(film.read_bytes())
    for _ in range(chance.randrange(1, 6)):
        place = chance.randrange(len(content) // 4, len(content) - 40)
        length = chance.choice([1, 10, 40])
        content[place : place + length] = chance.randbytes(length)
    path = tmp_path / film.name
    path.write_bytes(content)
    windows = [window for window in WINDOWS if window[0] < probe(path).duration]
    assert len(windows) > 1
    expected = in_calls(path, [[window] for window in windows])
    twos = [windows[start : start + 2] for start in range(0, len(windows), 2)]
    for calls in ([windows], twos, [windows[::2], windows[1::2]]):
        assert_equal(in_calls(path, calls), expected)
    assert_equal(in_calls(path, twos, keep_open=True), expected)
    assert_equal(in_calls(path, twos[::-1], keep_open=True), expected)
