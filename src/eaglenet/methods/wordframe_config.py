"""Settings of WordFrame. Does not import torch: the head of a compact model is read without it."""

from __future__ import annotations

from dataclasses import dataclass

from eaglenet.core.errors import ConfigError


@dataclass(frozen=True)
class WordFrameConfig:
    """Settings of WordFrame; the switches are its ablation.

    coarse: the cosine of sentence and mean frame is a part of the score, and the rest starts at 0.
        Off: the interaction alone, from the start; for towers that know nothing yet.
    changes: a frame carries what changes around it.
    num_layers: blocks in which frames look at each other before words meet them; 0: none.
    weighted: words count as much as a small network says; off: all alike.
    both_ways: frames look for their word too, as in DRL. Off: a frame that no word speaks of
        costs nothing.
    interaction: words meet frames; off: the coarse part and the bank alone.
    bank, bank_weight: how many sentences of training level the videos (0: none), and by how much.
    token_shift: the last two visual blocks of a CLIP tower exchange tokens with neighbour frames.
    """

    num_frames: int = 12
    coarse: bool = True
    changes: bool = True
    num_layers: int = 1
    num_heads: int | None = None
    num_positions: int = 77
    weighted: bool = True
    both_ways: bool = False
    interaction: bool = True
    bank: int = 1024
    bank_weight: float = 0.75
    token_shift: bool = False

    def __post_init__(self) -> None:
        if self.num_layers < 0:
            raise ConfigError(f"num_layers is {self.num_layers}; it must be 0 or more")
        if self.bank < 0 or self.bank_weight < 0:
            raise ConfigError(
                f"bank is {self.bank}, bank_weight {self.bank_weight}; both must be 0 or more"
            )
        if not self.interaction and not self.coarse:
            raise ConfigError("interaction and coarse are both off: nothing is left of the score")
