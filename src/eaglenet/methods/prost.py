"""ProST: phrases meet objects, sentences meet events."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from eaglenet.core.errors import ConfigError, too_many_frames
from eaglenet.core.types import Clips, Encoder, Losses, RightPairs, TextFeatures, VideoFeatures
from eaglenet.layers.late_interaction import masked_max, token_similarities
from eaglenet.layers.masking import Padding, check_padding, frame_weights, visible
from eaglenet.layers.prototypes import PrototypeDecoder, SparsePrototypes, local_mask
from eaglenet.losses.softmax import SoftmaxLoss
from eaglenet.methods.base import METHODS, MethodSpec, shift_last_blocks
from eaglenet.methods.tower_base import TowerMethod, build_on_towers


@dataclass(frozen=True)
class ProSTConfig:
    """Settings of ProST.

    num_phrases: prototypes of a text; num_objects: of a frame, its class token included;
    num_events: of a video. num_heads: of the decoders' attention.
    reach: fraction of all objects that the query of a frame attends to beside its own.
    padding: ``official`` counts padded words and frames as real, as the authors' code does.
    """

    num_frames: int = 12
    num_phrases: int = 28
    num_objects: int = 12
    num_events: int = 3
    num_layers: int = 2
    num_heads: int = 1
    num_shifted_blocks: int = 2
    reach: float = 0.2
    dropout: float = 0.1
    padding: Padding = "masked"

    def __post_init__(self) -> None:
        check_padding(self.padding)


class ProST(TowerMethod):
    r"""Prototypes of space and time.

    .. math:: s = \max_k \cos(t, e_k) + \frac{1}{N_o} \sum_j \max_{m,i} \cos(p_i, o_{mj})

    ``p`` are phrases of the text, ``o`` the ``N_o`` objects of each frame, ``e`` the events: each
    object slot ``j`` finds its best phrase and frame. ``encode_video`` stores events, then objects
    in ``VideoFeatures.tokens``.

    Paper: padded words and frames are left out by default; the official code has no masks. Its
    search for the weight of the second term on the test split, and its joint matching of all
    queries, are not here.
    """

    name = "prost"
    needs_words = True
    needs_patches = True
    config: ProSTConfig

    def __init__(self, encoder: Encoder, config: ProSTConfig) -> None:
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
                self_attention=self_attention,
                num_heads=config.num_heads,
            )
            for count, self_attention in ((config.num_frames, False), (config.num_events, True))
        )
        self.loss = SoftmaxLoss()

    def _encode_video(self, videos: Clips | VideoFeatures) -> VideoFeatures:
        features = super()._encode_video(videos)
        if features.patches is None:
            raise ConfigError("prost needs patches; make features with its own encode_video")
        num_videos, num_frames = features.mask.shape
        if num_frames > self.config.num_frames:
            raise too_many_frames(num_frames, self.config.num_frames)
        mask = visible(features.mask, self.config.padding)
        sums = self.objects(features.patches.flatten(0, 1)).unflatten(0, (num_videos, num_frames))
        objects = torch.cat([features.frames[:, :, None], sums], dim=2).flatten(1, 2)
        events = self.events(features.frames, objects, mask)
        return dataclasses.replace(
            features,
            patches=None,
            tokens=torch.cat([events, objects], dim=1),
            tokens_mask=torch.cat(
                [
                    mask.new_ones(events.shape[:2]),
                    mask.repeat_interleave(self.config.num_objects, dim=1),
                ],
                dim=1,
            ),
        )

    def events(
        self,
        frames: Float[Tensor, "videos frames dim"],
        objects: Float[Tensor, "videos tokens dim"],
        mask: Bool[Tensor, "videos frames"],
    ) -> Float[Tensor, "videos events dim"]:
        """Event prototypes, averaged with the mean frame."""
        events = self.event_decoder(self.frame_prototypes(frames, objects, mask), mask[:, None])
        weights = frame_weights(mask, frames.dtype)[..., None]
        return (events + (frames * weights).sum(dim=1, keepdim=True)) / 2  # type: ignore[no-any-return]

    def frame_prototypes(
        self,
        frames: Float[Tensor, "videos frames dim"],
        objects: Float[Tensor, "videos tokens dim"],
        mask: Bool[Tensor, "videos frames"],
    ) -> Float[Tensor, "videos frames dim"]:
        """Objects as the query of each frame reads them, averaged with the frame itself."""
        near = local_mask(mask, self.config.num_objects, reach=self.config.reach)
        return (self.frame_decoder(objects, near, count=mask.shape[1]) + frames) / 2  # type: ignore[no-any-return]

    @property
    def score_tile(self) -> tuple[int, int]:
        # Phrases x objects of all frames per pair: 16 kB for 12 frames.
        return (64, 64) if self.device.type == "cuda" else super().score_tile

    def similarities(
        self, text: TextFeatures, video: VideoFeatures
    ) -> tuple[Float[Tensor, "texts videos"], Float[Tensor, "texts videos"]]:
        """Event-sentence and object-phrase similarity."""
        if video.tokens is None or video.tokens_mask is None or text.words is None:
            raise ConfigError("prost was given features without words or prototypes")
        num_events, num_objects = self.config.num_events, self.config.num_objects
        events, objects = video.tokens[:, :num_events], video.tokens[:, num_events:]
        sentence = F.normalize(text.sentence, dim=-1)
        by_event = torch.einsum("td,ved->tve", sentence, F.normalize(events, dim=-1)).amax(dim=-1)
        best_phrase = token_similarities(self.text_phrases(text), objects).amax(dim=2)
        mask = video.tokens_mask[:, num_events:].unflatten(1, (-1, num_objects))[None]
        best_frame = masked_max(best_phrase.unflatten(-1, (-1, num_objects)), mask, dim=2)
        return by_event, best_frame.mean(dim=-1)

    def text_phrases(self, text: TextFeatures) -> Float[Tensor, "texts phrases dim"]:
        """Phrase prototypes: sums of words under sparse weights."""
        if text.words is None:
            raise ConfigError("prost was given texts without words")
        mask = text.words_mask
        if mask is not None:
            mask = visible(mask, self.config.padding)
        phrases: Tensor = self.phrases(text.words, mask)
        return phrases

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
        checked="golden",
    ),
)
