"""``eaglenet doctor``: check the protection of this machine against malicious files."""

from __future__ import annotations

import platform
import sqlite3
import sys
from typing import Any

import typer

from eaglenet.cli.options import AsJson
from eaglenet.cli.terminal import print_record
from eaglenet.core.errors import UsageError
from eaglenet.version import __version__


def doctor(as_json: AsJson = False) -> None:
    """Check the video decoder and its confinement on this machine.

    Exit code 1: a protection is missing.
    """
    from eaglenet.video.confinement import landlock_version

    problems: list[str] = []
    is_linux = sys.platform == "linux"
    facts: dict[str, Any] = {
        "eaglenet": __version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "sqlite": sqlite3.sqlite_version,
        "ffmpeg": _ffmpeg(problems),
        "landlock": f"version {landlock_version()}" if is_linux else "Linux only",
    }
    missing_protections = _missing_confinement()
    facts["confinement"] = "complete" if not missing_protections else "incomplete"
    problems += [f"decoders are not fully confined: {reason}" for reason in missing_protections]
    lines = [f"{name:12} {value}" for name, value in facts.items()]
    lines += [f"problem      {problem}" for problem in problems]
    print_record({**facts, "problems": problems}, as_json, *lines)
    raise typer.Exit(1 if problems else 0)


def _ffmpeg(problems: list[str]) -> str:
    from eaglenet.video.containers import FFMPEG_FLOOR, ffmpeg_version, pyav

    try:
        version, name = ffmpeg_version(), str(pyav().ffmpeg_version_info)
    except UsageError as error:
        problems.append(str(error))
        return "not installed"
    if version < FFMPEG_FLOOR:
        floor = ".".join(map(str, FFMPEG_FLOOR))
        problems.append(
            f"FFmpeg {name} has known vulnerabilities; install {floor} or newer: pip install -U av"
        )
    return name


def _missing_confinement() -> tuple[str, ...]:
    """Start a decoder process and return the protections that it could not apply."""
    from eaglenet.video.decoding import decode_query
    from eaglenet.video.worker import start_worker

    worker = start_worker(decode_query)
    try:
        worker.read_ready()
    except (EOFError, OSError):
        return (f"decoder processes cannot start (exit code {worker.stop()})",)
    finally:
        worker.end()
    return worker.missing
