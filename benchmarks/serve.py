"""Queries per second that `eaglenet serve` sustains, with latencies and errors.

    python benchmarks/serve.py                     # 100,000 clips, 20 queries/s for a minute
    python benchmarks/serve.py --quick             # 2,000 clips, 5 seconds
    python benchmarks/serve.py --folder DIR        # the store of benchmarks/search.py --folder DIR

The service runs in a separate process and is queried over HTTP on this machine. Requests are sent
at fixed times, whatever the responses (an open loop), so that a service that falls behind has
growing latencies. Half of the requests have a filter, which prevents them from sharing a batch. The
generator uses the same cores as the service; the processor time of both is reported, and the load
average.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from common import save_result, serve_command
from search import WORDS, build_store, milliseconds

MAX_OPEN = 256
"""Maximum number of open requests; limits the generator."""


async def load(address: str, rate: float, seconds: float) -> dict[str, Any]:
    """Send ``rate`` requests per second; latencies count from the time when a request was due."""
    generator = np.random.default_rng(1)
    statuses: Counter[str] = Counter()
    latencies: list[float] = []
    depths: list[int] = []
    limits = httpx.Limits(max_connections=MAX_OPEN, max_keepalive_connections=MAX_OPEN)
    slots = asyncio.Semaphore(MAX_OPEN)

    async def send(client: httpx.AsyncClient, number: int, due: float) -> None:
        words = [WORDS[index] for index in generator.integers(len(WORDS), size=8)]
        parameters: dict[str, Any] = {"q": " ".join(words), "k": 10}
        if number % 2:
            parameters["path"] = "*.mp4"
        try:
            answer = await client.get("/api/search", params=parameters)
            statuses[str(answer.status_code)] += 1
            if answer.status_code == 200:
                body = answer.json()
                assert len(body["hits"]) == 10
                depths.append(body["shortlist"])
        except httpx.HTTPError as error:
            statuses[type(error).__name__] += 1
        latencies.append(time.perf_counter() - due)
        slots.release()

    async with httpx.AsyncClient(base_url=address, timeout=60, limits=limits) as client:
        began = time.perf_counter() + 0.1
        tasks = []
        for number in range(round(rate * seconds)):
            due = began + number / rate
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            await slots.acquire()
            tasks.append(asyncio.create_task(send(client, number, due)))
        await asyncio.gather(*tasks)
        duration = time.perf_counter() - began
        metrics = (await client.get("/metrics")).text
    return {
        "asked_per_second": rate,
        "seconds": seconds,
        "answered_per_second": round(len(latencies) / duration, 2),
        "statuses": dict(statuses),
        "errors": sum(count for status, count in statuses.items() if status != "200"),
        "latency_ms": milliseconds(latencies),
        "ranked_exactly": {"least": min(depths, default=0), "mean": float(np.mean(depths))},
        "queries_per_batch": round(_value(metrics, "sum") / _value(metrics, "count"), 2),
    }


def _value(metrics: str, name: str) -> float:
    match = re.search(rf"^eaglenet_batch_queries_{name} (.+)$", metrics, re.MULTILINE)
    return float(match.group(1)) if match else float("nan")


def processor_seconds(process: int) -> float:
    """Return the user and system time of a process so far."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(store: Path, rates: list[float], seconds: float) -> dict[str, Any]:
    command = serve_command(store)
    began = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            address = re.search(r"http://\S+/", process.stdout.readline())
            assert address is not None, "the service did not start"
            start_seconds = time.perf_counter() - began
            runs = []
            for rate in rates:
                before = processor_seconds(process.pid), time.process_time(), os.getloadavg()
                run = asyncio.run(load(address.group(), rate, seconds))
                used = processor_seconds(process.pid) - before[0], time.process_time() - before[1]
                run["processor_ms_per_query"] = {
                    name: round(1000 * value / (rate * seconds), 1)
                    for name, value in zip(("service", "generator"), used, strict=True)
                }
                run["load_average_before_and_after"] = [before[2][0], os.getloadavg()[0]]
                runs.append(run)
            fields = Path(f"/proc/{process.pid}/status").read_text()
            memory = {
                name: int(re.findall(rf"{name}:\s+(\d+)", fields)[0]) // 1024
                for name in ("VmHWM", "VmRSS", "RssAnon")
            }
        finally:
            process.send_signal(signal.SIGTERM)
            code = process.wait(timeout=30)
    return {
        "start_seconds": round(start_seconds, 2),
        "runs": runs,
        "memory_mib": memory,
        "exit_code": code,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clips", type=int, default=100_000)
    parser.add_argument("--rate", type=float, nargs="+", default=[20.0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--folder", type=Path, help="keep the store here and use it again")
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    if options.quick:
        options.clips, options.seconds = 2000, 5.0
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        if not (folder / "store").exists():
            build_store(folder, options.clips, prepare=False)
        result = measure(folder / "store", options.rate, options.seconds)
    result["clips"] = options.clips
    print(json.dumps(result, indent=2))
    if not options.quick:
        print(save_result("serve", result))


if __name__ == "__main__":
    main()
