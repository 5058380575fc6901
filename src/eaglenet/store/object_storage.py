"""Object storage: s3://, gs:// and az:// URLs. The only module that imports obstore.

Credentials and regions come from each provider's usual environment variables
(``AWS_ACCESS_KEY_ID``, ``GOOGLE_APPLICATION_CREDENTIALS``, ``AZURE_STORAGE_ACCOUNT_NAME``, ...);
``AWS_ENDPOINT_URL`` selects an S3-compatible service. The library retries after pauses when a
server is overloaded or a connection breaks. Every error names the object.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from eaglenet.core.errors import UsageError, naming_extra
from eaglenet.core.platform import is_below

SCHEMES = ("s3", "gs", "az")
ENDPOINT = "AWS_ENDPOINT_URL"
CREDENTIALS = {
    "s3": "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_REGION",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS",
    "az": "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
}
"""Environment variables with credentials; not needed on most machines of the provider."""
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
"""Maximum bytes between two ranges that one request reads. With the library's default of 1 MB, a
hundred records of a few kilobytes would read nearly the whole file."""


class ObjectError(OSError):
    """An object could not be read or written; the message names it."""


class MissingObjectError(ObjectError, FileNotFoundError):
    """The object does not exist."""


class ChangedObjectError(ObjectError):
    """A conditional write failed because another writer changed the object first."""


@dataclass(frozen=True)
class ObjectEntry:
    """An object in a listing."""

    url: str
    size: int
    last_modified: datetime
    etag: str


def is_object_url(location: object) -> bool:
    """Return whether a location is an object storage URL.

    >>> is_object_url("s3://bucket/videos"), is_object_url("/videos")
    (True, False)
    """
    return re.match(rf"({'|'.join(SCHEMES)})://", str(location)) is not None


def absolute_location(location: object) -> str:
    """Make a path absolute; object storage URLs only lose a final slash.

    >>> absolute_location("s3://bucket/videos/")
    's3://bucket/videos'
    """
    name = str(location)
    return name.rstrip("/") if is_object_url(name) else os.path.abspath(os.path.expanduser(name))


def require_names(paths: Iterable[object]) -> None:
    """Refuse an empty path, such as an unset variable of a shell: it means the current folder."""
    if not all(map(str, paths)):
        raise UsageError("a path is empty; name a file or folder (. is the current folder)")


def is_inside(location: str, root: str) -> bool:
    """Return whether a path or URL is ``root`` or lies below it.

    >>> is_inside("s3://bucket/videos/a.mp4", "s3://bucket/videos")
    True
    """
    flavour = posixpath if is_object_url(root) else os.path
    return location == root or is_below(location, root, flavour)


def select_inside(locations: Iterable[str], roots: Iterable[str]) -> list[str]:
    """Return the locations that are inside one of the roots, of which there may be thousands.

    >>> select_inside(["/videos/a.mp4", "/videos2/b.mp4", "/c.mp4"], ["/videos", "/c.mp4"])
    ['/videos/a.mp4', '/c.mp4']
    """
    names = {_comparable(root).rstrip("/" + os.sep) for root in roots}

    def is_selected(name: str) -> bool:
        ends = (end for end, char in enumerate(name) if char in ("/", os.sep))
        return name in names or any(name[:end] in names for end in ends)

    return [location for location in locations if is_selected(_comparable(location))]


def _comparable(location: str) -> str:
    return location if is_object_url(location) else os.path.normcase(location)


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
        with naming_extra("s3", f"{match[1]}:// needs obstore"):
            from obstore.store import from_url
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
            if any(phrase in text for phrase in MISSING_CREDENTIALS):
                hint = f"; no credentials found: set {CREDENTIALS[self._scheme]}"
            raise ObjectError(f"{where}: {' '.join(text.split())[:400]}{hint}") from error

    def read(self, name: str) -> tuple[bytes, str]:
        """Return the content and tag of an object."""
        with self._errors(name):
            response = self._store.get(name)
            return bytes(response.bytes()), _tag(response.meta)

    def read_ranges(self, name: str, spans: Sequence[tuple[int, int]]) -> list[bytes]:
        """Return byte ranges of an object; a span is a start and an exclusive end."""
        with self._errors(name):
            starts, ends = [first for first, _ in spans], [end for _, end in spans]
            chunks = self._store.get_ranges(name, starts=starts, ends=ends, coalesce=MAX_GAP)
            return [bytes(chunk) for chunk in chunks]

    def entry(self, name: str) -> ObjectEntry:
        """Return the listing entry of one object."""
        with self._errors(name):
            return self._entry(self._store.head(name))

    def tag(self, name: str) -> str:
        """Return the tag of an object, which changes with its content."""
        with self._errors(name):
            return _tag(self._store.head(name))

    def write(self, name: str, content: bytes) -> str:
        """Write or replace an object and return its tag."""
        with self._errors(name):
            return _tag(self._store.put(name, content))

    def write_if(self, name: str, content: bytes, tag: str | None) -> str:
        """Write an object that does not exist (``tag`` None) or still has ``tag``; return its tag.

        Raises :class:`ChangedObjectError`. If the reply to a successful write is lost, the retry
        conflicts with that write, which is recognised by ``content``: it must be unique.
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
        """Yield the objects whose names begin with ``prefix``, sorted by name."""
        with self._errors(prefix):
            for batch in self._store.list(prefix or None):
                yield from map(self._entry, batch)

    def _entry(self, meta: Any) -> ObjectEntry:
        url = f"{self.url}/{meta['path']}"
        return ObjectEntry(url, int(meta["size"]), meta["last_modified"], str(meta["e_tag"]))

    def remove(self, names: Sequence[str]) -> None:
        """Remove objects; missing ones are ignored."""
        for name in names:
            with self._errors(name), suppress(FileNotFoundError):
                self._store.delete(name)


def _tag(meta: Any) -> str:
    """Return the ETag, which S3 and Azure compare, and the version, which Google compares."""
    version = meta.get("version")
    return f"{meta['e_tag']} {version}" if version else str(meta["e_tag"])
