"""What a stranger does first, with models of the true input size and layout, on real files."""

from __future__ import annotations

import io
import json
import os
import socket
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import eaglenet
from eaglenet.cli.main import app
from eaglenet.search.query import Query
from eaglenet.store.store import open_store
from golden_checkpoint import GOLDEN_NAMES, golden_weights
from processes import start_printing, wait
from real_size import clip_tokenizer, save_hub_clip, save_openai_clip, write_films
from stand_in_hub import COMMIT, serve_hub

MODELS = (
    "small",
    # A model in the layout of the hub is downloaded and searched below.
    pytest.param("openai-b16", marks=pytest.mark.slow),
    pytest.param("hub-b32", marks=pytest.mark.slow),
    pytest.param("hub-b16", marks=pytest.mark.slow),
    pytest.param("openai-b32", marks=pytest.mark.slow),
)


def command(*arguments: str | Path, code: int = 0) -> str:
    """Run a command in this process; gives standard output."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == code, result.output + repr(result.exception)
    return str(result.stdout)


@pytest.fixture(scope="module")
def films(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wide film longer than a clip and a tall one, H.264 with sound."""
    return write_films(tmp_path_factory.mktemp("films") / "My Videos")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that a stand-in for the hub serves."""
    return save_hub_clip(tmp_path_factory.mktemp("served") / "clip", patch=32)


@pytest.fixture(scope="module", params=MODELS)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The packaged model, CLIP in Hugging Face's layout, and OpenAI's archive."""
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "small":
        return "small"
    patch = int(request.param[-2:])
    if request.param.startswith("openai"):
        return str(save_openai_clip(folder / "openai", patch))
    return str(save_hub_clip(folder / "clip", patch))


@pytest.fixture(scope="module")
def store(model: str, films: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of the two films made by the command."""
    place = tmp_path_factory.mktemp("store") / "store"
    printed = command("index", films, "--store", place, "--model", model, "--workers", "0")
    assert "2 videos indexed" in printed
    return place


def test_a_sentence_finds_moments_of_both_files(store: Path) -> None:
    found = json.loads(command("search", "a red picture", "--store", store, "--json"))
    hits = found["hits"] if isinstance(found, dict) else found[0]["hits"]
    assert {Path(hit["path"]).name for hit in hits} == {"wide film.mp4", "tall.mp4"}
    for hit in hits:
        assert 0 <= hit["moment"]["start"] <= hit["moment"]["best"] <= hit["moment"]["end"]


@pytest.mark.slow
def test_what_people_write_first_in_python_works(model: str, films: Path) -> None:
    """By name, by `str` and by `Path`; one or several; files, arrays and tensors."""
    method = eaglenet.load(model if model == "small" else Path(model), device="cpu")
    assert str(method.device) == "cpu"
    sentences = ["a red picture", "a film of blue"]
    texts = method.encode_text(sentences)
    assert len(texts) == 2
    assert len(method.encode_text(sentences[0])) == 1
    wide, tall = films / "wide film.mp4", films / "tall.mp4"
    both = method.encode_video([wide, str(tall)])
    assert both.frames.shape == (2, method.frame_spec.num_frames, method.encoder.dim)
    alone = method.encode_video(str(wide))
    torch.testing.assert_close(alone.frames, both.frames[:1], rtol=1e-3, atol=1e-4)
    array = np.full((7, 90, 160, 3), (200, 40, 40), np.uint8)
    tensor = torch.from_numpy(array).permute(0, 3, 1, 2)
    assert torch.equal(method.encode_video(array).frames, method.encode_video(tensor).frames)
    scores = method.similarity(sentences, both)
    assert scores.shape == (2, 2)
    assert torch.isfinite(scores).all()
    torch.testing.assert_close(method.similarity(texts[:1], alone), scores[:1, :1])
    assert method.similarity(sentences[0], array).shape == (1, 1)


@pytest.mark.slow
def test_a_folder_is_indexed_and_searched_from_python(
    model: str, films: Path, tmp_path: Path
) -> None:
    """With paths as `str` and as `Path`, and results that become plain dicts."""
    store = tmp_path / "store"
    report = eaglenet.index(films, store, model, workers=0)
    assert json.loads(json.dumps(report.to_dict()))["indexed"] == 2
    assert eaglenet.index(str(films), str(store), workers=0).unchanged == 2
    engine = eaglenet.open(str(store))
    hits = engine.search("a red picture", path="*.mp4")
    assert {Path(hit.path).name for hit in hits} == {"wide film.mp4", "tall.mp4"}
    assert not engine.search("a red picture", path="*.mov")
    named = eaglenet.open(store).search("a red picture", k=1, path="wide*")[0]
    assert json.loads(json.dumps(named.to_dict()))["path"] == str(films / "wide film.mp4")
    picture = Image.new("RGB", (300, 200), (200, 40, 40))
    assert engine.search(Query(image=picture), k=2)[0].rank == 1


def test_the_page_shows_pictures_of_the_hits(store: Path) -> None:
    from fastapi.testclient import TestClient

    from eaglenet.serve.app import create_app

    with TestClient(create_app(eaglenet.open(store)), base_url="http://localhost") as client:
        answer = client.get("/api/search", params={"q": "a blue picture"})
        assert answer.status_code == 200, answer.text
        hit = answer.json()["hits"][0]
        picture = client.get(f"/api/clips/{hit['clip_id']}/thumbnail")
        assert picture.status_code == 200
        assert min(Image.open(io.BytesIO(picture.content)).size) >= 90


@pytest.mark.usefixtures("decoded_here")
def test_it_is_evaluated_and_its_features_are_written(
    model: str, films: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From frames that are kept here, not in the folder of whoever runs the tests."""
    monkeypatch.setenv("EAGLENET_CACHE", str(tmp_path / "cache"))
    lines = ["video,caption,split", "wide film.mp4,a red picture,test"]
    lines.append("tall.mp4,a green picture,test")
    (films / "captions.csv").write_text("\n".join(lines))
    metrics = json.loads(
        command("evaluate", model, "--data", "folder", "--root", films, "--json")
    )  # fmt: skip
    assert metrics["t2v"]["queries"] == 2
    features = tmp_path / "features"
    command("data", "features", model, "folder", "--root", films, "--split", "test", "--output",
            features)  # fmt: skip
    command("data", "check", "features", "--root", features)


@pytest.mark.slow
def test_a_converted_checkpoint_indexes_and_searches(films: Path, tmp_path: Path) -> None:
    """A checkpoint of the authors' code with towers of 224 pixels and CLIP's own vocabulary."""
    weights = golden_weights(GOLDEN_NAMES[0])
    patch = weights["clip.visual.conv1.weight"].shape[-1]
    generator = torch.Generator().manual_seed(0)
    for name, rows in (
        ("clip.visual.positional_embedding", (224 // patch) ** 2 + 1),
        ("clip.token_embedding.weight", 49408),
    ):
        width = weights[name].shape[1]
        weights[name] = torch.randn(rows, width, generator=generator) / 20
    torch.save(weights, tmp_path / "released.bin")
    clip_tokenizer().save(tmp_path / "vocabulary")
    command("convert", tmp_path / "released.bin", tmp_path / "model", "--dataset", "msrvtt-b32",
            "--tokenizer", tmp_path / "vocabulary")  # fmt: skip
    assert eaglenet.load(tmp_path / "model").frame_spec.size == 224
    command("index", films, "--store", tmp_path / "store", "--model", tmp_path / "model",
            "--workers", "0")  # fmt: skip
    found = json.loads(command("search", "a red picture", "--store", tmp_path / "store", "--json"))
    hits = found["hits"] if isinstance(found, dict) else found[0]["hits"]
    assert {Path(hit["path"]).name for hit in hits} == {"wide film.mp4", "tall.mp4"}


def environment_of(hub: str, home: Path) -> dict[str, str]:
    """Of a process that asks this hub and no other, and keeps what it downloads in ``home``."""
    environment = {
        name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")
    } | {"HF_ENDPOINT": hub, "HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1"}
    environment.pop("HF_HUB_OFFLINE", None)
    return environment


def run_index(
    films: Path, store: Path, hub: str, home: Path, model: str = "somebody/clip"
) -> tuple[int, str]:
    """Run `eaglenet index --model NAME` in a process; return its exit code and what it prints."""

    def run() -> None:
        from huggingface_hub import constants

        from eaglenet.cli.main import main

        constants.ENDPOINT = hub
        constants.HUGGINGFACE_CO_URL_TEMPLATE = hub + "/{repo_id}/resolve/{revision}/{filename}"
        constants.HF_HUB_CACHE = str(home / "hub")
        constants.HF_HUB_OFFLINE, constants.HF_HUB_DISABLE_XET = False, True
        words = ["index", films, "--store", store, "--model", model, "--workers", "0"]
        sys.argv = ["eaglenet", *map(str, words)]
        main()

    proxies = {name: "" for name in os.environ if name.lower().endswith("_proxy")}
    child, output = start_printing(run, **proxies)
    with output:
        printed = output.read()
    return wait(child), printed


def test_a_name_is_downloaded_told_and_searched(
    films: Path, served: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By an alias; the store names the model and its revision, and needs no hub any more."""
    from huggingface_hub import constants

    home = tmp_path / "home"
    with serve_hub(served, "openai/clip-vit-base-patch32") as hub:
        code, printed = run_index(films, tmp_path / "store", hub, home, "fast")
    assert code == 0, printed
    assert "downloading model.safetensors:" in printed
    assert "MB/s" in printed
    model = open_store(tmp_path / "store").manifest.model
    assert model == f"openai/clip-vit-base-patch32@{COMMIT}"
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(home / "hub"))
    found = json.loads(command("search", "a red one", "--store", tmp_path / "store", "--json"))
    assert {Path(hit["path"]).name for hit in found["hits"]} == {"wide film.mp4", "tall.mp4"}


def test_a_terminal_shows_name_size_and_speed_of_a_download(served: Path, tmp_path: Path) -> None:
    pty, termios = pytest.importorskip("pty"), pytest.importorskip("termios")
    master, terminal = pty.openpty()
    termios.tcsetwinsize(terminal, (24, 80))
    with serve_hub(served, "somebody/clip") as hub:
        process = subprocess.Popen(
            [sys.executable, "-m", "eaglenet", "models", "--download", "somebody/clip"],
            env=environment_of(hub, tmp_path / "home"), stderr=terminal, stdout=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(terminal)
        shown = b""
        with suppress(OSError):  # the end of a terminal whose process is gone
            while part := os.read(master, 65536):
                shown += part
        assert process.wait(timeout=300) == 0
    os.close(master)
    line = next(line for line in shown.decode().split("\r") if "model.safetensors: 100%" in line)
    size = (served / "model.safetensors").stat().st_size
    assert f"{size / 1e6:.1f}M" in line
    assert "B/s" in line


def test_a_hub_that_refuses_is_reported_at_once(films: Path, tmp_path: Path) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{closed.getsockname()[1]}"
    begun = time.monotonic()
    code, printed = run_index(films, tmp_path / "store", address, tmp_path / "home")
    assert code == 4
    assert "cannot be reached" in printed
    assert "--model small" in printed
    assert time.monotonic() - begun < 60


class FrontPageAlone(BaseHTTPRequestHandler):
    """A hub of which the first page answers and nothing behind it."""

    def do_GET(self) -> None:
        if self.path not in ("", "/"):
            time.sleep(120)
        self.send_response(200)
        self.end_headers()

    def do_HEAD(self) -> None:
        self.do_GET()

    def log_message(self, *arguments: object) -> None:
        """Nothing."""


@pytest.mark.slow
@pytest.mark.parametrize("has_front_page", [False, True])
def test_a_hub_that_never_answers_is_reported(
    has_front_page: bool, films: Path, tmp_path: Path
) -> None:
    with socket.socket() as silent, ExitStack() as stack:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        if has_front_page:
            server = ThreadingHTTPServer(("127.0.0.1", 0), FrontPageAlone)
            server.daemon_threads, server.block_on_close = True, False
            threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
            stack.callback(server.shutdown)
            address = f"http://127.0.0.1:{server.server_address[1]}"
        begun = time.monotonic()
        _, printed = run_index(films, tmp_path / "store", address, tmp_path / "home")
    assert "no answer in 15 s" in printed
    assert "--model small" in printed
    # 15 s to wait for the hub; the rest is for a busy machine.
    assert time.monotonic() - begun < 45


@pytest.mark.slow
def test_the_full_clip_b32_indexes_and_searches(films: Path, tmp_path: Path) -> None:
    from transformers import CLIPConfig, CLIPModel

    from real_size import clip_tokenizer

    CLIPModel(CLIPConfig()).save_pretrained(tmp_path / "clip")
    clip_tokenizer().save(tmp_path / "clip")
    place = tmp_path / "store"
    assert "2 videos" in command("index", films, "--store", place, "--model", tmp_path / "clip")
    assert command("search", "a red picture", "--store", place)
