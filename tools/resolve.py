"""Resolve the pinned versions for every supported Python and platform.

    python tools/resolve.py            check constraints.txt, print a table
    python tools/resolve.py --update   choose the pins again, write all three files, then check

Needs uv (``pip install uv``; ``make resolve`` does that) and a package index. Only wheels count: a
package that would have to be compiled is a failure. Exit code 1 if a supported combination does not
resolve.

The files:

- ``constraints.txt``: one version per package, for ``pip install ... -c constraints.txt``.
  The CUDA libraries are left out: each build of torch pins its own.
- ``requirements-hashed.txt``: what a plain installation needs with the hash of every file, for
  ``pip install --require-hashes -r requirements-hashed.txt``.
- ``tools/requirements.txt``: the tools that build a release, with hashes; ``make dist`` uses it.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CONSTRAINTS = ROOT / "constraints.txt"
HASHED = ROOT / "requirements-hashed.txt"
TOOL_REQUIREMENTS = ROOT / "tools" / "requirements.txt"

PYTHONS = ("3.11", "3.12", "3.13", "3.14")
PLATFORMS = {
    "Linux x86-64": "x86_64-manylinux_2_28",
    "Linux ARM64": "aarch64-manylinux_2_28",
    "macOS 14 ARM64": "aarch64-apple-darwin",
    "Windows x86-64": "x86_64-pc-windows-msvc",
}
UNSUPPORTED = {"macOS 14 x86-64": "x86_64-apple-darwin", "Windows ARM64": "aarch64-pc-windows-msvc"}
"""Shown for information: torch has no wheel for the first, several packages none for the second."""
MISSING = {("Linux ARM64", "mteb")}
"""Extras without wheels for all their packages, listed in docs/reference/limits.md; no failures."""
RELEASE_TOOLS = ("build", "hatchling", "twine", "uv")
OTHER_TOOLS = ("pip-audit", "ray[default,serve]")
"""Installed with ``-c constraints.txt`` by ``make audit`` and deploy/Dockerfile."""
CUDA = re.compile(r"(nvidia|cuda)-")


def uv_program() -> str:
    beside = Path(sys.executable).with_name("uv")
    program = str(beside) if beside.exists() else shutil.which("uv")
    if program is None:
        sys.exit("uv is not installed: pip install uv -c constraints.txt, or run `make resolve`")
    return program


def compile_pins(
    *arguments: str, extras: Sequence[str] | None = None, requirements: Sequence[str] = ()
) -> subprocess.CompletedProcess[str]:
    """Run ``uv pip compile`` on the project with ``extras`` (None: without it) and others."""
    project = [] if extras is None else ["pyproject.toml"]
    for name in extras or ():
        project += ["--extra", name]
    command = [uv_program(), "pip", "compile", *project, *(["-"] if requirements else [])]
    quiet = ["--no-config", "--quiet", "--no-annotate", "--no-header"]
    return subprocess.run(
        [*command, *quiet, *arguments],
        cwd=ROOT,
        input="\n".join(requirements),
        capture_output=True,
        text=True,
        env={**os.environ, "MACOSX_DEPLOYMENT_TARGET": "14.0"},
    )


def all_extras() -> list[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    return list(project["optional-dependencies"])


# Writing


def universal(
    *arguments: str,
    extras: Sequence[str] | None = None,
    requirements: Sequence[str] = (),
    previous: str = "",
) -> str:
    """Pins for every platform and Python from 3.11; keeps ``previous`` pins that still fit."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "pins.txt"
        output.write_text(previous, "utf-8")
        run = compile_pins(
            *("--universal", "--python-version", PYTHONS[0], "--fork-strategy", "fewest"),
            *("--output-file", str(output)),
            *arguments,
            extras=extras,
            requirements=requirements,
        )
        if run.returncode:
            sys.exit(run.stderr)
        return output.read_text("utf-8")


def plain_pins(text: str) -> str:
    """Constraint lines: markers only where the version depends on them, no CUDA libraries."""
    lines = defaultdict(list)
    for line in text.splitlines():
        if line and not CUDA.match(line):
            lines[line.partition("==")[0]].append(line)
    return "".join(
        f"{line if len(group) > 1 else line.partition(' ')[0]}\n"
        for _, group in sorted(lines.items())
        for line in group
    )


def update(upgrade: list[str]) -> None:
    pins = universal(
        *(argument for name in upgrade for argument in ("--upgrade-package", name)),
        extras=all_extras(),
        requirements=(*RELEASE_TOOLS, *OTHER_TOOLS),
        previous=CONSTRAINTS.read_text("utf-8"),
    )
    CONSTRAINTS.write_text(plain_pins(pins), "utf-8")
    hashes = ("--generate-hashes", "--constraint", "constraints.txt")
    previous = HASHED.read_text("utf-8") if HASHED.exists() else ""
    HASHED.write_text(universal(*hashes, extras=(), previous=previous), "utf-8")
    TOOL_REQUIREMENTS.write_text(universal(*hashes, requirements=RELEASE_TOOLS), "utf-8")


# Checking


def failure(platform: str, python: str, extras: Sequence[str]) -> str:
    """Why the pins do not resolve there; empty if they do."""
    run = compile_pins(
        *("--python-platform", platform, "--python-version", python),
        *("--only-binary", ":all:", "--constraint", "constraints.txt", "--output-file", os.devnull),
        extras=extras,
    )
    reason = " ".join(run.stderr.split()) if run.returncode else ""
    return reason.partition("cause: ")[2] or reason


def check(platforms: dict[str, str]) -> dict[tuple[str, str], dict[str, str]]:
    """Failures by platform and Python, then by extra."""
    results: dict[tuple[str, str], dict[str, str]] = {}
    for label, platform in platforms.items():
        for python in PYTHONS:
            failures: dict[str, str] = {}
            missing = [name for name in all_extras() if (label, name) in MISSING]
            others = [name for name in all_extras() if name not in missing]
            # What resolves with all extras resolves with fewer.
            suspects = missing if not failure(platform, python, others) else ["", *all_extras()]
            for name in suspects:
                reason = failure(platform, python, [name] if name else [])
                if reason:
                    failures[name or "(none)"] = reason
                    if not name:
                        break
            results[label, python] = failures
            print(f"  {label}, Python {python}: {summary(failures)}", flush=True)
    return results


def summary(failures: dict[str, str]) -> str:
    if not failures:
        return "all extras"
    if "(none)" in failures:
        return "no"
    return f"all but {', '.join(failures)}"


def table(results: dict[tuple[str, str], dict[str, str]]) -> str:
    labels = list(dict.fromkeys(label for label, _ in results))
    lines = [f"| platform | {' | '.join(PYTHONS)} |", f"|---|{'---|' * len(PYTHONS)}"]
    for label in labels:
        cells = [summary(results[label, python]) for python in PYTHONS]
        lines.append(f"| {label} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--update", action="store_true", help="write the pins again first")
    parser.add_argument(
        "--upgrade", nargs="*", default=[], metavar="PACKAGE", help="packages to upgrade"
    )
    parser.add_argument("--no-check", action="store_true", help="only write")
    options = parser.parse_args()
    if options.update or options.upgrade:
        update(options.upgrade)
    if options.no_check:
        return
    results = check(PLATFORMS)
    others = check(UNSUPPORTED)
    print(f"\n{table({**results, **others})}\n")
    reasons = {
        f"{label}, {name}: {reason}"
        for (label, _), failures in {**results, **others}.items()
        for name, reason in failures.items()
    }
    for reason in sorted(reasons):
        print(f"- {reason}")
    failed = {
        (label, name) for (label, _), failures in results.items() for name in failures
    } - MISSING
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
