"""Decoding on a GPU, as far as it can be tested without one."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from eaglenet.core.errors import UsageError, VideoDecodeError
from eaglenet.core.frame_spec import FrameSpec
from eaglenet.indexing import decoding, executor
from eaglenet.indexing.decoding import ClipFrames, decode_ahead, split_request
from eaglenet.indexing.executor import ExecutorSettings, num_gpu_workers
from eaglenet.indexing.files import CandidateFile
from eaglenet.indexing.index import index
from eaglenet.video import confinement, gpu
from eaglenet.video.decoding import write_video

SPEC = FrameSpec(num_frames=4, size=32)


@pytest.fixture
def film(tmp_path: Path) -> Path:
    path = tmp_path / "film.mp4"
    frames = np.random.default_rng(0).integers(0, 255, (50, 3, 48, 64), dtype=np.uint8)
    write_video(path, frames, 10)
    return path


def requests_of(film: Path) -> list[decoding.ClipRequest]:
    return list(split_request("film", str(film), {0: (0.0, 2.0), 1: (2.0, 4.0)}, None, 5.0))


def settings(decode: str, device: str, gigabytes: float = 1.0) -> ExecutorSettings:
    class Model:
        pass

    model = Model()
    model.device = device  # type: ignore[attr-defined]
    files = [CandidateFile("a.mp4", round(gigabytes * 2**30), 0)]
    return ExecutorSettings(model, None, files, decode=decode)  # type: ignore[arg-type]


@pytest.fixture
def machine_with_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor, "free_gpu_memory", lambda: 80 * 2**30)
    monkeypatch.setattr(gpu, "is_built_in", lambda: True)


@pytest.mark.parametrize(
    ("decode", "device", "gigabytes", "workers", "expected"),
    [
        ("auto", "cuda", 1.0, 16, 7),
        ("auto", "cuda", 1.0, 4, 2),
        ("auto", "cuda", 0.01, 16, 0),
        ("auto", "cpu", 1.0, 16, 0),
        ("auto", "cuda", 1.0, 0, 0),
        ("cpu", "cuda", 1.0, 16, 0),
        ("gpu", "cpu", 0.01, 16, 7),
        ("gpu", "cuda", 1.0, 4, 4),
    ],
)
@pytest.mark.usefixtures("machine_with_gpu")
def test_processes_with_the_gpu(
    decode: str, device: str, gigabytes: float, workers: int, expected: int
) -> None:
    assert num_gpu_workers(settings(decode, device, gigabytes), workers) == expected


@pytest.mark.usefixtures("machine_with_gpu")
def test_auto_leaves_memory_of_a_small_gpu_to_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor, "free_gpu_memory", lambda: 5 * 2**30)
    assert num_gpu_workers(settings("auto", "cuda"), 16) == 2


def test_gpu_without_one_is_an_error_before_a_store_is_made(
    tmp_path: Path, film: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor, "free_gpu_memory", lambda: 0)
    for choice, message in (
        ("gpu", r"NVIDIA GPU.*decode on the cpu"),
        ("fast", "auto, cpu or gpu, not 'fast'"),
    ):
        with pytest.raises(UsageError, match=message):
            index(film, tmp_path / "store", decode=choice)
    assert not (tmp_path / "store").exists()
    assert num_gpu_workers(settings("auto", "cuda"), 4) == 0


def test_decoders_that_cannot_start_are_replaced(
    film: Path, caplog: pytest.LogCaptureFixture
) -> None:
    if gpu.is_built_in() and Path("/dev/nvidiactl").exists():
        pytest.skip("this machine has a GPU")
    with caplog.at_level(logging.WARNING):
        clips = list(decode_ahead(requests_of(film), SPEC, 2, gpu_workers=2))
    assert all(isinstance(clip, ClipFrames) for clip in clips)
    assert len(clips) == 2
    assert "decoder on the GPU cannot start" in caplog.text


@pytest.mark.parametrize("problem", ["an error", "a missing clip"])
def test_what_the_gpu_does_not_decode_is_decoded_on_the_cpu(
    film: Path, monkeypatch: pytest.MonkeyPatch, problem: str
) -> None:
    (request,) = requests_of(film)
    expected = decoding.decode_clips(request, SPEC)
    decode = decoding._decode_clips
    calls: list[bool] = []

    def decode_on_gpu(*arguments: object) -> decoding.DecodedClips:
        calls.append(gpu.is_used())
        if not gpu.is_used():
            return decode(*arguments)  # type: ignore[arg-type]
        if problem == "an error":
            raise VideoDecodeError(film, "the GPU fails")
        failures = (decoding.ClipFailure(clip.key, "damaged") for clip in expected.clips)
        return decoding.DecodedClips(tuple(failures), 0.0)

    monkeypatch.setattr(gpu, "_accelerator", object())
    monkeypatch.setattr(decoding, "_decode_clips", decode_on_gpu)
    result = decoding.decode_clips(request, SPEC)
    assert calls == [True, False]
    for clip, same in zip(result.clips, expected.clips, strict=True):
        assert isinstance(clip, ClipFrames)
        assert isinstance(same, ClipFrames)
        assert (clip.pixels == same.pixels).all()
    assert gpu.is_used()


ESCAPE = """
import os, socket, subprocess, sys
from eaglenet.video import confinement
readable, device, other = sys.argv[1:]
assert confinement.restrict_files(readable=[readable], devices=[device]) is None
assert confinement.restrict_system_calls(threads=True, devices=True) is None
print(open(os.path.join(readable, "a")).read(), os.write(os.open(device, os.O_RDWR), b"x"))
for attempt in (
    lambda: open(other),
    lambda: open(os.path.join(readable, "a"), "w"),
    lambda: open(os.path.join(readable, "b"), "w"),
    socket.socket,
    lambda: os.execv("/bin/true", ["true"]),
    os.fork,
):
    try:
        attempt()
    except OSError:
        print("refused")
os._exit(0)
"""


@pytest.mark.skipif(not confinement.landlock_version(), reason="the kernel has no Landlock")
def test_process_with_devices_reaches_only_what_is_listed(tmp_path: Path) -> None:
    folder = tmp_path / "driver"
    folder.mkdir()
    (folder / "a").write_text("content")
    secret = tmp_path / "secret"
    secret.write_text("secret")
    command = [sys.executable, "-c", ESCAPE, str(folder), os.devnull, str(secret)]
    output = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    assert output.splitlines() == ["content 1", *["refused"] * 6]
