"""What the confinement of decoders costs: indexing with and without it, in turns.

    python benchmarks/confinement.py --clips FOLDER
    python benchmarks/confinement.py --clips FOLDER --decoders

The other side is a copy of the package in which the system claims to have no confinement, so that a
worker decodes many files in one process. Processor time is that of the command and its workers.
With ``--decoders``, both passes only inspect and decode with one worker: the encoder, whose time
varies more than confinement costs, does not run.
"""

from __future__ import annotations

import argparse
import compileall
import shutil
import statistics
import tempfile
import time
from pathlib import Path

from before_after import run
from common import children_seconds, save_result

SOURCE = Path(__file__).parents[1] / "src"
QUESTION = "def is_supported() -> bool:\n"
DECODERS = """
import contextlib, sys
from pathlib import Path
from eaglenet.core.frame_spec import FrameSpec, Splitting
from eaglenet.indexing.decoding import decode_ahead, split_request
from eaglenet.indexing.files import CandidateFile
from eaglenet.indexing.inspection import inspect, inspect_ahead
from eaglenet.video.limits import Limits
from eaglenet.video.worker_host import Host

def requests(inspections, uses_keyframes):
    for each in inspections:
        inspected.append(each)
        windows = dict(enumerate(each.windows))
        yield from split_request(
            each.content, each.file.path, windows, each.version, each.duration, uses_keyframes
        )

spec, splitting, limits, inspected = FrameSpec(6, 224), Splitting(frame_step=1.6), Limits(), []
files = [CandidateFile(str(path), path.stat().st_size, path.stat().st_mtime_ns)
         for path in sorted(Path(sys.argv[1]).iterdir())]
with contextlib.closing(Host(inspect, limits.memory)) as host:
    inspections = inspect_ahead(files, splitting, frozenset(), 1, limits, host)
    for uses_keyframes in (True, False):
        for _ in decode_ahead(
            requests(inspections, uses_keyframes), spec, 1, limits, 1.6, overlap=2.0, host=host
        ):
            pass
        inspections = list(inspected)
"""
GOAL = 0.03
"""Maximum share of indexing."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clips", type=Path, required=True, help="folder of videos")
    parser.add_argument("--decoders", action="store_true", help="inspect and decode only")
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    wall: dict[str, list[float]] = {"confined": [], "unconfined": []}
    processor: dict[str, list[float]] = {name: [] for name in wall}
    with tempfile.TemporaryDirectory() as folder:
        trees = {"confined": SOURCE, "unconfined": without_confinement(Path(folder) / "src")}
        for number in range(options.repeats + 1):
            for name, tree in trees.items():
                store = f"{folder}/{name}-{number}"
                start, before = time.perf_counter(), children_seconds()
                if options.decoders:
                    run(tree, "-c", DECODERS, str(options.clips))
                else:
                    run(tree, "-m", "eaglenet", "index", str(options.clips), "--store", store)
                if number:  # The first run of each fills caches.
                    wall[name].append(time.perf_counter() - start)
                    processor[name].append(children_seconds() - before)
                shutil.rmtree(store, ignore_errors=True)
    ratios = [a / b for a, b in zip(processor["confined"], processor["unconfined"], strict=True)]
    differences = [
        a - b for a, b in zip(processor["confined"], processor["unconfined"], strict=True)
    ]
    values = {
        "repeats": options.repeats,
        "wall_median_s": {name: round(statistics.median(times), 2) for name, times in wall.items()},
        "processor_median_s": {
            name: round(statistics.median(times), 2) for name, times in processor.items()
        },
        "processor_ratio_median": round(statistics.median(ratios), 4),
        "processor_ratio_range": [round(min(ratios), 4), round(max(ratios), 4)],
        "processor_difference_s": [round(each, 2) for each in sorted(differences)],
        "is_goal_met": statistics.median(ratios) <= 1 + GOAL,
    }
    print(values)
    print(save_result("confinement-decoders" if options.decoders else "confinement", values))


def without_confinement(folder: Path) -> Path:
    """Copy the package, and let it find no confinement on this system."""
    shutil.copytree(SOURCE, folder, ignore=shutil.ignore_patterns("__pycache__"))
    path = folder / "eaglenet" / "video" / "confinement.py"
    content = path.read_text()
    assert content.count(QUESTION) == 1
    path.write_text(content.replace(QUESTION, f"{QUESTION}    return False\n"))
    for tree in (SOURCE, folder):
        compileall.compile_dir(tree, quiet=1)
    return folder


if __name__ == "__main__":
    main()
