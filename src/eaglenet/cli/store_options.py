"""The option that every command on a store takes."""

from __future__ import annotations

from typing import Annotated

import typer

from eaglenet.user_folders import STORE_VARIABLE, default_store

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
