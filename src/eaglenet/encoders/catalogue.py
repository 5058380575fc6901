"""Trained models by name: size, input, languages, licence and published results."""

from __future__ import annotations

import difflib
import os
import re
from dataclasses import dataclass
from typing import Literal

from eaglenet.core.errors import ModelNotFoundError, UsageError, shell_quote

Languages = Literal["English", "many"]
LICENCE_VARIABLE = "EAGLENET_ACCEPT_LICENCE"
"""Environment variable that names an accepted licence, such as ``CC-BY-NC-4.0``."""
PE_PAPER = "Bolya et al. 2025, arXiv:2504.13181"
MTEB = "MTEB's results of 20 August 2026, over 879 of the 1,000 videos"
ST_PREFIX = "st:"
"""Prefix of the names of models that sentence-transformers opens."""
GPU_PARAMETERS = 2_000_000_000
"""Models with more weights are listed as models for GPUs."""


@dataclass(frozen=True)
class ModelCard:
    """Description of a model, available before its download.

    parameters: number of weights in both towers.
    stored_bytes: bytes per weight in the files.
    file_bytes: size of the files if they contain more than these weights.
    image_size: side of input frames; 0 if eaglenet cannot load the model.
    zero_shot: published text-to-video R@1 on MSR-VTT without training on it; None if its authors
        have not published it.
    source: source of ``zero_shot``.
    obstacle: reason why eaglenet cannot load the model, which is listed for its numbers.
    """

    name: str
    family: str
    parameters: int
    dim: int
    image_size: int
    languages: Languages
    licence: str
    is_commercial: bool = True
    zero_shot: float | None = None
    source: str = ""
    stored_bytes: int = 4
    obstacle: str = ""
    file_bytes: int = 0

    @property
    def bytes_on_disk(self) -> int:
        return self.file_bytes or self.stored_bytes * self.parameters

    @property
    def hardware(self) -> str:
        """Device that the model needs, by the size of its weights in 16 bits."""
        if self.parameters < GPU_PARAMETERS:
            return "CPU or GPU"
        return f"GPU, {2 * self.parameters / 1e9:.1f} GB for weights in bf16"


CARDS: dict[str, ModelCard] = {
    card.name: card
    for card in (
        ModelCard(
            "small", "compact", 43_308_289, 384, 168, "English", "Apache-2.0",
            source="26.6 over 476 of the 1,000 videos, every caption a query: its card",
            stored_bytes=1,
        ),
        ModelCard(
            "openai/clip-vit-base-patch32", "clip", 151_277_313, 512, 224, "English", "MIT",
            zero_shot=31.1, source="as reported for zero-shot CLIP, mean of frames",
        ),
        ModelCard("openai/clip-vit-base-patch16", "clip", 149_620_737, 512, 224, "English", "MIT"),
        ModelCard("openai/clip-vit-large-patch14", "clip", 427_616_513, 768, 224, "English", "MIT"),
        ModelCard(
            "openai/clip-vit-large-patch14-336", "clip", 427_944_193, 768, 336, "English", "MIT"
        ),
        ModelCard(
            "google/siglip-base-patch16-224", "siglip", 203_155_970, 768, 224, "English",
            "Apache-2.0",
        ),
        ModelCard(
            "google/siglip2-base-patch32-256", "siglip", 376_856_066, 768, 256, "many", "Apache-2.0"
        ),
        ModelCard(
            "google/siglip2-base-patch16-224", "siglip", 375_187_970, 768, 224, "many", "Apache-2.0"
        ),
        ModelCard(
            "google/siglip2-large-patch16-256", "siglip", 881_526_786, 1024, 256, "many",
            "Apache-2.0",
        ),
        ModelCard(
            "google/siglip2-so400m-patch14-384", "siglip", 1_136_008_498, 1152, 384, "many",
            "Apache-2.0",
        ),
        ModelCard(
            "timm/PE-Core-T-16-384", "perception", 69_546_113, 512, 384, "English", "Apache-2.0",
            zero_shot=28.8, source=PE_PAPER,
        ),
        ModelCard(
            "timm/PE-Core-S-16-384", "perception", 87_188_225, 512, 384, "English", "Apache-2.0",
            zero_shot=39.3, source=PE_PAPER,
        ),
        ModelCard(
            "timm/PE-Core-B-16", "perception", 447_660_545, 1024, 224, "English", "Apache-2.0",
            zero_shot=47.6, source=PE_PAPER,
        ),
        ModelCard(
            "timm/PE-Core-L-14-336", "perception", 671_138_817, 1024, 336, "English", "Apache-2.0",
            zero_shot=50.3, source=PE_PAPER,
        ),
        ModelCard(
            "facebook/metaclip-2-worldwide-huge-quickgelu", "clip", 1_858_783_745, 1024, 224,
            "many", "CC-BY-NC-4.0", is_commercial=False,
        ),
        ModelCard(
            "st:Qwen/Qwen3-VL-Embedding-2B", "st", 2_127_532_032, 2048, 448, "many", "Apache-2.0",
            zero_shot=53.8, source=f"its makers (issue 29 of their repository); 55.6 in {MTEB}",
            stored_bytes=2,
        ),
        ModelCard(
            "st:Qwen/Qwen3-VL-Embedding-8B", "st", 8_144_793_840, 4096, 448, "many", "Apache-2.0",
            zero_shot=58.2, source=f"its makers (issue 29 of their repository); 59.8 in {MTEB}",
            stored_bytes=2,
        ),
        ModelCard(
            "st:google/videoprism-lvt-base-f16r288", "st", 247_623_424, 768, 288, "English",
            "Apache-2.0", zero_shot=50.1, source="its card; 50.06 in pull request 5193 of MTEB",
        ),
        ModelCard(
            "st:facebook/pe-av-large", "st", 820_556_548, 1024, 336, "English", "Apache-2.0",
            zero_shot=42.3, source=f"{MTEB}, with its text head for audio and video",
            file_bytes=8_938_802_992,
        ),
        ModelCard(
            "encord-team/ebind-full", "", 1_790_000_000, 1024, 0, "English", "CC-BY-NC-SA-4.0",
            is_commercial=False, zero_shot=50.1, source=MTEB, obstacle="needs its own package",
        ),
        ModelCard(
            "jinaai/jina-embeddings-v5-omni-small", "", 1_626_268_672, 1024, 0, "many",
            "CC-BY-NC-4.0", is_commercial=False, zero_shot=36.1, source=MTEB, stored_bytes=2,
            obstacle="needs code of its repository",
        ),
    )
}  # fmt: skip
"""Descriptions by the name that ``--model`` takes."""

ALIASES = {
    "fast": "openai/clip-vit-base-patch32",
    "balanced": "timm/PE-Core-B-16",
    "best": "timm/PE-Core-L-14-336",
    "multilingual": "google/siglip2-base-patch16-224",
    "best-laptop": "st:google/videoprism-lvt-base-f16r288",
    "best-gpu": "st:Qwen/Qwen3-VL-Embedding-2B",
}
"""Memorable names. Write ``./best`` for a folder of such a name."""

HUB_IDS = {
    "ViT-B/32": "openai/clip-vit-base-patch32",
    "ViT-B/16": "openai/clip-vit-base-patch16",
    "ViT-L/14": "openai/clip-vit-large-patch14",
    "ViT-L/14@336px": "openai/clip-vit-large-patch14-336",
    **ALIASES,
}
"""Short names: OpenAI's names, and the aliases."""


def no_such_model(name: str, cause: str) -> ModelNotFoundError:
    """Return the error for an unknown model, with the most similar name."""
    known_names = ["small", *HUB_IDS, *CARDS]
    close_names = difflib.get_close_matches(name, known_names, n=1)
    advice = (
        f"did you mean {close_names[0]!r}? `eaglenet models` lists the names"
        if close_names
        else "use small (--model small), which comes with the package, another of "
        "`eaglenet models`, or a model folder"
    )
    return ModelNotFoundError(f"there is no model {name!r} ({cause})", advice)


FORBIDS_COMMERCE = re.compile(r"\bnc\b|non-?commercial|research|amlr", re.IGNORECASE)
"""Matches names of non-commercial licences on the hub, such as CC-BY-NC-4.0 and Apple's AMLR."""
LICENCE_LINE = re.compile(r"^license(?:_name)?:[ \t]*[\"']?([\w.+-]+)", re.MULTILINE)


def require_licence(identifier: str, page: str = "") -> None:
    """Refuse a model whose licence forbids commercial use, unless the licence is accepted.

    ``page``: README of a model that is not in ``CARDS``; its header names the licence.
    """
    card = CARDS.get(identifier) or CARDS.get(ST_PREFIX + identifier)
    if card is not None:
        licence = "" if card.is_commercial else card.licence
        size = f" ({card.bytes_on_disk / 1e9:.1f} GB)"
    else:
        licence, size = _non_commercial_licence(page), ""
    if not licence or os.environ.get(LICENCE_VARIABLE, "").lower() == licence.lower():
        return
    raise UsageError(
        f"{identifier}{size} is licensed {licence}, which "
        "forbids commercial use. If that suits you, download it with `eaglenet models --download "
        f"{shell_quote(identifier)} --accept-licence {shell_quote(licence)}`, or set "
        f"{LICENCE_VARIABLE}={shell_quote(licence)}"
    )


def _non_commercial_licence(page: str) -> str:
    """Return the non-commercial licence in the header of a README; "" if there is none.

    >>> _non_commercial_licence("---\\nlicense: cc-by-nc-4.0\\n---\\n# A model")
    'cc-by-nc-4.0'
    """
    head = page.split("\n---", 1)[0] if page.startswith("---") else ""
    return next((name for name in LICENCE_LINE.findall(head) if FORBIDS_COMMERCE.search(name)), "")
