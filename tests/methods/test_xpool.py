"""X-Pool: frames pooled by attention of the text."""

from __future__ import annotations

import torch
from double_precision import EXACT, VIDEOS, build, frames_of, matrix, sentences_of, texts, videos

from reference import xpool as reference
from reference.arithmetic import contrastive, weights_of


@torch.no_grad()
def test_the_score_equals_the_loops() -> None:
    method = build("xpool")
    text, video = texts(), videos()
    weights = weights_of(method.pooling)  # type: ignore[arg-type]
    expected = [
        [reference.similarity(sentence, frames, weights) for frames in frames_of(video)]
        for sentence in sentences_of(text)
    ]
    torch.testing.assert_close(method.score(text, video), matrix(expected), **EXACT)


@torch.no_grad()
def test_the_loss_equals_the_loops() -> None:
    method = build("xpool")
    text, video = texts(VIDEOS), videos()
    weights = weights_of(method.pooling)  # type: ignore[arg-type]
    scores = [
        [reference.similarity(sentence, frames, weights) for frames in frames_of(video)]
        for sentence in sentences_of(text)
    ]
    losses = method.losses(text, video, torch.eye(VIDEOS, dtype=torch.bool))
    scale = float(method.loss.scale())  # type: ignore[operator,union-attr]
    torch.testing.assert_close(losses.total.item(), contrastive(matrix(scores).numpy(), scale))


@torch.no_grad()
def test_a_new_model_attends_more_to_the_frame_that_fits() -> None:
    from double_precision import DIM

    from eaglenet.encoders.features import FeatureConfig, FeatureEncoder
    from eaglenet.methods import METHODS

    spec = METHODS["xpool"]
    encoder = FeatureEncoder(FeatureConfig(text_dim=DIM, frame_dim=DIM, dim=DIM, identity=True))
    method = spec.build(spec.config_class(), encoder).double().eval()
    text, video = texts(1), videos(1)
    video.frames[0, 2] = text.sentence[0]
    assert method.score(text, video) > method.score(text, videos(1))
