"""Run by the kill test: index a folder, one clip a commit, and say what is done."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch

from eaglenet.core.frame_spec import Splitting
from eaglenet.indexing import encoding, index
from eaglenet.indexing import run as commit
from eaglenet.indexing.report import IndexProgress
from synthetic_store import BagMethod


def say_what_is_done(progress: IndexProgress) -> None:
    if progress.path:
        print(progress.done, progress.path, flush=True)


def main() -> None:
    torch.set_num_threads(1)
    commit.COMMIT_CLIPS, commit.PAUSE_FACTOR = 1, 0.0
    encoding.BATCH_FRAMES = 1
    options = index.IndexOptions(splitting=Splitting(3.0, 1.0), workers=0)
    index.index_videos(
        [sys.argv[1]],
        sys.argv[2],
        "bag",
        method=BagMethod(),
        options=options,
        on_progress=say_what_is_done,
    )
    print("finished", flush=True)


if __name__ == "__main__":
    main()
