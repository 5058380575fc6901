"""Rows of the paper's tables as short names of recipes.

>>> paper_recipe("table1/xpool-b16").command
'eaglenet train xpool --data msrvtt --tower clip-b16 --protocol paper'
>>> paper_recipe("table9/didemo/no-f2f").command
'eaglenet train eaglenet --data didemo --tower clip-b16 --protocol paper --variant edges=no-f2f'
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache

from eaglenet.core.registry import Registry
from eaglenet.research.evaluation.paper import paper_tables
from eaglenet.research.recipes.authors import ORIGINALS
from eaglenet.research.recipes.recipe import Recipe
from eaglenet.research.recipes.variants import TABLES

TABLE_NUMBERS: Mapping[str, int] = {
    "msrvtt": 1, "others": 2, "components": 3, "energy": 4, "pooling": 5, "time": 6, "graph": 7,
    "coefficient": 8, "edges": 9,
}  # fmt: skip
"""Table of `evaluation.paper` -> its number in the paper."""
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
SIZES = {"ViT-B/32": "b32", "ViT-B/16": "b16"}
DATASETS = {"DiDeMo": "didemo", "MSVD": "msvd", "VATEX": "vatex"}
ROW_NAME = re.compile(r"table\d+/.+")


@cache
def paper_recipes() -> Registry[Recipe]:
    """Every row of the paper's tables by its short name.

    Table 1 and 6 are on MSR-VTT; the names of other tables have the dataset in the middle.
    """
    rows: Registry[Recipe] = Registry("row of the paper", list_command="eaglenet recipes table1")
    tables = paper_tables()
    for row in tables["msrvtt"].rows:
        name, recipe = _main_row(row.label, row.group, "msrvtt")
        rows.add(f"table1/{name}", recipe)
    for row in tables["others"].rows:
        for index, (title, dataset) in enumerate(DATASETS.items()):
            assert tables["others"].columns[3 * index].startswith(title)
            if any(value is not None for value in row.values[3 * index : 3 * index + 3]):
                name, recipe = _main_row(row.label, row.group, dataset)
                rows.add(f"table2/{dataset}/{name}", recipe)
    for row in tables["time"].rows:
        label = row.label.removesuffix(" (t2v)").removesuffix(" (v2t)")
        name, recipe = _main_row(label, "ViT-B/16", "msrvtt")
        if f"table6/{name}" not in rows:  # UCoFiA has two test times of one run
            rows.add(f"table6/{name}", recipe)
    for table, values in TABLES.items():
        for dataset in ("msrvtt", "didemo"):
            for value in values:
                recipe = Recipe("eaglenet", dataset, "clip-b16", "paper", (f"{table}={value}",))
                rows.add(f"table{TABLE_NUMBERS[table]}/{dataset}/{value}", recipe)
    return rows


def _main_row(label: str, group: str, dataset: str) -> tuple[str, Recipe]:
    method = METHODS_OF_LABELS[label]
    if group in SIZES:
        size = SIZES[group]
        return f"{method}-{size}", Recipe(method, dataset, f"clip-{size}", "paper")
    tower = ORIGINALS[method].towers[0] if method in ORIGINALS else "experts"
    return method, Recipe(method, dataset, tower, "original")


def paper_recipe(name: str) -> Recipe:
    """The recipe of a row; an unknown name lists near ones."""
    return paper_recipes()[name]
