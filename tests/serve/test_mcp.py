"""Tools for assistants, used with the official client over both transports."""

import base64
import io
import json
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import av
import pytest
from demo_store import HOSTILE_NAME, DemoStore
from loops import run_apart
from PIL import Image
from slow_decoding import read_slowly

from eaglenet.cli.main import main
from eaglenet.core.errors import UsageError
from eaglenet.indexing.index import IndexOptions, index_videos
from eaglenet.search.confidence import FEATURES, Calibration
from eaglenet.search.engine import Engine
from eaglenet.search.hits import HitList
from eaglenet.serve.app import run
from eaglenet.serve.settings import Settings
from processes import descendants, start_piped, wait
from subtitled import write_with_subtitles
from synthetic_store import BagMethod

pytest.importorskip("mcp")
import httpx2
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from mcp.server.mcpserver.exceptions import ToolError

from eaglenet.serve.mcp import _span

TOKEN = "a-token-of-some-length"
TOOLS = {"search_moments", "similar", "look", "read_transcript", "list_files", "store_status"}


def stdio(demo: DemoStore, *options: str) -> StdioServerParameters:
    arguments = ["-m", "eaglenet", "mcp", "--store", str(demo.folder), *options]
    return StdioServerParameters(command=sys.executable, args=arguments, env=dict(os.environ))


def pretend_measured(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give a store's model a calibration."""
    weights = {**dict.fromkeys(FEATURES, 0.0), "score": 3.0}
    calibration = Calibration(
        engine.manifest.identity, str(engine.snapshot.hubness_bank), 30.0, weights
    )
    monkeypatch.setattr(Engine, "_load_calibration", lambda self, view: calibration)


@contextmanager
def service(engine: Engine, **settings: Any) -> Iterator[str]:
    """A real server in a thread; yields the address of the tools."""
    ready, until = threading.Event(), threading.Event()
    addresses: list[str] = []

    def on_ready(address: str) -> None:
        addresses.append(address)
        ready.set()

    options = Settings(agents=True, **settings)
    thread = threading.Thread(
        target=run,
        args=(engine, options),
        kwargs={"port": 0, "on_ready": on_ready, "until": until},
    )
    thread.start()
    try:
        assert ready.wait(60)
        yield f"{addresses[0]}mcp"
    finally:
        until.set()
        thread.join(60)


def over_http(
    url: str, work: Callable[[Client], Awaitable[Any]], token: str = TOKEN, mode: str = "auto"
) -> Any:
    async def main() -> Any:
        headers = {"Authorization": f"Bearer {token}"}
        async with (
            httpx2.AsyncClient(headers=headers, timeout=60) as http,
            Client(streamable_http_client(url, http_client=http), mode=mode) as client,
        ):
            return await work(client)

    return run_apart(main())


def over_stdio(server: StdioServerParameters, work: Callable[[Client], Awaitable[Any]]) -> Any:
    async def main() -> Any:
        async with Client(server) as client:
            return await work(client)

    return run_apart(main())


async def call(client: Client, tool: str, **arguments: Any) -> Any:
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, result.content
    return result.structured_content if result.structured_content is not None else result.content


async def refusal(client: Client, tool: str, **arguments: Any) -> str:
    result = await client.call_tool(tool, arguments)
    assert result.is_error, (tool, arguments, result)
    return str(result.content[0].text)


async def use_every_tool(client: Client, saved: Path) -> None:
    """What an assistant does: search, look, read, list, save."""
    found = await call(client, "search_moments", query="a red ball", k=3)
    assert len(found["moments"]) == 3
    moment = found["moments"][0]
    assert moment["match"] == "not measured"
    assert moment["start"] <= moment["best"] <= moment["end"]
    none = await call(client, "search_moments", query="a red ball", before="2001-01-01")
    assert (none["moments"], "none of the 11 files" in none["note"]) == ([], True)
    dated = await call(client, "search_moments", query="a red ball, July 2023")
    assert "2023-07-01 to 2023-07-31" in dated["note"]
    plain = await call(client, "search_moments", query="a red ball, July 2023", literal=True)
    assert (len(plain["moments"]), plain["note"]) == (8, "")
    negated = await call(client, "search_moments", query="a red ball but no girl")
    assert 'write: "a red ball" - "girl"' in negated["note"]
    long_text = " and ".join(["a red ball with no girl"] * 20)
    assert (
        "longer than the model" in (await call(client, "search_moments", query=long_text))["note"]
    )
    every = ["visual", "speech", "screen-text", "descriptions"]
    assert (await call(client, "search_moments", query="a ball", search_in=every))["moments"]
    places = {"near": "48.1,11.6", "within": "5km"}
    for place in (places, {"camera": "canon"}, {"tags": ["holiday"]}):
        far = await call(client, "search_moments", query="a red ball", **place)
        assert (far["moments"], "none of the 11 files" in far["note"]) == ([], True)
    composed = '"a red ball" then "a blue ball" within 30s'
    steps = (await call(client, "search_moments", query=composed, k=1))["moments"][0]["steps"]
    assert len(steps) == 2
    others = await call(client, "similar", clip_id=moment["clip_id"], k=2)
    assert len(others["moments"]) == 2
    assert moment["path"] not in [each["path"] for each in others["moments"]]
    await use_tools_without_a_model(client, saved)


async def use_tools_without_a_model(client: Client, saved: Path) -> None:
    tools = {tool.name: tool for tool in (await client.list_tools()).tools}
    assert set(tools) == TOOLS | {"save_clip"}
    assert tools["look"].annotations.read_only_hint
    assert not tools["save_clip"].annotations.read_only_hint
    status = await call(client, "store_status")
    assert (status["files"], status["can_save_clips"]) == (11, True)
    files = await call(client, "list_files", name="beach", k=2, order="name")
    assert (len(files["files"]), files["total"]) == (2, 5)
    folder = os.path.dirname(files["files"][0]["path"])
    assert (await call(client, "list_files", folder=folder))["total"] == 5
    assert (await call(client, "list_files", folder=folder, name="town"))["total"] == 0
    text = await refusal(client, "list_files", folder="no/such/folder")
    assert "no indexed file is in 'no/such/folder'; indexed folders: videos" in text
    clip_id = files["files"][0]["clip_id"]
    frames = await call(client, "look", clip_id=clip_id, frames=3, side=64)
    assert [block.type for block in frames] == ["text", "image", "image", "image"]
    for block in frames[1:]:
        with Image.open(io.BytesIO(base64.b64decode(block.data))) as image:
            assert (image.format, max(image.size)) == ("JPEG", 64)
    beginning, number = clip_id.split("-")
    clip_id = f"{beginning[:8]}-{number}"  # As short as the command line prints it.
    transcript = await call(client, "read_transcript", clip_id=clip_id)
    assert (transcript["lines"], transcript["note"]) == ([], "no transcript in this span")
    clip = {"clip_id": clip_id, "start": 0.5, "end": 1.5}
    for expected in ("my clip.mp4", "my clip (2).mp4"):
        answer = await call(client, "save_clip", **clip, name="my clip.mp4")
        assert Path(answer["path"]) == saved / expected
        with av.open(answer["path"]) as container:
            assert container.duration / av.time_base == pytest.approx(1.0, abs=0.2)
    assert sorted(os.listdir(saved)) == ["my clip (2).mp4", "my clip.mp4"]
    text = await refusal(client, "save_clip", clip_id=clip_id, start=1, end=0)
    assert "end 0 s is before start 1 s" in text
    text = await refusal(client, "save_clip", clip_id=clip_id, start=1, end=1)
    assert "1 to 1 s is empty" in text
    text = await refusal(client, "save_clip", clip_id=clip_id, start=100, end=120)
    assert "100 to 120 s is outside this file, which lasts" in text


def test_an_end_alone_is_compared_with_the_start_of_the_clip() -> None:
    clip, files = SimpleNamespace(start=8.0, end=18.0), SimpleNamespace(durations=[60.0])
    assert _span(clip, files, None, 9.0) == (8.0, 9.0)  # type: ignore[arg-type]
    with pytest.raises(ToolError, match=r"end 2 s is before this clip \(8 s\); give a start, too"):
        _span(clip, files, None, 2.0)  # type: ignore[arg-type]


HOSTILE: list[tuple[str, dict[str, Any]]] = [
    ("look", {"clip_id": "../../etc/passwd"}),
    ("look", {"clip_id": "/etc/passwd"}),
    ("look", {"clip_id": "0000000000000000-0"}),
    ("look", {"clip_id": "\x00\x1b[31m"}),
    ("look", {"clip_id": "CLIP", "frames": 13}),
    ("look", {"clip_id": "CLIP", "frames": 10**30}),
    ("look", {"clip_id": "CLIP", "side": 10**9}),
    ("look", {"clip_id": "CLIP", "start": -1}),
    ("look", {"clip_id": "CLIP", "start": 1e9}),
    ("look", {"clip_id": "CLIP", "start": 2.0, "end": 1.0}),
    ("look", {"clip_id": "CLIP", "start": 1e308}),
    ("look", {}),
    ("similar", {"clip_id": "ffffffffffffffff-999999999"}),
    ("similar", {"clip_id": "CLIP", "k": 0}),
    ("search_moments", {"query": ""}),
    ("search_moments", {"query": " \x00\n\x1b"}),
    ("search_moments", {"query": "a" * 5000}),
    ("search_moments", {"query": "a dog", "k": 10**18}),
    ("search_moments", {"query": "a dog", "search_in": ["smell"]}),
    ("search_moments", {"query": "a dog", "search_in": []}),
    ("search_moments", {"query": "a dog", "min_confidence": 2}),
    ("search_moments", {"query": "a dog", "path": "x" * 10_000}),
    ("search_moments", {"query": '"a dog" + /etc/passwd.jpg'}),
    ("search_moments", {"query": 'clip:0000 + "a dog"'}),
    ("search_moments", {"query": 7}),
    ("search_moments", {"query": "a dog", "after": "yesterday; rm -rf /"}),
    ("search_moments", {"query": "a dog", "after": "2026-01-01", "before": "2020-01-01"}),
    ("search_moments", {"query": "a dog", "near": "91,0"}),
    ("search_moments", {"query": "a dog", "near": "48,11", "within": "-5km"}),
    ("search_moments", {"query": "a dog", "within": "5km"}),
    ("search_moments", {"query": "a dog", "camera": ["canon"]}),
    ("search_moments", {"query": "a dog", "search_in": ["visual"] * 5}),
    ("read_transcript", {"clip_id": "CLIP", "kinds": ["all"]}),
    ("list_files", {"first": -1}),
    ("list_files", {"k": 100_000}),
    ("list_files", {"order": "; DROP TABLE files"}),
    ("save_clip", {"clip_id": "CLIP", "start": 0, "end": 1, "name": "../escape"}),
    ("save_clip", {"clip_id": "CLIP", "start": 0, "end": 1, "name": "/tmp/escape"}),
    ("save_clip", {"clip_id": "CLIP", "start": 0, "end": 1, "name": "..\\escape"}),
    ("save_clip", {"clip_id": "CLIP", "start": 0, "end": 1, "name": ".hidden"}),
    ("save_clip", {"clip_id": "CLIP", "start": 0, "end": 1, "name": "a\x00b"}),
    ("save_clip", {"clip_id": "CLIP", "start": 0, "end": 1, "name": "-rf *"}),
    ("save_clip", {"clip_id": "CLIP", "start": 0, "end": 1, "name": "a\nb"}),
    ("save_clip", {"clip_id": "CLIP", "start": 5, "end": 5}),
    ("save_clip", {"clip_id": "CLIP", "start": 1e8, "end": 2e8}),
    ("no_such_tool", {}),
]


async def try_hostile_arguments(client: Client, saved: Path) -> None:
    """Each is refused by name or value, without a traceback, and the server goes on."""
    files = await call(client, "list_files", name="onerror")
    assert files["files"][0]["path"].endswith(HOSTILE_NAME)
    clip_id = files["files"][0]["clip_id"]
    before = sorted(os.listdir(saved))
    for tool, arguments in HOSTILE:
        filled = {name: clip_id if v == "CLIP" else v for name, v in arguments.items()}
        text = await refusal(client, tool, **filled)
        assert "Traceback" not in text, (tool, arguments, text)
        assert "/site-packages/" not in text, (tool, arguments, text)
        assert "pydantic" not in text, (tool, arguments, text)
        assert "Error executing" not in text, (tool, arguments, text)
    assert sorted(os.listdir(saved)) == before
    assert (await call(client, "store_status"))["files"] == 11


def test_tools_over_stdio(demo: DemoStore, tmp_path: Path) -> None:
    saved = tmp_path / "new" / "clips"  # The server makes it.
    server = stdio(demo, "--save-folder", str(saved))
    over_stdio(server, lambda client: use_tools_without_a_model(client, saved))


@pytest.mark.slow
def test_searches_and_hostile_arguments_over_stdio(demo: DemoStore, tmp_path: Path) -> None:
    async def work(client: Client) -> None:
        await use_every_tool(client, tmp_path)
        await try_hostile_arguments(client, tmp_path)

    over_stdio(stdio(demo, "--save-folder", str(tmp_path)), work)


def test_wrong_arguments_are_explained(engine: Engine) -> None:
    from eaglenet.serve.mcp import Agents
    from eaglenet.serve.state import State

    server = Agents(State(engine, Settings())).server
    for tool, arguments, text in (
        ("search_moments", {}, "search_moments: query is missing"),
        ("search_moments", {"query": "a", "k": 0}, "k should be greater than or equal to 1"),
        ("search_moments", {"query": "a", "k": "many"}, "k should be a valid integer"),
        ("search_moments", {"query": "a", "search_in": ["x"]}, "search_in.0 should be 'visual'"),
        (
            "search_moments",
            {"query": "a", "limit": 3, "pth": "x"},
            "has no argument 'limit', 'pth' (did you mean 'path'?); known: query, k",
        ),
        ("store_status", {"k": 1}, "store_status has no argument 'k'; known: none"),
        ("similar", {"clip_id": "../x"}, "clip_id should be a clip id from search results"),
        ("search", {}, "there is no tool 'search'; there are search_moments, similar"),
    ):
        with pytest.raises(ToolError) as caught:
            run_apart(server.call_tool(tool, arguments))
        assert text in str(caught.value)
        assert "pydantic" not in str(caught.value)


def test_tools_over_http(engine: Engine, tmp_path: Path) -> None:
    with service(engine, token=TOKEN, save_folder=tmp_path) as url:
        over_http(url, lambda client: use_every_tool(client, tmp_path))
        # Clients of the protocol before 2026.
        status = over_http(url, lambda client: call(client, "store_status"), mode="legacy")
        assert status["can_save_clips"]


def test_notes_say_what_results_lack(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_measured(engine, monkeypatch)
    hits = engine.search("a red ball", k=1, path="beach")
    metadata = {**hits[0].metadata, "copies": ["/a.mp4", "/b.mp4"], "from_keyframes": True}
    changed = HitList([replace(hits[0], metadata=metadata)])
    monkeypatch.setattr(Engine, "search_many", lambda *_, **__: [changed])
    monkeypatch.setattr(Engine, "missing_shards_since", lambda engine, start: ("shard-2",))

    async def search(client: Client) -> None:
        found = await call(client, "search_moments", query="a red ball", k=1, path="beach")
        gaps = (
            "near copies not shown: 2; some moments are from files indexed from keyframes only so "
            "far; without shard-2, which cannot be reached"
        )
        assert re.fullmatch(
            rf"confidence was not measured for so few clips \(\d; it needs 10\); {gaps}",
            found["note"],
        )
        assert (await call(client, "similar", clip_id=hits[0].clip_id))["note"] == gaps

    with service(engine, token=TOKEN) as url:
        over_http(url, search)


def test_hostile_arguments_over_http(engine: Engine, tmp_path: Path) -> None:
    with service(engine, token=TOKEN, save_folder=tmp_path) as url:
        over_http(url, lambda client: try_hostile_arguments(client, tmp_path))


def test_a_wrong_token_gets_nothing_and_is_slowed_down(engine: Engine) -> None:
    with service(engine, token=TOKEN) as url:
        for token in ("wrong", TOKEN + "x", ""):
            with pytest.raises(BaseException) as caught:
                over_http(url, lambda client: call(client, "store_status"), token)
            assert "files" not in str(caught.value)
        answer = httpx2.post(url, json={}, headers={"Authorization": "Bearer wrong"}, timeout=60)
        assert answer.status_code in (401, 429)
        # Other sites, other methods, other bodies.
        right = {"Authorization": f"Bearer {TOKEN}"}
        evil = {**right, "Origin": "http://evil.example"}
        assert httpx2.post(url, json={}, headers=evil, timeout=60).status_code == 403
        assert httpx2.get(url, headers=right, timeout=60).status_code == 405
        assert httpx2.delete(url, headers=right, timeout=60).status_code == 405
        for body in (b"", b"[]", b"{" * 1000, b"x" * 300_000, b'{"jsonrpc": "2.0", "id": 1}'):
            sent = {**right, "Content-Type": "application/json", "Accept": "application/json"}
            assert 400 <= httpx2.post(url, content=body, headers=sent, timeout=60).status_code < 500
        assert over_http(url, lambda client: call(client, "store_status"))["files"] == 11


def test_without_the_option_there_is_no_such_address(engine: Engine) -> None:
    from fastapi.testclient import TestClient

    from eaglenet.serve.app import create_app

    with TestClient(create_app(engine), base_url="http://localhost") as client:
        assert client.post("/mcp", json={}).status_code == 404


async def cancel_at_work(client: Client, before: set[int], tool: str, **arguments: Any) -> None:
    """Cancel a call while its process runs, and wait until no process is left."""
    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(client.call_tool, tool, arguments)
            while not set(descendants(os.getpid())) - before:
                await anyio.sleep(0.02)
            tasks.cancel_scope.cancel()
        while set(descendants(os.getpid())) - before:
            await anyio.sleep(0.02)


def test_a_cancelled_call_ends_its_process_and_leaves_no_file(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Encoding would take long: the client goes away, and nothing is left behind."""
    code = "import time, sys; sys.stdin.read(); time.sleep(600)"
    monkeypatch.setattr(
        "eaglenet.video.reel.child_command", lambda module: [sys.executable, "-S", "-c", code]
    )
    clip_id = engine.search("red", k=1)[0].clip_id
    before = set(descendants(os.getpid()))

    async def work(client: Client) -> None:
        await cancel_at_work(client, before, "save_clip", clip_id=clip_id, start=0, end=1)
        with anyio.fail_after(60):
            while os.listdir(tmp_path):
                await anyio.sleep(0.02)
        assert (await call(client, "store_status"))["files"] == 11

    with service(engine, token=TOKEN, save_folder=tmp_path) as url:
        over_http(url, work)


def test_looking_is_cancelled_with_its_decoder(
    engine: Engine, clip_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = set(descendants(os.getpid()))
    monkeypatch.setattr("eaglenet.serve.readers.read_frame_images", read_slowly)

    async def work(client: Client) -> None:
        await cancel_at_work(client, before, "look", clip_id=clip_id)
        monkeypatch.undo()
        assert len(await call(client, "look", clip_id=clip_id, frames=1)) == 2

    with service(engine, token=TOKEN) as url:
        over_http(url, work)


def test_a_slow_tool_ends_with_an_error(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = "import time, sys; sys.stdin.read(); time.sleep(600)"
    monkeypatch.setattr(
        "eaglenet.video.reel.child_command", lambda module: [sys.executable, "-S", "-c", code]
    )
    monkeypatch.setattr("eaglenet.serve.mcp.TIMEOUT_SHARE", 0.02)
    clip_id = engine.search("red", k=1)[0].clip_id
    with service(engine, token=TOKEN, save_folder=tmp_path, timeout=60.0) as url:
        text = over_http(
            url, lambda client: refusal(client, "save_clip", clip_id=clip_id, start=0, end=1)
        )
    assert "no answer within 1 s" in text
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize("is_interrupted", [False, True])
def test_standard_output_carries_nothing_but_the_protocol(
    demo: DemoStore, is_interrupted: bool
) -> None:
    """Every line is JSON-RPC, also after lines that are not.

    The end of input ends the server, and so does Ctrl-C while it waits for input.
    """
    version = {"protocolVersion": "2025-06-18", "capabilities": {}}
    client = {"clientInfo": {"name": "test", "version": "1"}}
    messages = [
        {"id": 1, "method": "initialize", "params": {**version, **client}},
        {"method": "notifications/initialized"},
        {"id": 2, "method": "tools/call", "params": {"name": "store_status", "arguments": {}}},
    ]
    lines = [json.dumps({"jsonrpc": "2.0", **message}) for message in messages]
    lines.insert(2, "this is not JSON")
    lines.insert(3, "\x00\xff\u2028")
    lines.insert(4, '{"jsonrpc": "1.0", "id": 7}')
    lines.insert(5, "[" * 5000)

    def serve() -> None:
        sys.argv = ["eaglenet", "-v", "mcp", "--store", str(demo.folder)]
        main()

    process = start_piped(serve)
    with process.stdin, process.stdout, process.stderr:
        process.stdin.write("\n".join(lines) + "\n")
        process.stdin.flush()
        answers = [json.loads(process.stdout.readline())]
        while answers[-1].get("id") != 2:
            answers.append(json.loads(process.stdout.readline()))
        began = time.monotonic()
        if is_interrupted:
            os.kill(process.pid, signal.SIGINT)
            assert process.stderr.read().endswith("interrupted\n")
        else:
            process.stdin.close()
        assert process.stdout.read() == ""
        assert wait(process.pid) == (130 if is_interrupted else 0)
    assert time.monotonic() - began < 50
    assert all(answer["jsonrpc"] == "2.0" for answer in answers)
    refusals = [answer for answer in answers if answer.get("id", 0) is None]
    assert [refusal["error"]["code"] for refusal in refusals] == [-32700, -32700, -32600, -32700]
    assert answers[-1]["result"]["structuredContent"]["files"] == 11


def test_a_folder_that_cannot_be_made_is_refused_at_the_start(
    engine: Engine, tmp_path: Path
) -> None:
    from eaglenet.serve.mcp import Agents
    from eaglenet.serve.state import State

    (tmp_path / "file").touch()
    for folder in ("file", "file/clips"):
        with pytest.raises(UsageError, match="cannot be created"):
            Agents(State(engine, Settings()), tmp_path / folder)


def test_files_that_were_swapped_are_not_shown(own_demo: DemoStore) -> None:
    """A link to a file outside the indexed folders, in the place of an indexed file."""
    engine = own_demo.open()
    hit = engine.search("red", k=1)[0]
    path = Path(hit.path)
    path.unlink()
    path.symlink_to(own_demo.secret)
    with service(engine) as url:
        text = over_http(url, lambda client: refusal(client, "look", clip_id=hit.clip_id))
    assert "no longer in the indexed folders" in text


def test_transcripts_are_read_in_parts_and_images_are_shown(tmp_path: Path) -> None:
    """Without a transport, on a film with 310 lines and an image."""
    from eaglenet.serve.mcp import Agents
    from eaglenet.serve.state import State

    folder, bag = tmp_path / "films", BagMethod()
    folder.mkdir()
    Image.new("RGB", (300, 150), "blue").save(folder / "image.png")
    # Not in English: vectors of the meaning of so many lines would take seconds.
    word = "Strassenbahnhaltestelle"
    said = [(number / 100, number / 100 + 0.005, f"{word} {number}\x1b") for number in range(310)]
    write_with_subtitles(folder / "film.mkv", said)
    options = IndexOptions(workers=0)
    index_videos([folder], tmp_path / "store", "bag", method=bag, options=options)

    async def main() -> None:
        state = State(Engine.open(tmp_path / "store", bag), Settings())
        state.start()
        agents = Agents(state)
        async with Client(agents.server) as client:
            files = (await call(client, "list_files", order="name"))["files"]
            film, image = (file["clip_id"] for file in files)
            texts: list[str] = []
            start: float | None = 0.0
            while start is not None:
                part = await call(client, "read_transcript", clip_id=film, start=start)
                texts += [line["text"] for line in part["lines"]]
                assert len(part["lines"]) <= 300
                start = part["next_start"]
            assert [text.rstrip("?") for text in texts] == [f"{word} {n}" for n in range(310)]
            part = await call(client, "read_transcript", clip_id=film, start=1.0, end=1.1)
            assert len(part["lines"]) == 10
            part = await call(client, "read_transcript", clip_id=film, kinds=["speech"])
            assert part["lines"] == []
            _, shown = await call(client, "look", clip_id=image, frames=5, side=100)
            with Image.open(io.BytesIO(base64.b64decode(shown.data))) as picture:
                assert picture.size == (100, 50)
            assert "save_clip" not in {each.name for each in (await client.list_tools()).tools}
        agents.close()
        await state.stop()

    run_apart(main())


def test_the_page_and_the_skill_name_every_tool_and_no_other() -> None:
    root = Path(__file__).parents[2]
    page = (root / "docs" / "how-to" / "agents.md").read_text()
    assert set(re.findall(r"^\| `(\w+)` \|", page, re.M)) == TOOLS | {"save_clip"}
    skill = (root / "skills" / "eaglenet" / "SKILL.md").read_text()
    assert skill.startswith("---\nname: eaglenet\ndescription: ")
    assert set(re.findall(r"`(\w+_\w+|look|similar)`", skill)) >= TOOLS | {"save_clip"}
