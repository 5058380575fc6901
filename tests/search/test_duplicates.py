"""A moment is shown once, and so is a video in several files."""

from __future__ import annotations

import io
import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from eaglenet.search.engine import Engine
from eaglenet.search.hit import Moment
from eaglenet.search.selection import SAME_MOMENT_SECONDS, has_same_motion, trim_moment
from eaglenet.store.records import Changes, IndexedFile
from eaglenet.store.store import LocalStore
from synthetic_store import FRAMES, BagMethod, clip_batch, content_of, make_manifest

CLIPS, STEP, LENGTH = 5, 8.0, 10.0


@st.composite
def moments(draw: st.DrawFn) -> Moment:
    """A span with a best instant in it."""
    start, length, share = (draw(st.floats(0, most)) for most in (50, 12, 1))
    return Moment(start, start + length, start + share * length)


@given(st.lists(moments(), max_size=12))
@settings(max_examples=200, deadline=None)
def test_trimmed_moments_never_overlap_and_keep_their_best_frame(
    found: list[Moment],
) -> None:
    """For any moments in any order."""
    shown: list[Moment] = []
    for moment in found:
        part = trim_moment(moment, shown)
        if part is None:
            continue
        assert moment.start <= part.start <= part.best == moment.best <= part.end <= moment.end
        shown.append(part)
    for one, other in itertools.combinations(shown, 2):
        assert one.end <= other.start or other.end <= one.start
        assert abs(one.best - other.best) >= SAME_MOMENT_SECONDS


def test_repeated_moments_are_dropped() -> None:
    """The same moment, one that ends in it, and one mostly in it are repetitions."""
    first = Moment(6.0, 10.0, 9.0)
    assert trim_moment(first, []) == first
    for repeated in (first, Moment(9.5, 12.0, 9.9), Moment(5.0, 10.5, 10.4)):
        assert trim_moment(repeated, [first]) is None
    assert trim_moment(Moment(9.0, 14.0, 12.0), [first]) == Moment(10.0, 14.0, 12.0)


def jpeg(shade: int, size: tuple[int, int] = (64, 36)) -> bytes:
    """A picture that is dark on the left; ``shade`` tells it from others."""
    pixels = np.tile(np.linspace(0, shade, size[0], dtype=np.uint8), (size[1], 1))
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "JPEG")
    return stream.getvalue()


@pytest.fixture
def films(tmp_path: Path) -> Engine:
    """Film 0; 1 is its near copy; 2 has its pictures but other frames; 3 its frames, other size."""
    method = BagMethod()
    manifest = make_manifest(method)
    generator = torch.Generator().manual_seed(4)
    shape = (CLIPS, FRAMES, manifest.dim)
    original = F.normalize(torch.randn(shape, generator=generator), dim=-1)
    moved = F.normalize(original + 0.003 * torch.randn(shape, generator=generator), dim=-1)
    other = F.normalize(torch.randn(shape, generator=generator), dim=-1)
    pictures = [(64, 36), (128, 72), (64, 36), (36, 64)]
    with LocalStore.write(tmp_path, manifest) as writer:
        for number, frames in enumerate((original, moved, other, moved)):
            batch = clip_batch(method, manifest.layout, content_of(number), frames)
            thumbnails = [jpeg(40 * clip + 60, pictures[number]) for clip in range(CLIPS)]
            starts = STEP * np.arange(CLIPS)
            batch.features["seconds"] += (starts - batch.starts)[:, None].astype(np.float32)
            batch = replace(batch, starts=starts, ends=starts + LENGTH, thumbnails=thumbnails)
            duration = STEP * (CLIPS - 1) + LENGTH + 0.2 * number
            path, size = f"/videos/{number}.mp4", (320, 180)
            content = content_of(number)
            file = IndexedFile(path, 9, 9, content, "done", "", duration, *size, num_clips=CLIPS)
            writer.commit(Changes([batch], [file]))
    return Engine.open(tmp_path, method)


def names(engine: Engine, **options: object) -> list[tuple[str, str]]:
    """Name and clip of every hit for a sentence."""
    hits = engine.search("red car", k=40, **options)
    return [(Path(hit.path).stem, hit.clip_id) for hit in hits]


def test_near_copies_are_listed_in_the_hit(films: Engine) -> None:
    """Frames and thumbnails must both agree."""
    everything = names(films, keep_duplicates=True)
    assert len(everything) == 4 * CLIPS
    hits = films.search("red car", k=40)
    shown = [Path(hit.path).stem for hit in hits]
    copies = [Path(path).stem for hit in hits for path in hit.metadata.get("copies", ())]
    # Of 0 and 1 each clip is shown once, by the better of the two.
    assert shown.count("0") + shown.count("1") + copies.count("0") + copies.count("1") >= CLIPS
    assert set(copies) <= {"0", "1"}
    assert copies
    assert shown.count("0") + shown.count("1") <= CLIPS
    assert shown.count("2") > 0
    assert shown.count("3") > 0


def test_hits_of_one_file_show_disjoint_moments(films: Engine) -> None:
    """Clips overlap by two seconds, and the law holds for every sentence."""
    for sentence in ("red car", "blue dog", "a green ball"):
        of_file: dict[str, list[Moment]] = {}
        for hit in films.search(sentence, k=40):
            of_file.setdefault(hit.path, []).append(hit.moment)
        for found in of_file.values():
            for one, other in itertools.combinations(found, 2):
                assert one.end <= other.start or other.end <= one.start


def test_duplicates_do_not_reduce_the_number_of_hits(films: Engine) -> None:
    """Other clips follow, and fewer results are a prefix of more."""
    many = names(films)
    assert [len(films.search("red car", k=k)) for k in (1, 3, 7)] == [1, 3, 7]
    hits = films.search("red car", k=5)
    assert [(Path(hit.path).stem, hit.clip_id) for hit in hits] == many[:5]
    assert [hit.rank for hit in hits] == [1, 2, 3, 4, 5]


def test_same_scene_with_other_events_is_no_copy() -> None:
    """A fixed camera: frames are alike all along; what happens, and when, tells films apart."""
    draw = torch.Generator().manual_seed(0)
    place, event, offset = F.normalize(torch.randn(3, 48, generator=draw), dim=-1)
    quiet = place.expand(12, -1)

    def film(frames: list[int]) -> Tensor:
        there = torch.zeros(12, 1)
        there[frames] = 0.5
        return F.normalize(quiet + there * event, dim=-1)

    early, late = film([1, 2, 3]), film([8, 9, 10])
    noise = 0.02 * torch.randn(12, 48, generator=draw)
    compressed = F.normalize(early + 0.4 * offset + noise, dim=-1)
    assert float((early * late).sum(dim=-1).min()) > 0.85, "alike, frame by frame"
    other_camera = F.normalize(quiet + 0.4 * offset, dim=-1)
    assert has_same_motion(early.numpy(), compressed.numpy())
    assert not has_same_motion(early.numpy(), late.numpy())
    assert not has_same_motion(early.numpy(), quiet.numpy())
    assert has_same_motion(quiet.numpy(), other_camera.numpy())
