"""Speech, heard by faster-whisper: the only file that imports it."""

from __future__ import annotations

from typing import Any

import numpy as np

from eaglenet.errors import ModelNotFoundError, UsageError
from eaglenet.video.sound import RATE, Samples
from eaglenet.words.lines import Line, clean_lines


class Listener:
    """Writes down what is said.

    ``model``: a size (tiny, base, small, medium, large-v3, turbo), a folder or a hub id, all in
    CTranslate2's form. ``device``: auto, cpu or cuda.
    """

    def __init__(self, model: str, device: str = "auto") -> None:
        faster_whisper = self.require()
        self.name = f"whisper {model}"
        kind = device.partition(":")[0]
        try:
            self._model: Any = faster_whisper.WhisperModel(model, device=kind)
        except (ValueError, RuntimeError, OSError) as error:
            # It lists all sizes after a comma.
            text = (str(error).splitlines() or [type(error).__name__])[0].partition(", expected")[0]
            raise ModelNotFoundError(
                f"the speech model {model!r} cannot be loaded ({text[:200]}); give --listen tiny, "
                "base, small, medium, large-v3 or turbo (downloaded once), or a folder that "
                "ct2-transformers-converter made"
            ) from error

    @staticmethod
    def require() -> Any:
        """faster-whisper, or the name of the extra that brings it."""
        try:
            import faster_whisper
        except ImportError as error:
            raise UsageError(
                f"hearing speech needs faster-whisper ({error}); install it with: "
                "pip install 'eaglenet[speech]'"
            ) from error
        return faster_whisper

    def listen(self, samples: Samples, start: float = 0.0, *, vad: bool = True) -> list[Line]:
        """Lines of what is said, in the language that is heard; ``start``: of the samples.

        ``vad``: leave silence out first, in which the model makes up words.
        """
        if not len(samples) or float(np.abs(samples).max()) < 1e-4:
            return []
        segments, heard = self._model.transcribe(
            samples,
            vad_filter=vad,
            condition_on_previous_text=False,
        )
        length = len(samples) / RATE
        return clean_lines(
            Line(
                start + min(segment.start, length),
                start + min(segment.end, length),
                segment.text,
                heard.language or "",
            )
            for segment in segments
        )
