"""Progress is a bar in a terminal and a line now and then in a log."""

from __future__ import annotations

import re
import sys
import threading
import time
from contextlib import suppress
from time import sleep
from types import SimpleNamespace

import pytest

from eaglenet.core import progress as display
from eaglenet.core.progress import ProgressUpdate, show_progress


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, as the displays read it."""
    time = [0.0]
    monkeypatch.setattr(display.time, "monotonic", lambda: time[0])
    monkeypatch.setattr(display, "HEARTBEAT_SECONDS", 60.0)
    return time


def wait_for(pattern: str, capsys: pytest.CaptureFixture[str]) -> str:
    """What is printed until a thread has printed a pattern."""
    text, end = "", time.monotonic() + 60
    while not re.search(pattern, text):
        assert time.monotonic() < end, text
        sleep(0.01)
        text += capsys.readouterr().err
    return text


def test_log_has_few_lines_of_progress(
    capsys: pytest.CaptureFixture[str], now: list[float]
) -> None:
    with show_progress(quiet=False) as announce:
        progress = announce("run")
        assert progress is not None
        for done in range(100):
            progress(ProgressUpdate("decoding", done, 100))
            now[0] += 1.0
        progress(ProgressUpdate("step", 0, 6000, is_notable=True))
        for step in range(1, 6001):
            now[0] += 0.05
            progress(ProgressUpdate("step", step, 6000, "loss 0.5000"))
            if step % 50 == 0:
                told = f"epoch {step // 50}: t2v R@1 12.3"
                progress(ProgressUpdate("step", step, 6000, told, is_notable=True))
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "run: decoding 30 of 100, about 1 minute left"
    assert lines[3] == "run: step 0 of 6,000"
    assert lines[4] == "run: step 50 of 6,000, epoch 1: t2v R@1 12.3"
    steps = [line for line in lines if "loss" in line]
    assert steps[0] == "run: step 601 of 6,000, loss 0.5000, about 4 minutes left"
    assert 5 <= len(steps) <= 10
    assert len(lines) < 80


def test_time_left_counts_from_the_latest_start(
    capsys: pytest.CaptureFixture[str], now: list[float]
) -> None:
    """Each epoch encodes the texts of the validation split again."""
    with show_progress(quiet=False) as announce:
        progress = announce("")
        assert progress is not None
        for _ in range(2):
            for done in (0, 100, 200):
                progress(ProgressUpdate("encoding texts", done, 400))
                now[0] += 60.0
            now[0] += 6000.0
    lines = capsys.readouterr().err.splitlines()
    assert lines[-1] == "encoding texts 200 of 400, about 2 minutes left"


def test_bytes_are_not_shown(capsys: pytest.CaptureFixture[str], now: list[float]) -> None:
    with show_progress(quiet=False) as announce:
        progress = announce("")
        assert progress is not None
        for done in (7, 8):
            progress(ProgressUpdate("indexing", done, 9000, "3 clips", is_counted=False))
            now[0] += display.LINE_SECONDS
    assert capsys.readouterr().err == "3 clips\n"


def test_log_says_now_and_then_that_work_goes_on(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(display, "HEARTBEAT_SECONDS", 0.01)
    monkeypatch.setattr(display, "LINE_SECONDS", 0.1)
    with show_progress(quiet=False) as announce:
        wait_for(r"^still working after \d+:\d\d\n", capsys)
        with display.activity("loading the model x"):
            wait_for(r"still working after \d+:\d\d: loading the model x\n", capsys)
        progress = announce("run")
        assert progress is not None
        progress(ProgressUpdate("step", 3, 6))  # a step takes long
        wait_for(r"still working after \d+:\d\d; last step: run: step 3 of 6\n", capsys)
    capsys.readouterr()
    sleep(0.15)
    assert capsys.readouterr().err == ""


def test_nothing_is_printed_after_the_end(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread that prints while Python ends can abort the process."""
    monkeypatch.setattr(display, "HEARTBEAT_SECONDS", 0.01)
    monkeypatch.setattr(display, "LINE_SECONDS", 0.0)
    is_printing, plain = threading.Event(), display.Heartbeat.print

    def print_slowly(self: display.Heartbeat, line: str) -> None:
        is_printing.set()
        sleep(0.1)
        plain(self, line)

    monkeypatch.setattr(display.Heartbeat, "print", print_slowly)
    with show_progress(quiet=False):
        assert is_printing.wait(60)
    capsys.readouterr()
    sleep(0.2)
    assert capsys.readouterr().err == ""


def test_log_names_work_that_lasts_at_once(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(display, "HEARTBEAT_SECONDS", 0.05)
    with show_progress(quiet=False) as announce:
        with display.activity("loading the model x"):
            text = wait_for(r"\n", capsys)
        progress = announce("run")
        assert progress is not None
        progress(ProgressUpdate("decoding", 0, 7))
        text += wait_for(r"\n", capsys)
        progress(ProgressUpdate("decoding", 1, 7))
        sleep(0.3)
    text += capsys.readouterr().err
    assert text.splitlines() == ["loading the model x", "run: decoding 0 of 7"]


def test_terminal_shows_an_activity_until_it_ends(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "150")
    with show_progress(quiet=False):
        with suppress(ValueError), display.activity("loading the model x"):
            wait_for("loading the model x", capsys)
            raise ValueError
        capsys.readouterr()
        sleep(0.2)
        assert "loading" not in capsys.readouterr().err
    with display.activity("loading another"):  # Nothing shows it.
        pass
    assert "loading" not in capsys.readouterr().err


def test_prints_nothing_before_the_first_update(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    with show_progress(quiet=False) as announce:
        announce("run")
    assert capsys.readouterr().err == ""


def test_bar_shows_title_count_and_detail(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "150")
    with show_progress(quiet=False) as announce:
        progress = announce("run")
        assert progress is not None
        progress(ProgressUpdate("step", 1234, 6000, "loss 0.5"))
    shown = capsys.readouterr().err
    assert "run: step, loss 0.5" in shown
    assert "1,234/6,000" in shown


def test_shows_nothing_if_quiet() -> None:
    with show_progress(quiet=True) as announce:
        assert announce("run") is None


def test_a_notebook_shows_bars_without_widgets(monkeypatch: pytest.MonkeyPatch) -> None:
    outputs: list[dict[str, str]] = []

    def show(data: dict[str, str], **options: object) -> SimpleNamespace:
        assert options == {"raw": True, "display_id": True}
        outputs.append(data)
        return SimpleNamespace(update=lambda data, raw: outputs.append(data))

    shell = SimpleNamespace(kernel=object())
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(display=show))
    monkeypatch.setattr(display, "NOTEBOOK_SECONDS", 0.0)
    assert display.is_watched()
    with show_progress(quiet=False) as announce:
        progress = announce("run")
        assert progress is not None
        assert outputs == [], "nothing before the first update"
        progress(ProgressUpdate("step", 3, 6, "<b>"))
        assert outputs[-1]["text/plain"] == "run: step, <b> 3/6"
        assert (
            '<progress value="3" max="6"></progress> run: step, &lt;b&gt;'
            in (outputs[-1]["text/html"])
        )
        progress(ProgressUpdate("step", 6, 6))
        assert outputs[-1]["text/html"] == "", "a finished bar is removed"
    assert outputs[-1] == {"text/plain": "", "text/html": ""}
    shell.kernel = None  # IPython in a terminal
    assert not display.is_watched()
