"""Recipes for people's own videos (`docs/own_data.md`).

Check:     eaglenet data check folder --root ROOT
Train:     eaglenet train folder-b32 --root ROOT --output RUN
Offline:   eaglenet train folder-small --root ROOT --output RUN   (towers of `small`, no download)
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from eaglenet.research.experiments.experiment import Experiment
from eaglenet.research.recipes.benchmarks import TOWERS, main_result
from eaglenet.research.recipes.frames import tuned_experiment
from eaglenet.research.recipes.peers import paper_experiment
from eaglenet.research.recipes.registry import add_recipe

NOTES = (
    "Your own videos and captions: the settings of the main results, in batches of 32 so that a "
    "few hundred captions are enough."
)


def own_experiment(method: str, tower: str) -> Experiment:
    """A method on CLIP, on a folder of videos with captions."""
    base = (
        main_result("msrvtt", tower)
        if method == "eaglenet"
        else paper_experiment(main_result, method, "msrvtt", tower)
    )
    return replace(
        base,
        data=replace(base.data, dataset="folder", options={}),
        training=replace(base.training, batch_size=32),
        notes=NOTES,
    )


def small_experiment(method: str) -> Experiment:
    """A method on the towers of the package, which need no network, tuned along."""
    base = tuned_experiment(method)
    return replace(
        base,
        data=replace(base.data, dataset="folder"),
        training=replace(base.training, epochs=5, batch_size=32),
        notes="Your own videos and captions on the towers of `small`.",
    )


def register() -> None:
    for tower in TOWERS:
        for method in ("eaglenet", "clip4clip", "xpool"):
            name = f"folder-{tower}" + ("" if method == "eaglenet" else f"/{method}")
            add_recipe(
                name,
                partial(own_experiment, method, tower),
                f"{method} on {TOWERS[tower]}. {NOTES}",
            )
    for method in ("eaglenet", "clip4clip", "xpool", "wordframe"):
        add_recipe(
            "folder-small" + ("" if method == "eaglenet" else f"/{method}"),
            partial(small_experiment, method),
            f"{method} on `small`, which comes with the package. Your own videos and captions.",
        )
