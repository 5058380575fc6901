"""Search with the methods before CLIP: one that cannot be prepared, and one over experts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import eaglenet
from eaglenet.indexing.index import index
from eaglenet.search.torch_model import TorchModel
from small_model import save_small_model
from small_videos import colour_video

SIZES = {"dim": 8, "num_heads": 2}
MODELS: dict[str, dict[str, Any]] = {
    "clipbert": {**SIZES, "num_frames": 5, "num_layers": 1, "hidden_dim": 12},
    "ce": {"dim": 8, "num_frames": 5, "text_centres": 2},
    "tvmm": {"num_frames": 5, "num_prototypes": 2},
}


def test_cross_encoder_reads_only_the_shortlist(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = save_small_model(tmp_path / "model", "clipbert", **MODELS["clipbert"])
    (tmp_path / "videos").mkdir()
    for number, colours in enumerate(("red", "green", "blue", "red blue", "blue green")):
        colour_video(tmp_path / "videos" / f"{number}.mp4", colours.split())
    index(tmp_path / "videos", tmp_path / "store", model=str(model), workers=0)
    engine = eaglenet.open(str(tmp_path / "store"))
    assert isinstance(engine.model, TorchModel)
    method = engine.model.method
    assert method.is_cross_encoder
    read: list[int] = []
    plain = type(method).pair_logits  # type: ignore[attr-defined]

    def spy(self: Any, text: Any, video: Any, rows: Any, columns: Any) -> Any:
        read.append(len(rows))
        return plain(self, text, video, rows, columns)

    monkeypatch.setattr(type(method), "pair_logits", spy)
    hits = engine.search("a red car", k=1, shortlist=3)
    assert len(hits) == 1
    assert sum(read) == 3


@pytest.mark.parametrize("name", MODELS)
def test_method_ranks_the_shortlist_with_its_own_score(name: str, tmp_path: Path) -> None:
    model = save_small_model(tmp_path / "model", name, **MODELS[name])
    (tmp_path / "videos").mkdir()
    for colour in ("red", "green", "blue"):
        colour_video(tmp_path / "videos" / f"{colour}.mp4", [colour])
    index(tmp_path / "videos", tmp_path / "store", model=str(model), workers=0)
    engine = eaglenet.open(str(tmp_path / "store"))
    hits = engine.search("a red car", k=3)
    assert len(hits) == 3
    assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
    assert isinstance(engine.model, TorchModel)
    method = engine.model.method
    with torch.no_grad():
        found = method.similarity("a red car", [str(tmp_path / "videos" / "red.mp4")])
    own = next(hit for hit in hits if hit.path.endswith("/red.mp4") or hit.path == "red.mp4")
    # Kept in half precision in the store.
    assert own.score == pytest.approx(float(found[0, 0]), abs=2e-2)
