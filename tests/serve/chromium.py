"""A real browser in front of a real server."""

from __future__ import annotations

import os
import shutil
import socket
import threading
import time
from pathlib import Path

import uvicorn

from eaglenet.search.engine import Engine
from eaglenet.serve.app import create_app
from eaglenet.serve.settings import Settings

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-default-apps",
    "--disable-extensions",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--metrics-recording-only",
    "--autoplay-policy=no-user-gesture-required",
]


class Running:
    """uvicorn in a thread, on a free port."""

    def __init__(self, engine: Engine, settings: Settings) -> None:
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.address = f"http://127.0.0.1:{self.socket.getsockname()[1]}"
        config = uvicorn.Config(
            create_app(engine, settings), log_config=None, ws="none", timeout_graceful_shutdown=2
        )
        self.server = uvicorn.Server(config)
        self.thread = threading.Thread(target=self.server.run, kwargs={"sockets": [self.socket]})

    def __enter__(self) -> str:
        self.thread.start()
        return self.address

    def __exit__(self, *error: object) -> None:
        self.server.should_exit = True
        self.thread.join(60)
        self.socket.close()


def wait_until(page: object, expression: str, seconds: float = 60.0) -> None:
    """Playwright's own waiting evaluates strings in the page, which its policy forbids."""
    end = time.monotonic() + seconds
    while not page.evaluate(expression):  # type: ignore[attr-defined]
        assert time.monotonic() < end, f"never came true: {expression}"
        time.sleep(0.02)


class Watched:
    """A tab whose console errors and outside requests are kept."""

    def __init__(self, browser: object, address: str, **options: object) -> None:
        self.context = browser.new_context(base_url=address, **options)  # type: ignore[attr-defined]
        self.context.set_default_timeout(60_000)
        self.page = self.context.new_page()
        self.problems: list[str] = []
        self.outside: list[str] = []
        self.page.on("console", lambda message: self._console(message))
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.on("dialog", lambda dialog: self._alert(dialog))
        self.page.on("request", lambda request: self._request(request, address))

    def _console(self, message: object) -> None:
        if message.type in ("error", "warning"):  # type: ignore[attr-defined]
            self.problems.append(message.text)  # type: ignore[attr-defined]

    def _alert(self, dialog: object) -> None:
        self.problems.append(f"alert: {dialog.message}")  # type: ignore[attr-defined]
        dialog.dismiss()  # type: ignore[attr-defined]

    def _request(self, request: object, address: str) -> None:
        if not request.url.startswith(address):  # type: ignore[attr-defined]
            self.outside.append(request.url)  # type: ignore[attr-defined]


def keep(page: object, name: str, folder: Path) -> None:
    """Save a picture, and a copy where ``EAGLENET_KEEP_PICTURES`` says."""
    page.screenshot(path=folder / name)  # type: ignore[attr-defined]
    wanted = os.environ.get("EAGLENET_KEEP_PICTURES")
    if wanted:
        Path(wanted).mkdir(parents=True, exist_ok=True)
        shutil.copy(folder / name, Path(wanted) / name)
