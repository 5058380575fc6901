"""Run the fast test files, as ``make quick`` does before a commit.

    python tools/quick.py                    run the files that tools/quick.txt names
    python tools/quick.py --choose REPORT    write that list from a report of the default tests

``pytest --junitxml REPORT`` on an idle machine writes the report. A file is fast if all its tests
together take less than SECONDS. Files are listed by name, so they may move between folders.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[1]
LIST = Path(__file__).with_suffix(".txt")
SECONDS = 1.0


def seconds_by_file(report: Path) -> dict[str, float]:
    """Time of all tests of a file, by its name; without files that were skipped as a whole."""
    seconds: Counter[str] = Counter()
    for case in ElementTree.parse(report).iter("testcase"):
        if case.find("skipped") is not None:
            continue
        modules = case.get("classname", "").split(".")
        name = next((module for module in modules if module.startswith("test_")), None)
        if name is not None:
            seconds[f"{name}.py"] += float(case.get("time", 0))
    return dict(seconds)


def choose(report: Path) -> list[str]:
    return sorted(name for name, time in seconds_by_file(report).items() if time < SECONDS)


def fast_files() -> list[str]:
    """Paths of the listed files that still exist."""
    names = set(LIST.read_text("utf-8").split())
    return sorted(str(path) for path in (ROOT / "tests").rglob("test_*.py") if path.name in names)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--choose", type=Path, metavar="REPORT", help="write the list from this")
    options = parser.parse_args()
    if options.choose:
        names = choose(options.choose)
        LIST.write_text("".join(f"{name}\n" for name in names), "utf-8")
        print(f"{len(names)} files in {LIST}")
        return
    # Two processes with half of the files each: workers of pytest-xdist would both import all.
    files = fast_files()
    command = [sys.executable, "-m", "pytest", "--no-header", "-p", "no:schemathesis"]
    processes = [
        subprocess.Popen([*command, *files[half::2]], cwd=ROOT, stdout=subprocess.PIPE, text=True)
        for half in range(2)
    ]
    for process in processes:
        print(process.communicate()[0], flush=True)
    sys.exit(max(process.returncode for process in processes))


if __name__ == "__main__":
    main()
