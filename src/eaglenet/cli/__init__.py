"""The `eaglenet` command."""

import os
import sys


def run() -> None:
    """Run the command line. Ctrl-C ends it with one line, also while modules are imported."""
    try:
        from eaglenet.cli.main import main

        main()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr, flush=True)
        os._exit(130)
