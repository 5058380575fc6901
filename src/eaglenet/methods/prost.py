"""ProST: phrases meet objects, sentences meet events."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from eaglenet.core.errors import ConfigError, too_many_frames
from eaglenet.core.types import Clips, Encoder, Losses, RightPairs, TextFeatures, VideoFeatures
from eaglenet.encoders.clip import ClipEncoder
from eaglenet.layers.late_interaction import masked_max, token_similarities
from eaglenet.layers.masking import frame_weights
from eaglenet.layers.prototypes import PrototypeDecoder, SparsePrototypes, local_mask
from eaglenet.losses.softmax import SoftmaxLoss
from eaglenet.methods.base import METHODS, MethodSpec, shift_last_blocks
from eaglenet.methods.tower_base import TowerMethod, build_on_towers


@dataclass(frozen=True)
class ProSTConfig:
    """Settings of ProST.

    num_phrases: prototypes of a text; num_objects: of a frame, its class token included;
    num_events: of a video. reach: share of all objects that the query of a frame sees beside its
    own.
    """

    num_frames: int = 12
    num_phrases: int = 28
    num_objects: int = 12
    num_events: int = 3
    num_layers: int = 2
    num_shifted_blocks: int = 2
    reach: float = 0.2
    dropout: float = 0.1


class ProST(TowerMethod):
    r"""Prototypes of space and time.

    .. math:: s = \max_k \cos(t, e_k) + \frac{1}{N_o} \sum_i \max_{m,j} \cos(p_i, o_{mj})

    ``p`` are phrases of the text, ``o`` the ``N_o`` objects of each frame, ``e`` the events.
    ``encode_video`` stores events, then objects in ``VideoFeatures.tokens``. The sum over phrases
    is divided by the number of objects, not of phrases, as in the released code.

    Paper: padded words and frames are left out; the released code has no masks. Its search of the
    weight of the second term, and its matching of all queries at once, are not here.
    """

    name = "prost"
    needs_words = True
    needs_patches = True
    config: ProSTConfig

    def __init__(self, encoder: ClipEncoder, config: ProSTConfig) -> None:
        super().__init__(encoder, config)
        dim = encoder.dim
        self.phrases = SparsePrototypes(dim, count=config.num_phrases)
        self.objects = SparsePrototypes(dim, count=config.num_objects - 1)
        self.frame_decoder, self.event_decoder = (
            PrototypeDecoder(
                dim,
                num_queries=count,
                num_layers=config.num_layers,
                dropout=config.dropout,
                looks_around=looks_around,
            )
            for count, looks_around in ((config.num_frames, False), (config.num_events, True))
        )
        self.loss = SoftmaxLoss()

    def _encode_video(self, videos: Clips | VideoFeatures) -> VideoFeatures:
        features = super()._encode_video(videos)
        if features.patches is None:
            raise ConfigError("prost needs patches; make features with its own encode_video")
        num_videos, num_frames = features.mask.shape
        if num_frames > self.config.num_frames:
            raise too_many_frames(num_frames, self.config.num_frames)
        made = self.objects(features.patches.flatten(0, 1)).unflatten(0, (num_videos, num_frames))
        objects = torch.cat([features.frames[:, :, None], made], dim=2).flatten(1, 2)
        mask = features.mask.repeat_interleave(self.config.num_objects, dim=1)
        events = self._events(features, objects)
        shown = features.mask.new_ones(events.shape[:2])
        return dataclasses.replace(
            features,
            patches=None,
            tokens=torch.cat([events, objects], dim=1),
            tokens_mask=torch.cat([shown, mask], dim=1),
        )

    def _events(
        self, video: VideoFeatures, objects: Float[Tensor, "videos tokens dim"]
    ) -> Float[Tensor, "videos events dim"]:
        """Frames read objects, events read frames; each is averaged with what CLIP gave."""
        near = local_mask(video.mask, self.config.num_objects, reach=self.config.reach)
        read = self.frame_decoder(objects, near, count=video.mask.shape[1])
        frames = (read + video.frames) / 2
        events = self.event_decoder(frames, video.mask[:, None])
        weights = frame_weights(video.mask, video.frames.dtype)[..., None]
        return (events + (video.frames * weights).sum(dim=1, keepdim=True)) / 2  # type: ignore[no-any-return]

    @property
    def score_tile(self) -> tuple[int, int]:
        # Phrases x objects of all frames a pair: 16 kB for 12 frames.
        return (64, 64) if self.device.type == "cuda" else super().score_tile

    def similarities(
        self, text: TextFeatures, video: VideoFeatures
    ) -> tuple[Float[Tensor, "texts videos"], Float[Tensor, "texts videos"]]:
        """Event-sentence and object-phrase similarity."""
        if video.tokens is None or video.tokens_mask is None or text.words is None:
            raise ConfigError("prost was given features without words or prototypes")
        events, objects = video.tokens.split(
            [self.config.num_events, video.tokens.shape[1] - self.config.num_events], dim=1
        )
        sentence = F.normalize(text.sentence, dim=-1)
        by_event = torch.einsum("td,ved->tve", sentence, F.normalize(events, dim=-1)).amax(dim=-1)
        phrases = self.phrases(text.words, text.words_mask)
        mask = video.tokens_mask[:, self.config.num_events :]
        best = masked_max(token_similarities(phrases, objects), mask[None, :, None, :], dim=-1)
        return by_event, best.sum(dim=-1) / self.config.num_objects

    def score(self, text: TextFeatures, video: VideoFeatures) -> Float[Tensor, "texts videos"]:
        by_event, by_object = self.similarities(text, video)
        return by_event + by_object

    def losses(self, text: TextFeatures, video: VideoFeatures, positives: RightPairs) -> Losses:
        """The mean of both contrastive losses."""
        by_event, by_object = self.similarities(text, video)
        return Losses(
            {"events": self.loss(by_event, positives), "objects": self.loss(by_object, positives)},
            {"events": 0.5, "objects": 0.5},
        )


def build(config: ProSTConfig, encoder: Encoder) -> ProST:
    """Token shift in the encoder's last blocks."""
    return build_on_towers(
        ProST, config, encoder, lambda towers: shift_last_blocks(towers, config.num_shifted_blocks)
    )


METHODS.add(
    ProST.name,
    MethodSpec(
        config_class=ProSTConfig,
        build=build,
        paper="ProST (Li et al., ICCV 2023)",
        checked="reference loop",
    ),
)
