"""The paper's ablation tables on MSR-VTT and DiDeMo, ViT-B/16."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from eaglenet.experiments.experiment import Experiment
from eaglenet.recipes.benchmarks import main_result
from eaglenet.recipes.registry import add_recipe
from eaglenet.recipes.rows import TABLES, Row


def ablated(base: Callable[[], Experiment], row: Row) -> Experiment:
    """``base`` with one row's changes."""
    experiment = base()
    changed = replace(experiment.method_config, **row.changes)
    return replace(experiment, method_config=changed)


def register_tables(prefix: str, base: Callable[[], Experiment], where: str) -> None:
    """A recipe for every row of every table, on top of ``base``."""
    for table, rows in TABLES.items():
        for row in rows:
            add_recipe(
                f"{prefix}{table}/{row.slug}",
                partial(ablated, base, row),
                f"Table of {table} (paper): {row.says}; on {where}. Support text with an "
                "elementwise radius (docs/paper_map.md).",
            )


def register() -> None:
    register_tables("", partial(main_result, "msrvtt", "b16"), "MSR-VTT, ViT-B/16")
    register_tables("didemo-b16/", partial(main_result, "didemo", "b16"), "DiDeMo, ViT-B/16")
