"""SpeechRecognizer, heard by faster-whisper: the only file that imports it."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eaglenet.core.errors import ModelNotFoundError, UsageError
from eaglenet.transcripts.lines import TranscriptLine, clean_lines
from eaglenet.video.containers import open_container, pyav
from eaglenet.video.limits import MAX_PACKETS

# The sound of a video, as the samples that models of speech take.

RATE = 16_000
"""Samples a second."""
EARLY = (0.5, 10.0, 60.0)
"""Seconds to jump to before the wanted one, one after the other."""
Samples = NDArray[np.float32]


def decode_audio(path: str | Path, start: float, end: float) -> Samples | None:
    """One channel of ``[start, end)`` seconds, silent where the file has none.

    None where the file has no sound at all. Shorter than asked where the file ends.
    """
    # After a jump the sound may go on later than it should; then from farther back.
    for early in (*(seconds for seconds in EARLY if seconds < start), None):
        with contextlib.closing(open_container(Path(path))) as container:
            streams = list(container.streams.audio)
            if not streams or streams[0].codec_context is None:
                return None
            zero = (container.start_time or 0) / 1e6
            if early is not None:
                with contextlib.suppress(pyav().FFmpegError):
                    container.seek(int((start + zero - early) * 1e6))
            pieces = _frames(container, streams[0])
            first = next(pieces, None)
            if early is None or (first is not None and first[0] - zero <= start):
                found = itertools.chain([first] if first is not None else (), pieces)
                return _placed(((seconds - zero, values) for seconds, values in found), start, end)
    return None


def _placed(pieces: Iterable[tuple[float, Samples]], start: float, end: float) -> Samples:
    """Pieces where they belong in ``[start, end)``."""
    samples = np.zeros(round((end - start) * RATE), np.float32)
    reached = 0
    for seconds, values in pieces:
        first = round((seconds - start) * RATE)
        if first >= len(samples):
            break
        begin, skip = max(first, 0), max(-first, 0)
        values = values[skip : skip + len(samples) - begin]
        if len(values):
            samples[begin : begin + len(values)] = values
            reached = max(reached, begin + len(values))
    return samples[:reached]


def _frames(container: Any, stream: Any) -> Iterator[tuple[float, Samples]]:
    """Resampled pieces and when each begins; broken packets are passed over."""
    resampler = pyav().AudioResampler(format="flt", layout="mono", rate=RATE)
    error = pyav().FFmpegError
    clock: float | None = None
    failures = 0
    for count, packet in enumerate(container.demux(stream)):
        if count >= MAX_PACKETS or failures > 1000:
            return
        try:
            frames = packet.decode()
        except error:
            failures += 1
            continue
        for frame in frames:
            if frame.time is not None and (clock is None or abs(frame.time - clock) > 0.1):
                clock = float(frame.time)
                resampler = pyav().AudioResampler(format="flt", layout="mono", rate=RATE)
            # The resampler counts for itself; times are ours.
            frame.pts = None
            for piece in resampler.resample(frame):
                values = piece.to_ndarray().reshape(-1).astype(np.float32)
                begin = clock or 0.0
                clock = begin + len(values) / RATE
                yield begin, values


class SpeechModel:
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

    def listen(self, samples: Samples, start: float = 0.0, *, vad: bool = True) -> list[TranscriptLine]:
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
            TranscriptLine(
                start + min(segment.start, length),
                start + min(segment.end, length),
                segment.text,
                heard.language or "",
            )
            for segment in segments
        )
