"""Files are sent whole and in ranges, and only those that are indexed."""

import os
import shutil
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO

import pytest
from demo_store import DemoStore
from fastapi.testclient import TestClient

from eaglenet.indexing.index import IndexOptions, index_videos
from eaglenet.search.engine import Engine
from eaglenet.serve import media
from eaglenet.serve.app import create_app
from eaglenet.serve.media import parse_range
from eaglenet.serve.problems import Problem


@pytest.fixture
def address(clip_id: str) -> str:
    """Where a clip's video is sent from."""
    return f"/api/clips/{clip_id}/video"


def test_a_video_is_sent_whole_and_in_parts(
    client: TestClient, engine: Engine, clip_id: str, address: str
) -> None:
    content = engine.file_of(clip_id).read_bytes()
    size = len(content)
    whole = client.get(address)
    assert (whole.status_code, whole.content) == (200, content)
    assert whole.headers["accept-ranges"] == "bytes"
    assert whole.headers["content-type"] == "video/mp4"
    assert whole.headers["content-length"] == str(size)
    for header, start, end in (
        ("bytes=0-0", 0, 1),
        ("bytes=100-299", 100, 300),
        ("bytes=100-", 100, size),
        ("bytes=-50", size - 50, size),
        (f"bytes=-{size + 50}", 0, size),
        (f"bytes=7-{10**15}", 7, size),
    ):
        part = client.get(address, headers={"range": header})
        assert (part.status_code, part.content) == (206, content[start:end]), header
        assert part.headers["content-range"] == f"bytes {start}-{end - 1}/{size}"


def test_ranges_outside_the_file_are_refused(client: TestClient, address: str) -> None:
    size = int(client.head(address).headers["content-length"])
    for header in (f"bytes={size}-", f"bytes={10**18}-", "bytes=-0"):
        answer = client.get(address, headers={"range": header})
        assert answer.status_code == 416, header
        assert answer.headers["content-range"] == f"bytes */{size}"
        assert answer.json()["error"]["code"] == "range_not_satisfiable"


@pytest.mark.parametrize(
    "header",
    [
        "bytes",
        "bytes=",
        "bytes=-",
        "bytes=5-2",
        "bytes=a-b",
        "lines=1-2",
        "bytes=0-1,3-4",
        "bytes=--5",
        "bytes=0x1-2",
        "bytes=" + "9" * 5000 + "-",
        "bytes=\u0661-\u0662",
    ],
)
def test_what_is_no_single_range_is_ignored(header: str) -> None:
    assert parse_range(header, 1000) is None
    with pytest.raises(Problem):
        parse_range("bytes=1000-", 1000)


def test_caches_ask_whether_a_file_changed(client: TestClient, address: str) -> None:
    tag = client.head(address).headers["etag"]
    assert client.get(address, headers={"if-none-match": f'"x", W/{tag}'}).status_code == 304
    same = client.get(address, headers={"range": "bytes=0-9", "if-range": tag})
    other = client.get(address, headers={"range": "bytes=0-9", "if-range": '"other"'})
    assert (same.status_code, other.status_code) == (206, 200)


@pytest.mark.parametrize(
    "name",
    [
        "..%2f..%2fsecret.mp4",
        "../../secret.mp4",
        "....//....//secret.mp4",
        "%2e%2e%2f%2e%2e%2fetc%2fpasswd",
        "..%252f..%252fetc%252fpasswd",
        "..%c0%af..%c0%afetc%c0%afpasswd",
        "%00",
        "0000000000000000-0%00.mp4",
        "0000000000000000-0%0a",
        "/etc/passwd",
        "%2fetc%2fpasswd",
        "file:%2f%2f%2fetc%2fpasswd",
        "..\\..\\secret.mp4",
        "%u002e%u002e/secret",
        "\uff0e\uff0e/secret.mp4",
        "0000000000000000-\u0661",
    ],
)
def test_no_path_leads_to_a_file(client: TestClient, demo: DemoStore, name: str) -> None:
    for kind in ("video", "thumbnail"):
        answer = client.get(f"/api/clips/{name}/{kind}")
        assert answer.status_code in (404, 422), answer.text
        assert set(answer.json()) == {"error"}
    absolute = client.get("/api/clips/x/video", params={"path": str(demo.secret)})
    assert absolute.status_code == 422


def served(demo: DemoStore, name: str) -> int:
    """Status of asking for the file that was indexed as ``name``."""
    engine = demo.open()
    hits = engine.search("red", k=50)
    clip_id = next(hit.clip_id for hit in hits if hit.path.endswith(name))
    with TestClient(create_app(engine), base_url="http://localhost") as client:
        return client.get(f"/api/clips/{clip_id}/video").status_code


def test_only_the_indexed_content_is_sent(own_demo: DemoStore) -> None:
    town, beach = own_demo.videos / "town", own_demo.videos / "beach"
    # Swapped for a link to a file outside, even one with the same bytes and time.
    (town / "scene 02.mp4").unlink()
    (town / "scene 02.mp4").symlink_to(own_demo.secret)
    assert served(own_demo, "scene 02.mp4") == 410
    # A link that stays inside shows another content.
    (town / "scene 04.mp4").unlink()
    (town / "scene 04.mp4").symlink_to(beach / "scene 03.mp4")
    assert served(own_demo, "scene 04.mp4") == 409
    # A folder on the way is swapped for a link outside.
    outside = own_demo.secret.parent / "outside"
    shutil.copytree(beach, outside)
    shutil.rmtree(beach)
    beach.symlink_to(outside)
    assert served(own_demo, "scene 01.mp4") == 410
    # Other bytes, with another time.
    (town / "scene 06.mp4").write_bytes(b"secret")
    assert served(own_demo, "scene 06.mp4") == 409
    # Gone, a folder, a fifo.
    (town / "scene 08.mp4").unlink()
    assert served(own_demo, "scene 08.mp4") == 410
    (town / "scene 08.mp4").mkdir()
    assert served(own_demo, "scene 08.mp4") == 410
    (town / "scene 08.mp4").rmdir()
    os.mkfifo(town / "scene 08.mp4")
    assert served(own_demo, "scene 08.mp4") == 410
    # Touched, but the same bytes.
    os.utime(town / "scene 10.mp4")
    assert served(own_demo, "scene 10.mp4") == 200


def test_an_export_names_the_file_that_is_gone(own_demo: DemoStore) -> None:
    engine = own_demo.open()
    hits = engine.search("red", k=50)
    moments = [{"clip_id": hit.clip_id, "start": 0, "end": 1} for hit in hits]
    (own_demo.videos / "town" / "scene 08.mp4").unlink()
    with TestClient(create_app(engine), base_url="http://localhost") as client:
        answer = client.post("/api/export", json={"moments": moments, "format": "edl"})
    assert answer.status_code == 410
    assert answer.json()["error"]["message"].startswith("scene 08.mp4: the file is no longer")


def test_a_folder_exchanged_for_a_link_while_it_is_opened_leads_nowhere(
    own_demo: DemoStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    beach, outside = own_demo.videos / "beach", own_demo.secret.parent / "outside"
    shutil.copytree(beach, outside)
    real = os.path.realpath

    def then_exchange(path: str, *, strict: bool = False) -> str:
        found = real(path, strict=strict)
        if found.endswith("scene 01.mp4") and not beach.is_symlink():
            beach.rename(own_demo.videos / "away")
            beach.symlink_to(outside)
        return found

    monkeypatch.setattr(os.path, "realpath", then_exchange)
    assert served(own_demo, "scene 01.mp4") == 410
    assert beach.is_symlink()


def test_an_indexed_folder_within_another_does_not_follow_a_link_out(own_demo: DemoStore) -> None:
    beach, outside = own_demo.videos / "beach", own_demo.secret.parent / "outside"
    options = IndexOptions(workers=0)
    index_videos([beach], own_demo.folder, str(own_demo.model), options=options)
    shutil.copytree(beach, outside)
    shutil.rmtree(beach)
    beach.symlink_to(outside)
    assert served(own_demo, "scene 01.mp4") == 410


def test_other_bytes_with_the_old_time_are_not_sent(own_demo: DemoStore) -> None:
    path = own_demo.videos / "town" / "scene 02.mp4"
    status = path.stat()
    path.write_bytes(b"secret")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert served(own_demo, "scene 02.mp4") == 409


def test_comparing_a_long_file_holds_nobody_up(
    own_demo: DemoStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = own_demo.open()
    hit = engine.search("red", k=1)[0]
    os.utime(hit.path)
    go, asked = threading.Event(), []

    def slow(stream: IO[bytes], is_wanted: Callable[[], bool]) -> str:
        asked.append(stream)
        assert go.wait(60)
        return content_digest(stream, is_wanted)

    monkeypatch.setattr(media, "COMPARE_TIMEOUT", 0.2)
    content_digest = media.content_digest
    monkeypatch.setattr(media, "content_digest", slow)
    address = f"/api/clips/{hit.clip_id}/video"
    with TestClient(create_app(engine), base_url="http://localhost") as client:
        with ThreadPoolExecutor(45) as pool:
            answers = list(pool.map(lambda _: client.get(address), range(45)))
            assert {answer.status_code for answer in answers} == {503}
            assert answers[0].headers["retry-after"]
            began = time.monotonic()
            assert client.get("/api/info").status_code == 200
            assert time.monotonic() - began < 30
        assert len(asked) == 1
        go.set()
        while client.get(address).status_code == 503:
            time.sleep(0.05)
        assert client.get(address).status_code == 200


def test_a_folder_added_while_serving_is_served(own_demo: DemoStore, tmp_path: Path) -> None:
    engine = own_demo.open()
    added = tmp_path / "added"
    added.mkdir()
    shutil.copy(own_demo.videos / "town" / "scene 02.mp4", added / "new.mp4")
    with (added / "new.mp4").open("ab") as stream:
        stream.write(b"\0" * 8 + b"more")
    with TestClient(create_app(engine), base_url="http://localhost") as client:
        assert client.get("/api/info").json()["clips"]
        options = IndexOptions(workers=0)
        index_videos([added], own_demo.folder, str(own_demo.model), options=options)
        hits = client.get("/api/search", params={"q": "red", "path": "new.mp4"}).json()["hits"]
        assert client.get(hits[0]["video"]).status_code == 200


def test_copies_stand_in_for_a_file_that_is_gone(own_demo: DemoStore) -> None:
    first = own_demo.videos / "beach" / "scene 01.mp4"
    second = own_demo.videos / "town" / "copy.mp4"
    shutil.copy(first, second)
    index_videos(
        [own_demo.videos], own_demo.folder, str(own_demo.model), options=IndexOptions(workers=0)
    )
    first.unlink()
    # The hit now carries the copy's name, and the page plays it.
    assert served(own_demo, "copy.mp4") == 200


def test_open_files_are_closed_again(client: TestClient, address: str) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for headers in ({}, {"range": "bytes=5-9"}, {"range": "bytes=999999999-"}):
        for _ in range(5):
            client.get(address, headers=headers)
    tag = client.head(address).headers["etag"]
    client.get(address, headers={"if-none-match": tag})
    assert len(os.listdir("/proc/self/fd")) <= before + 1


def test_a_root_that_is_a_link_still_serves(tmp_path: Path, own_demo: DemoStore) -> None:
    link = tmp_path / "link"
    link.symlink_to(own_demo.videos)
    store = tmp_path / "linked_store"
    index_videos([link], store, str(own_demo.model), options=IndexOptions(workers=0))
    linked = DemoStore(store, link, own_demo.model, own_demo.secret)
    assert served(linked, "scene 01.mp4") == 200
