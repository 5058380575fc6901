"""The rows of the paper's ablation tables as changes to an EagleNet configuration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Row:
    """One row: how it is called in a recipe's name and in `evaluation.paper_tables`.

    ``method`` is EagleNet, which ``changes`` alter, or the whole method that a row stands for.
    """

    slug: str
    label: str
    changes: dict[str, Any]
    says: str
    method: str = "eaglenet"


def _components() -> tuple[Row, ...]:
    rows = []
    for loss in ("softmax", "sigmoid"):
        for with_energy in (False, True):
            for with_relations in (False, True):
                parts = [
                    *(["frl"] if with_relations else []),
                    *(["eam"] if with_energy else []),
                    *(["sigmoid"] if loss == "sigmoid" else []),
                ]
                label = "+".join(parts)
                if not label:
                    # The paper's first row has T-MASS's numbers, so it is T-MASS.
                    rows.append(Row("none", "none", {}, "no component: T-MASS", "tmass"))
                    continue
                changes: dict[str, Any] = {"relation_learning": with_relations, "loss": loss}
                if not with_energy:
                    changes["energy"] = None
                rows.append(Row(label, label, changes, f"components on: {label}"))
    return tuple(rows)


TABLES: dict[str, tuple[Row, ...]] = {
    "components": _components(),
    "energy": tuple(
        Row(name, name, {"energy": name}, f"energy function {name}")
        for name in ("cosine", "bilinear", "mlp")
    ),
    "pooling": (
        Row("none", "none", {"energy": None}, "without energy-aware matching"),
        Row("video", "video", {"energy_pooling": "global"}, "energy of text and pooled video"),
        Row("max", "max", {"energy_pooling": "max"}, "highest energy over the frames"),
        Row("min", "min", {"energy_pooling": "min"}, "lowest energy over the frames"),
        Row("mean", "mean", {"energy_pooling": "mean"}, "mean energy over the frames"),
    ),
    "graph": (
        Row("gat", "gat", {"graph": "gat", "energy": None}, "GAT, without EAM"),
        Row("rgat", "rgat", {"graph": "rgat", "energy": None}, "RGAT, without EAM"),
        Row("gat+eam", "gat+eam", {"graph": "gat"}, "GAT, with EAM"),
        Row("rgat+eam", "rgat+eam", {"graph": "rgat"}, "RGAT, with EAM"),
    ),
    "coefficient": tuple(
        Row(text, text, {"energy_weight": float(text)}, f"lambda_eam = {text}")
        for text in ("0.1", "0.5", "1.0")
    ),
    "edges": (
        Row("no-frl", "without FRL", {"relation_learning": False}, "without FRL"),
        Row("no-f2f", "without f2f", {"frame_edges": False}, "without frame-to-frame edges"),
        Row("full", "full", {}, "the whole model"),
    ),
}
"""Table -> rows. The names of tables and labels are those of `evaluation.paper_tables`."""
