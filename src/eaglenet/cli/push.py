"""`eaglenet push`: a model folder or a run to a repository of the hub, with a model card."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from eaglenet.cli.options import AsJson
from eaglenet.cli.terminal import print_line


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("push")(push)


def push(
    folder: Annotated[Path, typer.Argument(help="Run or model folder.")],
    repository: Annotated[str, typer.Argument(help="Repository of the hub, OWNER/NAME.")],
    licence: Annotated[
        str, typer.Option("--license", help="Licence of the weights, such as apache-2.0.")
    ] = "",
    private: Annotated[bool, typer.Option("--private", help="Create it private.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the model card; upload nothing.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Upload a model to a repository of the hub, with a model card.

    The card says what the model is, how it was trained and what was measured, from the files of the
    run. Log in first with `hf auth login`, or set HF_TOKEN.
    """
    from eaglenet.research.experiments.publication import find_model, model_card, push_model

    model = find_model(folder)
    card = model_card(folder, repository, licence)
    if dry_run:
        print(card)
        return
    address = push_model(model, repository, card, private=private)
    if as_json:
        print(json.dumps({"repository": repository, "address": address}))
        return
    print_line(f"{folder} is at {address}")
