"""The compared methods on the datasets, in two families.

- ``msrvtt-b16/xpool``: the EagleNet paper's protocol (4.1, E.4): every method with EagleNet's own
  frames, words, 5 epochs and batches of 64; ``msrvtt-b16-released/xpool`` the same with the
  settings of CLIP4Clip's code, in which the paper ran or rewrote them.
- ``msrvtt-b16/xpool-original``: what the method's authors say of their own training. Rates are
  those of the originals that train fp32 weights; where they inherit the fp16 recipe (rate 1e-7, see
  `benchmarks.RELEASED`) CLIP gets 1e-6 instead.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from eaglenet.core.types import FrameSpec
from eaglenet.methods import METHODS
from eaglenet.research.data.sources import DataChoice
from eaglenet.research.experiments.experiment import EncoderChoice, Experiment
from eaglenet.research.recipes.benchmarks import (
    DATASETS,
    RELEASED,
    TOWERS,
    main_result,
    released_result,
)
from eaglenet.research.recipes.configs import HEADS, approximate_note, method_config, with_head
from eaglenet.research.recipes.originals import MASKED_FRAMES, ORIGINALS, PAPER_CHANGES, Change
from eaglenet.research.recipes.registry import add_recipe
from eaglenet.research.training.config import TrainingConfig

DIM = 512
PAPER = (
    "The EagleNet paper's protocol for compared methods: 5 epochs, 64 pairs a batch, its frames "
    "and words."
)
ORIGINAL = "Settings of the original; 1e-6 for CLIP where it trained fp16 weights at 1e-7."


def paper_experiment(
    eaglenet: Callable[[str, str], Experiment], method: str, dataset: str, tower: str
) -> Experiment:
    """A compared method in EagleNet's place: same data, same training."""
    base = eaglenet(dataset, tower)
    frames = base.data.frames.num_frames
    change = PAPER_CHANGES.get(method, Change())
    data = base.data
    if method in MASKED_FRAMES and data.frames.short == "zeros":
        data = replace(data, frames=replace(data.frames, short="mask"))
    return replace(
        base,
        method=method,
        method_config=method_config(
            method,
            dim=DIM,
            num_frames=frames,
            **change.config,
            **change.by_frames.get(frames, {}),
            **change.by_tower.get(tower, {}),
        ),
        data=data,
        training=replace(base.training, **change.training),
        notes=f"{PAPER} {base.notes}",
    )


def original_experiment(method: str, dataset: str, tower: str) -> Experiment:
    """A compared method with its authors' settings."""
    settings = ORIGINALS[method]
    change = settings.changes.get(f"{dataset}-{tower}", settings.changes.get(dataset, Change()))
    frames = change.num_frames or 12
    needed = PAPER_CHANGES.get(method, Change())
    common = {**needed.by_frames.get(frames, {}), **needed.by_tower.get(tower, {})}
    return Experiment(
        name=f"{dataset}-{tower}/{method}-original",
        method=method,
        method_config=method_config(
            method, dim=DIM, num_frames=frames, **{**common, **change.config}
        ),
        encoder=EncoderChoice("pretrained", TOWERS[tower]),
        data=DataChoice(
            dataset,
            frames=FrameSpec(num_frames=frames, **settings.frames),
            max_words=change.max_words or settings.max_words,
            jitter=settings.jitter,
        ),
        training=TrainingConfig(**{**settings.training, **change.training}),
        notes=ORIGINAL,
    )


def register() -> None:
    """Both families; CLIP4Clip's other heads beside its first in each."""
    for dataset in DATASETS:
        for tower in TOWERS:
            for method in ORIGINALS:
                _register(method, dataset, tower)


def _register(method: str, dataset: str, tower: str) -> None:
    paper = METHODS[method].paper
    approximate = approximate_note(method)
    families: list[tuple[str, Callable[[str, str, str], Experiment], str]] = [
        (f"{dataset}-{tower}/{{}}", partial(paper_experiment, main_result), PAPER),
        (
            f"{dataset}-{tower}-released/{{}}",
            partial(paper_experiment, released_result),
            f"{PAPER} {RELEASED}",
        ),
    ]
    if dataset in ORIGINALS[method].datasets:
        families.append((f"{dataset}-{tower}/{{}}-original", original_experiment, ORIGINAL))
    for name, build, says in families:
        base = partial(build, method, dataset, tower)
        add_recipe(name.format(method), base, f"{paper} on {dataset}.{approximate} {says}")
        if method == "clip4clip":
            for title, head in HEADS.items():
                add_recipe(
                    name.format(title), partial(with_head, base, head), f"{paper}: {head}. {says}"
                )
