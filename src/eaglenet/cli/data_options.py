"""Options that the commands over datasets share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

EXAMPLE = "train=7k"
DATASETS_WITH_VIDEOS = (
    "msrvtt, didemo, msvd, vatex, activitynet, lsmdc, youcook2, qvhighlights, charades-sta, tgif, "
    "folder (your own) or demo"
)
Dataset = Annotated[str, typer.Argument(help=f"{DATASETS_WITH_VIDEOS}.")]
Root = Annotated[Path, typer.Option("--root", help="Folder (or file) of the dataset.")]
VideoFolders = Annotated[
    list[Path] | None,
    typer.Option("--videos", help="Folder of video files, if not under the root; repeatable."),
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", help=f"Dataset option as name=value, e.g. {EXAMPLE}; repeatable."),
]
Workers = Annotated[int, typer.Option("--workers", help="Files checked in parallel.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
