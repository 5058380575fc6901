"""Run by the kill tests: index a folder on a Ray cluster, and say what is done."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from eaglenet.cluster import ray_executor
from eaglenet.core.frame_spec import Splitting
from eaglenet.indexing import index
from eaglenet.indexing import run as commit
from eaglenet.indexing.options import ClusterOptions
from eaglenet.indexing.report import IndexProgress
from synthetic_store import BagMethod


def say_what_is_done(progress: IndexProgress) -> None:
    print(progress.clips, flush=True)


def main(address: str, folder: str, store: str) -> None:
    """Small shards and commits, so that there is much to interrupt."""
    commit.COMMIT_CLIPS = ray_executor.MAX_CALL = ray_executor.FIRST_CALL = 4
    commit.PAUSE_FACTOR = 0.0
    options = index.IndexOptions(
        splitting=Splitting(3.0, 1.0), workers=2, executor="ray", cluster=ClusterOptions(address)
    )
    index.index_videos(
        [folder], store, "bag", method=BagMethod(), options=options, on_progress=say_what_is_done
    )
    print("finished", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:4])
