"""Saved searches: one action per new moment, whatever fails, whatever files are called."""

from __future__ import annotations

import contextlib
import http.server
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from eaglenet.cli.main import app
from eaglenet.core.errors import UsageError
from eaglenet.encoders.catalogue import CARDS
from eaglenet.indexing import alerts as alerts_module
from eaglenet.indexing.alerts import (
    RETRY_SECONDS,
    ActionError,
    AlertDatabase,
    Alerts,
    Sender,
    as_json,
    database_path,
    make_command,
    make_webhook,
)
from eaglenet.search.confidence import FEATURES, Calibration
from eaglenet.search.engine import Engine
from eaglenet.store.hubness import HubnessBank
from eaglenet.store.store import LocalStore
from synthetic_store import DIM, FRAMES, BagMethod, add_file, content_of, make_manifest

HOSTILE_NAMES = [
    "$(touch pwned).mp4",
    "`touch pwned`.mp4",
    "a; touch pwned #.mp4",
    "-rf.mp4",
    "a\nEAGLENET_ALERT=owned.mp4",
    "a' || touch pwned || '.mp4",
    '","alert":"owned","x":".mp4',
    "caf\udce9.mp4",  # Latin-1 on a disk of UTF-8
]


@pytest.fixture
def store(bag: BagMethod, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store with a calibrated model and three old files, one of which shows something red."""
    bank = HubnessBank("test", np.eye(DIM, dtype=np.float32)[:3], 0.0, 20.0)
    weights = {**dict.fromkeys(FEATURES, 0.0), "bias": -6.0, "score": 12.0}
    with LocalStore.write(tmp_path / "store", make_manifest(bag)) as writer:
        writer.set_hubness(bank)
    calibration = Calibration(make_manifest(bag).identity, str(bank), 1.0, weights)
    monkeypatch.setattr(Engine, "_load_calibration", lambda self, view: calibration)
    for number, word in enumerate(("red", "dog", "ball")):
        add(tmp_path / "store", bag, f"/old/{number}.mp4", number, [word])
    return tmp_path / "store"


def add(store: Path, bag: BagMethod, path: str, number: int, words: list[str]) -> None:
    """Index a file whose clips show these words, ten seconds each."""
    with torch.no_grad():
        vectors = bag.coarse_vectors(bag.encode_text(words))
    frames = vectors[:, None].expand(-1, FRAMES, DIM).clone()
    with LocalStore.write(store) as writer:
        add_file(writer, bag, path, content_of(number), frames)


def watch(store: Path, bag: BagMethod, act: Any = None, query: str = "red") -> Alerts:
    return Alerts(store, [query], min_confidence=0.8, act=act, model=bag)  # type: ignore[arg-type]


class Receiver:
    """Remembers moments; the first calls may fail."""

    def __init__(self, failures: int = 0) -> None:
        self.failures = failures
        self.moments: list[dict[str, Any]] = []
        self.calls = 0

    def __call__(self, moment: Any) -> None:
        self.calls += 1
        if self.calls <= self.failures:
            raise ActionError("not now")
        self.moments.append(dict(moment))


def test_acts_once_per_new_moment_and_remembers_across_restarts(
    store: Path, bag: BagMethod
) -> None:
    receiver = Receiver()
    with watch(store, bag, receiver) as alerts:
        assert alerts.check() == []  # What was there before is not new.
        add(store, bag, "/new/a.mp4", 10, ["dog", "dog", "dog", "red", "dog"])
        add(store, bag, "/new/b.mp4", 11, ["ball"])
        [moment] = alerts.check()
        assert alerts.check() == []
        alerts.finish()
    assert receiver.moments == [moment]
    assert (moment["path"], moment["alert"]) == ("/new/a.mp4", "red")
    assert 30 <= moment["start"] < moment["end"] <= 40
    assert moment["confidence"] >= 0.8
    # Two far apart are two moments, two beside each other one; a file that came meanwhile is new.
    add(store, bag, "/new/c.mp4", 12, ["red", "red", "dog", "dog", "dog", "dog", "red"])
    with watch(store, bag, receiver) as alerts:
        assert len(alerts.check()) == 2
        alerts.finish()
    assert [each["path"] for each in receiver.moments] == ["/new/a.mp4", *["/new/c.mp4"] * 2]
    assert len({each["id"] for each in receiver.moments}) == 3
    # Another alert begins with what is there now.
    with watch(store, bag, receiver, query="dog") as alerts:
        assert alerts.check() == []


def test_wording_that_finds_something_else_is_told_once(
    store: Path, bag: BagMethod, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(CARDS, Engine.open(store, bag).manifest.model, CARDS["small"])
    queries = ["a ball but no dog", "ein roter Ball", "red"]
    alerts = Alerts(store, queries, min_confidence=0.8, model=bag)  # type: ignore[arg-type]
    with alerts:
        alerts.check()
        alerts.check()
    hints = [record.getMessage() for record in caplog.records]
    assert len(hints) == 2
    assert "'no' hardly matters to a model" in hints[0]
    assert "looks like German" in hints[1]


def test_the_first_files_of_a_store_are_compared_with_each_other(
    bag: BagMethod, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file without rivals has the whole share, whatever it shows."""
    bank = HubnessBank("test", np.eye(DIM, dtype=np.float32)[:3], 0.0, 20.0)
    weights = {**dict.fromkeys(FEATURES, 0.0), "bias": 3.0, "share": 5.0}
    calibration = Calibration(make_manifest(bag).identity, str(bank), 30.0, weights)
    monkeypatch.setattr(Engine, "_load_calibration", lambda self, view: calibration)
    store = tmp_path / "first"
    with LocalStore.write(store, make_manifest(bag)) as writer:
        writer.set_hubness(bank)
    with watch(store, bag) as alerts:
        for number, word in enumerate(("dog", "red", "ball")):
            add(store, bag, f"/new/{number}.mp4", number, [word])
        assert [moment["path"] for moment in alerts.check()] == ["/new/1.mp4"]


def test_moments_that_were_not_sent_are_sent_after_a_restart(store: Path, bag: BagMethod) -> None:
    failing = Receiver(failures=99)
    with watch(store, bag, failing) as alerts:
        add(store, bag, "/new/a.mp4", 10, ["red"])
        assert len(alerts.check()) == 1
        alerts.finish()
    assert (failing.calls, failing.moments) == (1, [])
    memory = AlertDatabase(database_path(store))
    row = memory.next_pending()
    assert row is not None
    memory.update(row[0], "pending", row[2], 0.0)  # The pause is over.
    memory.close()
    receiver = Receiver()
    with watch(store, bag, receiver) as alerts:
        assert alerts.check() == []
        alerts.finish()
    assert [each["path"] for each in receiver.moments] == ["/new/a.mp4"]


def test_failures_are_tried_again_with_growing_pauses_and_then_given_up(tmp_path: Path) -> None:
    now = 1000.0
    memory = AlertDatabase(tmp_path / "a.db")
    alert = memory.begin("red", [])
    memory.add(alert, "x", [{"id": "1", "path": "/a"}])
    receiver = Receiver(failures=99)
    sender = Sender(memory, receiver, clock=lambda: now)
    pauses = []
    while memory.next_pending() is not None:
        assert sender.send_next() == 0.0
        row = memory.next_pending()
        if row is not None:
            assert sender.send_next() > 0  # not before its time
            pauses.append(row[3] - now)
            now = row[3]
    assert tuple(pauses) == RETRY_SECONDS
    assert receiver.calls == len(RETRY_SECONDS) + 1
    memory.close()


def test_a_stop_while_the_thread_begins_a_round_ends_it(tmp_path: Path) -> None:
    """Otherwise it would wait for a minute."""
    memory = AlertDatabase(tmp_path / "a.db")
    sender = Sender(memory, Receiver())

    class Wake(threading.Event):
        def clear(self) -> None:
            sender._is_stopping = True
            self.set()
            super().clear()

    sender._wake = Wake()
    thread = threading.Thread(target=sender._run, daemon=True)
    thread.start()
    thread.join(20)
    assert not thread.is_alive()
    memory.close()


def test_the_thread_sends_by_itself(store: Path, bag: BagMethod) -> None:
    done = threading.Event()

    def act(moment: Any) -> None:
        done.set()

    with watch(store, bag, act) as alerts:
        add(store, bag, "/new/a.mp4", 10, ["red"])
        alerts.check()
        assert done.wait(60)


@pytest.fixture
def commands(tmp_path: Path) -> Path:
    """A script that appends its arguments, environment and input as a line of JSON."""
    path = tmp_path / "record.py"
    path.write_text(
        "import json, os, sys\n"
        "names = {k: v for k, v in os.environ.items() if k.startswith('EAGLENET_')}\n"
        "row = {'arguments': sys.argv[1:], 'environment': names, 'input': json.load(sys.stdin)}\n"
        f"open({str(tmp_path / 'calls')!r}, 'a').write(json.dumps(row) + '\\n')\n"
    )
    return path


def test_hostile_names_reach_a_command_as_data(
    store: Path,
    bag: BagMethod,
    commands: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(commands.parent)
    monkeypatch.setenv("EAGLENET_TOKEN", "a secret")
    monkeypatch.setenv("EAGLENET_CHAT_KEY", "a secret")
    act = make_command(f"{sys.executable} -S {commands} 'fixed $HOME; argument'")
    with watch(store, bag, act) as alerts:
        for number, name in enumerate(HOSTILE_NAMES):
            # Names that are not Unicode cannot be stored; they are sent below.
            if name.isascii():
                add(store, bag, f"/new/{name}", 20 + number, ["red"])
        count = len(alerts.check())
        assert count == len(HOSTILE_NAMES) - 1
        alerts.finish()
    act({"id": "1", "alert": "red", "path": f"/new/{HOSTILE_NAMES[-1]}"})
    rows = [json.loads(line) for line in (commands.parent / "calls").read_text().splitlines()]
    assert len(rows) == len(HOSTILE_NAMES)
    assert {tuple(row["arguments"]) for row in rows} == {("fixed $HOME; argument",)}
    assert {row["environment"]["EAGLENET_ALERT"] for row in rows} == {"red"}
    assert {row["environment"]["EAGLENET_PATH"] for row in rows} == {
        f"/new/{name}" for name in HOSTILE_NAMES
    }
    assert all(row["input"]["alert"] == "red" for row in rows)
    assert f"/new/{HOSTILE_NAMES[0]}" in [row["input"]["path"] for row in rows]
    assert rows[-1]["input"]["path"] == "/new/caf?.mp4"
    assert "a secret" not in rows[0]["environment"].values()
    assert not list(commands.parent.rglob("pwned*"))


def test_commands_that_fail_hang_or_do_not_exist(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moment = {"id": "1", "path": "/a.mp4"}
    with pytest.raises(ActionError, match="code 3"):
        make_command(f"{sys.executable} -S -c 'raise SystemExit(3)'")(moment)
    monkeypatch.setattr(alerts_module, "COMMAND_SECONDS", 0.3)
    child = "import subprocess, sys; subprocess.run(['sleep', '600'])"
    with pytest.raises(ActionError, match="longer than"):
        make_command(f'{sys.executable} -S -c "{child}"')(moment)
    script = tmp_path / "gone"
    script.write_text("#!/bin/sh\n")
    script.chmod(0o755)
    act = make_command(str(script))
    script.unlink()
    with pytest.raises(ActionError, match="cannot be run"):
        act(moment)
    for text in ("", "   ", "no-such-program-anywhere x", "a 'b"):
        with pytest.raises(UsageError, match="--command"):
            make_command(text)


class Webhook(http.server.BaseHTTPRequestHandler):
    """Answers with the statuses of the server, then with 204."""

    def do_POST(self) -> None:
        length = int(self.headers["Content-Length"])
        self.server.bodies.append(json.loads(self.rfile.read(length)))  # type: ignore[attr-defined]
        statuses = self.server.statuses  # type: ignore[attr-defined]
        status = statuses.pop(0) if statuses else 204
        self.send_response(status)
        if status == 302:
            self.send_header("Location", "/elsewhere")
        self.end_headers()

    def do_GET(self) -> None:
        raise AssertionError("a redirect was followed")

    def log_message(self, *arguments: object) -> None:
        """Print nothing."""


@pytest.fixture
def webhook() -> Iterator[http.server.HTTPServer]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Webhook)
    server.statuses, server.bodies = [], []  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_webhook_that_fails_twice_gets_the_moment_the_third_time(
    store: Path, bag: BagMethod, webhook: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(alerts_module, "RETRY_SECONDS", (0.05, 0.05, 0.05))
    webhook.statuses += [500, 302]
    url = f"http://127.0.0.1:{webhook.server_port}/hook"
    name = '","alert":"owned","x":".mp4'
    with watch(store, bag, make_webhook(url)) as alerts:
        add(store, bag, f"/new/{name}", 10, ["red"])
        [moment] = alerts.check()
        for _ in range(3000):
            if alerts.database.next_pending() is None:
                break
            threading.Event().wait(0.02)
        assert alerts.database.next_pending() is None
    assert webhook.bodies == [moment] * 3
    assert webhook.bodies[0]["alert"] == "red"
    assert webhook.bodies[0]["path"] == f"/new/{name}"


def test_a_webhook_that_drips_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each byte comes in time, the answer never."""
    monkeypatch.setattr("eaglenet.indexing.alerts.WEBHOOK_SECONDS", 0.2)
    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def drip() -> None:
            connection, _ = server.accept()
            with connection, contextlib.suppress(OSError):
                connection.sendall(b"HTTP/1.1 200 OK\r\nX: ")
                while not over.wait(0.05):
                    connection.sendall(b"x")

        threading.Thread(target=drip, daemon=True).start()
        began = time.monotonic()
        # On a busy machine a byte may be late as well.
        with pytest.raises(ActionError, match=r"did not answer within|timed out"):
            make_webhook(f"http://127.0.0.1:{server.getsockname()[1]}/")({"id": "1"})
        over.set()
    assert time.monotonic() - began < 30


def test_webhooks_that_cannot_be_reached_and_addresses_that_are_none(webhook: Any) -> None:
    webhook.shutdown()
    webhook.server_close()
    with pytest.raises(ActionError, match="cannot be reached"):
        make_webhook(f"http://127.0.0.1:{webhook.server_port}/")({"id": "1"})
    for url in (
        "",
        "file:///etc/passwd",
        "ftp://host/",
        "host/path",
        "http://",
        "http://host:0x50/",
        "http://host:99999/",
        "http://host/a b",
        "http://host/\r\nX: y",
        "javascript:alert(1)",
    ):
        with pytest.raises(UsageError, match="--webhook"):
            make_webhook(url)
    assert as_json({"path": "caf\udce9"}) == b'{"path": "caf?"}'


def test_bad_memories_second_watchers_and_other_queries_are_refused(
    store: Path, bag: BagMethod
) -> None:
    with pytest.raises(UsageError, match="plain texts only"):
        watch(store, bag, query='"a dog" then "a cat"')
    with pytest.raises(UsageError, match="empty"):
        watch(store, bag, query=" \x00")
    with pytest.raises(UsageError, match="'yesterday' is a date, and every new file is checked"):
        watch(store, bag, query="a red car yesterday")
    with pytest.raises(UsageError, match="0 to 1"):
        Alerts(store, ["red"], min_confidence=1.5)
    with watch(store, bag), pytest.raises(UsageError, match="already sends alerts"):
        watch(store, bag).__enter__()
    database_path(store).write_bytes(b"this is no database, whatever its name says" * 99)
    with pytest.raises(UsageError, match=r"alerts\.db: cannot be used"):
        watch(store, bag).__enter__()


def test_a_model_without_confidence_is_refused(
    store: Path, bag: BagMethod, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Engine, "_load_calibration", lambda self, view: None)
    with pytest.raises(UsageError, match="confidence was not measured"):
        watch(store, bag).__enter__()


def test_the_location_of_the_store_is_absolute_and_plain(store: Path, bag: BagMethod) -> None:
    (store.parent / "sub").mkdir()
    with watch(store.parent / "sub" / ".." / store.name, bag) as alerts:
        add(store, bag, "/new/a.mp4", 10, ["red"])
        assert [moment["store"] for moment in alerts.check()] == [str(store)]
        assert alerts.database.path == store.with_name("store.alerts.db")
    assert Alerts("s3://bucket/store", ["red"], min_confidence=0.8).store == "s3://bucket/store"


def test_files_that_were_reported_are_no_rivals_and_others_are_bounded(
    store: Path, bag: BagMethod, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tenth fox is as much a fox as the first, and a large store hides none."""
    monkeypatch.setattr(alerts_module, "MAX_RIVALS", 2)
    galleries = []
    search = Engine.search

    def spy(self: Engine, *arguments: Any, options: Any, **rest: Any) -> Any:
        galleries.append(options.filters.contents)
        return search(self, *arguments, options=options, **rest)

    monkeypatch.setattr(Engine, "search", spy)
    with watch(store, bag) as alerts:
        for number in range(10, 13):
            add(store, bag, f"/new/{number}.mp4", number, ["red"])
            assert len(alerts.check()) == 1
    assert [
        content_of(number) in gallery
        for number, gallery in zip(range(10, 13), galleries, strict=True)
    ] == [True] * 3
    assert all(len(gallery) <= 3 for gallery in galleries)
    assert content_of(10) not in galleries[1] | galleries[2]


def test_command_line_refuses_actions_without_alerts(tmp_path: Path) -> None:
    command = ["watch", str(tmp_path), "--store", str(tmp_path / "store")]
    for options, message in (
        (["--webhook", "http://host/"], "add --alert"),
        (["--alert", "a", "--command", "true", "--webhook", "http://host/"], "one of them"),
        (["--alert", "a", "--webhook", "file:///a"], "--webhook"),
        (["--alert", "a", "--command", "no-such-program"], "no program"),
    ):
        result = CliRunner().invoke(app, [*command, *options])
        assert result.exit_code != 0
        assert message in str(result.exception)
    result = CliRunner().invoke(app, [*command, "--alert", "a", "--min-confidence", "2"])
    assert result.exit_code == 2


@pytest.mark.slow
def test_watch_with_small_runs_a_command(tmp_path: Path, commands: Path) -> None:
    """From a folder to a command: a new image, and nothing the second time."""
    from PIL import Image

    folder = tmp_path / "images"
    folder.mkdir()
    Image.new("RGB", (128, 96), "red").save(folder / "red; touch pwned.jpg")
    arguments = ["watch", str(folder), "--store", str(tmp_path / "store"), "--rounds", "1"]
    arguments += ["--alert", "a red screen", "--min-confidence", "0.05"]
    arguments += ["--command", f"{sys.executable} -S {commands}"]
    for expected in (1, 1):
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == 0, result.output
        rows = (tmp_path / "calls").read_text().splitlines()
        assert len(rows) == expected
    assert json.loads(rows[0])["environment"]["EAGLENET_PATH"].endswith("red; touch pwned.jpg")
    assert not list(tmp_path.rglob("pwned"))
    assert os.path.exists(database_path(tmp_path / "store"))


def test_an_action_that_fails_in_an_unforeseen_way_stops_no_other(tmp_path: Path) -> None:
    """Without the thread that sends, all later alerts would be lost until the next start."""
    memory, is_sent = AlertDatabase(tmp_path / "a.db"), threading.Event()
    memory.add(memory.begin("red", []), "x", [{"id": "1", "path": "/\u7ea2"}, {"id": "2"}])

    def act(moment: Any) -> None:
        if moment["id"] == "1":
            raise UnicodeEncodeError("latin-1", moment["path"], 1, 2, "not in this locale")
        is_sent.set()

    with Sender(memory, act) as sender:
        assert is_sent.wait(10)
        assert sender._thread.is_alive()
    pending = memory.next_pending()
    assert pending is not None
    assert pending[0] == "1"
    memory.close()
