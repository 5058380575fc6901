"""Two nodes of `torchrun` that meet on this machine, and one that dies and comes back."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from eaglenet.research.evaluation.run_records import read_log
from processes import free_port
from tiny import logged_losses

SCRIPT = Path(__file__).with_name("train_by_torchrun.py")
EPOCHS, STEPS_PER_EPOCH = 150, 3
RETURN_SECONDS = 12.0
"""In which the others notice that a node is gone: three of its signs of life, one a second."""
ROOT = Path(__file__).parents[3]


def node(
    port: int, number: int, arguments: list[str], *, nodes: int = 2, each: int = 1
) -> subprocess.Popen[str]:
    """Start one node: an agent of torchrun, in a group of its own, and its processes."""
    paths = [str(ROOT / "tests"), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        "OMP_NUM_THREADS": "1",
        # Else torch 2.13 tells a node that returns no address: it is kept from the first meeting.
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
    }
    command = [
        sys.executable, "-m", "torch.distributed.run",
        "--nnodes", str(nodes), "--nproc-per-node", str(each), "--max-restarts", "3",
        "--rdzv-backend", "c10d", "--rdzv-id", "test", "--rdzv-endpoint", f"localhost:{port}",
        "--rdzv-conf", f"is_host={int(number == 0)},join_timeout=120,keep_alive_interval=1",
        str(SCRIPT), *arguments,
    ]  # fmt: skip
    return subprocess.Popen(command, env=environment, text=True, start_new_session=True)


def end(*nodes: subprocess.Popen[str]) -> None:
    for each in nodes:
        if each.poll() is None:
            os.killpg(each.pid, signal.SIGKILL)
        each.wait()


def steps_of(run: Path) -> int:
    return len(logged_losses(run)) if (run / "log.jsonl").exists() else 0


@pytest.mark.slow
def test_two_nodes_of_one_process_are_one_node_of_two(features: Path, tmp_path: Path) -> None:
    port = free_port()
    one = [str(features), str(tmp_path / "one"), "3"]
    two = [str(features), str(tmp_path / "two"), "3"]
    nodes = [node(port, number, two) for number in range(2)]
    try:
        assert [each.wait(timeout=180) for each in nodes] == [0, 0]
        nodes.append(node(free_port(), 0, one, nodes=1, each=2))
        assert nodes[-1].wait(timeout=180) == 0
    finally:
        end(*nodes)
    found = logged_losses(tmp_path / "two")
    assert len(found) == 3 * STEPS_PER_EPOCH
    assert found == logged_losses(tmp_path / "one")


@pytest.mark.slow
def test_a_node_that_dies_and_returns_goes_on_from_the_last_checkpoint(
    features: Path, tmp_path: Path
) -> None:
    port, run = free_port(), tmp_path / "run"
    arguments = [str(features), str(run), str(EPOCHS)]
    first, second = node(port, 0, arguments), node(port, 1, arguments)
    third = None
    try:
        limit = time.monotonic() + 120
        while steps_of(run) < 40:
            assert time.monotonic() < limit
            assert first.poll() is None
            time.sleep(0.1)
        # The whole machine: the agent, and the process that trains.
        children = _children(second.pid)  # Before: those that are left belong to another then.
        assert children
        os.killpg(second.pid, signal.SIGKILL)
        for child in children:
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        second.wait()
        before = steps_of(run)
        assert before < EPOCHS * STEPS_PER_EPOCH
        time.sleep(RETURN_SECONDS)
        third = node(port, 1, arguments)
        assert [first.wait(timeout=900), third.wait(timeout=60)] == [0, 0]
    finally:
        end(first, second, *([third] if third is not None else []))
    steps = list(range(1, EPOCHS * STEPS_PER_EPOCH + 1))
    assert [record["step"] for record in logged_losses(run)] == steps
    starts = [entry.step for entry in read_log(run) if entry.event == "start"]
    assert starts[0] == 0
    # It went on after what was done, but for the steps since the last checkpoint.
    assert starts[-1] >= before - 10


def _children(pid: int) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == pid:
            found.append(int(path.parent.name))
    return found
