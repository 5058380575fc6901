"""Options and displays that the training commands share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from eaglenet.core.errors import UsageError
from eaglenet.core.platform import STORE_VARIABLE, default_store

if TYPE_CHECKING:
    from eaglenet.research.experiments.experiment import Experiment


Settings = Annotated[
    list[str] | None,
    typer.Option("--set", help="Change a setting: section.field=value; repeatable."),
]
Output = Annotated[Path, typer.Option("--output", "-o", help="Folder for the run.")]
Root = Annotated[
    str, typer.Option("--root", help="Folder (or file) of the dataset or of the features.")
]
Device = Annotated[str, typer.Option("--device", help="auto, cpu or cuda.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Seeds = Annotated[int, typer.Option("--seeds", min=1, help="How many seeds (0, 1, ...).")]


def find_experiment(name: str, settings: list[str] | None) -> Experiment:
    """A recipe by name, or an experiment saved as JSON, with `--set` applied."""
    from eaglenet.research.experiments.experiment import Experiment
    from eaglenet.research.recipes import RECIPES, build_recipe

    is_file = name not in RECIPES and Path(name).suffix == ".json" and Path(name).is_file()
    experiment = Experiment.load(Path(name)) if is_file else build_recipe(name)
    return experiment.override(settings or [])


def root_setting(root: str) -> list[str]:
    """`--root` as a setting; a wrong one is told before weights are looked for."""
    if root and not Path(root).expanduser().exists():
        raise UsageError(f"--root {root}: no such folder or file")
    return [f"data.root={root}"] if root else []


def print_table(title: str, header: list[str], cells: list[list[str]]) -> None:
    """A table on the terminal."""
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


# The option that every command on a store takes.

StoreName = Annotated[
    str,
    typer.Option(
        "--store",
        envvar=STORE_VARIABLE,
        default_factory=default_store,
        show_default="in your data folder",
        metavar="FOLDER",
        help="The store.",
    ),
]
