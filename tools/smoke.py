"""Read, index and search one clip with the packages of this environment.

    python tools/smoke.py                    with a clip that is drawn here
    python tools/smoke.py --clip holiday.mp4 --query "a boat on a lake"

Uses the installed package from an empty folder. Each step is one line; prints the versions of the
direct dependencies; exit code 1 if a step fails. Of the extras, those that are installed are tried:
photographs, on-screen text and tables with a file each; the others need weights, footage or
services, and are imported as the package imports them.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Callable
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

COMMAND = ("-m", "eaglenet")
MINUTES = 60
START_SECONDS = 120
DOORS = {
    "faster-whisper": "faster_whisper",
    "open-clip-torch": "open_clip",
    "sentence-transformers": "sentence_transformers",
    "rawpy": "rawpy",
    "watchfiles": "watchfiles",
    "mcp": "mcp.server",
    "obstore": "obstore.store",
    "ray": "ray",
    "matplotlib": "matplotlib.figure",
}
"""Distribution of an extra, and what the package imports of it."""
SUBTITLES = "1\n00:00:00,500 --> 00:00:02,000\nWe walked to the lighthouse.\n"


def direct_dependencies() -> dict[str, str]:
    """Version by name, of those that are installed."""
    versions = {}
    for requirement in metadata.requires("eaglenet") or []:
        name = re.split(r"[<>=!~\[; ]", requirement)[0]
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return dict(sorted(versions.items()))


def draw_clip(path: Path) -> Path:
    """Write three seconds of a red square that moves over a green background."""
    from fractions import Fraction

    import av
    import numpy as np

    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=25)
        stream.width, stream.height, stream.pix_fmt = 320, 240, "yuv420p"
        for number in range(75):
            pixels = np.full((240, 320, 3), (40, 160, 60), np.uint8)
            pixels[80:160, 3 * number : 3 * number + 80] = (220, 30, 30)
            frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
            frame.pts, frame.time_base = number, Fraction(1, 25)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return path


def run(folder: Path, *arguments: str) -> str:
    """Standard output of a Python process in ``folder``."""
    environment = {**os.environ, "EAGLENET_STORE": str(folder / "store")}
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=10 * MINUTES,
    )
    if done.returncode:
        raise RuntimeError(f"exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def check_import(folder: Path) -> str:
    run(folder, "-W", "error", "-c", "import eaglenet")
    return "no warning"


def check_index(folder: Path, clip: Path) -> str:
    command = [*COMMAND, "index", str(clip), "--json"]
    report = json.loads(run(folder, *command))
    if report["problems"] or report["damaged"] or not report["clips"]:
        raise RuntimeError(f"not indexed: {report}")
    return ", ".join(f"{key} {value}" for key, value in report.items() if isinstance(value, int))


def check_search(folder: Path, clip: Path, query: str) -> str:
    hits = json.loads(run(folder, *COMMAND, "search", query, "--json"))
    hits = hits["hits"] if isinstance(hits, dict) else hits
    if not hits or clip.name not in json.dumps(hits[0]):
        raise RuntimeError(f"the clip is not the first hit: {hits}")
    return f"{len(hits)} hits"


def check_speech(folder: Path, clip: Path) -> str:
    """Search the subtitle that lies beside the clip: another index of the store."""
    hits = json.loads(run(folder, *COMMAND, "search", "lighthouse", "--in", "speech", "--json"))
    hits = hits["hits"] if isinstance(hits, dict) else hits
    if not hits or clip.name not in json.dumps(hits[0]):
        raise RuntimeError(f"the subtitle is not found: {hits}")
    return f"{len(hits)} hits"


def check_save(folder: Path, query: str) -> str:
    run(folder, *COMMAND, "search", query, "-k", "1", "--save-clips", str(folder / "saved"))
    saved = [path for path in (folder / "saved").rglob("*") if path.is_file()]
    if not any(path.stat().st_size > 1000 for path in saved):
        raise RuntimeError(f"no clip was saved: {saved}")
    return ", ".join(f"{path.stat().st_size:,} bytes" for path in saved)


def check_photograph(folder: Path) -> str:
    from PIL import Image
    from pillow_heif import register_heif_opener

    register_heif_opener()
    path = folder / "photograph.heic"
    Image.new("RGB", (320, 240), (30, 60, 200)).save(path)
    return check_index(folder, path)


def check_screen_text(folder: Path, clip: Path) -> str:
    """Read the clip with the recognition model; it shows no text."""
    return run(folder, *COMMAND, "index", str(clip), "--read-text", "--json")[:60].replace(
        "\n", " "
    )


def check_tables(folder: Path, kind: str) -> str:
    run(folder, *COMMAND, "store", "export", str(folder / kind), "--format", kind)
    run(
        folder,
        *COMMAND,
        "store",
        "import",
        str(folder / kind),
        "--store",
        str(folder / f"from-{kind}"),
    )
    return "written and read"


def check_imports(folder: Path, modules: list[str]) -> str:
    first = ""
    if find_spec("torchvision"):  # As the package does, for a torchvision beside another torch.
        first = "from eaglenet.encoders.openclip import declare_operators; declare_operators(); "
    run(folder, "-c", f"{first}import {', '.join(modules)}")
    return ", ".join(modules)


def check_service(folder: Path, query: str) -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, *COMMAND, "serve", "--port", str(port), "--store"]
    log = folder / "service.log"
    with log.open("w") as output:
        service = subprocess.Popen(
            [*command, str(folder / "store")], cwd=folder, stdout=output, stderr=output
        )
    address = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                urllib.request.urlopen(f"{address}/health", timeout=5).read()
                break
            except OSError as error:
                if service.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"the service did not start:\n{log.read_text()}") from error
                time.sleep(0.5)
        request = f"{address}/api/search?{urllib.parse.urlencode({'q': query})}"
        body = urllib.request.urlopen(request, timeout=60).read()
        return f"{len(body):,} bytes"
    finally:
        service.terminate()
        service.wait(timeout=60)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--clip", type=Path, help="a video; default: one is drawn")
    parser.add_argument("--query", default="a red square", help="what to search for")
    options = parser.parse_args()
    versions = direct_dependencies()
    print(f"Python {sys.version.split()[0]}, {sys.platform}")
    print(", ".join(f"{name} {version}" for name, version in versions.items()))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        clip = folder / f"clip{options.clip.suffix if options.clip else '.mp4'}"
        if options.clip:
            shutil.copyfile(options.clip, clip)
        else:
            draw_clip(clip)
        clip.with_suffix(".srt").write_text(SUBTITLES, "utf-8")
        steps: dict[str, Callable[[], str]] = {
            "import": lambda: check_import(folder),
            "index": lambda: check_index(folder, clip),
            "search": lambda: check_search(folder, clip, options.query),
            "speech": lambda: check_speech(folder, clip),
            "save": lambda: check_save(folder, options.query),
        }
        if "fastapi" in versions:
            steps["serve"] = lambda: check_service(folder, options.query)
        if "pillow-heif" in versions:
            steps["photograph"] = lambda: check_photograph(folder)
        if "rapidocr" in versions:
            steps["on-screen text"] = lambda: check_screen_text(folder, clip)
        if "pyarrow" in versions:
            steps["parquet"] = lambda: check_tables(folder, "parquet")
        if "lancedb" in versions:
            steps["lance"] = lambda: check_tables(folder, "lance")
        modules = [module for name, module in DOORS.items() if name in versions]
        if modules:
            steps["imports"] = lambda: check_imports(folder, modules)
        for step, check in steps.items():
            start = time.monotonic()
            try:
                result = check()
            except Exception as error:
                print(f"{step}: FAILED: {error}")
                sys.exit(1)
            print(f"{step}: {result} ({time.monotonic() - start:.1f} s)")


if __name__ == "__main__":
    main()
