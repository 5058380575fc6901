"""Extras of the installation: which one brings a package that is missing."""

from __future__ import annotations

from importlib.util import find_spec

from eaglenet.core.errors import UsageError, shell_quote

EXTRAS = {
    "torch": "torch",
    "huggingface_hub": "torch",
    "jaxtyping": "torch",
    "triton": "triton",
    "open_clip": "openclip",
    "sentence_transformers": "st",
    "torchvision": "st",
    "matplotlib": "train",
    "tensorboard": "train",
    "mteb": "mteb",
    "datasets": "mteb",
    "pyarrow": "parquet",
    "lancedb": "lance",
    "obstore": "s3",
    "ray": "ray",
    "rapidocr": "ocr",
    "faster_whisper": "speech",
    "watchfiles": "watch",
    "pillow_heif": "heic",
    "mcp": "mcp",
    "rawpy": "raw",
}
"""Name of the extra by the module that it brings."""


def missing_extra(error: ModuleNotFoundError, what: str = "this") -> UsageError | None:
    """The error that names the extra of a missing module; None if no extra brings the module."""
    module = (error.name or "").partition(".")[0]
    if module not in EXTRAS:
        return None
    return UsageError(
        f"{what} needs {module}, which is not installed: "
        f"pip install {shell_quote(f'eaglenet[{EXTRAS[module]}]')}"
    )


def require_torch(what: str) -> None:
    """Raise the error that names the extra if torch is not installed; does not import it."""
    if find_spec("torch") is None:
        error = missing_extra(ModuleNotFoundError(name="torch"), what)
        assert error is not None
        raise error
