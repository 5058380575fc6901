"""A short command leaves out parts of torch and ends at once; its answers stay the same."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from eaglenet.cli import terminal

TOWERS = str(Path(__file__).parents[1] / "contract")


def run(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.slow
def test_texts_are_encoded_alike_without_the_module(tmp_path: Path) -> None:
    short = """
import sys
from eaglenet.cli.terminal import UNUSED_MODULE, begin_short_command, import_torch
begin_short_command()
assert "torch" not in sys.modules, "before it is known that a model needs it"
import_torch()
import torch, eaglenet
assert not vars(sys.modules[UNUSED_MODULE]).get("activate_meta"), "the part was imported"
"""
    encode = """
torch.save(eaglenet.load("small").encode_text(["a dog runs"]).sentence, sys.argv[1])
"""
    # Both in new processes: threads that other tests have left change the last digit.
    files = [tmp_path / "short.pt", tmp_path / "plain.pt"]
    for code, file in zip((short, "import sys, torch, eaglenet"), files, strict=True):
        done = run(code + encode, str(file))
        assert done.returncode == 0, done.stderr
    assert torch.equal(*map(torch.load, files))


@pytest.mark.slow
def test_all_towers_work_without_the_module(tmp_path: Path) -> None:
    """In one process for all: most of its time is the import of torch."""
    families = ["clip", "siglip", "perception", "compact"]
    code = """
import sys
from eaglenet.cli.terminal import begin_short_command, import_torch
begin_short_command()
import_torch()
sys.path[:0] = [sys.argv[1], sys.argv[1] + "/.."]
import torch
from eaglenet.methods.clip4clip import CLIP4Clip, CLIP4ClipConfig
from eaglenet.models.folder import load, save
from eaglenet.search.torch_model import release_image_tower
from eaglenet.core.types import Clips, Tokens
from test_every_tower import make_tower
sys.path.insert(0, sys.argv[1] + "/../methods")
from small_towers import small_clip
for family in sys.argv[3:]:
    folder = sys.argv[2] + "/" + family
    tower = small_clip() if family == "clip" else make_tower(family)
    save(CLIP4Clip(tower, CLIP4ClipConfig(num_frames=2)), folder)
    method = load(folder)
    release_image_tower(method, folder)
    ids = torch.randint(1, 20, (2, 5))
    sentence = method.encode_text(Tokens(ids, torch.ones_like(ids, dtype=torch.bool))).sentence
    size = method.frame_spec.size
    pixels = torch.randint(0, 256, (1, 2, 3, size, size)).byte()
    video = Clips(pixels, torch.ones(1, 2, dtype=torch.bool), torch.zeros(1, 2))
    frames = method.encode_video(video).frames
    print(family, sentence.isfinite().all().item(), frames.isfinite().all().item())
"""
    done = run(code, TOWERS, str(tmp_path), *families)
    assert done.stdout.splitlines() == [f"{each} True True" for each in families], done.stderr


def test_search_imports_only_the_code_of_its_model() -> None:
    code = """
import sys
import eaglenet
from eaglenet.models.folder import load_for_texts
from eaglenet.search.engine import Engine
load_for_texts("small")
for part in ("methods", "scoring", "encoders"):
    print(part, *sorted(name for name in sys.modules if name.startswith(f"eaglenet.{part}.")))
"""
    done = run(code)
    assert done.returncode == 0, done.stderr
    methods, scoring, encoders = done.stdout.splitlines()
    assert "eaglenet.methods.clip4clip" in methods
    assert "eaglenet.methods.xpool" not in methods
    assert "eaglenet.methods.eaglenet" not in methods.split()
    assert "eaglenet.scoring.eaglenet" not in scoring
    assert "eaglenet.encoders.compact" in encoders
    assert "eaglenet.encoders.siglip" not in encoders


def test_exits_with_its_code_and_all_output() -> None:
    code = """
import atexit, sys
from unittest import mock
from eaglenet.cli import main, terminal
terminal.ShortCommand.is_running = True
atexit.register(print, "taken apart")
def command():
    print("an answer", end="")
    sys.exit(3)
with mock.patch.object(main, "app", command):
    main.main()
"""
    done = run(code)
    assert (done.returncode, done.stdout) == (3, "an answer"), done.stderr


def test_does_nothing_if_torch_is_loaded() -> None:
    before = sys.modules.get(terminal.UNUSED_MODULE)
    terminal.begin_short_command()
    terminal.import_torch()
    assert sys.modules.get(terminal.UNUSED_MODULE) is before
    assert not terminal.ShortCommand.is_running


def test_a_search_imports_no_module_for_saving_moments() -> None:
    code = """
import sys
from eaglenet.cli.main import app
app(["search", "a dog", "--store", "/nowhere"], standalone_mode=False)
"""
    report = (
        "import atexit, sys; atexit.register(lambda: print('eaglenet.video.saving' in sys.modules))"
    )
    done = run(report + code)
    assert (done.stdout, "/nowhere" in done.stderr) == ("False\n", True)


def end_with_output(code: int, descriptor: int) -> tuple[int, str]:
    """End a process whose output is still in a buffer; return its exit code and its errors."""
    program = f"from eaglenet.cli.terminal import end_process; print('a line'); end_process({code})"
    environment = {name: os.environ[name] for name in os.environ if name != "PYTHONUNBUFFERED"}
    done = subprocess.run(
        [sys.executable, "-c", program],
        stdout=descriptor,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        check=False,
    )
    return done.returncode, done.stderr


def test_a_closed_pipe_does_not_change_the_exit_code() -> None:
    """As in ``eaglenet train ... | tee log``, where Ctrl-C ends both."""
    reader, writer = os.pipe()
    os.close(reader)
    assert end_with_output(130, writer) == (130, "")
    os.close(writer)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_output_that_cannot_be_written_is_an_error() -> None:
    descriptor = os.open("/dev/full", os.O_WRONLY)
    assert end_with_output(0, descriptor) == (
        1,
        "error: standard output: No space left on device\n",
    )
    os.close(descriptor)
