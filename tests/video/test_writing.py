"""Written videos and clips, thumbnails, and shot boundaries."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
import videos
from PIL import Image
from videos import read_numbers, write_numbered

from eaglenet.core.errors import UsageError, VideoDecodeError
from eaglenet.core.types import FrameSpec
from eaglenet.video.decoding import (
    decode,
    decode_image,
    probe,
    shot_boundaries,
    write_clip,
    write_video,
)
from eaglenet.video.frame_images import FramesRequest, read_frame_images


@pytest.mark.parametrize("channels_first", [True, False])
@pytest.mark.parametrize("name", ["a.mp4", "a.mkv", "a.webm"])
def test_written_frames_are_read_back(tmp_path: Path, name: str, channels_first: bool) -> None:
    frames = torch.from_numpy(np.stack([videos.picture(n, 80, 64) for n in range(9)]))
    frames = frames.permute(0, 3, 1, 2) if channels_first else frames
    codec = "libvpx-vp9" if name.endswith("webm") else "libx264"
    write_video(tmp_path / name, frames, 12.5, codec=codec)
    video = decode(tmp_path / name, FrameSpec(num_frames=9, size=64))
    assert read_numbers(video.frames) == list(range(9))
    torch.testing.assert_close(video.seconds, torch.arange(9) / 12.5, atol=1e-3, rtol=0)


def test_odd_sides_are_cropped_and_wrong_shapes_refused(tmp_path: Path) -> None:
    write_video(tmp_path / "odd.mp4", np.zeros((3, 33, 47, 3), np.uint8), 25)
    info = probe(tmp_path / "odd.mp4")
    assert (info.width, info.height) == (46, 32)
    for wrong in (np.zeros((3, 32, 32), np.uint8), np.zeros((3, 32, 32, 3), np.float32)):
        with pytest.raises(UsageError, match="uint8"):
            write_video(tmp_path / "wrong.mp4", wrong, 25)
    with pytest.raises(UsageError, match="codec"):
        write_video(tmp_path / "a.mp4", np.zeros((3, 32, 32, 3), np.uint8), 25, codec="nonsense")


@pytest.mark.parametrize("name", ["a.mp4", "a.mkv"])
def test_clip_starts_at_its_first_frame(tmp_path: Path, name: str) -> None:
    source = write_numbered(tmp_path / name, 100)
    target = tmp_path / "clip.mp4"
    write_clip(source, target, 1.2, 2.0)
    video = decode(target, FrameSpec(num_frames=20, size=64))
    assert read_numbers(video.frames) == list(range(30, 50))
    assert abs(probe(target).duration - 0.8) < 0.05
    write_clip(source, target, 3.9, 99)
    assert read_numbers(decode(target, FrameSpec(num_frames=1, size=64)).frames) == [98]


def test_clip_of_a_rotated_video_is_upright(tmp_path: Path) -> None:
    source = write_numbered(tmp_path / "r.mp4", 50, width=64, height=96, rotation=90)
    write_clip(source, tmp_path / "clip.mp4", 0.4, 1.2)
    assert read_numbers(decode(tmp_path / "clip.mp4", FrameSpec(4, 64)).frames) == [12, 17, 22, 27]
    with pytest.raises(VideoDecodeError, match="outside the video"):
        write_clip(source, tmp_path / "none.mp4", 50, 60)
    assert not (tmp_path / "none.mp4").exists()


def test_shown_frame_is_upright(tmp_path: Path) -> None:
    path = write_numbered(tmp_path / "r.mp4", 50, width=64, height=96, rotation=90)
    request = FramesRequest(str(path), (0, 0.99, 1.0, 99), 64, is_short_side=True)
    frames = np.stack(read_frame_images(request))
    assert frames.shape == (4, 3, 64, 96)
    assert read_numbers(torch.from_numpy(frames[..., 16:80].copy())) == [0, 24, 25, 49]


def test_finds_cuts_but_not_motion(tmp_path: Path) -> None:
    rows, columns = np.mgrid[0:64, 0:96]
    scenes = []
    for scene, (level, lengths) in enumerate([(40, 30), (200, 25), (90, 45)]):
        for step in range(lengths):
            wave = np.sin((columns + 2 * step) / 9 + scene) * 20 + level + rows / 4
            scenes.append(np.repeat(wave[..., None], 3, axis=2).clip(0, 255).astype(np.uint8))
    write_video(tmp_path / "cuts.mp4", np.stack(scenes), 25)
    assert shot_boundaries(tmp_path / "cuts.mp4") == pytest.approx([1.2, 2.2])


def test_image_is_prepared_like_a_frame(tmp_path: Path) -> None:
    Image.fromarray(videos.picture(77, 96, 64)).save(tmp_path / "a.png")
    image = decode_image(tmp_path / "a.png", 64)
    assert image.shape == (3, 64, 64)
    assert read_numbers(torch.from_numpy(image)[None]) == [77]
    orientation = Image.fromarray(np.ascontiguousarray(np.rot90(videos.picture(77, 96, 64))))
    exif = orientation.getexif()
    exif[0x0112] = 6  # turn by 90 degrees clockwise
    orientation.save(tmp_path / "turned.jpg", exif=exif)
    upright = decode_image(tmp_path / "turned.jpg", 64)
    assert read_numbers(torch.from_numpy(upright)[None]) == [77]
    assert decode_image(tmp_path / "a.png", 32, "stretch").shape == (3, 32, 32)
    (tmp_path / "b.png").write_text("no image")
    for name in ("b.png", "missing.png"):
        with pytest.raises(UsageError, match=name):
            decode_image(tmp_path / name, 64)


def test_frame_times_survive_a_clip_of_varying_frame_rate(tmp_path: Path) -> None:
    times = [0, 100, 130, 400, 420, 700, 1000, 1040]
    source = write_numbered(tmp_path / "v.mp4", 8, times=times, time_base=Fraction(1, 1000))
    write_clip(source, tmp_path / "clip.mp4", 0.13, 1.02)
    video = decode(tmp_path / "clip.mp4", FrameSpec(num_frames=7, size=64, short="mask"))
    assert read_numbers(video.frames)[:5] == [2, 3, 4, 5, 6]
    expected = torch.tensor([0.0, 0.27, 0.29, 0.57, 0.87])
    torch.testing.assert_close(video.seconds[:5], expected, atol=1e-3, rtol=0)
