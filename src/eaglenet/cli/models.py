"""``eaglenet models``: list models with their licences, sizes and speed on this machine."""

from __future__ import annotations

import dataclasses
import json
import os
import textwrap
import time
from typing import TYPE_CHECKING, Any

from eaglenet.cli.options import AsJson
from eaglenet.core.errors import UsageError
from eaglenet.core.settings import option
from eaglenet.core.text import format_bytes

if TYPE_CHECKING:
    from eaglenet.core.types import PlainConfig
    from eaglenet.encoders.catalogue import ModelCard


MEASURED_FRAMES = 8
SLOW_FRAME = 2.0
"""Seconds for the first frame above which the speed is measured from that frame alone."""
NAME_WIDTH = 33
"""Width of the column of names in a table of 80 columns; a longer name gets its own line."""


def models(
    as_json: AsJson = False,
    measure: bool = option(False, "Measure frames per second on this machine (slow)."),
    download: str | None = option(None, "Download this model now."),
    accept_licence: str | None = option(
        None, "Accept the licence of this name, which you have read."
    ),
) -> None:
    """List models to index with: size, languages, licence."""
    if download is not None:
        if as_json or measure:
            name = "--json" if as_json else "--measure"
            raise UsageError(f"--download and {name} cannot be combined; use one of them")
        _download(download, accept_licence)
        return
    if accept_licence is not None:
        raise UsageError("--accept-licence names no model; add --download MODEL")
    from eaglenet.encoders.catalogue import ALIASES, CARDS

    rows = [
        _row(card, [alias for alias, name in ALIASES.items() if name == card.name], measure)
        for card in CARDS.values()
    ]
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    _print(rows, measure)
    print("\nR@1: published text-to-video recall on MSR-VTT, zero-shot; -: not published.")
    for source in dict.fromkeys(row["source"] for row in rows if row["source"]):
        names = ", ".join(row["name"].split("/")[-1] for row in rows if row["source"] == source)
        for line in textwrap.wrap(f"{names}: {source}", 78, subsequent_indent="  "):
            print(f"  {line}")
    if any(not row["is_commercial"] for row in rows):
        print("*: no commercial use; accept the licence with --accept-licence to download it.")
    for row in rows:
        short = row["name"].split("/")[-1]
        if row["obstacle"]:
            print(f"{short}: cannot be loaded ({row['obstacle']}).")
        elif row["hardware"].startswith("GPU"):
            print(f"{short}: {row['hardware']}.")
    if any(row["family"] == "st" for row in rows):
        print("Models with st: need pip install 'eaglenet[st]'.")


def _row(card: ModelCard, aliases: list[str], measure: bool) -> dict[str, Any]:
    from eaglenet.encoders.catalogue import ST_PREFIX
    from eaglenet.encoders.hub import cached_folder, cached_snapshot
    from eaglenet.models.files import is_packaged

    find = cached_snapshot if card.name.startswith(ST_PREFIX) else cached_folder
    row = dataclasses.asdict(card) | {
        "bytes_on_disk": card.bytes_on_disk,
        "hardware": card.hardware,
        "aliases": aliases,
        "is_here": not card.obstacle
        and (is_packaged(card.name) or find(card.name.removeprefix(ST_PREFIX)) is not None),
    }
    if measure:
        row["frames_per_second"] = frames_per_second(card)
    return row


def _print(rows: list[dict[str, Any]], measure: bool) -> None:
    """Print aliases and models in 80 columns; the speed replaces dimension and input size."""
    aliases = [(alias, row["name"]) for row in rows for alias in row["aliases"]]
    for alias, name in aliases:
        print(f"--model {alias:<14} {name}")
    print("\n" * bool(aliases), end="")
    facts = f"{'frames/s':>8}" if measure else f"{'dim':>4} {'px':>3}"
    print(
        f"{'model':<{NAME_WIDTH}} {'size':>6} {facts} {'words':<7} {'licence':<10} {'R@1':>4} here"
    )
    for row in rows:
        name = row["name"]
        if len(name) > NAME_WIDTH:
            print(name)
            name = ""
        facts = f"{row['dim']:4} {row['image_size'] or '-':>3}"
        if measure:
            facts = f"{_decimal(row['frames_per_second']):>8}"
        presence = "-" if row["obstacle"] else "yes" if row["is_here"] else "no"
        # Truncated, because restrictive licences have long names; downloading prints it in full.
        licence = row["licence"] if row["is_commercial"] else f"{row['licence'][:8]} *"
        size = format_bytes(row["bytes_on_disk"])
        languages, recall = row["languages"], _decimal(row["zero_shot"])
        print(
            f"{name:<{NAME_WIDTH}} {size:>6} {facts} {languages:<7} {licence:<10} {recall:>4} "
            f"{presence}"
        )


def _decimal(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def frames_per_second(card: ModelCard) -> float | None:
    """Measure the speed of the image tower with random weights; None if its shape is unknown."""
    import torch

    from eaglenet.encoders import ENCODERS
    from eaglenet.encoders.hardware import best_device

    config = shape_of(card)
    if config is None:
        return None
    device = best_device()
    with torch.device("meta"):
        encoder: Any = ENCODERS[card.family].build(config)
    # Only the image tower: the embeddings of a vocabulary of 256,000 tokens take a gigabyte.
    vision = encoder.vision.to_empty(device=device).eval()
    # All weights share one sample of noise: drawing it for each takes longer than the frames.
    weights = list(vision.parameters())
    noise = torch.empty(max(weight.numel() for weight in weights), device=device).normal_(std=0.02)
    for weight in weights:
        weight.data.copy_(noise[: weight.numel()].view_as(weight))
    if device == "cuda":
        vision = vision.to(torch.bfloat16)
    size = card.image_size
    pixels = torch.zeros(MEASURED_FRAMES, 3, size, size, dtype=torch.uint8, device=device)
    with torch.inference_mode():
        start = time.perf_counter()
        vision(pixels[:1]).cpu()
        seconds = time.perf_counter() - start
        if seconds > SLOW_FRAME:
            return 1 / seconds
        start = time.perf_counter()
        vision(pixels).cpu()
    return MEASURED_FRAMES / (time.perf_counter() - start)


def _download(name: str, licence: str | None) -> None:
    from eaglenet.encoders.catalogue import CARDS, HUB_IDS, LICENCE_VARIABLE, ST_PREFIX
    from eaglenet.encoders.hub import exact_name, find_hub_folder, find_snapshot, split_st_name

    identifier = HUB_IDS.get(name, name)
    card = CARDS.get(identifier)
    if card is not None and card.obstacle:
        raise UsageError(
            f"{identifier} cannot be loaded ({card.obstacle}); choose another: `eaglenet models`"
        )
    if card is not None:
        print(f"{identifier}: {card.bytes_on_disk / 1e9:.1f} GB, licence {card.licence}")
    if licence is not None:
        os.environ[LICENCE_VARIABLE] = licence
    if identifier.startswith(ST_PREFIX):
        folder = find_snapshot(split_st_name(identifier)[0])
    else:
        folder = find_hub_folder(name)
    print(f"{exact_name(name)} is in {folder}")


def shape_of(card: ModelCard) -> PlainConfig | None:
    """Return the configuration of a model; None if only its files contain it."""
    from eaglenet.encoders.catalogue import HUB_IDS
    from eaglenet.encoders.clip_config import CLIP_SHAPES, ClipConfig, TextConfig, VisionConfig
    from eaglenet.encoders.compact import CompactConfig, CompactTextConfig
    from eaglenet.encoders.perception import PERCEPTION_SHAPES
    from eaglenet.encoders.siglip import SIGLIP_SHAPES

    shapes: dict[str, PlainConfig] = {
        "small": CompactConfig(text=CompactTextConfig(vocabulary_size=27_626)),
        **{HUB_IDS[name]: config for name, config in CLIP_SHAPES.items()},
        "facebook/metaclip-2-worldwide-huge-quickgelu": ClipConfig(
            dim=1024,
            vision=VisionConfig(patch_size=14, width=1280, layers=32, heads=16, mlp_width=5120),
            text=TextConfig(901_629, width=1024, layers=24, heads=16, mlp_width=4096, end_token=2),
        ),
        **SIGLIP_SHAPES,
        **{f"timm/{name}": config for name, config in PERCEPTION_SHAPES.items()},
    }
    return shapes.get(card.name)
