"""A second user of the machine: reads nothing of the first one's store, and no file on the way.

The first user indexes, searches and serves; meanwhile the second one, a real user to the kernel,
opens every file, folder and socket of the first that a path leads to. Needs root, and a Python that
other users may run.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from small_videos import colour_video

OWNER, STRANGER = 61_001, 61_002
TOKEN = "token-of-the-first-user"
SOURCE = Path(__file__).parents[2] / "src"
SPY = """
import json, os, socket, stat, sys
owner, token, roots = int(sys.argv[1]), sys.argv[2].encode(), sys.argv[3:]
seen, opened = set(), {}

def note(kind, path):
    opened.setdefault(f"{kind} {path}", None)

def look(path):
    try:
        info = os.lstat(path)
    except OSError:
        return
    if stat.S_ISDIR(info.st_mode):
        try:
            names = os.listdir(path)
        except OSError:
            return
        for name in names:
            look(os.path.join(path, name))
        return
    if info.st_uid != owner:
        return
    seen.add(path)
    if stat.S_ISSOCK(info.st_mode):
        with socket.socket(socket.AF_UNIX) as client:
            try:
                client.connect(path)
                note("socket", path)
            except OSError:
                return
    for flag, kind in ((os.O_RDONLY, "read"), (os.O_WRONLY, "write")):
        try:
            os.close(os.open(path, flag | os.O_NONBLOCK | os.O_NOFOLLOW))
            note(kind, path)
        except OSError:
            pass

def look_at_processes():
    for pid in filter(str.isdigit, os.listdir("/proc")):
        folder = f"/proc/{pid}"
        try:
            if os.stat(folder).st_uid != owner:
                continue
            if token in open(f"{folder}/cmdline", "rb").read():
                note("token in", f"{folder}/cmdline")
            seen.add(folder)
        except OSError:
            continue
        for name in ("environ", "mem", "fd", "cwd", "maps"):
            try:
                if name in ("fd", "cwd"):
                    content = os.listdir(f"{folder}/{name}")
                else:
                    content = open(f"{folder}/{name}", "rb").read(1)
                if content:  # Nothing remains of a process that is ending.
                    note("process", name)
            except OSError:
                pass

def look_at_sockets():
    for line in open("/proc/net/unix").read().splitlines()[1:]:
        name = line.split(None, 7)[7] if len(line.split(None, 7)) == 8 else ""
        if name.startswith("@") and "eaglenet" in name:
            note("abstract socket", name)

print("ready", flush=True)
os.set_blocking(0, False)
while True:
    for root in roots:
        look(root)
    look_at_processes()
    look_at_sockets()
    try:
        if os.read(0, 1) == b"":
            break
    except BlockingIOError:
        pass
print(json.dumps({"opened": sorted(opened), "seen": sorted(seen)}))
"""


def environment(home: Path) -> dict[str, str]:
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "TMPDIR": str(home.parent / "tmp"),
        "PYTHONPATH": str(SOURCE),
        "EAGLENET_TOKEN": TOKEN,
        "EAGLENET_STORE": str(home / "store"),
        "OMP_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }


def start(user: int, *command: str, umask: int = 0o022, **options: Any) -> subprocess.Popen[str]:
    """Start a program of a user."""
    return subprocess.Popen(
        command,
        user=user,
        group=user,
        extra_groups=[],
        umask=umask,
        stdout=subprocess.PIPE,
        text=True,
        **options,
    )


@dataclass
class Machine:
    """Folders that both users reach: `home` of the first one, and `tmp`."""

    home: Path
    videos: Path

    def run(self, *words: str, umask: int = 0o022, code: int = 0) -> str:
        """Run a command of eaglenet as the first user."""
        command = [sys.executable, "-m", "eaglenet", *words]
        process = start(
            OWNER,
            *command,
            umask=umask,
            env=environment(self.home),
            cwd=self.home,
            stderr=subprocess.STDOUT,
        )
        output = process.communicate(timeout=300)[0]
        assert process.returncode == code, output
        return output


@pytest.fixture
def machine() -> Iterator[Machine]:
    if sys.platform != "linux" or os.geteuid() != 0:
        pytest.skip("needs Linux and root")
    try:
        subprocess.run([sys.executable, "-c", ""], user=STRANGER, extra_groups=[], check=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip(f"other users cannot run {sys.executable}")
    base = Path(tempfile.mkdtemp(prefix="two-users-"))
    base.chmod(0o755)
    home, videos = base / "home", base / "home/videos"
    videos.mkdir(parents=True)
    (base / "tmp").mkdir()
    (base / "tmp").chmod(0o1777)
    colour_video(videos / "red.mp4", ["red", "green"])
    for path in (home, videos):
        os.chown(path, OWNER, OWNER)
    os.chown(videos / "red.mp4", OWNER, OWNER)
    (videos / "red.mp4").chmod(0o600)
    yield Machine(home, videos)
    shutil.rmtree(base)


@dataclass
class Spy:
    """The second user, looking around until it is asked what it could open."""

    process: subprocess.Popen[str]

    def report(self) -> dict[str, list[str]]:
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert self.process.stdout is not None
        result: dict[str, list[str]] = json.loads(self.process.stdout.read())
        assert self.process.wait() == 0
        return result


def watch(machine: Machine) -> Spy:
    roots = [str(machine.home.parent), "/dev/shm", "/run", "/var/tmp"]
    command = [sys.executable, "-I", "-c", SPY, str(OWNER), TOKEN, *roots]
    process = start(STRANGER, *command, stdin=subprocess.PIPE, cwd="/", env={})
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return Spy(process)


@pytest.mark.slow
@pytest.mark.parametrize("umask", [0o022, 0o000])
def test_another_user_reads_nothing(machine: Machine, umask: int) -> None:
    spy = watch(machine)
    machine.run("index", str(machine.videos), "--precision", "fp32", umask=umask)
    machine.run("search", "a red square", "-k", "1", umask=umask)
    served = start(
        OWNER,
        *(sys.executable, "-m", "eaglenet", "serve", "--port", "0", "--allow-uploads"),
        umask=umask,
        env=environment(machine.home),
        cwd=machine.home,
        stderr=subprocess.STDOUT,
    )
    try:
        use_service(served, (machine.videos / "red.mp4").read_bytes())
    finally:
        served.terminate()
        served.wait(30)
    report = spy.report()
    assert str(machine.videos / "red.mp4") in report["seen"]  # It sees what it may not open.
    assert any(path.startswith("/proc/") for path in report["seen"])
    assert (machine.home / "store").is_dir()
    assert report["opened"] == []


def use_service(served: subprocess.Popen[str], video: bytes) -> None:
    """Search, look at a thumbnail and a stream, and upload a video."""
    assert served.stdout is not None
    address = ""
    end = time.monotonic() + 120
    while not address and time.monotonic() < end:
        words = served.stdout.readline().split()
        address = next((word for word in words if word.startswith("http://")), "")
    assert address
    with httpx.Client(base_url=address, timeout=60) as client:
        client.headers["Authorization"] = f"Bearer {TOKEN}"
        hits = client.get("/api/search", params={"q": "red", "k": 1}).json()["hits"]
        for path in ("thumbnail", "video", "stream"):
            assert client.get(f"/api/clips/{hits[0]['clip_id']}/{path}").status_code == 200, path
        upload = client.post(
            "/api/search/video", content=video, headers={"Content-Type": "video/mp4"}
        )
        assert upload.status_code == 200, upload.text
