"""Tables of the EagleNet paper as data, in percent and seconds. No number here is ours.

Rows that the paper marks as reproduced are runs of other methods by its authors. A missing number
is ``None``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from eaglenet.core.registry import Registry


@dataclass(frozen=True)
class PaperRow:
    """A row of a table; ``group`` is its tower or block."""

    label: str
    values: tuple[float | None, ...]
    group: str = ""


@dataclass(frozen=True)
class PaperTable:
    name: str
    columns: tuple[str, ...]
    rows: tuple[PaperRow, ...]

    def row(self, label: str, group: str | None = None) -> PaperRow:
        """Return the row ``label``; ``group`` distinguishes rows of the same label."""
        rows: Registry[PaperRow] = Registry(f"row of the paper's table {self.name!r}")
        for row in self.rows:
            if group in (None, row.group) and row.label not in rows:
                rows.add(row.label, row)
        return rows[label]

    def value(self, label: str, column: str, group: str | None = None) -> float | None:
        return self.row(label, group).values[self.columns.index(column)]


RECALLS = ("R@1", "R@5", "R@10")
BOTH_DIRECTIONS = (
    *(f"{direction} {name}" for direction in ("t2v", "v2t") for name in (*RECALLS, "MdR", "MnR")),
    "Rsum",
)
MSRVTT_AND_DIDEMO = tuple(f"{data} {name}" for data in ("MSR-VTT", "DiDeMo") for name in RECALLS)
DIDEMO_MSVD_VATEX = tuple(
    f"{data} {name}" for data in ("DiDeMo", "MSVD", "VATEX") for name in RECALLS
)

# A line in brackets begins a group; other lines are ``label | values``.
MSRVTT = """
[other]
CE | 20.6 50.3 64.0 5.3 - 20.9 48.8 62.4 6.0 - 267.0
MMT | 26.6 57.1 69.6 4.0 24.0 27.0 57.5 69.7 3.7 21.3 307.5
T2vlad | 29.5 59.0 70.1 4.0 - 31.8 60.0 71.1 3.0 - 321.5
HiT | 27.7 59.2 72.0 2.9 - 28.8 60.3 72.3 3.0 - 320.3
TeachText | 29.6 61.6 74.2 3.0 - 32.1 62.7 75.0 3.0 - 335.2
ClipBERT | 22.0 46.8 59.9 6.0 - - - - - - -
SupportSet | 30.1 58.5 69.3 3.0 - 28.5 58.6 71.6 3.0 - 316.6
Frozen | 31.0 59.5 70.5 3.0 - - - - - - -
BridgeFormer | 37.6 64.8 75.1 3.0 - - - - - - -
TVMM | 36.2 64.2 75.7 3.0 - 34.8 63.8 73.7 3.0 - 348.4
[ViT-B/32]
CLIP4Clip | 43.2 71.4 80.6 2.0 16.5 42.5 70.9 81.0 2.0 12.2 389.6
XPool | 45.8 73.8 82.0 2.0 14.0 45.7 73.1 82.3 2.0 9.4 402.7
TS2Net | 45.4 72.9 82.9 2.0 14.2 44.8 72.6 81.1 2.0 10.3 399.7
CLIP-VIP | 46.0 72.6 82.2 2.0 14.4 43.6 71.5 82.3 2.0 10.8 398.2
ProST | 46.3 73.6 82.4 2.0 12.9 45.0 72.9 82.2 2.0 8.9 402.4
TMASS | 43.4 73.2 82.1 2.0 14.3 45.0 73.2 82.7 2.0 9.5 399.6
RAP | 44.8 71.4 81.5 - 14.4 44.0 71.9 82.4 - 10.1 396.0
TFVL | 45.2 70.4 80.1 - 15.2 45.5 71.5 81.0 - 11.0 393.7
SHE-Net | 45.3 74.9 84.2 2.0 12.5 44.8 74.8 83.7 2.0 9.1 407.7
GLSCL | 47.2 73.5 82.7 2.0 13.1 45.6 73.5 82.7 2.0 9.8 405.2
TempMe | 43.3 71.2 81.2 2.0 15.3 45.0 71.5 80.8 2.0 11.0 393.0
TV-ProxyNet | 46.7 73.0 81.8 2.0 14.5 45.4 71.1 82.4 2.0 11.0 400.4
Video-ColBERT | 45.9 71.6 82.7 2.0 13.7 42.1 70.4 81.1 2.0 10.8 393.8
EagleNet | 47.2 74.8 84.0 2.0 14.4 45.7 73.7 83.4 2.0 9.4 408.8
[ViT-B/16]
CLIP4Clip | 45.2 72.2 81.4 2.0 15.0 42.9 70.9 80.6 2.0 11.6 393.2
XPool | 49.2 73.9 82.6 2.0 13.6 48.0 74.9 82.9 2.0 9.7 411.5
TS2Net | 48.8 75.0 85.0 2.0 13.0 46.4 75.4 85.3 2.0 8.6 415.9
CLIP-VIP | 48.5 75.5 83.9 2.0 12.5 47.6 74.8 85.0 2.0 9.6 415.3
UCoFiA | 48.6 75.5 83.8 2.0 11.7 49.0 75.7 84.2 2.0 10.0 416.8
ProST | 48.0 74.7 84.0 2.0 12.7 48.3 75.2 84.5 2.0 8.7 414.7
TMASS | 48.5 74.1 83.4 2.0 14.4 46.7 75.9 85.6 2.0 9.1 414.2
RAP | 46.5 73.9 82.0 - 12.1 45.3 76.4 84.8 - 9.1 408.9
TFVL | 48.7 73.5 83.0 - 13.4 47.3 75.3 83.7 - 9.5 411.5
GLSCL | 49.9 76.3 84.1 2.0 11.9 48.3 75.8 84.6 2.0 8.1 419.0
TempMe | 49.9 75.3 84.8 2.0 12.1 47.5 75.2 85.1 2.0 8.8 417.8
TV-ProxyNet | 49.5 74.9 83.4 2.0 12.6 47.9 74.8 84.1 2.0 9.4 414.6
Video-ColBERT | 50.0 76.3 84.3 1.5 13.1 47.9 74.4 84.9 2.0 9.0 417.8
EagleNet | 51.0 76.2 85.6 1.0 12.8 49.2 77.1 86.6 2.0 8.2 425.7
"""

OTHER_DATASETS = """
[other]
CE | 16.1 41.1 82.7 19.8 49.0 - - - - -
HGR | - - - - - - 35.1 73.5 83.5 -
ClipBERT | 20.4 48.0 60.8 - - - - - - -
SupportSet | - - - 28.4 60.0 - 45.9 82.4 - -
Frozen | 31.0 59.8 72.4 33.7 64.7 - - - - -
BridgeFormer | 37.0 62.2 73.9 - - - - - - -
TVMM | 36.5 64.9 75.4 - - - - - - -
[ViT-B/32]
CLIP4Clip | 40.6 67.7 77.8 46.2 75.6 84.6 56.6 87.5 93.6 630.2
XPool | 43.5 69.5 79.0 47.1 76.5 85.2 57.5 87.8 93.7 639.8
TS2Net | 39.5 69.7 80.9 44.7 75.5 84.9 57.7 88.7 94.2 635.8
CLIP-VIP | 44.7 72.3 81.3 46.5 76.2 85.2 59.3 89.0 94.3 648.8
ProST | 45.8 74.3 84.5 44.3 75.2 84.8 57.3 88.1 94.2 648.5
TMASS | 43.4 70.6 81.0 41.8 71.9 81.4 56.1 88.1 93.8 628.1
RAP | 42.6 70.4 79.6 44.9 73.7 83.1 - - - -
SHE-Net | 45.6 75.6 83.6 47.6 76.8 85.5 - - - -
GLSCL | 45.5 75.4 84.3 - - - - - - -
TempMe | 47.2 73.7 81.3 - - - - - - -
TV-ProxyNet | 46.8 72.1 81.3 46.6 76.0 85.0 58.9 89.1 94.4 650.2
Video-ColBERT | 40.2 68.6 79.3 43.9 73.9 83.5 57.1 87.4 93.1 627.0
EagleNet | 46.8 74.0 83.5 47.9 77.7 85.9 59.0 89.2 94.1 658.1
[ViT-B/16]
CLIP4Clip | 45.1 71.5 81.4 47.6 78.0 86.4 60.9 90.6 95.4 656.9
XPool | 44.1 73.5 83.4 49.5 79.6 87.9 62.0 91.0 95.6 666.6
TS2Net | 43.1 72.3 81.5 47.0 78.0 86.6 62.1 91.2 95.8 657.6
CLIP-VIP | 47.2 75.5 84.4 49.2 79.1 87.5 63.8 91.6 96.0 674.3
ProST | 47.0 75.5 84.2 48.1 78.6 87.4 62.0 91.3 95.8 669.9
TMASS | 42.1 73.1 82.3 44.9 75.2 84.2 60.8 90.5 95.3 648.4
GLSCL | 49.1 76.5 85.7 - - - - - - -
TempMe | 50.2 76.4 85.0 - - - - - - -
TV-ProxyNet | 47.9 75.2 84.5 49.7 79.7 88.0 64.0 91.7 95.9 676.6
Video-ColBERT | 44.5 71.7 82.1 47.7 78.3 86.6 61.1 90.2 95.3 657.5
EagleNet | 51.5 78.7 86.8 50.9 80.7 88.3 63.6 91.5 95.7 687.7
"""

# Labels are the active components, joined by +; "none" is the T-MASS baseline.
COMPONENTS = """
[softmax]
none | 48.5 74.1 83.4 42.1 73.1 82.3 45.3 73.6 82.9
frl | 48.8 75.6 83.9 47.9 75.2 84.1 48.4 75.4 84.0
eam | 49.0 75.3 84.0 43.4 73.6 82.7 46.2 74.5 83.4
frl+eam | 50.5 76.5 84.2 49.2 76.6 85.3 49.9 76.6 84.8
[sigmoid]
sigmoid | 47.8 75.9 84.4 43.9 75.6 83.6 45.9 75.8 84.0
frl+sigmoid | 49.9 77.3 84.3 49.1 77.5 85.0 49.5 77.4 84.7
eam+sigmoid | 48.6 75.3 83.7 43.8 75.6 83.8 46.2 75.5 83.8
frl+eam+sigmoid | 51.0 76.2 85.6 51.5 78.7 86.8 51.3 77.5 86.2
"""

ENERGY = """
cosine | 50.0 76.9 85.5 50.2 78.3 86.3
bilinear | 51.0 76.2 85.6 51.3 78.3 86.6
mlp | 50.3 76.6 85.1 51.5 78.7 86.8
"""

POOLING = """
none | 49.9 77.3 84.3 49.1 77.5 85.0
video | 48.8 76.3 84.6 47.8 77.1 85.2
max | 50.4 76.5 85.5 51.3 79.0 86.6
min | 50.5 77.2 84.9 50.9 78.5 86.5
mean | 51.0 76.2 85.6 51.5 78.7 86.8
"""

GRAPH = """
[without EAM]
gat | 49.4 76.8 85.9 47.5 76.6 85.9
rgat | 49.9 77.3 84.3 49.1 77.5 85.0
[with EAM]
gat+eam | 49.9 76.6 85.2 48.9 78.4 86.6
rgat+eam | 51.0 76.2 85.6 51.5 78.7 86.8
"""

COEFFICIENT = """
0.1 | 50.7 76.6 85.7 50.9 78.9 86.6
0.5 | 50.1 76.5 86.2 51.2 78.6 86.6
1.0 | 51.0 76.2 85.6 51.5 78.7 86.8
"""

EDGES = """
no-frl | 48.6 75.3 83.7 43.8 75.6 83.8
no-f2f | 50.6 77.5 84.6 49.9 78.7 86.5
full | 51.0 76.2 85.6 51.5 78.7 86.8
"""

# Training seconds per epoch and test seconds, ViT-B/16, MSR-VTT, A100.
TIME = """
CLIP4Clip | 2947.4 49.7
XPool | 3062.7 51.0
TS2Net | 4367.1 99.7
CLIP-VIP | 2497.0 41.1
UCoFiA (t2v) | 21021.4 2969.8
UCoFiA (v2t) | 21021.4 10000.3
ProST | 3199.1 51.4
TMASS | 3066.1 115.3
GLSCL | 4078.2 148.5
TempMe | 5271.7 18.2
TV-ProxyNet | 2619.1 74.2
Video-ColBERT | 3542.3 44.0
EagleNet | 5207.0 141.7
"""


def _rows(text: str, num_columns: int) -> tuple[PaperRow, ...]:
    rows, group = [], ""
    for line in text.strip().splitlines():
        if line.startswith("["):
            group = line.strip("[]")
            continue
        label, _, numbers = line.partition(" | ")
        values = tuple(None if cell == "-" else float(cell) for cell in numbers.split())
        if len(values) != num_columns:
            raise ValueError(f"{label}: {len(values)} numbers for {num_columns} columns")
        rows.append(PaperRow(label, values, group))
    return tuple(rows)


@cache
def paper_tables() -> Registry[PaperTable]:
    tables: Registry[PaperTable] = Registry("table of the paper")
    on_average = (*MSRVTT_AND_DIDEMO, *(f"average {name}" for name in RECALLS))
    for name, columns, text in (
        ("msrvtt", BOTH_DIRECTIONS, MSRVTT),
        ("others", (*DIDEMO_MSVD_VATEX, "Rsum"), OTHER_DATASETS),
        ("components", on_average, COMPONENTS),
        ("energy", MSRVTT_AND_DIDEMO, ENERGY),
        ("pooling", MSRVTT_AND_DIDEMO, POOLING),
        ("graph", MSRVTT_AND_DIDEMO, GRAPH),
        ("coefficient", MSRVTT_AND_DIDEMO, COEFFICIENT),
        ("edges", MSRVTT_AND_DIDEMO, EDGES),
        ("time", ("training epoch", "test"), TIME),
    ):
        tables.add(name, PaperTable(name, columns, _rows(text, len(columns))))
    return tables


def recall_against_time() -> dict[str, tuple[float, float]]:
    """Return figure 1 of the paper (ViT-B/16, MSR-VTT): test seconds and t2v R@1 by method."""
    main, times = paper_tables()["msrvtt"], paper_tables()["time"]
    points: dict[str, tuple[float, float]] = {}
    for row in times.rows:
        method = row.label.removesuffix(" (t2v)")
        seconds = row.values[1]
        if "(v2t)" in row.label or seconds is None:
            continue
        recall = main.value(method, "t2v R@1", "ViT-B/16")
        if recall is not None:
            points[method] = (seconds, recall)
    return points
