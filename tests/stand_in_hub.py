"""A hub on this machine: serves a folder under the paths that the hub's library asks for."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def _listing(folder: Path) -> list[dict[str, object]]:
    """The files as the hub lists them, and one name that leads out of the folder."""
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    names = [path.relative_to(folder).as_posix() for path in paths]
    return [
        {"type": "file", "oid": "0" * 40, "size": 1, "path": name}
        for name in (*names, "../../outside")
    ]


@contextmanager
def serve_hub(folder: Path, identifier: str) -> Iterator[str]:
    """The address of a hub that holds ``identifier`` with the files of ``folder``."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # head and body are two writes

        def do_HEAD(self) -> None:
            self._answer(with_body=False)

        def do_GET(self) -> None:
            self._answer(with_body=True)

        def _answer(self, *, with_body: bool) -> None:
            if self.path.startswith(f"/api/models/{identifier}/tree/"):
                self._send(json.dumps(_listing(folder)).encode(), "application/json", with_body)
                return
            start = f"/{identifier}/resolve/"
            name = self.path.removeprefix(start).partition("/")[2] if start in self.path else ""
            path = folder / name
            if not name or not path.is_file():
                self.send_response(200 if self.path in ("/", "") else 404)
                self.send_header("X-Error-Code", "EntryNotFound")
                self.send_header("X-Repo-Commit", COMMIT)
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            self._send(path.read_bytes(), "application/octet-stream", with_body)

        def _send(self, content: bytes, kind: str, with_body: bool) -> None:
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("X-Repo-Commit", COMMIT)
            self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if with_body:
                self.wfile.write(content)

        def log_message(self, *arguments: object) -> None:
            """Nothing: tests read standard error."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
