"""Material of the benchmarks of moments and sequences: which clips, how long, with which text."""

import argparse
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
import moments
import moments_shots
from small_videos import colour_video


def test_the_last_frame_counts_and_the_cache_names_its_material(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A clip of exactly two seconds is long enough; a cache without captions is refused."""
    for name, seconds in (("a.mp4", 2), ("b.mp4", 1), ("c.mp4", 3)):
        colour_video(tmp_path / name, ["red"], seconds)
    table = tmp_path / "manifest.tsv"
    table.write_text("file\tcaption\na.mp4\tred\nb.mp4\tshort\nc.mp4\tlong\n")
    method = SimpleNamespace(eval=lambda: SimpleNamespace(frame_spec=SimpleNamespace(size=32)))
    monkeypatch.setattr(moments, "load", lambda _: method)
    monkeypatch.setattr(moments, "encode", lambda _, images: np.ones((len(images), 4), np.float32))
    monkeypatch.setattr(moments, "encode_text", lambda *_: np.ones(4, np.float32))
    sources = moments.encode_clips(argparse.Namespace(clips=tmp_path, captions=table, model=""))
    lengths = [(source.name, source.caption, source.duration) for source in sources]
    assert lengths == [("a.mp4", "red", 2.0), ("c.mp4", "long", 3.0)]

    cache = tmp_path / "cache.npz"
    moments.save_sources(cache, sources)
    material = moments.describe_material(moments.load_sources(cache))
    assert material == moments.describe_material(sources)
    assert (material["sources"], material["seconds"]) == (2, 5.0)
    assert moments.describe_material(sources[::-1])["digest"] != material["digest"]

    arrays = dict(np.load(cache))
    del arrays["captions"]
    np.savez(cache, **arrays)
    with pytest.raises(SystemExit, match="has no captions"):
        moments.load_sources(cache)


def test_clips_start_at_detected_shots_or_at_known_joins() -> None:
    """A join between equal frames is not detected; a cut inside a source is no join."""
    source = SimpleNamespace(name="a", duration=6.0)
    other = SimpleNamespace(name="b", duration=4.0)
    third = SimpleNamespace(name="c", duration=5.0)
    dark, light = np.zeros((32, 32, 3), np.int16), np.full((32, 32, 3), 255, np.int16)
    shots = {
        "a": moments_shots.Shots([2.0], dark, dark),
        "b": moments_shots.Shots([], dark, light),
        "c": moments_shots.Shots([], dark, light),
    }
    members = [source, other, third]
    spans = {name: moments_shots.spans_of(members, shots, name) for name in ("10 s", "5 s")}
    assert spans["10 s"] == [(0.0, 10.0), (8.0, 15.0)]
    assert spans["5 s"] == [(0.0, 5.0), (4.0, 9.0), (8.0, 13.0), (12.0, 15.0)]
    assert moments_shots.spans_of(members, shots, "shots") == [
        *((0.0, 2.0), (2.0, 10.0), (10.0, 15.0))
    ]
    assert moments_shots.spans_of(members, shots, "known joins") == [
        *((0.0, 6.0), (6.0, 10.0), (10.0, 15.0))
    ]
