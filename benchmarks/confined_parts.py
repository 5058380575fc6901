"""Parts of the price of a confined process per file: processor time and page faults per file.

    OMP_NUM_THREADS=1 python benchmarks/confined_parts.py --clips FOLDER

Forks processes like the host of a worker: empty ones, confined ones, and ones that inspect or
decode a file. "Lasting" is the same work in one unconfined process for all files. Prints the run
with the least processor time; meaningful only on an idle machine.
"""

from __future__ import annotations

import argparse
import gc
import os
import resource
from collections.abc import Callable, Sequence
from pathlib import Path

from eaglenet.core.frame_spec import FrameSpec, Splitting
from eaglenet.core.platform import exit_with_parent, limit_process
from eaglenet.indexing.decoding import decode_clips, split_request
from eaglenet.indexing.files import CandidateFile
from eaglenet.indexing.inspection import Inspection, inspect, inspect_ahead
from eaglenet.video import confinement
from eaglenet.video.input_file import share_file, use_shared_file
from eaglenet.video.worker_host import load_decoders

SPEC = FrameSpec(num_frames=6, size=224)
SPLITTING = Splitting(frame_step=1.6)
Work = Callable[[Inspection], None]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clips", type=Path, required=True, help="folder of videos")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    paths = sorted(path for path in options.clips.iterdir() if path.is_file())
    files = [CandidateFile(str(p), p.stat().st_size, p.stat().st_mtime_ns) for p in paths]
    inspections = list(inspect_ahead(files, SPLITTING, frozenset(), 1))
    load_decoders()
    confinement.pack_filter(threads=False)
    gc.collect()
    gc.freeze()

    def measure(name: str, work: Work, *, is_lasting: bool = False) -> None:
        groups = [inspections] if is_lasting else [[each] for each in inspections]
        milliseconds, faults = min(
            cost_per_file(groups, work, is_confined=not is_lasting and work is not do_nothing)
            for _ in range(options.repeats)
        )
        print(f"{name:24} {milliseconds:6.1f} ms {faults:6.0f} page faults", flush=True)

    measure("empty", do_nothing)
    measure("confined", lambda inspection: None)
    for name, work in {"inspection": inspect_again, "keyframes": quick, "exact": exact}.items():
        measure(f"{name}, lasting", work, is_lasting=True)
        measure(f"{name}, confined", work)


def do_nothing(inspection: Inspection) -> None:
    pass


def inspect_again(inspection: Inspection) -> None:
    inspect(inspection.file, SPLITTING, frozenset())


def quick(inspection: Inspection) -> None:
    decode(inspection, uses_keyframes=True)


def exact(inspection: Inspection) -> None:
    decode(inspection, uses_keyframes=False)


def decode(inspection: Inspection, *, uses_keyframes: bool) -> None:
    windows = dict(enumerate(inspection.windows))
    path, duration = inspection.file.path, inspection.duration
    for request in split_request(
        inspection.content, path, windows, inspection.version, duration, uses_keyframes
    ):
        decode_clips(request, SPEC, SPLITTING.frame_step, SPLITTING.overlap)


def cost_per_file(
    groups: Sequence[Sequence[Inspection]], work: Work, *, is_confined: bool
) -> tuple[float, float]:
    """Run ``work`` on each group of files in a forked process; return ms and faults per file."""
    host, before = os.getpid(), usage()
    for group in groups:
        child = os.fork()
        if child == 0:
            try:
                for inspection in group:
                    use_shared_file(share_file(inspection.file.path))
                    if is_confined:
                        exit_with_parent(host)
                        limit_process(can_start=False)
                        confinement.restrict_files()
                        confinement.restrict_system_calls(threads=False)
                    work(inspection)
                os._exit(0)
            finally:
                os._exit(1)
        _, status = os.waitpid(child, 0)
        assert status == 0
    count = sum(map(len, groups))
    seconds, faults = (after - start for after, start in zip(usage(), before, strict=True))
    return 1000 * seconds / count, faults / count


def usage() -> tuple[float, float]:
    """Return processor seconds of this process and its children, and page faults of the latter."""
    here = resource.getrusage(resource.RUSAGE_SELF)
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = here.ru_utime + here.ru_stime + children.ru_utime + children.ru_stime
    return seconds, float(children.ru_minflt)


if __name__ == "__main__":
    main()
