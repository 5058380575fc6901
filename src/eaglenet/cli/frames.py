"""`eaglenet data frames`: pictures and captions packed for training towers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from eaglenet.cli.progress import shown_progress
from eaglenet.settings import split_assignment


def register(app: typer.Typer) -> None:
    """Add the command to `eaglenet data`."""
    app.command("frames", help="Pack pictures with captions into a folder of frames.")(frames)


def frames(
    images: Annotated[Path, typer.Option(help="Folder of pictures, with its subfolders.")],
    captions: Annotated[
        list[str],
        typer.Option(help="KIND=FILE with KIND people, machine or labels; repeatable."),
    ],
    source: Annotated[str, typer.Option(help="Short name of their source, e.g. coco.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder to write.")],
    size: Annotated[int, typer.Option(help="Side of a frame in pixels.")] = 192,
    item: Annotated[
        str, typer.Option(help="Pattern whose group finds a picture's item in its path.")
    ] = "",
    halves: Annotated[
        bool, typer.Option("--halves", help="Every picture is two frames side by side.")
    ] = False,
    only: Annotated[Path | None, typer.Option(help="File with the ids to take.")] = None,
    without: Annotated[
        list[Path] | None, typer.Option(help="File with ids to leave out (a test split).")
    ] = None,
    validation: Annotated[
        float, typer.Option(help="Share or number of items held out for validation.")
    ] = 0.0,
    test: Annotated[
        bool, typer.Option("--test", help="All items are the test split, in a folder of its own.")
    ] = False,
) -> None:
    """Pack pictures with captions; `eaglenet train small --set folders=A,B` trains on them."""
    from eaglenet.data.frame_folder import CAPTION_KINDS
    from eaglenet.data.frame_preparation import FramePreparation, prepare_frames
    from eaglenet.errors import UsageError

    files = {}
    for entry in captions:
        kind, path = split_assignment(entry, "people=captions.json")
        if kind not in CAPTION_KINDS:
            raise UsageError(f"--captions {entry}: {kind} is not one of {', '.join(CAPTION_KINDS)}")
        files[kind] = Path(path)
    plan = FramePreparation(
        images, files, source, size, item, halves, only, tuple(without or ()), validation, test
    )
    with shown_progress(quiet=False) as announce:
        counts = prepare_frames(plan, output, announce(source))
    print(
        f"{counts['items']} items, {counts['frames']} frames in {output}; "
        f"{counts['validation']} items held out for validation"
    )
    if counts["unreadable"]:
        print(f"{counts['unreadable']} pictures could not be read and were left out")
        raise typer.Exit(3)
