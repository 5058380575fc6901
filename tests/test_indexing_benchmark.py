"""The sides of `benchmarks/indexing.py` whose packages are not installed are left out."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.mark.parametrize("missing", ["cv2", "open_clip", "timm"])
def test_a_package_that_is_missing_is_an_import_error(
    missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A skipped test, which the tests' own import gives, would end the whole benchmark."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from indexing import open_clip_model

    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == missing else object()
    )
    with pytest.raises(ImportError, match=f"{missing} is not installed"):
        open_clip_model()
