"""Run one fuzz target with Atheris.

    python fuzz/fuzz_target.py subtitles [LIBFUZZER OPTIONS] [CORPUS FOLDER]

``build.sh`` makes a copy of this file for each target, ``fuzz_NAME.py``, which needs no name.
"""

from __future__ import annotations

import sys
from pathlib import Path

import atheris

sys.path.insert(0, str(Path(__file__).parent))


def main() -> None:
    # Targets import their readers when they run: without this, nothing is instrumented.
    with atheris.instrument_imports(include=["eaglenet"]):
        from targets import TARGETS

        name = Path(sys.argv[0]).stem.removeprefix("fuzz_")
        if name not in TARGETS:
            name = sys.argv.pop(1)
        TARGETS[name](b"")
        atheris.Setup(sys.argv, TARGETS[name])
        atheris.Fuzz()


if __name__ == "__main__":
    main()
