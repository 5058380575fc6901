"""Under which conditions a number came about: what must stand beside it before it is compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

UNKNOWN = "not said"


@dataclass(frozen=True)
class Conditions:
    """What one row had that another may not have had.

    pretraining: what was learnt before the dataset was seen. features: what the method reads.
    split: videos trained on, and the protocol. selection: what chose the epoch.
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
# From the methods' own papers and code; (u) marks what is not certain.
OLDER: Mapping[str, Conditions] = {
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
SLIPS: Mapping[str, str] = {
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
"""What a reader of the paper's numbers should know beside them."""


def paper_conditions(label: str) -> Conditions:
    """The conditions of a row of the paper's tables."""
    return OLDER.get(label, CLIP)


def run_conditions(settings: Mapping[str, Any], protocol: str = "") -> Conditions:
    """The conditions of one of our runs, from its experiment as plain values."""
    encoder, data = _part(settings, "encoder"), _part(settings, "data")
    training = _part(settings, "training")
    kind = str(encoder.get("kind", UNKNOWN))
    config = _part(encoder, "config")
    features, pretraining = {
        "pretrained": ("its tower, trained", str(encoder.get("source") or UNKNOWN)),
        "features": ("stored frames and sentences", "that of the stored features"),
        "experts": (
            f"stored experts: {', '.join(sorted(_part(config, 'experts'))) or UNKNOWN}",
            "that of the stored features",
        ),
    }.get(kind, ("its tower, trained", "none"))
    if training.get("freeze") == "towers":
        features = features.replace("trained", "frozen")
    where = protocol or str(data.get("dataset", UNKNOWN))
    chosen = {"val": "validation", "test": "TEST"}.get(str(training.get("select")), UNKNOWN)
    return Conditions(pretraining, features, where, chosen)


def differing(found: Sequence[Conditions]) -> list[str]:
    """Titles of what the rows differ in."""
    return [
        TITLES[spec.name]
        for spec in fields(Conditions)
        if len({getattr(entry, spec.name) for entry in found}) > 1
    ]


def conditions_lines(found: Sequence[Conditions]) -> list[str]:
    """One sentence where rows cannot be compared on equal terms; nothing where they can."""
    names = differing(found)
    if not names:
        return []
    listed = " and ".join(", ".join(names).rsplit(", ", 1))
    return [f"Rows differ in {listed}: compare only those that agree."]


def as_cells(conditions: Conditions) -> list[str]:
    """In the order of :data:`TITLES`."""
    return list(asdict(conditions).values())


def _part(settings: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = settings.get(name)
    return value if isinstance(value, Mapping) else {}
