"""The service's memory stays level, however many requests it has answered."""

import http.client
import json
import re
import signal
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import quote, urlsplit

import pytest
from demo_store import DemoStore
from test_process import Service

REQUESTS, WARM = 20_000, 2_000
BOUND = 16 * 2**20
"""Bytes that the last 18,000 requests may add: a kilobyte each would be 18 MiB."""
CLIENTS = 4
A_CONNECTION = 50
"""Requests before a client connects anew."""
WORDS = ["red", "ball", "rolls", "over", "a", "green", "box", "small", "blue", "left", "two"]
Request = tuple[str, str, dict[str, str], set[int]]


def page(number: int, clips: list[str]) -> Request:
    """The ``number``-th request of a page, and the answers that are right for it."""
    clip = clips[number % len(clips)]
    words = " ".join(WORDS[(number // step) % len(WORDS)] for step in (1, 3, 11, 37))
    search = f"/api/search?q={quote(words)}%20{number}&k={1 + number % 7}"
    start = number % 500
    every: list[Request] = [
        ("GET", search, {}, {200}),
        ("GET", f"/api/clips/{clip}/thumbnail", {}, {200}),
        ("GET", f"/api/clips/{clip}/video", {"Range": f"bytes={start}-{start + 999}"}, {206}),
        ("GET", f"/api/similar/{clip}", {}, {200}),
        ("GET", f"/api/clips/{clip}/thumbnail", {}, {200}),
        ("GET", f"/api/clips/{clip}/video", {"Range": "bytes=999999999-"}, {416}),
        ("GET", f"/api/clips/{clip}/timeline", {}, {200}),
        ("GET", "/api/info", {"Host": f"{number}.example"}, {421}),
        ("GET", f"/api/clips/{number:016x}/thumbnail", {}, {400, 404, 422}),
        ("GET", "/api/files", {}, {200}),
        ("POST", "/api/search", {"Content-Type": "application/json"}, {400, 422}),
    ]
    return every[number % len(every)]


def ask(address: str, numbers: range, clips: list[str], statuses: Counter[int]) -> None:
    """One client: asks, reads the answer whole, now and then over a new connection."""
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=60)
    for count, number in enumerate(numbers):
        if count % A_CONNECTION == 0:
            connection.close()
        method, path, headers, expected = page(number, clips)
        connection.request(method, path, b"{" if method == "POST" else None, headers)
        answer = connection.getresponse()
        answer.read()
        statuses[answer.status] += 1
        assert answer.status in expected | {429}, (path, answer.status)
    connection.close()


def resident(process: int) -> int:
    """Bytes of memory that a process has at hand."""
    status = Path(f"/proc/{process}/status").read_text()
    return int(re.findall(r"VmRSS:\s+(\d+)", status)[0]) * 1024


def clips_of(address: str) -> list[str]:
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=60)
    connection.request("GET", "/api/search?q=red&k=50")
    hits = json.loads(connection.getresponse().read())["hits"]
    connection.close()
    return [hit["clip_id"] for hit in hits]


def send(address: str, first: int, last: int, clips: list[str]) -> Counter[int]:
    """These requests from several clients at once; how often each status came."""
    counts = [Counter[int]() for _ in range(CLIENTS)]
    with ThreadPoolExecutor(CLIENTS) as pool:
        numbers = [range(first + client, last, CLIENTS) for client in range(CLIENTS)]
        list(pool.map(ask, [address] * CLIENTS, numbers, [clips] * CLIENTS, counts))
    return sum(counts, Counter())


@pytest.mark.slow
def test_memory_is_level_over_twenty_thousand_requests(demo: DemoStore) -> None:
    service = Service(demo.folder, "--rate", "10000")
    try:
        clips = clips_of(service.address)
        statuses: Counter[int] = Counter()
        levels = []
        for first in range(0, REQUESTS, WARM):
            statuses += send(service.address, first, first + WARM, clips)
            levels.append(resident(service.process.pid))
        print(dict(statuses), [level >> 20 for level in levels], "MiB")
        assert sum(statuses.values()) == REQUESTS  # a client that failed would have sent fewer
        assert statuses[200] > REQUESTS // 2
        assert levels[-1] - levels[0] < BOUND, levels
    finally:
        code, errors = service.end(signal.SIGTERM)
    assert code == 0, errors
