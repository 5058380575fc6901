"""gs:// and az:// with the same library, against a small stand-in of Google's storage.

The stand-in supports whole objects, ranges, listings, and writes that
depend on the generation of an object.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

import numpy as np
import pytest
import torch

from eaglenet.cluster import log as leases
from eaglenet.cluster.bucket import BucketStore
from eaglenet.core.errors import StoreError
from eaglenet.store.object_storage import (
    CREDENTIALS,
    ChangedObjectError,
    MissingObjectError,
    ObjectError,
    ObjectFolder,
)
from eaglenet.store.store import kind_of, open_store
from synthetic_store import DIM, FRAMES, BagMethod, add_file, clip_batch, content_of, make_manifest

BUCKET = "films"


class GoogleStandIn(BaseHTTPRequestHandler):
    """XML interface of Google's storage, as far as the library uses it."""

    objects: dict[str, tuple[int, bytes]]
    lock: threading.Lock

    def log_message(self, *arguments: object) -> None:
        """Do not print requests."""

    def _answer(self, status: int, content: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def _found(self, generation: int, content: bytes) -> dict[str, str]:
        return {
            "ETag": f'"{hashlib.md5(content).hexdigest()}"',
            "x_goog_generation": str(generation),
            "Last_Modified": "Mon, 16 Nov 2026 00:00:00 GMT",
        }

    @property
    def name(self) -> str:
        return unquote(urlsplit(self.path).path).removeprefix(f"/{BUCKET}").lstrip("/")

    def do_GET(self) -> None:
        query = parse_qs(urlsplit(self.path).query)
        if "list-type" in query:
            self._list(query.get("prefix", [""])[0])
            return
        with self.lock:
            found = self.objects.get(self.name)
        if found is None:
            self._answer(404)
            return
        headers, content = self._found(*found), found[1]
        wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if wanted is None:
            self._answer(200, content, **headers)
            return
        first, last = int(wanted[1]), min(int(wanted[2]), len(content) - 1)
        span = f"bytes {first}-{last}/{len(content)}"
        self._answer(206, content[first : last + 1], Content_Range=span, **headers)

    def do_HEAD(self) -> None:
        with self.lock:
            found = self.objects.get(self.name)
        if found is None:
            self._answer(404)
            return
        self._answer(200, found[1], **self._found(*found))

    def _list(self, prefix: str) -> None:
        with self.lock:
            names = sorted(name for name in self.objects if name.startswith(prefix))
            entries = [(name, *self.objects[name]) for name in names]
        rows = "".join(
            f"<Contents><Key>{name}</Key><Size>{len(content)}</Size><ETag>{generation}</ETag>"
            "<LastModified>2026-11-16T00:00:00Z</LastModified></Contents>"
            for name, generation, content in entries
        )
        body = f"<ListBucketResult><IsTruncated>false</IsTruncated>{rows}</ListBucketResult>"
        self._answer(200, body.encode(), Content_Type="application/xml")

    def do_PUT(self) -> None:
        content = self.rfile.read(int(self.headers["Content-Length"]))
        condition = self.headers.get("x-goog-if-generation-match")
        with self.lock:
            generation = self.objects.get(self.name, (0, b""))[0]
            if condition is not None and int(condition) != generation:
                self._answer(412)
                return
            self.objects[self.name] = (generation + 1, content)
            self._answer(200, **self._found(generation + 1, content))

    def do_DELETE(self) -> None:
        with self.lock:
            found = self.objects.pop(self.name, None)
        self._answer(204 if found else 404)


@pytest.fixture
def google(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[GoogleStandIn]]:
    """Start the stand-in on this machine."""
    pytest.importorskip("obstore")
    handler = type("Handler", (GoogleStandIn,), {"objects": {}, "lock": threading.Lock()})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    account = {
        "gcs_base_url": f"http://127.0.0.1:{server.server_port}",
        "disable_oauth": True,
        "client_email": "",
        "private_key": "",
        "private_key_id": "",
    }
    monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT_KEY", json.dumps(account))
    monkeypatch.setenv("GOOGLE_ALLOW_HTTP", "true")
    yield handler
    server.shutdown()
    server.server_close()


def test_objects_of_google_are_written_read_listed_and_removed(
    google: type[GoogleStandIn],
) -> None:
    folder = ObjectFolder(f"gs://{BUCKET}/archive")
    folder.write("one/a", b"0123456789")
    folder.write("one/b", b"")
    assert set(google.objects) == {"archive/one/a", "archive/one/b"}
    assert folder.read("one/a")[0] == b"0123456789"
    assert folder.read_ranges("one/a", [(2, 5), (7, 9)]) == [b"234", b"78"]
    assert [found.url for found in folder.list("one/")] == [
        f"gs://{BUCKET}/archive/one/a",
        f"gs://{BUCKET}/archive/one/b",
    ]
    folder.remove(["one/a", "gone"])
    with pytest.raises(MissingObjectError, match=f"gs://{BUCKET}/archive/one/a"):
        folder.read("one/a")


def test_a_write_with_a_condition_follows_the_generation(google: type[GoogleStandIn]) -> None:
    folder = ObjectFolder(f"gs://{BUCKET}")
    first = folder.write_if("x", b"first", None)
    assert folder.tag("x") == first == folder.read("x")[1]
    second = folder.write_if("x", b"second", first)
    assert second != first
    # Another writer was faster: a write with the old tag, and one for a missing object.
    for tag in (first, None):
        with pytest.raises(ChangedObjectError, match="another writer was faster"):
            folder.write_if("x", b"third", tag)
    assert folder.read("x")[0] == b"second"


def test_one_writer_holds_the_lease_on_google_too(
    google: type[GoogleStandIn], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "LEASE_SECONDS", 1.5)
    folder = ObjectFolder(f"gs://{BUCKET}/store")
    with leases.hold_lease(folder) as lease:
        lease.require()
        assert "store/writer.lease" in google.objects
        with (
            pytest.raises(StoreError, match="is being written to"),
            leases.hold_lease(ObjectFolder(f"gs://{BUCKET}/store")),
        ):
            pass
    with leases.hold_lease(folder):
        pass


def test_a_store_on_google_holds_what_was_stored(
    google: type[GoogleStandIn], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EAGLENET_CACHE", str(tmp_path / "cache"))
    method, location = BagMethod(), f"gs://{BUCKET}/store"
    frames = torch.randn(4, FRAMES, DIM, generator=torch.Generator().manual_seed(0))
    with BucketStore.write(location, make_manifest(method)) as writer:
        for number in range(3):
            add_file(writer, method, f"/videos/{number}.mp4", content_of(number), frames + number)
        writer.finish()
    assert {name.split("/")[1] for name in google.objects} >= {"store.json", "log", "features"}
    snapshot = open_store(location).snapshot()
    assert len(snapshot) == 12
    layout = make_manifest(method).layout
    expected = clip_batch(method, layout, content_of(1), frames + 1)
    rows = np.array([clip.row for clip in snapshot.clips_of_content(content_of(1))])
    assert np.array_equal(snapshot.vectors_at(rows), expected.vectors)
    assert np.array_equal(snapshot.features_at(rows), expected.features)
    assert [snapshot.thumbnail(row) for row in rows] == expected.thumbnails
    assert open_store(location).verify().clips == 12


@pytest.mark.parametrize("scheme", ["s3", "gs", "az"])
def test_every_scheme_is_a_store_on_object_storage(scheme: str) -> None:
    assert kind_of(f"{scheme}://bucket/videos") is BucketStore
    assert scheme in CREDENTIALS


def test_an_account_that_is_not_given_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("obstore")
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME", raising=False)
    with pytest.raises(ObjectError, match=r"az://films/x: .*set AZURE_STORAGE_ACCOUNT_NAME and"):
        ObjectFolder("az://films/x").read("manifest.json")
