"""Speech recognition with faster-whisper, which only this module imports."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eaglenet.core.errors import ModelNotFoundError, UsageError
from eaglenet.core.platform import num_cores
from eaglenet.transcripts.lines import TranscriptLine, analyse, clean_lines
from eaglenet.video.containers import open_container, pyav
from eaglenet.video.limits import MAX_PACKETS

RATE = 16_000
"""Samples per second that speech models expect."""
SEEK_MARGINS = (0.5, 10.0, 60.0)
"""Seconds before the start to seek to, tried in order."""
Samples = NDArray[np.float32]
MIN_LOG_PROBABILITY = -1.0
"""Mean log-probability per token below which a segment is a guess; Whisper's own threshold."""
MAX_SILENCE_PROBABILITY = 0.6
"""Probability of "no speech" above which a segment must be well supported to be kept."""
SUPPORTED_LOG_PROBABILITY = -0.5
"""Mean log-probability that keeps a segment in spite of a high probability of "no speech"."""
MAX_COMPRESSION = 2.4
"""Text that zlib compresses better than this repeats itself; Whisper's own threshold."""
MAX_REPEATS = 2
"""Equal lines in a row that are kept; the model repeats itself on music, people rarely do."""


def decode_audio(path: str | Path, start: float, end: float) -> Samples | None:
    """Decode ``[start, end)`` seconds as one channel, silent where the file has no audio.

    Returns None for a file without an audio stream, and fewer samples at the end of a file.
    """
    # A seek may land after the start; then seek farther back.
    for margin in (*(seconds for seconds in SEEK_MARGINS if seconds < start), None):
        with contextlib.closing(open_container(Path(path))) as container:
            streams = list(container.streams.audio)
            if not streams or streams[0].codec_context is None:
                return None
            zero = (container.start_time or 0) / 1e6
            if margin is not None:
                with contextlib.suppress(pyav().FFmpegError):
                    container.seek(int((start + zero - margin) * 1e6))
            chunks = _decode_chunks(container, streams[0])
            first = next(chunks, None)
            if margin is None or (first is not None and first[0] - zero <= start):
                chunks = itertools.chain([first] if first is not None else (), chunks)
                return _assemble(
                    ((seconds - zero, values) for seconds, values in chunks), start, end
                )
    return None


def _assemble(chunks: Iterable[tuple[float, Samples]], start: float, end: float) -> Samples:
    """Copy chunks to their positions in ``[start, end)``."""
    samples = np.zeros(round((end - start) * RATE), np.float32)
    length = 0
    for seconds, values in chunks:
        first = round((seconds - start) * RATE)
        if first >= len(samples):
            break
        begin, skip = max(first, 0), max(-first, 0)
        values = values[skip : skip + len(samples) - begin]
        if len(values):
            samples[begin : begin + len(values)] = values
            length = max(length, begin + len(values))
    return samples[:length]


def _decode_chunks(container: Any, stream: Any) -> Iterator[tuple[float, Samples]]:
    """Yield resampled chunks with their start times; broken packets are skipped."""
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
            # The resampler keeps its own count; times come from the clock.
            frame.pts = None
            for resampled in resampler.resample(frame):
                values = resampled.to_ndarray().reshape(-1).astype(np.float32)
                begin = clock or 0.0
                clock = begin + len(values) / RATE
                yield begin, values


class SpeechModel:
    """A Whisper model that transcribes audio.

    ``model`` is a size (tiny, base, small, medium, large-v3, turbo), a folder or a hub id, in the
    format of CTranslate2. ``device`` is auto, cpu or cuda.
    """

    def __init__(self, model: str, device: str = "auto") -> None:
        faster_whisper = self.require()
        self.name = f"whisper {model}"
        device_type = device.partition(":")[0]
        # 0 leaves the number to OMP_NUM_THREADS; without that the library takes four.
        threads = 0 if "OMP_NUM_THREADS" in os.environ else num_cores()
        try:
            # "auto" is int8 on a CPU: half the time of fp32 for the same words.
            self._model: Any = faster_whisper.WhisperModel(
                model, device=device_type, compute_type="auto", cpu_threads=threads
            )
        except (ValueError, RuntimeError, OSError) as error:
            # The library lists all sizes after a comma.
            text = (str(error).splitlines() or [type(error).__name__])[0].partition(", expected")[0]
            raise ModelNotFoundError(
                f"cannot load the speech model {model!r} ({text[:200]}); use --listen with tiny, "
                "base, small, medium, large-v3 or turbo (downloaded once), or with a folder "
                "written by ct2-transformers-converter"
            ) from error

    @staticmethod
    def require() -> Any:
        """Import faster-whisper, or raise an error that names the extra."""
        try:
            import faster_whisper
        except ImportError as error:
            raise UsageError(
                f"speech recognition needs faster-whisper ({error}); install it with: "
                "pip install 'eaglenet[speech]'"
            ) from error
        return faster_whisper

    def transcribe(
        self, samples: Samples, start: float = 0.0, *, vad: bool = True
    ) -> list[TranscriptLine]:
        """Transcribe samples that begin at ``start`` seconds, in the detected language.

        ``vad`` removes silence first, in which the model would invent text.
        """
        if not len(samples) or float(np.abs(samples).max()) < 1e-4:
            return []
        segments, info = self._model.transcribe(
            samples,
            vad_filter=vad,
            condition_on_previous_text=False,
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


def is_plausible(segment: Any) -> bool:
    """Return False for a segment of Whisper that is likely invented: on music, noise or silence."""
    if segment.compression_ratio > MAX_COMPRESSION or segment.avg_logprob < MIN_LOG_PROBABILITY:
        return False
    return not (
        segment.no_speech_prob > MAX_SILENCE_PROBABILITY
        and segment.avg_logprob < SUPPORTED_LOG_PROBABILITY
    )


def drop_repeats(lines: Sequence[TranscriptLine]) -> list[TranscriptLine]:
    """Keep the first ``MAX_REPEATS`` of equal lines in a row, whatever their case and punctuation.

    >>> line = TranscriptLine(0, 1, "Thank you.")
    >>> len(drop_repeats([line] * 5))
    2
    """
    remaining: list[TranscriptLine] = []
    previous: list[str] = []
    count = 0
    for line in lines:
        words = [term.text for term in analyse(line.text).terms]
        count = count + 1 if words == previous else 1
        previous = words
        if count <= MAX_REPEATS:
            remaining.append(line)
    return remaining
