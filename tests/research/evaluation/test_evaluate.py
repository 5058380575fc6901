"""Evaluation of a small method: bounded blocks, lazy batches, noise seeds, honest errors."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from eaglenet.core.errors import NonFiniteError, UsageError
from eaglenet.core.types import Losses, TextFeatures, VideoFeatures
from eaglenet.encoders.base import BaseEncoder
from eaglenet.encoders.features import FeatureConfig
from eaglenet.methods.base import Method
from eaglenet.methods.configs import MethodConfig
from eaglenet.research.evaluation.evaluate import evaluate
from eaglenet.research.evaluation.metrics import EvaluationOptions, retrieval_metrics


class Passing(BaseEncoder):
    """Features in, features out."""

    family = "features"
    config = FeatureConfig(text_dim=16, frame_dim=16, dim=16)
    dim = 16
    logit_scale = torch.zeros(())

    def encode_text(self, texts: Any, *, words: Any = False) -> Any:
        return texts

    def encode_video(self, videos: Any, *, patches: Any = False) -> Any:
        return videos


class NoisyMean(Method):
    """Mean of frames against the sentence plus a seeded bank of noise."""

    name = "noisy_mean"

    def __init__(self) -> None:
        super().__init__(Passing(), MethodConfig())
        self.scale = torch.nn.Parameter(torch.ones(()))
        self.register_buffer("noise", torch.zeros(16))

    def reseed(self, seed: int) -> None:
        self.noise = 2.0 * torch.randn(16, generator=torch.Generator().manual_seed(seed))

    def score(self, text: Any, video: Any) -> Any:
        weights = video.mask[..., None].float()
        mean = (video.frames * weights).sum(1) / weights.sum(1)
        return self.scale * F.normalize(text.sentence + self.noise, dim=-1) @ F.normalize(mean).T

    def losses(self, text: Any, video: Any, positives: Any) -> Any:
        return Losses({})


@pytest.fixture
def world() -> tuple[TextFeatures, VideoFeatures, Tensor]:
    """Texts, videos, and which video each text belongs to."""
    generator = torch.Generator().manual_seed(11)
    videos = VideoFeatures(
        frames=torch.randn(5, 7, 16, generator=generator), mask=torch.ones(5, 7, dtype=torch.bool)
    )
    video_of_text = torch.tensor([4, 0, 0, 1, 2, 4, 2, 3, 1, 0, 2])
    sentence = videos.frames.mean(1)[video_of_text]
    noise = torch.randn(sentence.shape, generator=generator)
    return TextFeatures(sentence=sentence + noise), videos, video_of_text


def test_any_block_size_gives_the_metrics_of_the_whole_matrix(
    world: tuple[TextFeatures, VideoFeatures, Tensor],
) -> None:
    texts, videos, video_of_text = world
    method = NoisyMean().eval()
    expected = retrieval_metrics(method.score(texts, videos).detach(), video_of_text)
    for max_scores in (1, 3, 11, 12, 40, 10_000):
        result = evaluate(
            method, texts, videos, video_of_text, "toy", EvaluationOptions(max_scores=max_scores)
        )
        assert result.metrics == expected


def test_lazy_batches_equal_whole_records(
    world: tuple[TextFeatures, VideoFeatures, Tensor],
) -> None:
    texts, videos, video_of_text = world
    whole = evaluate(NoisyMean(), texts, videos, video_of_text, "toy")
    lazy = evaluate(
        NoisyMean(),
        (texts[start : start + 4] for start in range(0, 11, 4)),
        iter([videos[:2], videos[2:]]),
        video_of_text,
        "toy",
    )
    assert lazy.metrics == whole.metrics


def test_noise_seeds_give_mean_and_spread_and_leave_the_model_alone(
    world: tuple[TextFeatures, VideoFeatures, Tensor],
) -> None:
    texts, videos, video_of_text = world
    method = NoisyMean()
    plain = evaluate(method, texts, videos, video_of_text, "toy")
    result = evaluate(
        method, texts, videos, video_of_text, "toy", EvaluationOptions(noise_seeds=(1, 2, 3))
    )
    assert result.metrics == plain.metrics
    assert torch.equal(method.noise, torch.zeros(16))
    assert method.training
    noise = result.to_dict()["noise"]
    ranks = [m.t2v.mean_rank for m in result.noise.metrics]
    assert len(set(ranks)) > 1
    assert noise["mean"]["t2v"]["MnR"] == pytest.approx(sum(ranks) / 3)
    assert noise["std"]["t2v"]["MnR"] == pytest.approx(torch.tensor(ranks).std().item(), rel=1e-5)


def test_the_result_is_json_and_says_protocol_timings_and_missing_videos(
    world: tuple[TextFeatures, VideoFeatures, Tensor],
) -> None:
    result = evaluate(NoisyMean(), *world, "MSR-VTT 1k-A", missing_videos=["video7010"])
    record = json.loads(json.dumps(result.to_dict()))
    assert record["videos_found"] == 5
    assert record["videos_missing"] == 1
    assert set(record["seconds"]) == {"encode_text", "encode_video", "score"}
    lines = str(result).splitlines()
    assert all("MSR-VTT 1k-A" in line for line in lines)
    assert "1 missing" in str(result)


def test_sentences_need_a_tokenizer_and_say_so(
    world: tuple[TextFeatures, VideoFeatures, Tensor],
) -> None:
    _, videos, video_of_text = world
    with pytest.raises(UsageError, match="no tokenizer"):
        evaluate(NoisyMean(), ["a red circle"] * 11, videos, video_of_text, "toy")


def test_broken_features_are_named_before_scoring(
    world: tuple[TextFeatures, VideoFeatures, Tensor],
) -> None:
    texts, videos, video_of_text = world
    videos.frames[3, 2, 0] = float("nan")
    with pytest.raises(NonFiniteError, match="1 of 35 frame features"):
        evaluate(NoisyMean(), texts, videos, video_of_text, "toy")


def test_a_correspondence_of_the_wrong_length_is_refused(
    world: tuple[TextFeatures, VideoFeatures, Tensor],
) -> None:
    texts, videos, video_of_text = world
    with pytest.raises(UsageError, match=r"11 texts .* has 10 entries"):
        evaluate(NoisyMean(), texts, videos, video_of_text[:10], "toy")
