"""Splitting of videos into clips. Quick to import, for decoders and the command line."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Splitting:
    """Length and overlap of clips, in seconds.

    frame_step: seconds between the frames of a whole clip, chosen for a new store so that
        overlapping clips share frames; 0 spreads the frames over each clip.
    """

    clip_seconds: float = field(
        default=10.0,
        metadata={"group": "Clips", "metavar": "SECONDS", "help": "Set the length of clips."},
    )
    overlap: float = field(
        default=2.0,
        metadata={"group": "Clips", "metavar": "SECONDS", "help": "Set the overlap of clips."},
    )
    shots: bool = field(
        default=False,
        metadata={"group": "Clips", "help": "Start a clip at every shot change."},
    )
    frame_step: float = 0.0
