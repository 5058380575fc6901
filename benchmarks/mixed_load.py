"""Latency of the page, thumbnails and health checks while many clients queue searches.

    python benchmarks/mixed_load.py                  # 20,000 requests, 500 connections
    python benchmarks/mixed_load.py --quick          # 2,000 requests, 100 connections

Every connection has its own address (127.x.y.z), sends the next request as soon as the last one is
answered, and ignores ``Retry-After``. Goal: pages, thumbnails and health checks are answered with
200, 95% of each within 1 s; searches may be refused. The load of the machine is reported, because
other processes and the generator use the same cores.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.parse
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from common import save_result, serve_command
from search import WORDS, build_store

MIX = {"search": 0.4, "thumbnail": 0.4, "page": 0.1, "health": 0.1}
GOAL_SECONDS = 1.0


class Client:
    """Client with one connection, which is opened again when the service closes it."""

    def __init__(self, port: int, number: int) -> None:
        self.port = port
        self.source = f"127.1.{number // 250}.{number % 250 + 1}"
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def get(self, path: str) -> int:
        """Return the status of a request; -1 if the connection failed."""
        try:
            if self._streams is None:
                self._streams = await asyncio.open_connection(
                    "127.0.0.1", self.port, local_addr=(self.source, 0)
                )
            reader, writer = self._streams
            writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost:{self.port}\r\n\r\n".encode())
            await writer.drain()
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            length = re.search(rb"content-length: (\d+)", head)
            await reader.readexactly(int(length[1]) if length else 0)
            if b"connection: close" in head:
                self.close()
            return int(head.split(b" ", 2)[1])
        except (OSError, EOFError, asyncio.LimitOverrunError):
            self.close()
            return -1

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


def path_of(kind: str, clips: list[str], chance: random.Random) -> str:
    if kind == "search":
        words = urllib.parse.quote(" ".join(chance.choices(WORDS, k=6)))
        return f"/api/search?q={words}&k=10"
    if kind == "thumbnail":
        return f"/api/clips/{chance.choice(clips)}/thumbnail"
    return "/health" if kind == "health" else "/"


async def load(port: int, num_requests: int, num_connections: int) -> dict[str, Any]:
    statuses: defaultdict[str, Counter[str]] = defaultdict(Counter)
    latencies: defaultdict[str, list[float]] = defaultdict(list)
    clips = await clip_ids(port)
    num_remaining = num_requests

    async def run(number: int) -> None:
        nonlocal num_remaining
        client, chance = Client(port, number + 1), random.Random(number)
        while num_remaining > 0:
            num_remaining -= 1
            kind = chance.choices(list(MIX), list(MIX.values()))[0]
            began = time.perf_counter()
            status = await client.get(path_of(kind, clips, chance))
            latencies[kind].append(time.perf_counter() - began)
            statuses[kind][str(status)] += 1
        client.close()

    began = time.perf_counter()
    await asyncio.gather(*(run(number) for number in range(num_connections)))
    seconds = time.perf_counter() - began
    kinds = {
        kind: {
            "statuses": dict(statuses[kind]),
            "p50_s": round(float(np.percentile(values, 50)), 3),
            "p95_s": round(float(np.percentile(values, 95)), 3),
            "max_s": round(max(values), 3),
        }
        for kind, values in latencies.items()
    }
    cheap = [kinds[kind] for kind in ("thumbnail", "page", "health")]
    return {
        "requests": num_requests,
        "connections": num_connections,
        "seconds": round(seconds, 1),
        "requests_per_second": round(num_requests / seconds, 1),
        "kinds": kinds,
        "is_goal_met": all(
            each["p95_s"] < GOAL_SECONDS and set(each["statuses"]) == {"200"} for each in cheap
        ),
    }


async def clip_ids(port: int) -> list[str]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(
        f"GET /api/search?q=red&k=100 HTTP/1.1\r\nHost: localhost:{port}\r\n"
        "Connection: close\r\n\r\n".encode()
    )
    body = (await reader.read()).partition(b"\r\n\r\n")[2]
    writer.close()
    return [hit["clip_id"] for hit in json.loads(body)["hits"]]


def measure(store: Path, num_requests: int, num_connections: int) -> dict[str, Any]:
    command = serve_command(store)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            address = re.search(r"http://\S+:(\d+)/", process.stdout.readline())
            assert address is not None, "the service did not start"
            before = os.getloadavg()[0]
            result = asyncio.run(load(int(address[1]), num_requests, num_connections))
            result["load_average_before_and_after"] = [before, os.getloadavg()[0]]
        finally:
            process.send_signal(signal.SIGTERM)
            result["exit_code"] = process.wait(timeout=30)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clips", type=int, default=10_000)
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--connections", type=int, default=500)
    parser.add_argument("--folder", type=Path, help="keep the store here and use it again")
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    if options.quick:
        options.clips, options.requests, options.connections = 1000, 2000, 100
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        if not (folder / "store").exists():
            build_store(folder, options.clips, prepare=False)
        result = measure(folder / "store", options.requests, options.connections)
    result["clips"] = options.clips
    print(json.dumps(result, indent=2))
    if not options.quick:
        print(save_result("mixed-load", result))


if __name__ == "__main__":
    main()
