"""BridgeFormer: a video tower without new weights; questions about words as a side task."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from eaglenet.core.errors import ConfigError, UsageError
from eaglenet.core.types import (
    Clips,
    Encoder,
    Losses,
    RightPairs,
    TextFeatures,
    Tokens,
    VideoFeatures,
)
from eaglenet.encoders import ENCODERS
from eaglenet.encoders.base import TowerEncoder
from eaglenet.encoders.bridge import Bridge, ask, question_states
from eaglenet.encoders.clip import TextTower
from eaglenet.encoders.space_time import SpaceTime
from eaglenet.layers.masking import Padding, check_padding
from eaglenet.losses.softmax import fixed_softmax_loss
from eaglenet.methods.base import METHODS, MethodSpec, frame_spec_for
from eaglenet.methods.early.frozen import VideoTowerMethod, prepare


@dataclass(frozen=True)
class BridgeFormerConfig:
    """Settings of BridgeFormer.

    bridge_weight: of the questions about hidden words (MCQ); 0, as in fine-tuning, has no bridge.
        Questions need a causal text tower whose end token reads the sentence: CLIP's or PE-Core's.
    mask_token: the id that hides a word; CLIP's vocabulary has none for it, so padding's.
    padding: ``official`` counts padded frames as real, as the authors' code does.
    """

    num_frames: int = 4
    temperature: float = 0.05
    bridge_weight: float = 0.0
    mask_token: int = 0
    padding: Padding = "masked"

    def __post_init__(self) -> None:
        check_padding(self.padding)


class BridgeFormer(VideoTowerMethod):
    """The image tower's own blocks over all frames: no attention over time, no frame positions.

    Patches see their frame and the class token, which sees everything. A tower without a class
    token (SigLIP) sees its frames together in the head alone.

    With ``bridge_weight`` training also asks questions: a caption with one word hidden reads the
    patches of every block and has to find the vector of that word.

    Paper: pre-trained on CC3M and WebVid-2M, with questions about noun and then verb phrases that a
    tagger found; here from the encoder's towers, and any word may be asked for (uncertain whether
    that helps; off by default). CLIP's text tower is narrower than its visual one, so questions
    go through a linear map. How the authors fine-tune was never released: Frozen's recipe
    (uncertain).
    """

    name = "bridgeformer"
    config: BridgeFormerConfig

    def __init__(self, encoder: TowerEncoder, config: BridgeFormerConfig) -> None:
        super().__init__(encoder, frame_spec=frame_spec_for(encoder, config.num_frames))
        self.config = config
        self.temperature = config.temperature
        self.space_time = SpaceTime(self.tower)
        self.bridge = (
            Bridge(self.tower.config, need_questions(encoder).config.width, encoder.dim)
            if config.bridge_weight
            else None
        )

    def _encode_text(self, texts: Tokens | TextFeatures) -> TextFeatures:
        """In training with a bridge also questions (``words``) and their answers (``keys``)."""
        text = super()._encode_text(texts)
        if self.bridge is None or not self.training or not isinstance(texts, Tokens):
            return text
        tower = need_questions(self.encoder)
        tokens = texts.to(self.device)
        ends = tower.end_positions(tokens.ids)
        questions, answers = ask(tokens.ids, ends, mask_token=self.config.mask_token)
        states = question_states(tower, questions)
        noun_mask = tokens.mask.clone()
        return dataclasses.replace(
            text,
            words=states.flatten(1, 2),
            words_mask=noun_mask.repeat(1, states.shape[1]),
            keys=tower(answers),
            tokens=dataclasses.replace(tokens, ids=ends[:, None].expand_as(tokens.ids)),
        )

    def _encode_video(self, videos: Clips | VideoFeatures) -> VideoFeatures:
        """In training with a bridge also the patches that every block was given."""
        if self.bridge is None or not self.training:
            return super()._encode_video(videos)
        patches: list[Tensor] = []
        video = self.space_time.encode(self.tower, self.visible_frames(videos), kept=patches)
        mask = videos.mask.to(video.mask.device)
        return dataclasses.replace(video, mask=mask, patches=torch.cat(patches, dim=2))

    def losses(self, text: TextFeatures, video: VideoFeatures, positives: RightPairs) -> Losses:
        losses = super().losses(text, video, positives)
        if self.bridge is None or text.keys is None or video.patches is None:
            return losses
        answers = F.normalize(self.answers(text, video), dim=-1)
        right_answers = F.normalize(text.keys[:, 0], dim=-1)
        term = fixed_softmax_loss(right_answers @ answers.T, positives, self.temperature)
        return Losses({**losses.terms, "bridge": term}, {"bridge": self.config.bridge_weight})

    def answers(self, text: TextFeatures, video: VideoFeatures) -> Float[Tensor, "pairs dim"]:
        """Answers that each text's question reads from its own video."""
        if self.bridge is None or text.words is None or text.tokens is None:
            raise UsageError("texts without questions: encode them in training mode")
        if video.patches is None:
            raise UsageError("videos without the patches of each block: encode in training mode")
        levels = len(need_questions(self.encoder).blocks)
        blocks = self.encoder.num_blocks
        questions = text.words.unflatten(1, (levels, -1))
        patches = video.patches.unflatten(2, (blocks, -1)).transpose(1, 2)
        result: Tensor = self.bridge(
            questions, text.tokens.ids[:, 0], text.tokens.mask, patches, video.mask
        )
        return result


def need_questions(encoder: TowerEncoder) -> TextTower:
    """The text tower of a bridge, whose end token has read all words of a question."""
    if not isinstance(encoder.text, TextTower):
        raise ConfigError(
            f"{BridgeFormer.name} with bridge_weight asks with CLIP's text tower, which "
            f"{ENCODERS[encoder.family].title} has not; set bridge_weight=0, or give it a CLIP or "
            "PE-Core model"
        )
    return encoder.text


def build(config: BridgeFormerConfig, encoder: Encoder) -> BridgeFormer:
    """The vision tower read as a video tower."""
    return BridgeFormer(prepare(encoder, BridgeFormer.name), config)


METHODS.add(
    BridgeFormer.name,
    MethodSpec(
        config_class=BridgeFormerConfig,
        build=build,
        paper="BridgeFormer (Ge et al., CVPR 2022)",
        checked="golden",
    ),
)
