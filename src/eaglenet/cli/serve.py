"""``eaglenet serve``: the search page and the HTTP API."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from eaglenet.cli.options import StoreName
from eaglenet.core.errors import UsageError

SHORT_TOKEN, LONGEST_TOKEN = 16, 4096
"""Characters."""


def register(app: typer.Typer) -> None:
    app.command("serve", help="Search in a browser and over HTTP.")(serve)


def serve(
    store: StoreName,
    host: Annotated[
        str, typer.Option(help="Address to listen on; any but a local one needs a token.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any free one.")] = 8000,
    token_file: Annotated[
        Path | None,
        typer.Option(
            help="File with the secret that clients must send; - for standard input. Or set "
            "EAGLENET_TOKEN."
        ),
    ] = None,
    model: Annotated[str | None, typer.Option(help="Where the model is, if it moved.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    rate: Annotated[float, typer.Option(min=0.1, help="Searches per second and client.")] = 100.0,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds for one answer.")] = 30.0,
    allow_uploads: Annotated[
        bool, typer.Option("--allow-uploads", help="Search with uploaded pictures and videos too.")
    ] = False,
    shard: Annotated[
        str | None,
        typer.Option(metavar="I/N", help="Serve part I of N of the store to a front, no page."),
    ] = None,
    shards: Annotated[
        str | None,
        typer.Option(metavar="URL,URL,...", help="Be the front of these shards, 1/N to N/N."),
    ] = None,
) -> None:
    """Serve the page and the API until interrupted."""
    # Threads that spin while they wait take the core from those they wait for: with other work
    # on the machine a query took ten times as long. Read when torch is loaded, so set before.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        from eaglenet.serve.server import run, run_app
    except ModuleNotFoundError as error:
        if error.name not in ("fastapi", "uvicorn", "prometheus_client", "starlette"):
            raise
        raise UsageError(
            f"the service needs {error.name}; install it with: pip install 'eaglenet[serve]'"
        ) from error
    from eaglenet.search.engine import Engine
    from eaglenet.search.store.base import open_store
    from eaglenet.serve.settings import Settings, is_local_host

    token = read_token(token_file)
    settings = Settings(
        token=token,
        session=os.environ.get("EAGLENET_SESSION") or None,
        local=is_local_host(host),
        search_rate=rate,
        timeout=timeout,
        allow_uploads=allow_uploads,
    )
    if not settings.local and len(token or "") < SHORT_TOKEN:
        print(
            f"warning: the token is short; {SHORT_TOKEN} characters or more cannot be guessed",
            file=sys.stderr,
        )
    asks = "; asks for the token" if token else ""

    def ready(address: str) -> None:
        print(f"serving {what} of {store} at {address} (ctrl-c stops){asks}", flush=True)

    if shard is not None:
        from eaglenet.cluster.shards import create_shard_app, parse_part

        if shards is not None:
            raise UsageError("--shard serves a part, --shards asks several: give one of the two")
        part, opened = parse_part(shard), open_store(store)
        what = f"part {part[0]} of {part[1]}"
        run_app(
            lambda: create_shard_app(opened, part, settings),
            settings,
            host=host,
            port=port,
            on_ready=ready,
        )
        return
    scan = None
    opened = open_store(store)
    if shards is not None:
        from eaglenet.cluster.shard_front import STARTING_SECONDS, ShardScan

        urls = [url.strip() for url in shards.split(",") if url.strip()]
        scan = ShardScan(urls, opened.manifest.identity, token=token)
        scan.wait_until_up(opened.snapshot(), STARTING_SECONDS)
    engine = Engine(opened, model=model, device=device, scan=scan)
    what = f"{len(engine.snapshot)} clips"
    run(engine, settings, host=host, port=port, on_ready=ready)


def read_token(file: Path | None) -> str | None:
    """The secret of a file or of the environment: process lists show what a command line says."""
    if file is None:
        return os.environ.get("EAGLENET_TOKEN")
    try:
        with sys.stdin if str(file) == "-" else file.open(encoding="utf-8") as stream:
            text = stream.read(LONGEST_TOKEN + 1)
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--token-file {file}: cannot be read ({error})") from error
    if len(text) > LONGEST_TOKEN:
        raise UsageError(f"--token-file {file}: expected one line with the token, found more")
    return text.strip()
