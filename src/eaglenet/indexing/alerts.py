"""Saved searches: act once for every new moment that matches a query.

After each index run, every new file is searched. One transaction records in a small database beside
the store that a file was checked, and its moments that are likely enough. A thread then runs the
command or calls the webhook, and retries with growing pauses if that fails. So a restart repeats
nothing and loses nothing. If this program is killed during an action, the action is repeated after
the restart; receivers recognise the moment by its ``id``.

File names are untrusted. A command is started without a shell, with only the arguments that the
user typed, and gets the moment as JSON on standard input and in its environment. A webhook gets the
same JSON.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shlex
import shutil
import signal
import sqlite3
import subprocess
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from eaglenet.core.errors import EagleNetError, UsageError
from eaglenet.core.files import LockHeldError, hold_lock
from eaglenet.core.platform import data_folder
from eaglenet.search.chat import KEY_VARIABLE
from eaglenet.search.confidence import MIN_CLIPS
from eaglenet.search.engine import Engine
from eaglenet.search.grammar import parse
from eaglenet.search.hit import Hit
from eaglenet.search.options import Filters, SearchOptions
from eaglenet.search.query import Query, clean_text
from eaglenet.search.wording import negation_in
from eaglenet.store.records import FileTable
from eaglenet.store.store import kind_of

logger = logging.getLogger(__name__)

RETRY_SECONDS = (2.0, 10.0, 60.0, 300.0, 1800.0, 7200.0)
"""Pauses in seconds after failures; after the last one a moment is given up."""
MAX_PAUSE = 60.0
COMMAND_SECONDS, WEBHOOK_SECONDS = 60.0, 15.0
MAX_RIVALS = 300
"""Maximum files to compare a new one with; confidence was measured for this number."""
MAX_HITS = 50
"""Maximum hits of a new file and the files it is compared with; later ones are unlikely."""
MIN_SECONDS_APART = 10.0
"""Minimum seconds between two moments of a file; closer ones count as the same moment."""
SECRETS = ("EAGLENET_TOKEN", "EAGLENET_SESSION", KEY_VARIABLE)
"""Environment variables that are withheld from commands."""
SCHEMA = """
CREATE TABLE IF NOT EXISTS alerts (id INTEGER PRIMARY KEY, query TEXT UNIQUE NOT NULL);
CREATE TABLE IF NOT EXISTS files (
  alert INTEGER NOT NULL, content TEXT NOT NULL, PRIMARY KEY (alert, content)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS moments (
  id TEXT PRIMARY KEY, alert INTEGER NOT NULL, content TEXT NOT NULL, moment TEXT NOT NULL,
  state TEXT NOT NULL, attempts INTEGER NOT NULL, next_attempt REAL NOT NULL
);
"""
Act = Callable[[Mapping[str, Any]], None]
"""Acts on a moment; raises :class:`ActionError` if that fails."""


class ActionError(EagleNetError):
    """A command or a webhook failed."""


def make_command(text: str) -> Act:
    """Return an action that runs a command; the text is split once, here, and no shell runs it."""
    try:
        arguments = shlex.split(text)
    except ValueError as error:
        raise UsageError(f"--command {text!r}: {error}") from None
    if not arguments or shutil.which(arguments[0]) is None:
        name = arguments[0] if arguments else text
        raise UsageError(f"--command: no program {name!r}; use its full path")

    def run(moment: Mapping[str, Any]) -> None:
        try:
            process = subprocess.Popen(
                arguments,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=command_environment(moment),
                start_new_session=True,
            )
            try:
                process.communicate(as_json(moment), timeout=COMMAND_SECONDS)
            finally:
                if process.poll() is None:
                    _kill_group(process)
        except subprocess.TimeoutExpired:
            raise ActionError(f"the command took longer than {COMMAND_SECONDS:.0f} s") from None
        except OSError as error:
            raise ActionError(f"the command cannot be run: {error.strerror}") from error
        if process.returncode:
            raise ActionError(f"the command ended with code {process.returncode}")

    return run


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    """Kill a command with everything that it started."""
    if os.name == "posix":
        os.killpg(process.pid, signal.SIGKILL)
    else:
        process.kill()
    process.wait()


def command_environment(moment: Mapping[str, Any]) -> dict[str, str]:
    """Return the environment without secrets, and each value of a moment as ``EAGLENET_NAME``."""
    environment = {name: value for name, value in os.environ.items() if name not in SECRETS}
    values = {f"EAGLENET_{name.upper()}": str(value) for name, value in moment.items()}
    return {**environment, **values}


def as_json(moment: Mapping[str, Any]) -> bytes:
    """Return a moment as JSON; a name that is not Unicode gets question marks."""
    texts = {
        name: value.encode("utf-8", "replace").decode() if isinstance(value, str) else value
        for name, value in moment.items()
    }
    return json.dumps(texts).encode()


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *arguments: Any) -> None:
        """Refuse a redirect: the user did not choose its target."""
        return


def make_webhook(url: str) -> Act:
    """Return an action that posts a moment as JSON; any answer but 2xx is a failure."""
    try:
        parts = urllib.parse.urlsplit(url)
        is_valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_valid = False
    if not is_valid or not url.isascii() or not url.isprintable() or " " in url:
        raise UsageError(f"--webhook {url!r:.80}: use an address such as https://host/path")
    opener = urllib.request.build_opener(_NoRedirects)

    def post(moment: Mapping[str, Any]) -> None:
        headers = {"Content-Type": "application/json", "User-Agent": "eaglenet"}
        request = urllib.request.Request(url, as_json(moment), headers)
        try:
            with opener.open(request, timeout=WEBHOOK_SECONDS):
                return
        except urllib.error.HTTPError as error:
            error.close()
            raise ActionError(f"the webhook answered {error.code}") from None
        except (OSError, ValueError) as error:
            raise ActionError(f"the webhook cannot be reached: {error}") from error
        except Exception as error:  # http.client has its own exceptions.
            raise ActionError(f"the webhook sent no valid response: {error!r:.100}") from error

    def act(moment: Mapping[str, Any]) -> None:
        outcome: Future[None] = Future()

        def run() -> None:
            try:
                post(moment)
            except ActionError as error:
                outcome.set_exception(error)
            else:
                outcome.set_result(None)

        # The timeout of a socket restarts with every byte, and resolving a host name has none.
        threading.Thread(target=run, name="webhook", daemon=True).start()
        try:
            outcome.result(2 * WEBHOOK_SECONDS)
        except TimeoutError:
            limit = f"{2 * WEBHOOK_SECONDS:.0f} s"
            raise ActionError(f"the webhook did not answer within {limit}") from None

    return act


def _absolute(store: str | Path) -> str:
    """Return the absolute path of a local store, without ``..``; return a URL unchanged."""
    text = str(store)
    return text if "://" in text else os.path.abspath(os.path.expanduser(text))


def database_path(store: str | Path) -> Path:
    """Return the path of the alerts of a store: beside it, or in the data folder for a URL."""
    text = _absolute(store)
    if "://" in text:
        name = hashlib.sha256(text.encode()).hexdigest()[:16]
        return data_folder() / f"{name}.alerts.db"
    path = Path(text)
    return path.with_name(f"{path.name}.alerts.db")


class AlertDatabase:
    """Database of checked files, and of moments with their state: pending, done or given up."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            # Queries and moments are as private as the store.
            path.touch(mode=0o600)
            self._connection = sqlite3.connect(path, check_same_thread=False)
            self._connection.executescript(SCHEMA)
        except (OSError, sqlite3.DatabaseError) as error:
            raise UsageError(
                f"{path}: cannot be used for alerts ({error}); delete it to start again"
            ) from error

    def close(self) -> None:
        with self._lock:
            self._connection.close()

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._lock, self._connection:
            yield self._connection

    def begin(self, query: str, contents: Sequence[str]) -> int:
        """Return the id of an alert. If it is new, files with these contents count as checked."""
        with self._transaction() as connection:
            row = connection.execute("SELECT id FROM alerts WHERE query = ?", (query,)).fetchone()
            if row is not None:
                return int(row[0])
            alert = connection.execute("INSERT INTO alerts (query) VALUES (?)", (query,)).lastrowid
            assert alert is not None
            rows = [(alert, content) for content in contents]
            connection.executemany("INSERT INTO files VALUES (?, ?)", rows)
            return alert

    def checked_contents(self, alert: int) -> set[str]:
        """Return the contents that were checked for an alert."""
        return self._contents("SELECT content FROM files WHERE alert = ?", alert)

    def contents_with_moments(self, alert: int) -> set[str]:
        """Return the contents with a moment of an alert."""
        return self._contents("SELECT DISTINCT content FROM moments WHERE alert = ?", alert)

    def _contents(self, statement: str, alert: int) -> set[str]:
        with self._transaction() as connection:
            return {content for (content,) in connection.execute(statement, (alert,))}

    def add(self, alert: int, content: str, moments: Sequence[Mapping[str, Any]]) -> None:
        """Record that a file was checked, and its moments, which become pending."""
        rows = [
            (moment["id"], alert, content, json.dumps(moment), "pending", 0, 0.0)
            for moment in moments
        ]
        with self._transaction() as connection:
            connection.execute("INSERT OR IGNORE INTO files VALUES (?, ?)", (alert, content))
            connection.executemany(
                "INSERT OR IGNORE INTO moments VALUES (?, ?, ?, ?, ?, ?, ?)", rows
            )

    def next_pending(self) -> tuple[str, dict[str, Any], int, float] | None:
        """Return id, moment, number of attempts and due time of the moment that is due first."""
        with self._transaction() as connection:
            row = connection.execute(
                "SELECT id, moment, attempts, next_attempt FROM moments WHERE state = 'pending' "
                "ORDER BY next_attempt, rowid LIMIT 1"
            ).fetchone()
        return None if row is None else (row[0], json.loads(row[1]), row[2], row[3])

    def update(self, name: str, state: str, attempts: int, next_attempt: float) -> None:
        with self._transaction() as connection:
            connection.execute(
                "UPDATE moments SET state = ?, attempts = ?, next_attempt = ? WHERE id = ?",
                (state, attempts, next_attempt, name),
            )


class Sender(AbstractContextManager["Sender"]):
    """Thread that acts on pending moments, with growing pauses after failures."""

    def __init__(
        self, database: AlertDatabase, act: Act | None, clock: Callable[[], float] = time.time
    ) -> None:
        self.database = database
        self.act = act
        self.clock = clock
        self._wake = threading.Event()
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, name="alerts", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        """Wait for the current action; the others stay pending until the next start."""
        self._is_stopping = True
        self._wake.set()
        self._thread.join(COMMAND_SECONDS + 5)

    def wake(self) -> None:
        self._wake.set()

    def _run(self) -> None:
        while True:
            # Cleared before the test: a stop after it then ends the next wait.
            self._wake.clear()
            if self._is_stopping:
                return
            try:
                pause = self.send_next()
            except Exception as error:  # Without this thread, nothing more would be sent.
                logger.error("%s: %s; trying again later", self.database.path, error)
                pause = MAX_PAUSE
            if pause:
                self._wake.wait(pause)

    def send_next(self) -> float:
        """Act on the moment that is due first; return the seconds to wait if none is due."""
        row = self.database.next_pending()
        if row is None:
            return MAX_PAUSE
        name, moment, attempts, due = row
        pause = due - self.clock()
        # A longer pause means that the clock of the machine was set back.
        if 0 < pause <= max(RETRY_SECONDS):
            return min(pause, MAX_PAUSE)
        self._send(name, moment, attempts)
        return 0.0

    def _send(self, name: str, moment: Mapping[str, Any], attempts: int) -> None:
        is_last = attempts >= len(RETRY_SECONDS)
        pause = 0.0 if is_last else RETRY_SECONDS[attempts]
        # Counted before the action, so that one that ends this program is not repeated forever.
        self.database.update(name, "pending", attempts + 1, self.clock() + pause)
        try:
            if self.act is not None:
                self.act(moment)
        except Exception as error:  # Such as a name that the locale of the machine cannot encode.
            state = "given up" if is_last else "pending"
            self.database.update(name, state, attempts + 1, self.clock() + pause)
            outlook = "given up" if is_last else f"trying again in {pause:.0f} s"
            reason = error if isinstance(error, ActionError) else f"{type(error).__name__}: {error}"
            logger.warning("alert %s: %s; %s", name, reason, outlook)
        else:
            self.database.update(name, "done", attempts + 1, self.clock())


@dataclass(frozen=True)
class ContentFilter(Filters):
    """Files with some contents."""

    min_clips: ClassVar[int] = 0
    """No minimum: the first file of a camera is checked too, and the user sets the threshold."""
    contents: frozenset[str] = frozenset()

    def _conditions(self, files: FileTable) -> Iterator[tuple[str, NDArray[np.bool_]]]:
        is_allowed = (content in self.contents for content in files.contents)
        yield "one of the contents", np.fromiter(is_allowed, bool, len(files))


class Alerts(AbstractContextManager["Alerts"]):
    """The alerts of one watched store. Use it in a ``with`` statement, one process per store."""

    def __init__(
        self,
        store: str | Path,
        queries: Sequence[str],
        *,
        min_confidence: float,
        act: Act | None = None,
        model: str | None = None,
    ) -> None:
        """Without ``act``, moments are only returned by :meth:`check`."""
        if not 0 <= min_confidence <= 1:
            raise UsageError(f"--min-confidence {min_confidence}: use a number from 0 to 1")
        self.store = _absolute(store)
        self.queries = list(dict.fromkeys(map(_plain_text, queries)))
        self.min_confidence = min_confidence
        self.act = act
        self.model = model
        self._engine: Engine | None = None
        self._ids: dict[str, int] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        path = database_path(self.store)
        path.parent.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            try:
                stack.enter_context(hold_lock(path.with_suffix(".lock")))
            except LockHeldError as error:
                raise UsageError(
                    f"{error} already sends alerts for {self.store}; add --alert to its command"
                ) from None
            self.database = AlertDatabase(path)
            stack.callback(self.database.close)
            contents = self._contents()
            self._ids = {query: self.database.begin(query, contents) for query in self.queries}
            self.sender = stack.enter_context(Sender(self.database, self.act))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()
        if self._engine is not None:
            self._engine.close()

    def finish(self) -> None:
        """Act on every moment that is due, once; failures stay pending."""
        self.sender.__exit__()
        while not self.sender.send_next():
            pass

    def check(self) -> list[dict[str, Any]]:
        """Check files that are new since the last call; return their moments."""
        contents = self._contents()
        new_moments = []
        for query, alert in self._ids.items():
            checked_contents = self.database.checked_contents(alert)
            new_contents = [content for content in contents if content not in checked_contents]
            others = set(contents) - self.database.contents_with_moments(alert)
            rivals = sorted(others - set(new_contents))
            if len(rivals) < MIN_CLIPS:
                # The first files of a store: without rivals, all of them would seem likely.
                rivals = sorted(others)
            for content in new_contents:
                moments = self._search(query, content, rivals)
                self.database.add(alert, content, moments)
                new_moments += moments
        if new_moments:
            self.sender.wake()
        return new_moments

    def _contents(self) -> list[str]:
        """Return the contents of the files in the store; none without a store."""
        if self._engine is None:
            if not kind_of(self.store).exists(self.store):
                return []
            self._engine = Engine.open(self.store, self.model)
            if not self._engine.has_confidence:
                raise _not_measured(self._engine)
            self._warn_of_wording(self._engine)
        return self._engine.read(lambda view: list(view.files.contents))

    def _warn_of_wording(self, engine: Engine) -> None:
        """Log hints on alerts in another language, and on those that say what not to show."""
        for text in self.queries:
            query, options = Query(text), SearchOptions(modalities=("visual",))
            negation = negation_in(query, options)
            for hint in (
                engine.language_hint(query, options),
                negation.reason if negation is not None else "",
            ):
                if hint:
                    logger.warning("--alert %r: %s", text, hint)

    def _search(self, query: str, content: str, rivals: Sequence[str]) -> list[dict[str, Any]]:
        """Return the moments of one file; confidence compares it with ``rivals``."""
        assert self._engine is not None
        # Evenly spaced, so that the number does not depend on how much is stored.
        step = max(1, -(-len(rivals) // MAX_RIVALS))
        gallery = frozenset([content, *rivals[::step]])
        options = SearchOptions(
            filters=ContentFilter(contents=gallery),
            modalities=("visual",),
            keep_duplicates=True,
        )
        hits = self._engine.search(Query(query), MAX_HITS, options=options)
        own_hits = [hit for hit in hits if hit.clip_id.startswith(f"{content[:16]}-")]
        if any(hit.confidence is None for hit in own_hits):
            raise _not_measured(self._engine)
        likely_hits = [hit for hit in own_hits if (hit.confidence or 0.0) >= self.min_confidence]
        likely_hits.sort(key=lambda hit: -(hit.confidence or 0.0))
        return [describe(hit, query, self.store) for hit in _keep_distant(likely_hits)]


def _plain_text(text: str) -> str:
    query = parse(clean_text(text))
    if not isinstance(query, Query) or query.text is None:
        raise UsageError(f"--alert {text!r:.80}: confidence is measured for plain texts only")
    if query.dates is not None:
        raise UsageError(
            f"--alert {text!r:.80}: {query.dates.phrase!r} is a date, and every new file is "
            "checked; leave it out"
        )
    return query.text


def _not_measured(engine: Engine) -> UsageError:
    return UsageError(
        f"confidence was not measured for {engine.manifest.model!r} and the hubness bank of "
        f"{engine.location}; alerts need a store made with --model small"
    )


def _keep_distant(hits: Sequence[Hit]) -> list[Hit]:
    """Return the hits of one file, best first, without those too close to a better one."""
    distant_hits: list[Hit] = []
    for hit in hits:
        moment = hit.moment
        if all(
            moment.start > other.moment.end + MIN_SECONDS_APART
            or moment.end < other.moment.start - MIN_SECONDS_APART
            for other in distant_hits
        ):
            distant_hits.append(hit)
    return distant_hits


def describe(hit: Hit, query: str, store: str) -> dict[str, Any]:
    """Return a moment as commands and webhooks receive it; equal moments have equal ids."""
    name = hashlib.sha256(f"{query}\n{hit.clip_id}".encode()).hexdigest()[:32]
    return {
        "id": name,
        "alert": query,
        "path": hit.path,
        "clip_id": hit.clip_id,
        "start": round(hit.moment.start, 3),
        "end": round(hit.moment.end, 3),
        "best": round(hit.moment.best, 3),
        "confidence": round(hit.confidence or 0.0, 4),
        "store": store,
    }
