"""Conditions of results of the paper and of our runs: pre-training, features, split, selection."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

UNKNOWN = "not stated"


@dataclass(frozen=True)
class Conditions:
    """Conditions of a result; only results with the same conditions are comparable.

    pretraining: data of the pre-training. features: inputs of the method. split: training videos or
    protocol. selection: split that chose the epoch.
    """

    pretraining: str
    features: str
    split: str
    selection: str


TITLES = {
    "pretraining": "pre-training",
    "features": "features",
    "split": "split",
    "selection": "epoch chosen on",
}
EXPERTS = "own experts"
NINE = "9k training videos"
CLIP = Conditions("CLIP (400M image-text pairs)", "CLIP tower, trained", NINE, UNKNOWN)
CC3M = "CC3M + WebVid-2M"
# From the papers and code of the methods; (u): uncertain.
CONDITIONS_BEFORE_CLIP: Mapping[str, Conditions] = {
    "CE": Conditions("none", f"9 {EXPERTS}, GPT words", NINE, "the last epoch"),
    "MMT": Conditions("HowTo100M", f"7 {EXPERTS}, BERT trained", NINE, "the last epoch"),
    "T2vlad": Conditions("none", f"8 {EXPERTS}, BERT trained", NINE, "test"),
    "HiT": Conditions("none (u)", f"{EXPERTS}, BERT trained", NINE, UNKNOWN),
    "TeachText": Conditions(
        "none", f"{EXPERTS}, several text encoders", NINE, "the last epoch (u)"
    ),
    "ClipBERT": Conditions("COCO + Visual Genome", "ResNet-50 grid, trained", "7k", "another 1k"),
    "SupportSet": Conditions("HowTo100M", "2 experts, T5 trained", NINE, UNKNOWN),
    "Frozen": Conditions(CC3M, "ViT-B/16, trained", NINE, "test"),
    "BridgeFormer": Conditions(CC3M, "ViT-B/16, trained", NINE, UNKNOWN),
    "TVMM": Conditions(f"{CC3M} (u)", "ViT-B/16, trained", NINE, UNKNOWN),
    "HGR": Conditions("none", "I3D frames, GloVe words", "25,991 (VATEX)", "validation"),
}
ERRATA: Mapping[str, str] = {
    "CE": "the table exchanges CE's directions on MSR-VTT (its authors: t2v 20.9 48.8 62.4, v2t "
    "20.6 50.3 64.0); its DiDeMo R@10 of 82.7 is R@50 (R@10 is 54.4); its missing "
    "R@10 on MSVD is 63.8",
    "HiT": "with HowTo100M 30.7 60.9 73.2 (u)",
    "TeachText": "its student is MMT with more teachers (u); ours is CE, that of the released code",
    "MMT": "without HowTo100M its corrected code gives 24.1 56.4 69.6",
    "SupportSet": "without HowTo100M 27.4 56.3 67.7 (u)",
    "Frozen": "from ImageNet weights alone users report 17.8 R@1",
    "HGR": "its authors train on 25,991 videos, the paper's text says 25,911 (u)",
}
"""Notes on numbers of the paper that are wrong or need explanation."""


def paper_conditions(label: str) -> Conditions:
    return CONDITIONS_BEFORE_CLIP.get(label, CLIP)


def run_conditions(settings: Mapping[str, Any], protocol: str = "") -> Conditions:
    """Return the conditions of one of our runs, from the plain values of its experiment."""
    encoder, data = _section(settings, "encoder"), _section(settings, "data")
    training = _section(settings, "training")
    kind = str(encoder.get("kind", UNKNOWN))
    config = _section(encoder, "config")
    features, pretraining = {
        "pretrained": ("its tower, trained", str(encoder.get("source") or UNKNOWN)),
        "features": ("stored frames and sentences", "that of the stored features"),
        "experts": (
            f"stored experts: {', '.join(sorted(_section(config, 'experts'))) or UNKNOWN}",
            "that of the stored features",
        ),
    }.get(kind, ("its tower, trained", "none"))
    dataset = data.get("dataset", "features")
    if kind == "features" and dataset != "features":
        # A run computes the features of videos and of frames itself.
        towers = Path(str(_section(data, "options").get("towers") or "small")).name
        features, pretraining = "frames and texts by frozen towers", towers
    if training.get("freeze") == "towers":
        features = features.replace("trained", "frozen")
    split = protocol or str(data.get("dataset", UNKNOWN))
    selection = {"val": "validation", "test": "TEST"}.get(str(training.get("select")), UNKNOWN)
    epochs, eval_every = training.get("epochs"), training.get("eval_every")
    if isinstance(epochs, int) and isinstance(eval_every, int) and epochs <= eval_every:
        selection = "the last epoch"  # No other epoch is evaluated.
    return Conditions(pretraining, features, split, selection)


def conditions_lines(conditions: Sequence[Conditions]) -> list[str]:
    """Name the conditions in which rows differ; empty if there are none."""
    names = [
        TITLES[spec.name]
        for spec in fields(Conditions)
        if len({getattr(entry, spec.name) for entry in conditions}) > 1
    ]
    if not names:
        return []
    listing = " and ".join(", ".join(names).rsplit(", ", 1))
    return [f"Rows differ in {listing}: compare only those that agree."]


def as_cells(conditions: Conditions) -> list[str]:
    return list(asdict(conditions).values())


def _section(settings: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = settings.get(name)
    return value if isinstance(value, Mapping) else {}
