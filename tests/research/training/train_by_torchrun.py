"""What every process of a node does in ``test_two_nodes.py``; a process id and a start a line."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch

from eaglenet.research.experiments.runs import train
from tiny import tiny_experiment


def main() -> None:
    """Arguments: folder of features, folder of the run, epochs."""
    features, output, epochs = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    print(f"started {os.getpid()} rank {os.environ['RANK']}", flush=True)
    train(tiny_experiment(features, epochs=epochs), output, device="cpu")


if __name__ == "__main__":
    main()
