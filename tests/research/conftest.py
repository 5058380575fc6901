"""One tiny features folder, and reports without drawn figures."""

from __future__ import annotations

from pathlib import Path

import pytest

from tiny import write_features


@pytest.fixture(scope="session")
def features(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of stored features, small enough to train on."""
    return write_features(tmp_path_factory.mktemp("features"))


@pytest.fixture
def blank_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports whose text is checked: drawing takes most of their time."""
    from eaglenet.research.evaluation import report
    from eaglenet.research.evaluation.figures import Picture

    for name in ("curves_figure", "recall_against_time_figure"):
        monkeypatch.setattr(report, name, lambda *_, **__: Picture(b"\x89PNG", b"%PDF"))
