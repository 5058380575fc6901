"""Splitting of videos into clips. Quick to import, for decoders and the command line."""

from __future__ import annotations

from dataclasses import dataclass

from eaglenet.core.settings import option


@dataclass(frozen=True)
class Splitting:
    """Length and overlap of clips, in seconds.

    frame_step: seconds between the frames of a whole clip, chosen for a new store so that
        overlapping clips share frames; 0 spreads the frames over each clip.
    """

    clip_seconds: float = option(10.0, "Set the length of clips.", group="Clips", metavar="SECONDS")
    overlap: float = option(2.0, "Set the overlap of clips.", group="Clips", metavar="SECONDS")
    shots: bool = option(False, "Start a clip at every shot change.", group="Clips")
    frame_step: float = 0.0
