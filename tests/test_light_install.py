"""The installation without extras: `small` indexes, searches and serves without torch."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tomllib
import urllib.request
from collections.abc import Sequence
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from eaglenet.core.errors import EXTRAS, missing_extra, require_torch
from sampling import one_in
from small_videos import colour_video

ROOT = Path(__file__).parents[1]
HEAVY = (
    "torch", "lancedb", "pyarrow", "cv2", "jaxtyping", "transformers", "tokenizers",
    "huggingface_hub", "onnx", "matplotlib",
)  # fmt: skip
ABSENT = f"""
import sys
for name in {HEAVY}:
    sys.modules[name] = None  # an import fails, and find_spec finds nothing
from eaglenet.cli.main import main
main()
"""
INSTALLED = f"""
import atexit, os, sys
from eaglenet.cli import main, terminal
def report(code=0, error=None):
    print("loaded:", *[name for name in {HEAVY} if name in sys.modules], flush=True)
    os._exit(code or 0)
main.end_process = report
atexit.register(report)
main.main()
"""


def run(code: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store that was indexed by a process in which none of the packages can be imported."""
    folder = tmp_path_factory.mktemp("light")
    (folder / "videos").mkdir()
    colour_video(folder / "videos" / "orange.mp4", ["red", "green"])
    (folder / "videos" / "orange.srt").write_text(
        "1\n00:00:00,500 --> 00:00:02,000\nWe walked to the lighthouse.\n"
    )
    places = [folder / "videos", "--store", folder / "store"]
    done = run(ABSENT, "index", *places, "--precision", "fp32", "--workers", "1")
    assert done.returncode == 0, done.stderr
    return folder / "store"


@pytest.mark.parametrize(
    "words", one_in(2, [["a red background"], ["--in", "speech", "lighthouse"]])
)
def test_search_works_without_the_packages(store: Path, words: Sequence[str]) -> None:
    done = run(ABSENT, "search", "--store", store, "--json", *words)
    assert done.returncode == 0, done.stderr
    assert "orange.mp4" in done.stdout


def test_search_with_an_image_works_without_the_packages(store: Path, tmp_path: Path) -> None:
    from PIL import Image

    Image.new("RGB", (64, 64), (255, 0, 0)).save(tmp_path / "red.png")
    done = run(ABSENT, "search", "--store", store, "--image", tmp_path / "red.png")
    assert done.returncode == 0, done.stderr
    assert "orange.mp4" in done.stdout


@pytest.mark.parametrize("command", one_in(2, ["search", "index"]))
def test_installed_packages_are_not_imported(store: Path, command: str, tmp_path: Path) -> None:
    arguments: list[str | Path] = ["search", "--store", store, "red"]
    if command == "index":
        arguments = ["index", store.parent / "videos", "--store", tmp_path / "new"]
        # By default torch, if installed, encodes on a GPU or in bfloat16.
        arguments += ["--device", "cpu", "--precision", "fp32"]
    done = run(INSTALLED, *arguments)
    assert done.stdout.rstrip().endswith("loaded:"), done.stdout[-500:] + done.stderr


def test_models_are_listed_without_the_packages() -> None:
    done = run(ABSENT, "models", "--json")
    assert done.returncode == 0, done.stderr
    assert [model["name"] for model in json.loads(done.stdout) if model["is_here"]] == ["small"]


def test_service_works_without_the_packages(store: Path) -> None:
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-c", ABSENT, "serve", "--store", str(store), "--port", "0"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    ) as service:
        assert service.stdout is not None
        try:
            lines = []
            for line in service.stdout:
                lines.append(line)
                if match := re.search(r"http://\S+", line):
                    break
            else:
                pytest.fail("".join(lines))
            url = f"{match.group(0).rstrip('/')}/api/search?q=red"
            with urllib.request.urlopen(url, timeout=60) as answer:
                hits = json.load(answer)["hits"]
        finally:
            service.send_signal(signal.SIGINT)
            service.wait(60)
    assert [hit["name"] for hit in hits][:1] == ["orange.mp4"]


@pytest.mark.parametrize(
    ("arguments", "extra"),
    [
        (["index", "VIDEOS", "--store", "NEW", "--model", "demo"], "torch"),
        (["index", "VIDEOS", "--store", "NEW", "--device", "cuda"], "torch"),
        (["train", "clip4clip", "--output", "NEW"], "torch"),
        (["evaluate", "small", "--data", "demo"], "torch"),
    ],
)
def test_a_command_names_the_extra_that_it_needs(
    store: Path, tmp_path: Path, arguments: list[str], extra: str
) -> None:
    names = {"VIDEOS": store.parent / "videos", "NEW": tmp_path / "new"}
    done = run(ABSENT, *(names.get(each, each) for each in arguments))
    assert done.returncode == 2, done.stderr
    (line,) = done.stderr.strip().splitlines()[-1:]
    assert line.startswith("error: ")
    assert line.endswith(f"pip install 'eaglenet[{extra}]'")
    assert not (tmp_path / "new").exists()


def test_the_python_interface_names_the_extra() -> None:
    code = "import sys; sys.modules['torch'] = None; import eaglenet; eaglenet.load"
    done = run(code)
    assert "eaglenet.load needs torch" in done.stderr
    assert "eaglenet[torch]" in done.stderr


def test_every_extra_that_an_error_names_brings_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    packages = {
        "open_clip": "open_clip_torch",
        "faster_whisper": "faster-whisper",
        "pillow_heif": "pillow-heif",
        "sentence_transformers": "sentence-transformers",
    }
    for module, extra in EXTRAS.items():
        wanted = [Requirement(text).name for text in project["optional-dependencies"][extra]]
        assert packages.get(module, module) in wanted, module
    base = {Requirement(text).name for text in project["dependencies"]}
    assert not base & {*HEAVY, "opencv-python", "opencv-python-headless"}


def test_other_missing_modules_are_bugs() -> None:
    assert missing_extra(ModuleNotFoundError(name="eaglenet.nothing")) is None
    require_torch("this")
