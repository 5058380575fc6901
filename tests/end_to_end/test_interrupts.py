"""Ctrl-C of a training process in a process group, as a terminal sends it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from processes import descendants, is_running
from small_videos import colour_video

TICKS = os.sysconf("SC_CLK_TCK")


def processor_seconds(pid: int) -> float:
    """Processor time of a process without its children."""
    values = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(values[11]) + int(values[12])) / TICKS


def wait_until(is_reached: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    while not is_reached():
        assert process.poll() is None
        time.sleep(0.01)


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("clips")
    lines = ["video,caption,split"]
    for number in range(12):
        colours = [("red", "green", "blue")[number % 3]] * (1 + number)
        colour_video(folder / f"{number}.mp4", colours)
        lines.append(f"{number}.mp4,a colour {number},{'train' if number < 8 else 'val'}")
    (folder / "captions.csv").write_text("\n".join(lines))
    return folder


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(
    "moment",
    ["imports", *(pytest.param(name, marks=pytest.mark.slow) for name in ("workers", "step"))],
)
def test_ctrl_c_ends_training_soon_with_one_line(clips: Path, tmp_path: Path, moment: str) -> None:
    run, ended = tmp_path / "run", tmp_path / "ended"
    (tmp_path / "sitecustomize.py").write_text(
        f"import atexit\natexit.register(lambda: open({str(ended)!r}, 'w').close())\n"
    )
    command = ["train", "xpool", "--data", "folder", "--root", str(clips), "--output", str(run)]
    settings = ["training.batch_size=4", "training.epochs=2000", "training.eval_every=1000"]
    settings = [text for setting in settings for text in ("--set", setting)]
    process = subprocess.Popen(
        [sys.executable, "-m", "eaglenet", *command, "--tower", "small-frozen", *settings],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        # A parent that ignores the signal passes that on.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert process.stderr is not None
    log = run / "log.jsonl"
    reached = {
        "imports": lambda: processor_seconds(process.pid) > 1.0,
        "workers": lambda: len(descendants(process.pid)) > 1,
        "step": lambda: log.exists() and log.read_text().count('"step"') > 2,
    }
    wait_until(reached[moment], process)
    # It goes no further while this test is slow.
    os.killpg(process.pid, signal.SIGSTOP)
    children, start = descendants(process.pid), processor_seconds(process.pid)
    os.killpg(process.pid, signal.SIGINT)
    os.killpg(process.pid, signal.SIGCONT)
    _, status, usage = os.wait4(process.pid, 0)
    messages = process.stderr.read()
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 130, messages
    assert "Traceback" not in messages
    assert messages.strip().endswith("run the same command again to continue")
    if moment == "imports":
        # A slow machine is told what it waits for.
        assert messages.replace("loading PyTorch\n", "").strip().count("\n") == 0, messages
        assert not ended.exists(), "the teardown of torch alone takes 0.4 s"
        assert usage.ru_utime + usage.ru_stime - start < start  # 0.05 s; all imports take 3 s.
    deadline = time.monotonic() + 60
    while any(map(is_running, children)):
        assert time.monotonic() < deadline
        time.sleep(0.05)
