"""Run eaglenet as on a system without the features of Linux.

    python -P hidden_features.py LEVEL LOG ARGUMENTS

LEVEL is ``macos`` or ``bare``. Hides the features in this process and in every child process before
anything else is imported. Each process appends its number to the file LOG.
"""

from __future__ import annotations

import builtins
import ctypes
import io
import os
import shutil
import signal
import sys
from typing import Any

LINUX_ONLY = ("sched_getaffinity", "posix_fadvise", "sendfile", "preadv")
POSIX_ONLY = (
    *("fork", "forkpty", "nice", "pread", "pwrite", "readv", "writev", "getuid"),
    *("O_DIRECTORY", "O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "mkfifo"),
)


def hide(level: str) -> None:
    hide_proc()
    hide_libc_functions("prctl", "renameat2")
    for name in LINUX_ONLY:
        vars(os).pop(name, None)
    if level == "bare":
        for name in POSIX_ONLY:
            vars(os).pop(name, None)
        os.supports_dir_fd.clear()
        vars(shutil)["_use_fd_functions"] = False  # decided when shutil was imported
        vars(signal).pop("SIGKILL", None)
        for module in ("fcntl", "resource"):
            sys.modules[module] = None  # type: ignore[assignment]


def hide_proc() -> None:
    def guard(function: Any) -> Any:
        def guarded(path: Any = ".", *arguments: Any, **options: Any) -> Any:
            if isinstance(path, str | os.PathLike) and os.fspath(path).startswith("/proc"):
                raise FileNotFoundError(2, "No such file or directory", os.fspath(path))
            if options.get("dir_fd") is not None and not os.supports_dir_fd:
                raise NotImplementedError("dir_fd unavailable on this platform")
            return function(path, *arguments, **options)

        return guarded

    for module, names in ((os, ("open", "stat", "listdir")), (io, ("open",))):
        for name in names:
            setattr(module, name, guard(getattr(module, name)))
    builtins.open = io.open


def hide_libc_functions(*hidden: str) -> None:
    original = ctypes.CDLL

    class CDLL(original):  # type: ignore[misc,valid-type]
        def __getattr__(self, name: str) -> Any:
            if name in hidden:
                raise AttributeError(name)
            return super().__getattr__(name)

    ctypes.CDLL = CDLL  # type: ignore[misc]


def start(level: str, log: str) -> None:
    with open(log, "a") as stream:
        stream.write(f"{os.getpid()}\n")
    hide(level)


if __name__ == "__main__":
    level, log = sys.argv[1:3]
    start(level, log)
    from eaglenet.cli.main import main
    from eaglenet.core import process

    code = f"exec(open({__file__!r}).read(), space := {{'__name__': 'hidden'}}); "
    process._BOOT = f"{code}space['start']({level!r}, {log!r}); {process._BOOT}"
    sys.argv = ["eaglenet", *sys.argv[3:]]
    main()
