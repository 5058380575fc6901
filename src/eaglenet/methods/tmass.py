"""T-MASS: a text is a region instead of a point, and its size depends on the video."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from eaglenet.core.errors import too_many_frames
from eaglenet.core.types import Encoder, Losses, RightPairs, TextFeatures, VideoFeatures
from eaglenet.layers.frame_pooling import FramePooling
from eaglenet.layers.masking import first_right_video
from eaglenet.layers.stochastic_text import Prior, StochasticText, draw_noise, pair_noise, row_keys
from eaglenet.losses import SoftmaxLoss
from eaglenet.methods.base import Method, register
from eaglenet.methods.configs import MethodConfig


@dataclass(frozen=True)
class TMASSConfig(MethodConfig):
    """Settings of T-MASS.

    prior, noise_scale: noise of the region, ``uniform`` in [0, 1) or ``normal``, and its factor
        (the authors use uniform and 1; for LSMDC normal and 0.003).
    num_candidates: candidates per pair at inference, the best of which gives the score.
    noise_seed: seed of the noise that every evaluation uses for all pairs.
    num_heads: attention heads of the pooling.
    support_weight: weight of the support loss (0.8 for MSR-VTT; the authors use 0 for DiDeMo).
    unit_features: scale texts and frames to entries of about 1, the size of the noise; for towers
        with shorter features than CLIP.
    """

    num_heads: int = 1
    dropout: float = 0.3
    prior: Prior = "uniform"
    noise_scale: float = 1.0
    num_candidates: int = 20
    noise_seed: int = 0
    support_weight: float = 0.8
    unit_features: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_positive("num_candidates")


@register(TMASSConfig, paper="T-MASS (Wang et al., CVPR 2024)", checked_by="golden")
class TMASS(Method):
    r"""Best cosine of stochastic texts with the text-pooled video.

    .. math:: s(t, v) = \max_k \cos(t + r_{tv} \circ \epsilon_k,\ \mathrm{pool}(v | t)),
        \quad r_{tv} = \exp(W \cos(t, F_v) + b)

    Paper: the released evaluation pools every video with its right caption, which is unknown in a
    search; here every pair uses its own text. All pairs share the noise that is saved with the
    model, so that a score depends on its pair only.
    """

    name = "tmass"
    config: TMASSConfig
    noise: Tensor

    def __init__(self, encoder: Encoder, config: TMASSConfig) -> None:
        super().__init__(encoder, config)
        self.unit_features = config.unit_features
        self.stochastic = StochasticText(config.num_frames, encoder.dim, bias=True)
        self.pooling = FramePooling(encoder.dim, dropout=config.dropout, num_heads=config.num_heads)
        self.loss = SoftmaxLoss()
        self.register_buffer("noise", torch.empty(config.num_candidates, encoder.dim))
        self.reseed(config.noise_seed)

    def reseed(self, seed: int) -> None:
        """Replace the evaluation noise; a new model has that of ``config.noise_seed``."""
        generator = torch.Generator().manual_seed(seed)
        noise = draw_noise(*self.noise.shape, prior=self.config.prior, generator=generator)
        self.noise.copy_(noise * self.config.noise_scale)

    def pair_noise(
        self, text: TextFeatures, video: VideoFeatures, seed: int
    ) -> Float[Tensor, "texts videos candidates dim"]:
        """Return separate evaluation noise for each pair, as in the code of the authors."""
        keys = row_keys(text.sentence), row_keys(video.frames)
        noise = pair_noise(*keys, *self.noise.shape, prior=self.config.prior, seed=seed)
        return noise * self.config.noise_scale

    def radius(self, text: TextFeatures, video: VideoFeatures) -> Float[Tensor, "texts videos dim"]:
        num_frames = video.frames.shape[1]
        if num_frames > self.config.num_frames:
            raise too_many_frames(num_frames, self.config.num_frames)
        return self.stochastic.radius(text.sentence, video.frames, video.mask)

    def score(
        self,
        text: TextFeatures,
        video: VideoFeatures,
        noise: Float[Tensor, "texts videos candidates dim"] | None = None,
    ) -> Float[Tensor, "texts videos"]:
        """Return the best cosine over the candidates.

        With ``a = t + r e_k``: ``a.p = t.p + (r p).e_k`` and ``|a|^2 = |t|^2 + 2 (t r).e_k +
        (r r).(e_k e_k)``, so that candidates need not be stored. ``noise``: separate noise for each
        pair, scaled as the prior; None: all pairs share the noise of the model.
        """
        radius = self.radius(text, video)
        videos = self.pooling(text.sentence, video.frames, video.mask)
        if noise is not None:
            candidates = self.stochastic.candidates(text.sentence, radius, noise)
            return F.cosine_similarity(candidates, videos[:, :, None], dim=-1).amax(dim=-1)
        sentence = text.sentence[:, None]
        videos = F.normalize(videos, dim=-1)
        shared_noise = self.noise.to(radius.dtype)
        along = (sentence * videos).sum(dim=-1)[..., None] + (radius * videos) @ shared_noise.T
        squares = (
            sentence.square().sum(dim=-1, keepdim=True)
            + 2 * (sentence * radius) @ shared_noise.T
            + radius.square() @ shared_noise.T.square()
        )
        return (along / squares.clamp_min(1e-12).sqrt()).amax(dim=-1)

    def losses(
        self,
        text: TextFeatures,
        video: VideoFeatures,
        positives: RightPairs,
        noise: Float[Tensor, "texts dim"] | None = None,
    ) -> Losses:
        """Return the contrastive losses of a random text and of the support text.

        In training, the radius depends on the right video of a text. ``noise``: noise scaled as the
        prior; by default drawn.
        """
        sentence = text.sentence
        right_videos = first_right_video(positives)
        texts = torch.arange(len(text), device=right_videos.device)
        radius = self.radius(text, video)[texts, right_videos]
        videos = self.pooling(sentence, video.frames, video.mask)
        if noise is None:
            noise = self.config.noise_scale * draw_noise(
                *sentence.shape,
                prior=self.config.prior,
                device=sentence.device,
                dtype=sentence.dtype,
            )
        candidates = sentence + radius * noise

        def contrast(vectors: Float[Tensor, "texts dim"]) -> Float[Tensor, ""]:
            return self.loss(F.cosine_similarity(vectors[:, None], videos, dim=-1), positives)  # type: ignore[no-any-return]

        terms = {"stochastic": contrast(candidates)}
        if self.config.support_weight:
            direction = F.normalize(videos.mean(dim=0)[right_videos] - sentence, dim=-1)
            terms["support"] = contrast(sentence + direction * radius)
        return Losses(terms, {"support": self.config.support_weight})
