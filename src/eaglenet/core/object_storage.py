"""Object storage: s3://, gs:// and az:// URLs. The only module that imports obstore.

Credentials and regions come from each provider's usual environment variables
(``AWS_ACCESS_KEY_ID``, ``GOOGLE_APPLICATION_CREDENTIALS``, ``AZURE_STORAGE_ACCOUNT_NAME``, ...);
``AWS_ENDPOINT_URL`` selects an S3-compatible service. The library retries overloaded servers and
broken connections with pauses. Every error names the object.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from eaglenet.core.errors import UsageError
from eaglenet.core.platform import is_below

SCHEMES = ("s3", "gs", "az")
ENDPOINT = "AWS_ENDPOINT_URL"
CREDENTIALS = {
    "s3": "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_REGION",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS",
    "az": "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
}
"""Environment variables with credentials; a provider's own machines may need none."""
MISSING_CREDENTIALS = (
    "169.254.169.254",
    "metadata.google",
    "Account must be specified",
    "credential",
)
"""Error texts that mean no credentials were found."""
RETRY_SECONDS = 60.0
REQUEST_SECONDS = 60.0
MAX_GAP = 2**16
"""Bytes between two ranges up to which one request reads both. The library's own limit of a
megabyte reads nearly the whole file for a hundred records of some kilobytes."""


class ObjectError(OSError):
    """An object could not be read or written; the text names it."""


class MissingObjectError(ObjectError, FileNotFoundError):
    """There is no such object."""


class ChangedObjectError(ObjectError):
    """A conditional write failed because another writer changed the object first."""


@dataclass(frozen=True)
class ObjectEntry:
    """An object in a listing."""

    url: str
    size: int
    modified: datetime
    etag: str


def is_object_url(location: object) -> bool:
    """Return whether a location is an object storage URL.

    >>> is_object_url("s3://bucket/videos"), is_object_url("/videos")
    (True, False)
    """
    return re.match(rf"({'|'.join(SCHEMES)})://", str(location)) is not None


def absolute_location(location: object) -> str:
    """Return a path as an absolute path; object storage URLs stay as they are.

    >>> absolute_location("s3://bucket/videos/")
    's3://bucket/videos'
    """
    name = str(location)
    return name.rstrip("/") if is_object_url(name) else os.path.abspath(os.path.expanduser(name))


def is_inside(location: str, root: str) -> bool:
    """Return whether a path or URL is ``root`` or lies below it.

    >>> is_inside("s3://bucket/videos/a.mp4", "s3://bucket/videos")
    True
    """
    flavour = posixpath if is_object_url(root) else os.path
    return location == root or is_below(location, root, flavour)


def outermost(locations: Iterable[str]) -> list[str]:
    """Leave out locations that lie below another one.

    >>> outermost(["/videos/june", "/videos", "/videos/a.mp4", "/images"])
    ['/videos', '/images']
    """
    names = dict.fromkeys(locations)
    return [
        name
        for name in names
        if not any(name[:end] in names for end, char in enumerate(name) if char in ("/", os.sep))
    ]


class ObjectFolder:
    """The objects below one URL; names are relative to it. Safe to use from several threads."""

    def __init__(self, url: str) -> None:
        match = re.fullmatch(rf"({'|'.join(SCHEMES)})://([^/]+)(?:/(.*))?", url)
        if match is None:
            raise UsageError(f"{url!r:.200} is not an object storage URL; write s3://BUCKET/NAME")
        try:
            from obstore.store import from_url
        except ImportError as error:
            raise UsageError(
                f"{match[1]}:// needs obstore ({error}); install it with: "
                "pip install 'eaglenet[s3]'"
            ) from error
        self.url = url.rstrip("/")
        self._scheme = match[1]
        options: dict[str, Any] = {}
        endpoint = os.environ.get(ENDPOINT, "")
        client: dict[str, Any] = {"timeout": timedelta(seconds=REQUEST_SECONDS)}
        prefix = {"s3": "AWS", "gs": "GOOGLE", "az": "AZURE"}[match[1]]
        if os.environ.get(f"{prefix}_ALLOW_HTTP", "").lower() == "true":
            client["allow_http"] = True
        if endpoint and match[1] == "s3":
            options["endpoint"] = endpoint
            client["allow_http"] = endpoint.startswith("http://")
        retry = {"max_retries": 10, "retry_timeout": timedelta(seconds=RETRY_SECONDS)}
        with self._errors(""):
            self._store = from_url(self.url, client_options=client, retry_config=retry, **options)

    @contextmanager
    def _errors(self, name: str) -> Iterator[None]:
        from obstore import exceptions

        where = f"{self.url}/{name}" if name else self.url
        try:
            yield
        except FileNotFoundError as error:
            raise MissingObjectError(f"{where}: no such object") from error
        except (exceptions.AlreadyExistsError, exceptions.PreconditionError) as error:
            raise ChangedObjectError(f"{where}: another writer was faster") from error
        except (exceptions.BaseError, OSError, ValueError) as error:
            text = str(error).split("Debug source")[0]
            hint = ""
            if any(sign in text for sign in MISSING_CREDENTIALS):
                hint = f"; no credentials found: set {CREDENTIALS[self._scheme]}"
            raise ObjectError(f"{where}: {' '.join(text.split())[:400]}{hint}") from error

    def read(self, name: str) -> tuple[bytes, str]:
        """Return the content and tag of an object."""
        with self._errors(name):
            answer = self._store.get(name)
            return bytes(answer.bytes()), _tag(answer.meta)

    def read_ranges(self, name: str, spans: Sequence[tuple[int, int]]) -> list[bytes]:
        """Return byte ranges of an object; a span is its first byte and the byte after its last."""
        with self._errors(name):
            starts, ends = [first for first, _ in spans], [end for _, end in spans]
            chunks = self._store.get_ranges(name, starts=starts, ends=ends, coalesce=MAX_GAP)
            return [bytes(chunk) for chunk in chunks]

    def entry(self, name: str) -> ObjectEntry:
        """Return the listing entry of one object."""
        with self._errors(name):
            entry = self._store.head(name)
            url = f"{self.url}/{name}"
            return ObjectEntry(url, int(entry["size"]), entry["last_modified"], entry["e_tag"])

    def tag(self, name: str) -> str:
        """Return a text that changes with the content of an object."""
        with self._errors(name):
            return _tag(self._store.head(name))

    def write(self, name: str, content: bytes) -> str:
        """Write or replace an object and return its tag."""
        with self._errors(name):
            return _tag(self._store.put(name, content))

    def write_if(self, name: str, content: bytes, tag: str | None) -> str:
        """Write an object that does not exist (``tag`` None) or still has ``tag``; return its tag.

        Raises :class:`ChangedObjectError`. If the reply to a successful write is lost, the retry
        fails on our own write; ``content`` must be unique so that this can be recognised.
        """
        try:
            with self._errors(name):
                mode: Any = "create"
                if tag is not None:
                    e_tag, _, version = tag.partition(" ")
                    mode = {"e_tag": e_tag, "version": version} if version else {"e_tag": e_tag}
                return _tag(self._store.put(name, content, mode=mode))
        except ChangedObjectError:
            stored_content, current_tag = self.read(name)
            if stored_content == content:
                return current_tag
            raise

    def list(self, prefix: str = "") -> Iterator[ObjectEntry]:
        """Yield the objects whose names begin with ``prefix``, in order of their names."""
        with self._errors(prefix):
            for batch in self._store.list(prefix or None):
                for entry in batch:
                    yield ObjectEntry(
                        f"{self.url}/{entry['path']}",
                        int(entry["size"]),
                        entry["last_modified"],
                        str(entry["e_tag"]),
                    )

    def remove(self, names: Sequence[str]) -> None:
        """Remove objects; missing ones are ignored."""
        for name in names:
            with self._errors(name):
                try:
                    self._store.delete(name)
                except FileNotFoundError:
                    continue


def _tag(meta: Any) -> str:
    """Return ETag and version: S3 and Azure compare the first, Google the second."""
    version = meta.get("version")
    return f"{meta['e_tag']} {version}" if version else str(meta["e_tag"])
