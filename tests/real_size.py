"""Models of the input size and file layout that people use, narrow inside, and real video files."""

from __future__ import annotations

import functools
import importlib.util
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import torch

from eaglenet.encoders.tokenizers import ClipTokenizer
from openai_class import OpenaiClip, OpenaiShape, save_archive

WIDTH, TEXT_WIDTH, DIM, VOCABULARY = 64, 64, 512, 49408


@functools.cache
def clip_tokenizer() -> ClipTokenizer:
    """OpenAI's own table of 49,408 pieces, which open_clip_torch carries."""
    spec = importlib.util.find_spec("open_clip")
    assert spec is not None, "open_clip_torch is not installed: run `make setup`"
    assert spec.submodule_search_locations is not None
    folder = Path(spec.submodule_search_locations[0])
    return ClipTokenizer.from_table(folder / "bpe_simple_vocab_16e6.txt.gz")


def save_hub_clip(folder: Path, patch: int) -> Path:
    """CLIP at 224 pixels in Hugging Face's layout, as transformers itself writes it."""
    from transformers import CLIPConfig, CLIPModel

    torch.manual_seed(0)
    text = {"hidden_size": TEXT_WIDTH, "intermediate_size": 128, "num_attention_heads": 1}
    vision = {"hidden_size": WIDTH, "intermediate_size": 128, "num_attention_heads": 1}
    config = CLIPConfig(
        projection_dim=DIM,
        text_config={**text, "num_hidden_layers": 1, "vocab_size": VOCABULARY, "eos_token_id": 2},
        vision_config={**vision, "num_hidden_layers": 2, "image_size": 224, "patch_size": patch},
    )
    CLIPModel(config).save_pretrained(folder)
    clip_tokenizer().save(folder)
    return folder


def save_openai_clip(folder: Path, patch: int = 32) -> Path:
    """CLIP at 224 pixels as OpenAI's TorchScript archive in fp16, its table beside it."""
    torch.manual_seed(0)
    folder.mkdir(parents=True)
    path = folder / "ViT-B-32.pt"
    shape = OpenaiShape(224 // patch, patch, WIDTH, TEXT_WIDTH, DIM, VOCABULARY, 2, 1, mlp=2)
    save_archive(OpenaiClip(shape).half().eval(), path)
    clip_tokenizer().save(folder)
    return path


def write_film(path: Path, *, seconds: float, size: tuple[int, int], rate: Fraction) -> Path:
    """H.264 with sound: a colour that changes every four seconds, with a bar that comes and stays.

    It comes in a quarter of a second: frames after that are the same as the one before and cost a
    model nothing.
    """
    colours = [(200, 40, 40), (40, 160, 60), (40, 60, 200), (220, 200, 60)]
    width, height = size
    with av.open(str(path), "w") as container:
        video = container.add_stream("h264", rate=rate, options={"preset": "ultrafast"})
        video.width, video.height, video.pix_fmt = width, height, "yuv420p"
        fast = {"aac_coder": "fast"}
        sound = container.add_stream("aac", rate=44100, options=fast, layout="stereo")
        for number in range(round(seconds * rate)):
            pixels = np.empty((height, width, 3), np.uint8)
            pixels[:] = colours[int(number / rate) // 4 % len(colours)]
            moved = min(number % (4 * rate), rate / 4)
            pixels[:, int(moved) * 12 % width :][:, :8] = 255
            frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
            container.mux(video.encode(frame))
        container.mux(video.encode(None))
        wave = np.sin(np.arange(int(44100 * seconds)) / 30).astype(np.float32)
        tone = av.AudioFrame.from_ndarray(np.stack([wave, wave]), format="fltp", layout="stereo")
        tone.sample_rate, tone.pts = 44100, 0
        for part in (tone, None):
            container.mux(sound.encode(part))
    return path


def write_films(folder: Path) -> Path:
    """Wide at 25 frames a second and longer than a clip; tall at 29.97."""
    folder.mkdir(parents=True)
    write_film(folder / "wide film.mp4", seconds=13, size=(320, 180), rate=Fraction(25))
    write_film(folder / "tall.mp4", seconds=5, size=(180, 320), rate=Fraction(30000, 1001))
    return folder
