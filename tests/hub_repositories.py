"""A hub on this machine that lists, serves and takes files, as the hub's library asks it to."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

COMMIT = "0123456789abcdef0123456789abcdef01234567"
TOKEN = "hf_stand_in"


@contextmanager
def repository_hub(
    folder: Path, patch: pytest.MonkeyPatch, cache: Path, *, refused: str = ""
) -> Iterator[str]:
    """Serve ``folder/KIND/OWNER/NAME`` (KIND models or datasets) to this process's hub library.

    ``refused``: part of an address; the first request to such an address fails.
    """
    from huggingface_hub import constants

    handler = type(
        "Handler", (RepositoryHandler,), {"folder": folder, "uploads": {}, "refused": refused}
    )
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    address = f"http://127.0.0.1:{server.server_address[1]}"
    patch.setattr(constants, "ENDPOINT", address)
    template = address + "/{repo_id}/resolve/{revision}/{filename}"
    patch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    patch.setattr(constants, "HF_HUB_OFFLINE", False)
    patch.setattr(constants, "HF_HUB_CACHE", str(cache))
    patch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    patch.setenv("HF_TOKEN", TOKEN)
    try:
        yield address
    finally:
        server.shutdown()
        server.server_close()


class RepositoryHandler(BaseHTTPRequestHandler):
    """Repositories are folders; a commit replaces files in them."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # head and body are two writes
    folder: Path
    uploads: dict[str, bytes]
    refused = ""
    """Part of the addresses that are refused, after the request was read."""

    def do_HEAD(self) -> None:
        self.serve_file()

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        listing = re.fullmatch(r"/api/(models|datasets)/([^/]+/[^/]+)(/revision/.+)?", path)
        if listing is None:
            self.serve_file()
            return
        repository = self.folder / listing[1] / listing[2]
        if not repository.is_dir():
            self.answer(404, headers={"X-Error-Code": "RepoNotFound"})
            return
        names = sorted(
            file.relative_to(repository).as_posix()
            for file in repository.rglob("*")
            if file.is_file()
        )
        siblings = [{"rfilename": name} for name in names]
        self.answer(200, {"id": listing[2], "sha": COMMIT, "siblings": siblings})

    def do_PUT(self) -> None:
        body = self.body()
        if self.is_refused():
            return
        self.uploads[urlsplit(self.path).path.rpartition("/")[2]] = body
        self.answer(200)

    def do_POST(self) -> None:
        path, body = urlsplit(self.path).path, self.body()
        if self.is_refused():
            return
        if self.headers.get("Authorization") != f"Bearer {TOKEN}" and "/lfs/" not in path:
            self.answer(401)
        elif path == "/api/repos/create":
            wanted = json.loads(body)
            owner = wanted.get("organization") or "somebody"
            name = f"{owner}/{wanted['name']}"
            (self.folder / "models" / name).mkdir(parents=True, exist_ok=True)
            self.answer(200, {"url": f"http://{self.headers['Host']}/{name}", "id": name})
        elif path == "/api/validate-yaml":
            self.answer(200, {"errors": [], "warnings": []})
        elif "/preupload/" in path:
            files = [
                {
                    "path": file["path"],
                    "uploadMode": "lfs" if file["path"].endswith(".safetensors") else "regular",
                    "shouldIgnore": False,
                }
                for file in json.loads(body)["files"]
            ]
            self.answer(200, {"files": files})
        elif path.endswith("/info/lfs/objects/batch"):
            objects = [
                {
                    **entry,
                    "actions": {
                        "upload": {"href": f"http://{self.headers['Host']}/lfs/{entry['oid']}"}
                    },
                }
                for entry in json.loads(body)["objects"]
            ]
            self.answer(200, {"transfer": "basic", "objects": objects})
        else:
            self.commit(path, body)

    def is_refused(self) -> bool:
        """Answer with an error, once, and return True if the address is a refused one."""
        cls = type(self)
        if not cls.refused or cls.refused not in self.path:
            return False
        cls.refused = ""
        self.answer(403, headers={"X-Error-Message": "storage is full"})
        return True

    def commit(self, path: str, body: bytes) -> None:
        match = re.fullmatch(r"/api/models/([^/]+/[^/]+)/commit/main", path)
        if match is None:
            self.answer(404)
            return
        for line in body.splitlines():
            entry = json.loads(line)
            value = entry["value"]
            if entry["key"] == "file":
                content = base64.b64decode(value["content"])
            elif entry["key"] == "lfsFile":
                content = self.uploads[value["oid"]]
                assert hashlib.sha256(content).hexdigest() == value["oid"]
            else:
                continue
            target = self.folder / "models" / match[1] / value["path"]
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
        address = f"http://{self.headers['Host']}/{match[1]}/commit/{COMMIT}"
        self.answer(200, {"commitUrl": address, "commitOid": COMMIT, "success": True})

    def serve_file(self) -> None:
        path = unquote(urlsplit(self.path).path)
        match = re.fullmatch(r"/(datasets/)?([^/]+/[^/]+)/resolve/[^/]+/(.+)", path)
        kind = "datasets" if match and match[1] else "models"
        file = self.folder / kind / match[2] / match[3] if match else None
        if file is None or not file.is_file():
            self.answer(404, headers={"X-Error-Code": "EntryNotFound"})
            return
        content = file.read_bytes()
        tag = hashlib.sha256(content).hexdigest()
        self.answer(200, content, {"ETag": f'"{tag}"'})

    def body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") == "chunked":
            content = b""
            while size := int(self.rfile.readline(), 16):
                content += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return content
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def answer(
        self, status: int, content: Any = b"", headers: dict[str, str] | None = None
    ) -> None:
        is_plain = isinstance(content, bytes)
        body = content if is_plain else json.dumps(content).encode()
        self.send_response(status)
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("Content-Length", str(len(body)))
        if not is_plain:
            self.send_header("Content-Type", "application/json")
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *arguments: object) -> None:
        """Nothing: tests read standard error."""
