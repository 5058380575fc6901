"""A chat server on this machine that answers as a test tells it to."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

MODEL = "stand-in"
Reply = Callable[[dict[str, Any], BaseHTTPRequestHandler], object]
"""Makes the text of an answer from a question; None if it has answered by itself."""


@dataclass
class StandInChat:
    """Address of the server, its behaviour, and the questions that it got."""

    reply: Reply
    url: str = ""
    questions: list[dict[str, Any]] = field(default_factory=list)
    models: list[str] = field(default_factory=lambda: [MODEL])
    gone: threading.Event = field(default_factory=threading.Event)
    """Set at the end, so that stalling answers end."""


def image_of(question: dict[str, Any]) -> str:
    """Data URL of the image of a question."""
    (_, image) = question["messages"][1]["content"]
    url: str = image["image_url"]["url"]
    return url


def completion(text: object) -> dict[str, Any]:
    """Body of an answer with one choice."""
    return {"choices": [{"index": 0, "message": {"role": "assistant", "content": text}}]}


def send(handler: BaseHTTPRequestHandler, body: bytes, status: int = 200) -> None:
    handler.send_response(status)
    handler.send_header("Content-Type", "application/json")
    handler.send_header("Content-Length", str(len(body)))
    handler.end_headers()
    handler.wfile.write(body)


@contextmanager
def serve_chat(reply: Reply) -> Iterator[StandInChat]:
    chat = StandInChat(reply)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            assert self.path == "/v1/models"
            data = [{"id": name, "object": "model"} for name in chat.models]
            send(self, json.dumps({"object": "list", "data": data}).encode())

        def do_POST(self) -> None:
            assert self.path == "/v1/chat/completions"
            question = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            chat.questions.append(question)
            try:
                answer = chat.reply(question, self)
                if answer is not None:
                    send(self, json.dumps(completion(answer)).encode())
            except OSError:
                self.close_connection = True  # The client has hung up.

        def log_message(self, *arguments: object) -> None:
            """Nothing: tests read standard error."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    chat.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield chat
    finally:
        chat.gone.set()
        server.shutdown()
        server.server_close()
