"""Speech with known text: sentences, paraphrases of them, and recordings by synthesised voices.

Each sentence is a new combination of parts. Every part has a paraphrase that shares no content word
with it, for queries in other words.
"""

from __future__ import annotations

import random
import subprocess
import tempfile
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
from numpy.typing import NDArray

from eaglenet.transcripts.speech import RATE
from eaglenet.video.audio import AudioFormat, Samples, decode_audio

PAUSE = 0.5
"""Seconds of silence between sentences."""
SUBJECTS = (
    ("the old lighthouse keeper", "the elderly man who tends the beacon"),
    ("my younger sister", "a girl from my family"),
    ("the village doctor", "a physician in a small community"),
    ("our mathematics teacher", "the woman who explains algebra at school"),
    ("a tired train driver", "an exhausted railway employee"),
    ("the new mayor", "the recently elected head of the town"),
    ("a famous violin player", "a celebrated musician"),
    ("the baker next door", "the neighbour who makes bread"),
    ("two police officers", "a pair of cops"),
    ("the captain of the ferry", "the commander of a boat"),
    ("a young farmer", "a boy who grows crops"),
    ("the museum guard", "the man watching over the paintings"),
    ("her grandfather", "the father of someone's mother"),
    ("the hotel manager", "the boss of an inn"),
)
ACTIONS = (
    ("repaired a broken bicycle", "fixed a damaged two wheeled vehicle"),
    ("lost the keys of the car", "could not find what opens the automobile"),
    ("painted the kitchen yellow", "gave the cooking room a bright colour"),
    ("bought a very cheap camera", "purchased equipment for taking photographs"),
    ("wrote a long letter to the king", "sent a message to the monarch"),
    ("cooked soup for thirty guests", "prepared a hot meal for many visitors"),
    ("heard a strange noise in the cellar", "noticed an odd sound under the house"),
    ("found a wallet full of money", "discovered a purse with cash"),
    ("slept through the whole storm", "did not wake up during the bad weather"),
    ("learned to speak Portuguese", "studied a foreign language"),
    ("missed the last bus", "was too late for public transport"),
    ("rescued a dog from the river", "saved an animal out of the water"),
    ("planted twelve apple trees", "put some fruit plants into the ground"),
    ("broke an expensive glass vase", "smashed a costly container for flowers"),
    ("sold the house by the lake", "got rid of the home near the shore"),
    ("won the chess tournament", "came first in a board game contest"),
    ("forgot about the wedding", "did not remember a marriage"),
    ("climbed the highest mountain", "reached the top of a tall peak"),
)
ENDINGS = (
    "on a cold winter morning", "before the children came home", "without telling anybody",
    "at the end of last summer", "and everybody laughed about it", "while the radio was playing",
    "for the second time this year", "because nobody else wanted to do it",
    "during the long holiday", "just before the lights went out", "in front of the post office",
)  # fmt: skip
ITALIAN = (
    ("il vecchio guardiano del faro", "la mia sorella", "il medico del paese",
     "un giovane contadino", "il nuovo sindaco", "la nostra maestra", "il capitano della nave"),
    ("ha riparato la bicicletta", "ha perso le chiavi della macchina", "ha dipinto la cucina",
     "ha scritto una lunga lettera", "ha trovato un portafoglio", "ha venduto la casa sul lago"),
    ("in una fredda mattina", "prima di cena", "senza dire niente", "alla fine della estate"),
)  # fmt: skip
VOICES = {
    "en": ("flite", "-voice", "slt", "-f", "{text}", "-o", "{wave}"),
    "it": ("text2wave", "-eval", "(voice_lp_diphone)", "{text}", "-o", "{wave}"),
}
"""Commands of the voices: Debian's ``flite``, and ``festival`` with ``festvox-italp16k``."""


@dataclass(frozen=True)
class Sentence:
    """A sentence, and a query for it in other words (English only)."""

    text: str
    paraphrase: str = ""


@dataclass(frozen=True)
class SpokenLine:
    """A sentence of a recording, with its start and end in seconds."""

    sentence: Sentence
    start: float
    end: float


def make_sentences(count: int, language: str = "en", seed: int = 0) -> list[Sentence]:
    """Make sentences, any two of which differ in subject or action."""
    if language == "it":
        pairs = [(subject, action) for subject in ITALIAN[0] for action in ITALIAN[1]]
        random.Random(seed).shuffle(pairs)
        return [
            Sentence(f"{subject} {action} {ITALIAN[2][number % len(ITALIAN[2])]}")
            for number, (subject, action) in enumerate(pairs[:count])
        ]
    whole = [(subject, action) for subject in SUBJECTS for action in ACTIONS]
    random.Random(seed).shuffle(whole)
    if count > len(whole):
        raise ValueError(f"only {len(whole)} sentences can be made, not {count}")
    return [
        Sentence(
            f"{subject[0]} {action[0]} {ENDINGS[number % len(ENDINGS)]}",
            f"{subject[1]} {action[1]}",
        )
        for number, (subject, action) in enumerate(whole[:count])
    ]


def speak(sentences: list[Sentence], language: str = "en") -> tuple[Samples, list[SpokenLine]]:
    """Record sentences one after the other, with a pause after each."""
    chunks: list[NDArray[np.float32]] = []
    lines = []
    clock = 0.0
    with tempfile.TemporaryDirectory() as folder:
        text, wave = Path(folder) / "text.txt", Path(folder) / "wave.wav"
        for sentence in sentences:
            text.write_text(sentence.text.capitalize() + ".\n", "latin-1")
            command = [part.format(text=text, wave=wave) for part in VOICES[language]]
            subprocess.run(command, check=True, capture_output=True)
            channels = decode_audio(wave, 0.0, 60.0, AudioFormat(RATE, "mono"))
            assert channels is not None
            (samples,) = channels
            lines.append(SpokenLine(sentence, clock, clock + len(samples) / RATE))
            chunks += [samples, np.zeros(round(PAUSE * RATE), np.float32)]
            clock += (len(samples) + len(chunks[-1])) / RATE
    return np.concatenate(chunks), lines


def make_noise(length: int, seed: int = 0) -> Samples:
    """Pink noise: equal power per octave, like wind, traffic or a crowd."""
    generator = np.random.default_rng(seed)
    spectrum = np.fft.rfft(generator.standard_normal(length))
    spectrum /= np.sqrt(np.maximum(np.arange(len(spectrum)), 1))
    noise = np.fft.irfft(spectrum, length)
    return (noise / np.abs(noise).max()).astype(np.float32)


def make_music(length: int, seed: int = 0) -> Samples:
    """Plucked chords, a bass and a beat, at 100 beats per minute."""
    generator = np.random.default_rng(seed)
    beat = round(0.6 * RATE)
    music = np.zeros(length + 4 * beat, np.float64)
    time = np.arange(2 * beat) / RATE
    roots = (220.0, 174.6, 261.6, 196.0)
    for number in range(length // beat + 1):
        root = roots[number // 4 % 4]
        notes = [
            root,
            root * 5 / 4,
            root * 3 / 2,
            root * generator.choice((2.0, 2.25, 2.5)),
            root / 2,
        ]
        tone = sum(
            np.sin(2 * np.pi * note * harmonic * time) / harmonic
            for note in notes
            for harmonic in (1, 2, 3, 4)
        )
        tone = tone * np.exp(-3 * time)
        hit = generator.standard_normal(len(time)) * np.exp(-40 * time) * 2
        music[number * beat : number * beat + len(time)] += tone + hit
    music = music[:length]
    return (music / np.abs(music).max()).astype(np.float32)


def mix(speech: Samples, background: Samples, decibels: float) -> Samples:
    """Add a background that is ``decibels`` below the speech, by mean power."""
    power = float(np.mean(np.square(speech[np.abs(speech) > 1e-3])))
    gain = np.sqrt(power / 10 ** (decibels / 10) / float(np.mean(np.square(background))))
    samples = speech + gain * background[: len(speech)]
    return (samples / max(1.0, float(np.abs(samples).max()))).astype(np.float32)


def write_film(path: Path, samples: Samples | None, seconds: float) -> None:
    """Write a grey video of 64 x 64 pixels with this sound; None for no audio stream."""
    with av.open(str(path), "w") as container:
        video = container.add_stream("libx264", rate=2)
        video.width = video.height = 64
        video.pix_fmt = "yuv420p"
        audio = None
        if samples is not None:
            audio = container.add_stream("aac", rate=RATE)
            audio.layout = "mono"
        grey = np.full((64, 64, 3), 128, np.uint8)
        for number in range(max(1, round(seconds * 2))):
            frame = av.VideoFrame.from_ndarray(grey, format="rgb24")
            frame.pts, frame.time_base = number, Fraction(1, 2)
            container.mux(video.encode(frame))
        container.mux(video.encode())
        if audio is not None and samples is not None:
            for start in range(0, len(samples), RATE):
                chunk = np.ascontiguousarray(samples[start : start + RATE]).reshape(1, -1)
                sound = av.AudioFrame.from_ndarray(chunk, format="fltp", layout="mono")
                sound.sample_rate, sound.pts = RATE, start
                sound.time_base = Fraction(1, RATE)
                container.mux(audio.encode(sound))
            container.mux(audio.encode())
