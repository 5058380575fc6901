"""Speech: pauses, plausible segments, and faster-whisper with random weights.

Trained models need a download. With random weights, a folder in the format of CTranslate2 loads and
returns timed lines; ``EAGLENET_WHISPER`` names a trained one. ``benchmarks/speech.py`` measures the
recognised text.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import av
import numpy as np
import pytest

from eaglenet.core.errors import ModelNotFoundError
from eaglenet.indexing.recognition import ChunkRequest, decode_audio_chunk, quietest
from eaglenet.transcripts import speech
from eaglenet.transcripts.lines import TranscriptLine
from eaglenet.transcripts.speech import RATE, SpeechModel
from eaglenet.video.audio import AudioFormat, Samples, decode_audio


def tone(seconds: float, pauses: list[float]) -> Samples:
    """Return a loud tone with half a second of silence around each pause."""
    times = np.arange(int(seconds * RATE)) / RATE
    samples = 0.5 * np.sin(2 * np.pi * 440 * times)
    for pause in pauses:
        samples[np.abs(times - pause) < 0.25] = 0
    return samples.astype(np.float32)


def write_audio(path: Path, samples: Samples) -> Path:
    """Write FLAC in Matroska, with a video stream."""
    with av.open(str(path), "w") as container:
        video = container.add_stream("libx264", rate=2)
        video.width, video.height, video.pix_fmt = 64, 48, "yuv420p"
        audio = container.add_stream("flac", rate=RATE, layout="mono")
        for number in range(int(len(samples) / RATE * 2)):
            frame = av.VideoFrame.from_ndarray(np.zeros((48, 64, 3), np.uint8), format="rgb24")
            frame.pts = number
            container.mux(video.encode(frame))
        whole = (samples * 32767).astype(np.int16)[None]
        for start in range(0, whole.shape[1], 4096):
            part = np.ascontiguousarray(whole[:, start : start + 4096])
            sound = av.AudioFrame.from_ndarray(part, format="s16", layout="mono")
            sound.sample_rate, sound.pts = RATE, start
            container.mux(audio.encode(sound))
        for stream in (video, audio):
            container.mux(stream.encode(None))
    return path


def test_decodes_audio_from_the_requested_second(tmp_path: Path) -> None:
    samples = tone(6.0, [2.0])
    path = write_audio(tmp_path / "film.mkv", samples)
    for start, end in ((0.0, 6.0), (1.5, 2.5), (4.0, 60.0)):
        channels = decode_audio(path, start, end, AudioFormat(RATE, "mono"))
        assert channels is not None
        (audio,) = channels
        expected = samples[round(start * RATE) : round(end * RATE)]
        assert abs(len(audio) - len(expected)) <= 32
        assert np.abs(audio[: len(expected) - 32] - expected[: len(audio)][:-32]).max() < 0.02


def test_neighbouring_chunks_meet_in_a_pause(tmp_path: Path) -> None:
    path = write_audio(tmp_path / "film.mkv", tone(20.0, [9.0]))
    first = decode_audio_chunk(ChunkRequest("c", str(path), 0.0, 10.0, False, 20.0))
    second = decode_audio_chunk(ChunkRequest("c", str(path), 10.0, 20.0, True, 20.0))
    assert first is not None
    assert second is not None
    assert abs(first.end - 9.0) < 0.3
    assert abs(first.end - second.start) < 0.11
    assert second.end == float("inf")
    assert abs(len(first.samples) + len(second.samples) - 20 * RATE) < 0.2 * RATE


def test_video_without_audio_has_no_samples(tmp_path: Path) -> None:
    path = tmp_path / "silent.mp4"
    with av.open(str(path), "w") as container:
        video = container.add_stream("libx264", rate=2)
        video.width, video.height, video.pix_fmt = 64, 48, "yuv420p"
        frame = av.VideoFrame.from_ndarray(np.zeros((48, 64, 3), np.uint8), format="rgb24")
        container.mux(video.encode(frame))
        container.mux(video.encode(None))
    assert decode_audio(path, 0.0, 5.0, AudioFormat(RATE, "mono")) is None


def test_quietest_searches_only_the_beginning() -> None:
    samples = tone(5.0, [1.0, 4.0])
    assert abs(quietest(samples, 3.0) / RATE - 1.0) < 0.3
    assert quietest(samples[:10], 3.0) == 0


def save_random_whisper(folder: Path) -> Path:
    """Write a model of one layer with random weights, bytes as tokens, and three languages."""
    import ctranslate2
    import torch
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({sign: place for place, sign in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    names = "endoftext startoftranscript en de zh translate transcribe startoflm startofprev "
    names += "nospeech notimestamps"
    special = [f"<|{name}|>" for name in names.split()]
    special += [f"<|{place * 0.02:.2f}|>" for place in range(1501)]
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in special])
    end = tokenizer.token_to_id("<|endoftext|>")
    torch.manual_seed(0)
    config = WhisperConfig(
        vocab_size=tokenizer.get_vocab_size(),
        num_mel_bins=80,
        d_model=32,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=4,
        encoder_ffn_dim=48,
        decoder_ffn_dim=40,
        pad_token_id=end,
        bos_token_id=end,
        eos_token_id=end,
        decoder_start_token_id=tokenizer.token_to_id("<|startoftranscript|>"),
        # With the default, a token of the real vocabulary, CTranslate2 writes out of bounds.
        begin_suppress_tokens=[end],
    )
    source = folder / "source"
    WhisperForConditionalGeneration(config).save_pretrained(source)
    tokenizer.save(str(source / "tokenizer.json"))
    converter = ctranslate2.converters.TransformersConverter(
        str(source), copy_files=["tokenizer.json"]
    )
    converter.convert(str(folder / "model"))
    return folder / "model"


@pytest.mark.slow
def test_loads_a_ctranslate2_folder_and_returns_timed_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = save_random_whisper(tmp_path)
    # Lines of random weights are dropped as implausible.
    monkeypatch.setattr(speech, "is_plausible", lambda segment: True)
    assert json.loads((folder / "config.json").read_text())
    model = SpeechModel(str(folder), "cpu")
    assert model.name == f"whisper {folder}"
    noise = np.random.default_rng(0).standard_normal(8 * RATE).astype(np.float32) * 0.1
    assert model.transcribe(np.zeros(RATE, np.float32)) == []
    lines = model.transcribe(noise, 100.0, vad=False)
    assert lines
    assert all(100.0 <= line.start <= line.end <= 108.0 for line in lines)
    assert {line.language for line in lines} <= {"en", "de", "zh"}


@pytest.mark.parametrize("ids", [[1, 3], [-2], ["1"], 5])
def test_tokens_outside_the_vocabulary_are_refused(ids: Any, tmp_path: Path) -> None:
    """CTranslate2 would write out of bounds."""
    (tmp_path / "vocabulary.json").write_text('["a", "b", "c"]')
    (tmp_path / "config.json").write_text(json.dumps({"suppress_ids_begin": ids}))
    with pytest.raises(ModelNotFoundError, match="; use tiny"):
        SpeechModel(str(tmp_path), "cpu")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "advice"),
    [("no-such-folder/model", "use tiny"), ("tiny", "needs the network")],
)
def test_missing_model_error_lists_the_alternatives(model: str, advice: str) -> None:
    with pytest.raises(ModelNotFoundError, match=rf"{advice}.*ct2-transformers-converter"):
        SpeechModel(model, "cpu")


def segment_of(**values: float) -> SimpleNamespace:
    usual = {"compression_ratio": 1.2, "avg_logprob": -0.3, "no_speech_prob": 0.1}
    return SimpleNamespace(**(usual | values))


@pytest.mark.parametrize(
    "values",
    [
        {"compression_ratio": 5.0},
        {"avg_logprob": -1.4},
        {"no_speech_prob": 0.9, "avg_logprob": -0.7},
    ],
    ids=["repeats itself", "is a guess", "is not speech"],
)
def test_drops_a_segment_that_is_likely_invented(values: dict[str, float]) -> None:
    assert speech.is_plausible(segment_of())
    assert not speech.is_plausible(segment_of(**values))


def test_keeps_a_sure_segment_in_a_quiet_place() -> None:
    assert speech.is_plausible(segment_of(no_speech_prob=0.9, avg_logprob=-0.2))


def test_equal_lines_in_a_row_are_kept_twice_and_again_after_another() -> None:
    texts = ["Thank you.", "thank you", "Thank you!", "Thank you.", "No.", "Thank you."]
    lines = [TranscriptLine(number, number + 1, text) for number, text in enumerate(texts)]
    assert [line.start for line in speech.drop_repeats(lines)] == [0, 1, 4, 5]


@pytest.mark.slow
def test_invents_no_lines_on_silence_noise_and_a_tone() -> None:
    folder = os.environ.get("EAGLENET_WHISPER")
    if not folder:
        pytest.skip("EAGLENET_WHISPER names no folder of a Whisper model in CTranslate2's format")
    model = SpeechModel(folder, "cpu")
    clock = np.arange(20 * RATE) / RATE
    noise = 0.2 * np.random.default_rng(0).standard_normal(len(clock))
    tone = 0.3 * np.sin(2 * np.pi * 440 * clock) * np.exp(-3 * (clock % 0.5))
    for samples in (1e-3 * noise, noise, tone):
        assert model.transcribe(samples.astype(np.float32)) == []
