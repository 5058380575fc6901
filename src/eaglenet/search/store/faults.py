"""The operating system's refusals, in words that say what to do."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from eaglenet.core.errors import StoreError

FULL = (errno.ENOSPC, errno.EDQUOT)
FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS)


@contextmanager
def disk_errors(location: object, *, is_searched: bool = False) -> Iterator[None]:
    """Turn what a disk refuses into a :class:`StoreError` about the store at ``location``.

    ``is_searched``: whether the store can be searched although it cannot be written to.
    """
    try:
        yield
    except OSError as error:
        text = str(error).splitlines()[0] if str(error) else type(error).__name__
        if error.errno in FULL:
            raise StoreError(
                f"the disk of {location} is full; what was reported as done is safe and can be "
                "searched. Free some space and run the same command to continue"
            ) from error
        if error.errno in FORBIDDEN:
            works = "; searching it still works" if is_searched else ""
            raise StoreError(
                f"{location} cannot be written to ({text}){works}. Make it writable or give "
                "another --store"
            ) from error
        raise StoreError(f"{location}: {text}") from error
