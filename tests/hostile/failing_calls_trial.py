"""Every write, sync, rename and removal of an index run and a repair fails once, in one process.

Run by ``test_failing_calls.py`` with ``failing_calls.c`` loaded before libc:

    LD_PRELOAD=shim.so python tests/hostile/failing_calls_trial.py FOLDER STEP
"""

from __future__ import annotations

import ctypes
import errno
import logging
import shutil
import sys
from pathlib import Path

from synthetic_store import BagMethod
from test_power_cut import FILES, found, work

from eaglenet.core.errors import EagleNetError
from eaglenet.indexing.maintenance import repair

FAULTS = [(errno.ENOSPC, False), (errno.EIO, True)]
EVERY = {f"/videos/{number}.mp4" for number in range(FILES)}


def trial(shim: ctypes.CDLL, place: Path, at: int, number: int, is_torn: bool) -> tuple[int, str]:
    """Fail one call, then go on with a disk that works; calls made, and what went wrong."""
    bag, store, reported = BagMethod(), place / "store", list[str]()
    place.mkdir(parents=True)
    wrong = ""
    shim.fault_arm(str(place).encode(), ctypes.c_long(at), number, int(is_torn))
    try:
        work(store, bag, reported)
        repair(store)
    except EagleNetError as error:
        wrong = f"more than one line: {error}" if "\n" in str(error) else ""
    except BaseException as error:
        wrong = f"{type(error).__name__}: {error}"
    finally:
        calls = shim.fault_disarm()
    if reported and not found(store, bag) >= set(reported):
        wrong += f" lost {set(reported) - found(store, bag)}"
    work(store, bag, [])
    repair(store)
    if found(store, bag) != EVERY:
        wrong += " the next run did not go on"
    shutil.rmtree(place)
    return calls, wrong


def main() -> None:
    logging.disable()
    shim = ctypes.CDLL(None)
    shim.fault_disarm.restype = ctypes.c_long
    folder, step = Path(sys.argv[1]).resolve(), int(sys.argv[2])
    calls, wrong = trial(shim, folder / "whole", 0, 0, False)
    assert calls > 100, f"the layer saw {calls} calls: it is not loaded"
    assert not wrong, wrong
    trials = failures = 0
    for number, is_torn in FAULTS:
        for at in range(1, calls + 1, step):
            _, wrong = trial(shim, folder / f"{at}", at, number, is_torn)
            trials += 1
            failures += bool(wrong)
            if wrong:
                print(f"call {at}, {errno.errorcode[number]}: {wrong}", flush=True)
    print(f"{calls} calls, {trials} faults, {failures} failures")


if __name__ == "__main__":
    main()
