"""Files that browsers cannot play, sent as MP4."""

from __future__ import annotations

import asyncio
import io
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import av
import pytest
from demo_store import save_model
from fastapi.testclient import TestClient
from loops import run_apart
from odd_files import write_odd
from starlette.requests import ClientDisconnect

from eaglenet.indexing.index import IndexOptions, index_videos
from eaglenet.search.engine import Engine
from eaglenet.serve.app import create_app
from eaglenet.serve.media import OpenVideo, Streams
from eaglenet.serve.problems import Problem

FILES = {
    # name: video codec, sound codec, how it is sent
    "old.avi": ("mpeg4", "libmp3lame", "convert"),
    "film.mkv": ("libx264", "ac3", "copy"),
    "phone.mp4": ("libx265", "aac", "convert"),
}


@pytest.fixture(scope="module")
def odd_engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    """A store of files that browsers cannot play."""
    base = tmp_path_factory.mktemp("odd")
    videos = base / "videos"
    videos.mkdir()
    for name, (codec, sound, _) in FILES.items():
        write_odd(videos / name, codec, sound)
    model = save_model(base / "model")
    index_videos([videos], base / "store", str(model), options=IndexOptions(workers=0))
    return Engine.open(base / "store")


@pytest.fixture(scope="module")
def odd_client(odd_engine: Engine) -> Iterator[TestClient]:
    """A client of a service on that store."""
    with TestClient(create_app(odd_engine), base_url="http://localhost") as client:
        yield client


def address_of(client: TestClient, name: str) -> str:
    files = client.get("/api/files").json()["files"]
    clip = next(file["clip_id"] for file in files if file["name"] == name)
    return f"/api/clips/{clip}/stream"


@pytest.mark.parametrize("name", list(FILES))
def test_a_file_is_sent_as_browsers_play_it_from_a_moment_on(
    odd_client: TestClient, name: str
) -> None:
    how = FILES[name][2]
    answer = odd_client.get(address_of(odd_client, name), params={"start": 2.3})
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "video/mp4"
    assert answer.headers["eaglenet-how"] == how
    begin = float(answer.headers["eaglenet-start"])
    # Copied from the keyframe before; keyframes are a second apart at most.
    assert 1.3 <= begin <= 2.3 if how == "copy" else begin == 2.3, begin
    with av.open(io.BytesIO(answer.content)) as container:
        assert "mp4" in container.format.name
        assert container.streams.video[0].codec_context.name == "h264"
        assert container.streams.audio[0].codec_context.name in ("aac", "mp3")
        frames = list(container.decode(video=0))
    assert frames[0].time == pytest.approx(0.0, abs=0.09)
    assert len(frames) == pytest.approx((4.0 - begin) * 25, abs=2)
    # The ground becomes lighter by 1 a frame: the first picture is the one of that moment.
    ground = frames[0].to_ndarray(format="rgb24")[5:90, 130:, 2].mean()
    assert ground == pytest.approx(40 + begin * 25, abs=4)


def test_head_tells_where_a_stream_begins_and_leaves_nothing_running(
    odd_client: TestClient,
) -> None:
    answer = odd_client.head(address_of(odd_client, "film.mkv"), params={"start": 1.5})
    assert (answer.status_code, answer.content) == (200, b"")
    assert 0.5 <= float(answer.headers["eaglenet-start"]) <= 1.5
    assert not odd_client.app.state.service.streams._processes  # type: ignore[attr-defined]


def test_nonsense_is_refused(odd_client: TestClient) -> None:
    address = address_of(odd_client, "old.avi")
    for start in ("-1", "nan", "soon", "1e12"):
        assert odd_client.get(address, params={"start": start}).status_code == 422
    assert odd_client.get("/api/clips/0000000000000000-1/stream").status_code == 404


def test_a_file_that_changed_is_not_converted(odd_engine: Engine, tmp_path: Path) -> None:
    videos = tmp_path / "videos"
    videos.mkdir()
    path = write_odd(videos / "a.avi", "mpeg4")
    model = odd_engine.manifest.model
    index_videos([videos], tmp_path / "store", model, options=IndexOptions(workers=0))
    app = create_app(Engine.open(tmp_path / "store"))
    with TestClient(app, base_url="http://localhost") as client:
        address = address_of(client, "a.avi")
        path.write_bytes(path.read_bytes() + b"more")
        assert client.get(address).status_code == 409
        path.unlink()
        assert client.get(address).status_code == 410


def opened(path: Path) -> OpenVideo:
    descriptor = os.open(path, os.O_RDONLY)
    return OpenVideo(descriptor, path.stat().st_size, "0" * 32, "video/x-msvideo")


@pytest.mark.parametrize(
    "content",
    [
        b"not a video at all" * 100,
        b"#EXTM3U\n#EXTINF:4,\nfile:///etc/passwd\n",
        b"ffconcat version 1.0\nfile /etc/passwd\n",
        b"",
    ],
)
def test_what_is_no_video_or_names_other_files_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "bad.avi"
    path.write_bytes(content)

    async def scenario() -> None:
        streams = Streams(limit=1, timeout=60)
        with pytest.raises(Problem) as caught:
            await streams.begin(opened(path), 0.0)
        assert caught.value.status_code == 415
        assert str(tmp_path) not in caught.value.detail
        assert not streams._processes

    run_apart(scenario())


def test_no_more_are_converted_than_allowed_and_none_outlives_its_watcher(tmp_path: Path) -> None:
    path = write_odd(tmp_path / "a.avi", "mpeg4", seconds=5)

    async def scenario() -> None:
        streams = Streams(limit=1, timeout=60)
        first = await streams.begin(opened(path), 0.0)
        with pytest.raises(Problem) as caught:
            await streams.begin(opened(path), 0.0)
        assert caught.value.status_code == 503

        async def receive() -> dict[str, Any]:
            return {"type": "http.disconnect"}

        async def send(message: object) -> None:
            if message["type"] == "http.response.body":  # type: ignore[index]
                await asyncio.sleep(3600)

        scope = {"type": "http", "asgi": {"spec_version": "2.3"}, "method": "GET"}
        await asyncio.wait_for(streams.make_response(first, "GET")(scope, receive, send), 60)
        assert first.process.returncode is not None
        # There is room again, and closing ends what is left.
        second = await streams.begin(opened(path), 1.0)
        await streams.close()
        assert second.process.returncode is not None

    run_apart(scenario())


def test_a_conversion_that_stops_frees_its_place(tmp_path: Path) -> None:
    """A process that was taken over may begin and then wait, after its client has gone, too."""
    path = write_odd(tmp_path / "a.avi", "mpeg4", seconds=5)

    async def scenario() -> None:
        streams = Streams(limit=1, timeout=60)
        conversion = await streams.begin(opened(path), 0.0)
        os.kill(conversion.process.pid, signal.SIGSTOP)
        streams.timeout = 0.2

        async def receive() -> dict[str, Any]:
            await asyncio.sleep(3600)
            return {}

        async def send(message: object) -> None:
            """The client reads all there is."""

        scope = {"type": "http", "asgi": {"spec_version": "2.4"}, "method": "GET"}
        with pytest.raises((OSError, ClientDisconnect)):
            await asyncio.wait_for(
                streams.make_response(conversion, "GET")(scope, receive, send), 60
            )
        assert not streams._processes

    run_apart(scenario())


def test_simultaneous_requests_share_the_limit(tmp_path: Path) -> None:
    path = write_odd(tmp_path / "a.avi", "mpeg4", seconds=4)

    async def scenario() -> None:
        streams = Streams(limit=2, timeout=60)
        requests = (streams.begin(opened(path), 0.0) for _ in range(24))
        results = await asyncio.gather(*requests, return_exceptions=True)
        refusals = [result for result in results if isinstance(result, Problem)]
        assert {problem.status_code for problem in refusals} == {503}
        assert len(results) - len(refusals) == 2
        await streams.close()

    run_apart(scenario())


def test_one_that_never_begins_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_odd(tmp_path / "a.avi", "mpeg4", seconds=1)
    monkeypatch.setattr("eaglenet.serve.media.MODULE", "asyncio")  # waits for a line for ever

    async def scenario() -> None:
        streams = Streams(limit=1, timeout=0.01)
        with pytest.raises(Problem) as caught:
            await streams.begin(opened(path), 0.0)
        assert caught.value.status_code in (415, 504)
        assert not streams._processes

    run_apart(scenario())
