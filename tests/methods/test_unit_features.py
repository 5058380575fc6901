"""Methods that add noise of a given length can bring any tower's features to that length."""

from __future__ import annotations

import pytest
import torch

from eaglenet.core.types import TextFeatures, VideoFeatures
from eaglenet.encoders.features import FeatureConfig, FeatureEncoder
from eaglenet.methods import METHODS
from eaglenet.research.recipes import Recipe

DIM = 16


@pytest.mark.parametrize("name", ["tmass", "eaglenet"])
def test_scores_do_not_depend_on_the_length_of_the_towers_features(name: str) -> None:
    names = METHODS[name].config_class.__dataclass_fields__
    sizes = {"dim": DIM} if "dim" in names else {}
    config = METHODS[name].config_class(**sizes, num_frames=3, unit_features=True)
    encoder = FeatureEncoder(FeatureConfig(DIM, DIM, DIM, identity=True))
    method = METHODS[name].build(config, encoder).eval()
    texts, frames = torch.randn(4, DIM), torch.randn(5, 3, DIM)
    mask = torch.ones(5, 3, dtype=torch.bool)

    def scores(length: float) -> torch.Tensor:
        text = method.encode_text(TextFeatures(length * texts))
        video = method.encode_video(VideoFeatures(length * frames, mask))
        torch.testing.assert_close(text.sentence.norm(dim=-1), torch.full((4,), DIM**0.5))
        torch.testing.assert_close(video.frames.norm(dim=-1), torch.full((5, 3), DIM**0.5))
        return method.score(text, video)

    with torch.no_grad():
        torch.testing.assert_close(scores(1.0), scores(0.01))
        method.unit_features = False
        plain = method.score(TextFeatures(texts), VideoFeatures(frames, mask))
        short = method.score(TextFeatures(0.01 * texts), VideoFeatures(0.01 * frames, mask))
    assert not torch.allclose(plain, short, atol=1e-3)


@pytest.mark.parametrize("tower", ["small-frozen", "small"])
@pytest.mark.parametrize(
    ("method", "variants"),
    [("tmass", ()), ("eaglenet", ()), ("eaglenet", ("components=frl+sigmoid",))],
)
def test_recipes_on_towers_of_small_scale_features(
    tower: str, method: str, variants: tuple[str, ...]
) -> None:
    recipe = Recipe(method, "frames", tower, variants=variants)
    assert recipe.build().method_config.unit_features
