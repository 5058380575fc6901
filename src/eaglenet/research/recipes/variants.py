"""Named variants of methods: the rows of the paper's ablation tables, heads, own ablations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from eaglenet.core.errors import ConfigError, UnknownNameError
from eaglenet.core.settings import split_assignment
from eaglenet.research.experiments.experiment import Settings


def _components() -> dict[str, Settings]:
    rows: dict[str, Settings] = {}
    for loss in ("softmax", "sigmoid"):
        for with_energy in (False, True):
            for with_relations in (False, True):
                names = ("frl" * with_relations, "eam" * with_energy, loss * (loss == "sigmoid"))
                label = "+".join(name for name in names if name) or "none"
                energy = {} if with_energy else {"energy": None}
                rows[label] = {"relation_learning": with_relations, "loss": loss, **energy}
    return rows


TABLES: Mapping[str, Mapping[str, Settings]] = {
    "components": _components(),
    "energy": {name: {"energy": name} for name in ("cosine", "bilinear", "mlp")},
    "pooling": {
        "none": {"energy": None},
        "video": {"energy_pooling": "global"},
        "max": {"energy_pooling": "max"},
        "min": {"energy_pooling": "min"},
        "mean": {"energy_pooling": "mean"},
    },
    "graph": {
        "gat": {"graph": "gat", "energy": None},
        "rgat": {"graph": "rgat", "energy": None},
        "gat+eam": {"graph": "gat"},
        "rgat+eam": {"graph": "rgat"},
    },
    "coefficient": {value: {"energy_weight": float(value)} for value in ("0.1", "0.5", "1.0")},
    "edges": {
        "no-frl": {"relation_learning": False},
        "no-f2f": {"frame_edges": False},
        "full": {},
    },
}
"""Ablation table -> row -> changes to EagleNet. Names and rows are those of `evaluation.paper`."""

VARIANTS: Mapping[str, Mapping[str, Mapping[str, Settings]]] = {
    "eaglenet": {
        **TABLES,
        # As printed, before the LeakyReLU: the frame part cancels and frame-to-frame edges have no
        # effect. R@1 beside the activated reading, three seeds: demo world 33.0 and 29.8, real
        # frames 24.8 and 24.8, within the spread (docs/reference/paper_map.md).
        "reading": {
            "literal": {"edge_weights": "raw"},
            "activated": {"edge_weights": "activated"},
        },
    },
    "clip4clip": {
        "head": {name: {"head": name} for name in ("mean", "lstm", "transformer", "tight")}
    },
    "wordframe": {
        "ablation": {
            "interaction-only": {"coarse": False},
            "coarse-only": {"coarse": True, "interaction": False},
            "equal-weights": {"weighted": False},
            "no-layers": {"num_layers": 0},
            "no-changes": {"changes": False},
            "both-ways": {"both_ways": True},
            "no-bank": {"bank": 0},
        }
    },
}
"""Method -> variant -> value -> changes to its configuration."""


def apply_variants(method: str, variants: Sequence[str]) -> tuple[str, dict[str, object]]:
    """The method that ``variants`` stand for, and their changes to its configuration.

    Raises:
        ConfigError: a variant or value that the method does not have.
    """
    changes: dict[str, object] = {}
    available = VARIANTS.get(method, {})
    for variant in variants:
        name, value = split_assignment(variant, "edges=no-f2f")
        if name not in available:
            listed = ", ".join(available) or "none"
            raise UnknownNameError(
                f"--variant {variant}: {method} has no variant {name!r} (known: {listed}); "
                f"change any field with --set method_config.NAME=VALUE"
            )
        if value not in available[name]:
            raise UnknownNameError(
                f"--variant {variant}: choose one of {', '.join(available[name])}"
            )
        if (name, value) == ("components", "none"):
            if len(variants) > 1:
                raise ConfigError(f"--variant {variant} is T-MASS; leave out the other variants")
            return "tmass", {}  # the paper's first row has T-MASS's numbers
        changes |= available[name][value]
    return method, changes
