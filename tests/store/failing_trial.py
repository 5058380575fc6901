"""Every call of an index run and a repair that changes a file fails once, in one process.

Run by ``test_failing_calls.py`` with ``tests/hostile/failing_calls.c`` loaded before libc:

    LD_PRELOAD=failing.so python tests/store/failing_trial.py FOLDER STEP
"""

from __future__ import annotations

import ctypes
import errno
import shutil
import sys
from pathlib import Path

from index_run import found, index
from made_store import path_of

from eaglenet.core.errors import EagleNetError
from eaglenet.store.store import LocalStore

FAULTS = [(errno.ENOSPC, False), (errno.EIO, True)]
FILES = 3
EVERY = {path_of(number) for number in range(FILES)}


def trial(shim: ctypes.CDLL, place: Path, at: int, number: int, is_torn: bool) -> tuple[int, str]:
    """Fail one call, then go on with a disk that works; calls made, and what went wrong."""
    store, reported_files = place / "store", list[str]()
    place.mkdir(parents=True)
    wrong = ""
    shim.fault_arm(str(place).encode(), ctypes.c_long(at), number, int(is_torn))
    try:
        index(store, FILES, reported_files)
        index(store, FILES - 1)
        index(store, FILES)
        LocalStore.repair(store)
    except EagleNetError as error:
        text = str(error)
        wrong = f"more than one line: {error}" if "\n" in text else ""
        # Of a failed sync or a file that cannot be created, SQLite does not say why.
        if number == errno.ENOSPC and "full" not in text and "the disk failed" not in text:
            wrong = f"not recognised as a full disk: {text}"
        reported_files = reported_files if len(reported_files) < FILES else []
    except BaseException as error:
        wrong = f"{type(error).__name__}: {error}"
    finally:
        calls = shim.fault_disarm()
    if reported_files and not found(store) >= set(reported_files):
        wrong += f" lost {set(reported_files) - found(store)}"
    index(store, FILES)
    LocalStore.repair(store)
    if found(store) != EVERY:
        wrong += " the next run did not go on"
    LocalStore.open(store).verify()
    shutil.rmtree(place)
    return calls, wrong


def main() -> None:
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
