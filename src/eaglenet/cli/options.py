"""Options and output that commands share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from eaglenet.core.errors import UsageError
from eaglenet.core.platform import STORE_VARIABLE, default_store

if TYPE_CHECKING:
    pass


Settings = Annotated[
    list[str] | None,
    typer.Option("--set", help="Change a setting: section.field=value; repeatable."),
]
Output = Annotated[Path, typer.Option("--output", "-o", help="Folder for the run.")]
Root = Annotated[
    str, typer.Option("--root", help="Folder (or file) of the dataset or of the features.")
]
Device = Annotated[str, typer.Option("--device", help="auto, cpu, cuda or mps.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Seeds = Annotated[int, typer.Option("--seeds", min=1, help="Number of seeds (0, 1, ...).")]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Check settings, data and device; train nothing.")
]
Data = Annotated[
    str,
    typer.Option(
        "--data", metavar="NAME", help="demo, folder, frames, features, experts, msrvtt, didemo, "
        "msvd, vatex, activitynet, lsmdc, youcook2, qvhighlights, charades-sta or tgif; default "
        "demo.",
    ),
]  # fmt: skip
Tower = Annotated[
    str,
    typer.Option("--tower", metavar="NAME", help="clip-b16, siglip2-b16, small, ...; default: the "
                 "data's first (`eaglenet recipes`)."),
]  # fmt: skip
Protocol = Annotated[
    str,
    typer.Option("--protocol", metavar="NAME", help="paper, released, original or equal; default: "
                 "the first that the data and the tower have."),
]  # fmt: skip
Variants = Annotated[
    list[str] | None,
    typer.Option("--variant", metavar="NAME=VALUE", help="Variant of the method, such as "
                 "edges=no-f2f; repeatable."),
]  # fmt: skip


def root_setting(root: str) -> list[str]:
    """`--root` as a setting; refuses a missing folder before weights are looked for."""
    if root and not Path(root).expanduser().exists():
        raise UsageError(f"--root {root}: no such folder or file")
    return [f"data.root={root}"] if root else []


def print_table(title: str, header: list[str], cells: list[list[str]]) -> None:
    """Print a table to the terminal."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    for index, name in enumerate(header):
        table.add_column(
            name.replace(" ", "\n"), justify="left" if index == 0 else "right", no_wrap=True
        )
    for row in cells:
        table.add_row(*row)
    console = Console()
    # A line that the terminal wraps is better than a number cut to "13...".
    console.width = max(console.width, Console(width=1000).measure(table).maximum)
    console.print(table)


StoreName = Annotated[
    str,
    typer.Option(
        "--store",
        envvar=STORE_VARIABLE,
        default_factory=default_store,
        show_default="in your data folder",
        metavar="FOLDER",
        help="Use this store.",
    ),
]
