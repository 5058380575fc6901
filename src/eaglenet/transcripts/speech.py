"""Speech recognition with faster-whisper, which no other module imports."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from eaglenet.core.errors import ModelNotFoundError, naming_extra
from eaglenet.core.platform import num_cores
from eaglenet.core.untrusted import read_json, read_object
from eaglenet.transcripts.lines import TranscriptLine, analyse, clean_lines
from eaglenet.video.audio import Samples

RATE = 16_000
"""Samples per second that speech models expect."""
MIN_LOG_PROBABILITY = -1.0
"""Minimum mean log-probability per token of a segment; Whisper's threshold."""
MAX_SILENCE_PROBABILITY = 0.6
"""Probability of "no speech" above which a segment needs ``CERTAIN_LOG_PROBABILITY``."""
CERTAIN_LOG_PROBABILITY = -0.5
"""Minimum mean log-probability of a segment with a high probability of "no speech"."""
MAX_COMPRESSION = 2.4
"""Maximum compression ratio (zlib) of a text that does not repeat itself; Whisper's threshold."""
MAX_REPEATS = 2
"""Maximum equal consecutive lines; the model repeats itself on music."""
SIZES = ("tiny", "base", "small", "medium", "large-v3", "turbo")


class SpeechModel:
    """Transcribes audio with Whisper.

    model: one of ``SIZES``, or a folder or hub id with a model in the format of CTranslate2.
    device: auto, cpu or cuda.
    """

    def __init__(self, model: str, device: str = "auto") -> None:
        faster_whisper = self.require()
        self.name = f"whisper {model}"
        device_type = device.partition(":")[0]
        # 0 means OMP_NUM_THREADS; without this variable, the library would use four threads.
        threads = 0 if "OMP_NUM_THREADS" in os.environ else num_cores()
        try:
            check_token_ids(Path(model))
            # "auto" is int8 on a CPU, which takes half the time of fp32 and gives the same text.
            self._model: Any = faster_whisper.WhisperModel(
                model, device=device_type, compute_type="auto", cpu_threads=threads
            )
        except (ValueError, RuntimeError, OSError) as error:
            # The library lists all sizes after a comma.
            text = (str(error).splitlines() or [type(error).__name__])[0].partition(", expected")[0]
            folder = "a folder written by ct2-transformers-converter"
            advice = (
                f"it is downloaded once, for which this machine needs the network; or pass {folder}"
                if model in SIZES
                else f"use {', '.join(SIZES)} (downloaded once), or {folder}"
            )
            raise ModelNotFoundError(
                f"cannot load the speech model {model!r} ({text[:200]}); {advice}"
            ) from error

    @staticmethod
    def require() -> Any:
        """Import faster-whisper; raise an error that names the extra if it is missing."""
        with naming_extra("speech", "speech recognition needs faster-whisper"):
            import faster_whisper
        return faster_whisper

    def transcribe(
        self, samples: Samples, start: float = 0.0, *, vad: bool = True
    ) -> list[TranscriptLine]:
        """Transcribe samples that begin at ``start`` seconds, in the language of the speech.

        vad: remove silence first, for which the model would invent text.
        """
        if not len(samples) or float(np.abs(samples).max()) < 1e-4:
            return []
        segments, info = self._model.transcribe(
            samples, vad_filter=vad, condition_on_previous_text=False
        )
        length = len(samples) / RATE
        lines = clean_lines(
            TranscriptLine(
                start + min(segment.start, length),
                start + min(segment.end, length),
                segment.text,
                info.language or "",
            )
            for segment in segments
            if is_plausible(segment)
        )
        return drop_repeats(lines)


def check_token_ids(folder: Path) -> None:
    """Raise ``ValueError`` if a model folder names tokens outside its vocabulary.

    CTranslate2 does not check them, and writes out of bounds.
    """
    config, vocabulary = folder / "config.json", folder / "vocabulary.json"
    if not (config.is_file() and vocabulary.is_file()):
        return
    num_tokens, settings = len(read_json(vocabulary)), read_object(config)
    for name in ("suppress_ids", "suppress_ids_begin", "lang_ids"):
        ids = settings.get(name) or []
        if not isinstance(ids, list) or not all(
            isinstance(token, int) and 0 <= token < num_tokens for token in ids
        ):
            raise ValueError(f"{name} of config.json has tokens outside the vocabulary")


def is_plausible(segment: Any) -> bool:
    """Return False for a segment that Whisper probably invented for music, noise or silence."""
    if segment.compression_ratio > MAX_COMPRESSION or segment.avg_logprob < MIN_LOG_PROBABILITY:
        return False
    return not (
        segment.no_speech_prob > MAX_SILENCE_PROBABILITY
        and segment.avg_logprob < CERTAIN_LOG_PROBABILITY
    )


def drop_repeats(lines: Sequence[TranscriptLine]) -> list[TranscriptLine]:
    """Keep the first ``MAX_REPEATS`` of equal consecutive lines, ignoring case and punctuation.

    >>> line = TranscriptLine(0, 1, "Thank you.")
    >>> len(drop_repeats([line] * 5))
    2
    """
    remaining: list[TranscriptLine] = []
    previous: list[str] = []
    count = 0
    for line in lines:
        terms = [term.text for term in analyse(line.text).terms]
        count = count + 1 if terms == previous else 1
        previous = terms
        if count <= MAX_REPEATS:
            remaining.append(line)
    return remaining
