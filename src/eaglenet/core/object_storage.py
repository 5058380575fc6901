"""Object storage: s3://, gs:// and az:// by one library. The only file that imports obstore.

Credentials and regions come from the usual variables of each provider (``AWS_ACCESS_KEY_ID``,
``GOOGLE_APPLICATION_CREDENTIALS``, ``AZURE_STORAGE_ACCOUNT_NAME``, ...), an endpoint of another
maker from ``AWS_ENDPOINT_URL``. Answers of overload and connections that are cut are tried again
below here, with pauses. Every error names the object.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from eaglenet.core.errors import UsageError

SCHEMES = ("s3", "gs", "az")
ENDPOINT = "AWS_ENDPOINT_URL"
CREDENTIALS = {
    "s3": "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_REGION",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS",
    "az": "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
}
"""Variables that say who asks; a machine of the provider may know it without them."""
UNKNOWN_ASKER = ("169.254.169.254", "metadata.google", "Account must be specified", "credential")
"""In errors of an asker who is not known: his machine was asked who he is, in vain."""
RETRY_SECONDS = 60.0
REQUEST_SECONDS = 60.0


class ObjectError(OSError):
    """An object could not be read or written; the text names it."""


class MissingObjectError(ObjectError, FileNotFoundError):
    """There is no such object."""


class ChangedObjectError(ObjectError):
    """The object is not what the condition of a write said: another was faster."""


@dataclass(frozen=True)
class FoundObject:
    """An entry of a listing."""

    url: str
    size: int
    modified: datetime
    etag: str


def is_object(location: object) -> bool:
    """Whether a location is one of object storage.

    >>> is_object("s3://bucket/videos"), is_object("/videos")
    (True, False)
    """
    return re.match(rf"({'|'.join(SCHEMES)})://", str(location)) is not None


def absolute(location: object) -> str:
    """A path from the root on; an address of object storage as it is.

    >>> absolute("s3://bucket/videos/")
    's3://bucket/videos'
    """
    name = str(location)
    return name.rstrip("/") if is_object(name) else os.path.abspath(os.path.expanduser(name))


def storage_options(url: str) -> dict[str, str]:
    """For libraries that reach the same storage by themselves."""
    endpoint = os.environ.get(ENDPOINT, "")
    if not endpoint or not url.startswith("s3://"):
        return {}  # The variable is S3's.
    return {"endpoint": endpoint, "allow_http": str(endpoint.startswith("http://")).lower()}


class ObjectFolder:
    """What lies under one address; names are relative to it. Safe in several threads."""

    def __init__(self, url: str) -> None:
        match = re.fullmatch(rf"({'|'.join(SCHEMES)})://([^/]+)(?:/(.*))?", url)
        if match is None:
            raise UsageError(
                f"{url!r:.200} is not an address of object storage; write s3://BUCKET/NAME"
            )
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
            raise MissingObjectError(f"{where}: there is no such object") from error
        except (exceptions.AlreadyExistsError, exceptions.PreconditionError) as error:
            raise ChangedObjectError(f"{where}: another writer was faster") from error
        except (exceptions.BaseError, OSError, ValueError) as error:
            text = str(error).split("Debug source")[0]
            hint = ""
            if any(sign in text for sign in UNKNOWN_ASKER):
                hint = f"; no credentials were found: set {CREDENTIALS[self._scheme]}"
            raise ObjectError(f"{where}: {' '.join(text.split())[:400]}{hint}") from error

    def read(self, name: str) -> tuple[bytes, str]:
        """Content and tag of an object."""
        with self._errors(name):
            answer = self._store.get(name)
            return bytes(answer.bytes()), _tag(answer.meta)

    def read_ranges(self, name: str, spans: Sequence[tuple[int, int]]) -> list[bytes]:
        """Stretches of one object: first byte, and the one after the last."""
        with self._errors(name):
            starts, ends = [first for first, _ in spans], [end for _, end in spans]
            return [bytes(part) for part in self._store.get_ranges(name, starts=starts, ends=ends)]

    def look(self, name: str) -> FoundObject:
        """What a listing would say of one object."""
        with self._errors(name):
            entry = self._store.head(name)
            url = f"{self.url}/{name}"
            return FoundObject(url, int(entry["size"]), entry["last_modified"], entry["e_tag"])

    def tag(self, name: str) -> str:
        """Changes with the content of an object."""
        with self._errors(name):
            return _tag(self._store.head(name))

    def write(self, name: str, content: bytes) -> str:
        """Write or replace an object; returns its tag."""
        with self._errors(name):
            return _tag(self._store.put(name, content))

    def write_if(self, name: str, content: bytes, tag: str | None) -> str:
        """Write an object that is not there (``tag`` None), or still has this tag; its new tag.

        Raises :class:`ChangedObjectError`. An answer may get lost after the write was done, and the
        next attempt then fails on our own: so ``content`` must be unlike any other's.
        """
        try:
            with self._errors(name):
                mode: Any = "create"
                if tag is not None:
                    e_tag, _, version = tag.partition(" ")
                    mode = {"e_tag": e_tag, "version": version} if version else {"e_tag": e_tag}
                return _tag(self._store.put(name, content, mode=mode))
        except ChangedObjectError:
            found, now = self.read(name)
            if found == content:
                return now
            raise

    def list(self, prefix: str = "") -> Iterator[FoundObject]:
        """Objects under this address whose names begin so, in order of their names."""
        with self._errors(prefix):
            for batch in self._store.list(prefix or None):
                for entry in batch:
                    yield FoundObject(
                        f"{self.url}/{entry['path']}",
                        int(entry["size"]),
                        entry["last_modified"],
                        str(entry["e_tag"]),
                    )

    def remove(self, names: Sequence[str]) -> None:
        """Remove objects; those that are gone already too."""
        for name in names:
            with self._errors(name):
                try:
                    self._store.delete(name)
                except FileNotFoundError:
                    continue


def _tag(found: Any) -> str:
    """Changes with an object. S3 and Azure compare the first word of it, Google the second."""
    version = found.get("version")
    return f"{found['e_tag']} {version}" if version else str(found["e_tag"])
