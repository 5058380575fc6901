"""Which recipe runs which row of the paper's tables 1 and 2."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from eaglenet.research.evaluation.paper import PaperRow, paper_tables
from eaglenet.research.recipes.earlier import TOWER_ROWS

METHODS_OF_LABELS: Mapping[str, str] = {
    "CE": "ce", "MMT": "mmt", "T2vlad": "t2vlad", "HiT": "hit", "TeachText": "teachtext",
    "ClipBERT": "clipbert", "SupportSet": "supportset", "Frozen": "frozen",
    "BridgeFormer": "bridgeformer", "TVMM": "tvmm", "HGR": "hgr", "CLIP4Clip": "clip4clip",
    "XPool": "xpool", "TS2Net": "ts2net", "CLIP-VIP": "clipvip", "UCoFiA": "ucofia",
    "ProST": "prost", "TMASS": "tmass", "RAP": "rap", "TFVL": "tfvl", "SHE-Net": "shenet",
    "GLSCL": "glscl", "TempMe": "tempme", "TV-ProxyNet": "tvproxynet",
    "Video-ColBERT": "video_colbert", "EagleNet": "eaglenet",
}  # fmt: skip
"""The paper's names of methods and ours."""
SLUGS = {"ViT-B/32": "b32", "ViT-B/16": "b16"}
DATASETS = {"DiDeMo": "didemo", "MSVD": "msvd", "VATEX": "vatex"}


def recipe_of(label: str, group: str, dataset: str) -> str:
    """The name of the recipe of one row on one dataset."""
    method = METHODS_OF_LABELS[label]
    tower = SLUGS.get(group)
    if method == "eaglenet":
        return f"{dataset}-{tower}"
    if tower is None:
        tower = TOWER_ROWS[method].tower if method in TOWER_ROWS else "experts"
    return f"{dataset}-{tower}/{method}"


def paper_recipes() -> Iterator[tuple[PaperRow, str, str]]:
    """Every row of tables 1 and 2 with each dataset that it has numbers on, and its recipe."""
    tables = paper_tables()
    for row in tables["msrvtt"].rows:
        yield row, "msrvtt", recipe_of(row.label, row.group, "msrvtt")
    others = tables["others"]
    for row in others.rows:
        for place, (title, dataset) in enumerate(DATASETS.items()):
            if any(value is not None for value in row.values[3 * place : 3 * place + 3]):
                if not others.columns[3 * place].startswith(title):
                    raise AssertionError(f"column {3 * place} is not of {title}")
                yield row, dataset, recipe_of(row.label, row.group, dataset)
