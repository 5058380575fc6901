"""``eaglenet mcp``: a server for assistants on standard input and output."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from eaglenet.cli.options import StoreName
from eaglenet.cli.terminal import end_short_command


def register(app: typer.Typer) -> None:
    app.command("mcp", help="Let assistants search: an MCP server on standard input and output.")(
        mcp
    )


def mcp(
    store: StoreName,
    save_folder: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Let assistants save clips into this folder."),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Load the model from here, if it has moved.")
    ] = None,
    device: Annotated[str, typer.Option(help="Run the model on auto, cpu, cuda or mps.")] = "auto",
) -> None:
    """Serve one assistant until it closes standard input; programs start this, not people."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    import anyio

    from eaglenet.search.engine import Engine
    from eaglenet.serve.mcp import serve_stdio

    anyio.run(serve_stdio, Engine.open(store, model, device), save_folder)
    # The client waits for the end of the process, and kills one that takes seconds.
    end_short_command(0)
