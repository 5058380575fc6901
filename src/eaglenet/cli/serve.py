"""``eaglenet serve`` and ``eaglenet mcp``: serve searches to browsers, programs and assistants."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from eaglenet.cli.options import StoreName
from eaglenet.cli.terminal import end_process, print_line
from eaglenet.core.errors import UsageError
from eaglenet.core.settings import option

Model = Annotated[
    str | None, typer.Option(help="Load the model from this folder, if it has moved.")
]
Device = Annotated[str, typer.Option(help="Run the model on auto, cpu, cuda or mps.")]
INTERRUPTED = 130
"""Exit code after Ctrl-C."""
MIN_TOKEN, MAX_TOKEN = 16, 4096
"""Characters of a token."""


def serve(
    store: StoreName,
    host: str = option("127.0.0.1", "Listen on this address; a public address needs a token."),
    port: int = option(8000, "Listen on this port; 0 chooses a free one.", min=0, max=65535),
    token_file: Path | None = option(
        None,
        "Require the token in this file; - is standard input. Or set EAGLENET_TOKEN.",
        metavar="FILE",
    ),
    model: Model = None,
    device: Device = "auto",
    rate: float = option(
        100.0, "Allow each client this many searches per second.", min=0.1, group="Limits"
    ),
    timeout: float = option(
        30.0, "Abort a request after this many seconds.", min=0.1, group="Limits"
    ),
    allow_uploads: bool = option(False, "Allow searches with uploaded images and videos."),
    agents: bool = option(False, "Serve assistants at /mcp (MCP over HTTP)."),
    save_folder: Path | None = option(
        None,
        "With --agents: let assistants save clips into this folder.",
        metavar="FOLDER",
        group="Assistants",
    ),
    judge: str | None = option(
        None,
        "Rank the first 10 again with a vision model on this OpenAI-compatible server.",
        metavar="URL#MODEL",
    ),
    settings_file: Path | None = option(
        None,
        "Read other limits from this TOML file (docs/reference/http_api.md).",
        name="--settings",
        metavar="FILE",
        group="Limits",
    ),
    shard: str | None = option(
        None, "Serve shard I of N of the store, without the page.", metavar="I/N", group="Shards"
    ),
    shards: str | None = option(
        None,
        "Search the shards at these URLs, in the order 1/N to N/N.",
        metavar="URL,URL,...",
        group="Shards",
    ),
) -> None:
    """Serve a search page and an HTTP API."""
    # Threads that spin while they wait slow down others: on a busy machine, a query took ten times
    # as long. Torch reads this variable when it is imported.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    from eaglenet.search.engine import Engine
    from eaglenet.serve.app import run, run_app
    from eaglenet.serve.settings import Settings, is_local_host, read_settings
    from eaglenet.store.store import open_store

    if save_folder is not None and not agents:
        raise UsageError("--save-folder is for assistants; add --agents")
    token = read_token(token_file)
    settings = Settings(
        token=token,
        session=os.environ.get("EAGLENET_SESSION") or None,
        local=is_local_host(host),
        search_rate=rate,
        timeout=timeout,
        allow_uploads=allow_uploads,
        agents=agents,
        save_folder=save_folder,
        judge=judge,
        **(read_settings(settings_file) if settings_file is not None else {}),
    )
    if not settings.local and len(token or "") < MIN_TOKEN:
        print(f"warning: the token is short; use {MIN_TOKEN} characters or more", file=sys.stderr)
    note = "; a token is required" if token else ""

    def report_address(address: str) -> None:
        print_line(f"serving {content} of {store} at {address} (stop with Ctrl-C){note}")

    if shard is not None:
        from eaglenet.cluster.shards import create_shard_app, parse_shard

        if shards is not None:
            raise UsageError("--shard and --shards cannot be combined; use one of them")
        part, shard_store = parse_shard(shard), open_store(store)
        content = f"shard {part[0]} of {part[1]}"
        run_app(
            lambda: create_shard_app(shard_store, part, settings),
            settings,
            host=host,
            port=port,
            on_ready=report_address,
        )
        return
    scan = None
    local_store = open_store(store)
    if shards is not None:
        from eaglenet.cluster.shard_front import START_TIMEOUT, ShardScan

        urls = [url.strip() for url in shards.split(",") if url.strip()]
        scan = ShardScan(urls, local_store.manifest.identity, token=token)
        scan.wait_until_up(local_store.snapshot(), START_TIMEOUT)
    engine = Engine(local_store, model=model, device=device, scan=scan)
    content = f"{len(engine.snapshot)} clips"
    run(engine, settings, host=host, port=port, on_ready=report_address)


def read_token(file: Path | None) -> str | None:
    """Read the token from a file or the environment; other users can see command lines."""
    if file is None:
        return os.environ.get("EAGLENET_TOKEN")
    try:
        with sys.stdin if str(file) == "-" else file.open(encoding="utf-8") as stream:
            text = stream.read(MAX_TOKEN + 1)
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--token-file {file}: cannot be read ({error})") from error
    if len(text) > MAX_TOKEN:
        raise UsageError(f"--token-file {file}: expected one line with the token, found more")
    return text.strip()


def mcp(
    store: StoreName,
    save_folder: Path | None = option(
        None, "Let assistants save clips into this folder.", metavar="FOLDER"
    ),
    model: Model = None,
    device: Device = "auto",
) -> None:
    """Serve assistants: an MCP server on standard input and output."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    import asyncio

    from eaglenet.search.engine import Engine
    from eaglenet.serve.mcp import serve_stdio

    async def run(engine: Engine) -> None:
        try:
            await serve_stdio(engine, save_folder)
        except asyncio.CancelledError:
            # A thread that reads standard input would keep the process alive.
            print_line("interrupted", is_error=True)
            end_process(INTERRUPTED)

    asyncio.run(run(Engine.open(store, model, device)))
    # Clients wait for the end of the process, and kill it after a few seconds.
    end_process(0)
