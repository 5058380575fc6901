"""The paper's ablation tables on MSR-VTT and DiDeMo, ViT-B/16, in modern and released settings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from eaglenet.research.experiments.experiment import Experiment
from eaglenet.research.recipes.benchmarks import main_result, released_result
from eaglenet.research.recipes.configs import method_config
from eaglenet.research.recipes.registry import add_recipe
from eaglenet.research.recipes.rows import TABLES, Row

Base = Callable[[str], Experiment]
"""The experiment that the rows change, for a method."""


def ablated(base: Base, row: Row) -> Experiment:
    """``base`` with one row's changes."""
    experiment = base(row.method)
    changed = replace(experiment.method_config, **row.changes)
    return replace(experiment, method_config=changed)


def register_tables(prefix: str, base: Base, where: str) -> None:
    """A recipe for every row of every table, on top of ``base``."""
    for table, rows in TABLES.items():
        for row in rows:
            add_recipe(
                f"{prefix}{table}/{row.slug}",
                partial(ablated, base, row),
                f"Table of {table} (paper): {row.says}; on {where}.",
            )


def instead_of(eaglenet: Callable[[], Experiment], method: str) -> Experiment:
    """EagleNet's experiment, or another method with its data and training."""
    experiment = eaglenet()
    if method == experiment.method:
        return experiment
    sizes = experiment.method_config
    config = method_config(method, dim=sizes.dim, num_frames=sizes.num_frames)
    return replace(experiment, method=method, method_config=config)


def register() -> None:
    """Recipes ``components/frl``, ``didemo-b16/...`` and ``msrvtt-b16-released/...``."""
    for dataset, title in (("msrvtt", "MSR-VTT"), ("didemo", "DiDeMo")):
        where = f"{title}, ViT-B/16"
        prefix = "" if dataset == "msrvtt" else f"{dataset}-b16/"
        main = partial(main_result, dataset, "b16")
        released = partial(released_result, dataset, "b16")
        register_tables(prefix, partial(instead_of, main), where)
        register_tables(
            f"{dataset}-b16-released/",
            partial(instead_of, released),
            f"{where}, released settings",
        )
