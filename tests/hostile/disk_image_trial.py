"""Power cuts of a real file system: an ext4 image is copied, unflushed, while a store is written.

    sudo python tests/hostile/disk_image_trial.py --cuts 50

The image lies on a btrfs of its own, which copies it in one step (a clone): a copy block by block
would show blocks of different moments, which no disk does. Needs root, mkfs.ext4, mkfs.btrfs and
loop devices. Prints what each cut lost; nothing should be.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).parent
STORE_TESTS = HERE.parent / "store"
sys.path.insert(0, str(STORE_TESTS))
FILES = 40


def command(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True)


def trial(place: Path, number: int) -> str:
    """One cut; returns what was lost in words, or an empty text."""
    image, copy, mount = place / "disk.img", place / "copy.img", place / "mount"
    mount.mkdir(exist_ok=True)
    command("truncate", "-s", "64M", str(image))
    command("mkfs.ext4", "-q", "-F", str(image))
    command("mount", "-o", "loop", str(image), str(mount))
    reported: list[str] = []
    try:
        program = [str(STORE_TESTS / "index_run.py"), str(mount / "store"), str(FILES)]
        writer = subprocess.Popen(
            [sys.executable, *program, "/dev/stdout"],
            stdout=subprocess.PIPE,
            text=True,
            env={"PYTHONPATH": ":".join(sys.path), "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"},
        )
        assert writer.stdout is not None
        chance = random.Random(number)
        for _ in range(chance.randint(1, 12)):
            line = writer.stdout.readline().strip()
            if line:
                reported.append(line)
        time.sleep(chance.random() * 0.3)
        # The image, not the mounted files: what the kernel has not written yet is not in it.
        command("cp", "--reflink=always", str(image), str(copy))
        writer.kill()
        writer.wait()
    finally:
        command("umount", str(mount))
    command("mount", "-o", "loop", str(copy), str(mount))
    try:
        # Another process: this one must have no file open when the disk is unmounted.
        program = [sys.executable, __file__, "--check", str(mount / "store"), *reported]
        checked = subprocess.run(program, capture_output=True, text=True)
        return (checked.stdout + checked.stderr[-300:]).strip()
    finally:
        command("umount", str(mount))


def check(store: Path, reported: list[str]) -> str:
    """What of the reported files is lost; goes on with the run and verifies the store."""
    from index_run import found, index

    from eaglenet.store.store import LocalStore

    lost = set(reported) - found(store) if reported else set()
    index(store, FILES)
    LocalStore.open(store).verify()
    return f"lost {sorted(lost)}" if lost else ""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--cuts", type=int, default=50)
    parser.add_argument("--check", nargs="+", metavar="STORE [FILE ...]", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.check:
        store, *reported = arguments.check
        print(check(Path(store), reported), end="")
        return
    cuts = arguments.cuts
    losses = 0
    with tempfile.TemporaryDirectory() as folder:
        carrier, disk = Path(folder) / "carrier.img", Path(folder) / "carrier"
        disk.mkdir()
        command("truncate", "-s", "1G", str(carrier))
        command("mkfs.btrfs", "-q", str(carrier))
        command("mount", "-o", "loop", str(carrier), str(disk))
        try:
            for number in range(cuts):
                with tempfile.TemporaryDirectory(dir=disk) as place:
                    lost = trial(Path(place), number)
                losses += bool(lost)
                print(f"cut {number + 1}: {lost or 'nothing lost'}", flush=True)
        finally:
            command("umount", str(disk))
    print(f"{cuts} cuts, {losses} losses")


if __name__ == "__main__":
    main()
