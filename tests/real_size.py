"""Models of the input size and file layout that people use, narrow inside, and real video files."""

from __future__ import annotations

import importlib.util
import warnings
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import torch
from torch import nn

from eaglenet.encoders.clip_tokenizer import ClipTokenizer

WIDTH, TEXT_WIDTH, DIM, VOCABULARY, CONTEXT = 64, 64, 512, 49408, 77


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
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.save(torch.jit.trace(_Original(patch).half().eval(), torch.zeros(2)), str(path))
    clip_tokenizer().save(folder)
    return path


def write_film(path: Path, *, seconds: float, size: tuple[int, int], rate: Fraction) -> Path:
    """H.264 with sound: a colour that changes every four seconds, with a moving bar."""
    colours = [(200, 40, 40), (40, 160, 60), (40, 60, 200), (220, 200, 60)]
    width, height = size
    with av.open(str(path), "w") as container:
        video = container.add_stream("h264", rate=rate, options={"preset": "ultrafast"})
        video.width, video.height, video.pix_fmt = width, height, "yuv420p"
        sound = container.add_stream("aac", rate=44100, layout="stereo")
        for number in range(round(seconds * rate)):
            pixels = np.empty((height, width, 3), np.uint8)
            pixels[:] = colours[int(number / rate) // 4 % len(colours)]
            pixels[:, number * 3 % width :][:, :8] = 255
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


class _Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.attn = nn.MultiheadAttention(width, width // 64)
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mlp = nn.Module()
        self.mlp.c_fc = nn.Linear(width, 2 * width)
        self.mlp.c_proj = nn.Linear(2 * width, width)


class _Transformer(nn.Module):
    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.resblocks = nn.Sequential(*(_Block(width) for _ in range(layers)))


class _Visual(nn.Module):
    def __init__(self, patch: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, WIDTH, patch, patch, bias=False)
        self.class_embedding = nn.Parameter(torch.randn(WIDTH))
        self.positional_embedding = nn.Parameter(torch.randn((224 // patch) ** 2 + 1, WIDTH))
        self.ln_pre, self.ln_post = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.transformer = _Transformer(WIDTH, 2)
        self.proj = nn.Parameter(torch.randn(WIDTH, DIM))


class _Original(nn.Module):
    """The names and shapes of OpenAI's CLIP class."""

    def __init__(self, patch: int) -> None:
        super().__init__()
        self.visual = _Visual(patch)
        self.transformer = _Transformer(TEXT_WIDTH, 1)
        self.token_embedding = nn.Embedding(VOCABULARY, TEXT_WIDTH)
        self.positional_embedding = nn.Parameter(torch.randn(CONTEXT, TEXT_WIDTH))
        self.ln_final = nn.LayerNorm(TEXT_WIDTH)
        self.text_projection = nn.Parameter(torch.randn(TEXT_WIDTH, DIM))
        self.logit_scale = nn.Parameter(torch.tensor(4.6))
        for name in ("input_resolution", "context_length", "vocab_size"):
            self.register_buffer(name, torch.tensor(7))

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        return pixels * self.logit_scale
