"""The names a user imports, and what importing costs."""

from __future__ import annotations

import subprocess
import sys

import eaglenet

PUBLIC = {
    "METHODS", "Clips", "FrameSpec", "Hit", "Method", "Moment", "TextFeatures", "Tokens",
    "VideoFeatures", "__version__", "index", "load", "open", "save",
}  # fmt: skip
HEAVY = ("torch", "av", "lancedb", "fastapi", "typer", "transformers", "triton", "matplotlib")


def test_the_public_names_are_these_and_all_can_be_had() -> None:
    assert set(eaglenet.__all__) == PUBLIC
    assert all(getattr(eaglenet, name) is not None for name in eaglenet.__all__)


def test_completion_shows_the_public_names() -> None:
    assert dir(eaglenet) == sorted(PUBLIC)


def test_importing_the_package_loads_nothing_heavy() -> None:
    code = "import sys, eaglenet; print([name for name in sys.argv[1:] if name in sys.modules])"
    run = subprocess.run(
        [sys.executable, "-c", code, *HEAVY], capture_output=True, text=True, check=True
    )
    assert run.stdout.strip() == "[]"


def test_model_and_training_code_imports_without_decoder_store_or_command_line() -> None:
    code = (
        "import sys\n"
        "for name in ('av', 'lancedb', 'typer', 'fastapi', 'matplotlib'):\n"
        "    sys.modules[name] = None\n"
        "import eaglenet.methods, eaglenet.scoring, eaglenet.experiments.runs, eaglenet.recipes\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
