"""Pictures without sentences in a training on pairs: what they looked like before it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from eaglenet.encoders.compact.encoder import CompactEncoder
from eaglenet.encoders.compact.text import mean_of_words
from eaglenet.training.pairs.banks import plain_views
from eaglenet.training.pairs.distillation import agreement_loss

PICTURES_A_TIME = 512
SENTENCES_A_TIME = 8192


@dataclass(frozen=True)
class Unlabelled:
    """The pictures, and the unit vectors of them and of all training sentences before training."""

    frames: UInt8[Tensor, "pictures 3 height width"]
    seen: Float[Tensor, "pictures dim"]
    said: Float[Tensor, "sentences dim"]
    scale: Float[Tensor, ""]

    @classmethod
    @torch.no_grad()
    def before(
        cls,
        encoder: CompactEncoder,
        frames: UInt8[Tensor, "pictures 3 height width"],
        ids: Int[Tensor, "sentences words"],
    ) -> Unlabelled:
        """As ``encoder`` sees whole pictures and reads whole sentences now."""
        vision, size = encoder.vision, encoder.config.vision.image_size
        device = frames.device
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            seen = [
                vision(vision.normalise(plain_views(part, size)))[:, 0]
                for part in frames.split(PICTURES_A_TIME)
            ]
            said = [
                mean_of_words(encoder.text(part, part != 0).float(), part != 0)
                for part in ids.split(SENTENCES_A_TIME)
            ]
        scale = encoder.logit_scale.float().exp().clamp(max=100.0)
        return cls(frames, _unit(seen), _unit(said), scale)

    def draw(self, number: int, generator: torch.Generator) -> Int[Tensor, "drawn"]:
        """Rows of random pictures."""
        return torch.randint(
            len(self.frames), (number,), generator=generator, device=self.frames.device
        )

    def loss(
        self,
        rows: Int[Tensor, "drawn"],
        pictures: Float[Tensor, "drawn dim"],
        texts: Int[Tensor, "pairs"],
        sentences: Float[Tensor, "pairs dim"],
        log_scale: Float[Tensor, ""],
    ) -> Float[Tensor, ""]:
        """How far these pictures have moved among the sentences ``texts`` of a batch."""
        return agreement_loss(
            pictures,
            sentences,
            log_scale,
            seen=self.seen[rows],
            said=self.said[texts],
            scale=self.scale,
        )


def _unit(parts: list[Tensor]) -> Float[Tensor, "rows dim"]:
    return F.normalize(torch.cat(parts).float(), dim=-1).half()
