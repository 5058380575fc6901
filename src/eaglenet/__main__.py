"""`python -m eaglenet`."""

import os
import sys

# Python puts the current folder first on the module path here, and it may hold anyone's files.
sys.path[:] = [entry for entry in sys.path if entry and entry != os.getcwd()]

from eaglenet.cli import run  # noqa: E402

if __name__ == "__main__":
    run()
