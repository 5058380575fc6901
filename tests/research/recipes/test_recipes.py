"""Every composition builds, travels through JSON, and takes a step with shrunken towers."""

from __future__ import annotations

import dataclasses
import functools
import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from eaglenet.core.errors import ConfigError, UnknownNameError
from eaglenet.core.settings import to_plain
from eaglenet.core.types import Clips, Expert, PairBatch, TextFeatures, Tokens, VideoFeatures
from eaglenet.encoders.clip_config import ClipConfig, TextConfig, VisionConfig
from eaglenet.encoders.features import ExpertConfig, FeatureConfig, FeatureEncoder
from eaglenet.methods import METHODS
from eaglenet.methods.base import Method
from eaglenet.methods.eaglenet import EagleNet, EagleNetConfig
from eaglenet.research.data.role_graphs import role_graphs
from eaglenet.research.evaluation.paper import paper_tables
from eaglenet.research.experiments import build as building
from eaglenet.research.experiments.build import build_method, default_split
from eaglenet.research.experiments.experiment import EncoderChoice, Experiment
from eaglenet.research.recipes import DATA, TABLES, VARIANTS, Recipe
from eaglenet.research.recipes.authors import MASKS_FRAMES, ORIGINALS
from eaglenet.research.recipes.recipe import INSIDE_CLIP, INSIDE_PATCHES, INSIDE_TOWERS
from eaglenet.research.recipes.setups import METHOD_TRAINING
from eaglenet.research.training.distributed import World
from eaglenet.research.training.optimizer import (
    freeze_parameters,
    halve_towers,
)
from eaglenet.research.training.step import training_losses

DIM, FRAMES, WORDS, PAIRS = 8, 3, 7, 5
DATASETS = ("msrvtt", "didemo", "msvd", "vatex")
CELLS = [
    (data, tower, protocol)
    for data, axis in DATA.items()
    for tower, protocols in axis.towers.items()
    for protocol in protocols
]
"""Every (data, tower, protocol)."""


def build(
    method: str, data: str, tower: str = "", protocol: str = "", *variants: str
) -> Experiment:
    return Recipe(method, data, tower, protocol, variants).build()


@functools.cache
def builds(data: str, tower: str, protocol: str) -> tuple[Experiment, ...]:
    """Every method and every variant of it that can be combined with a cell."""
    experiments = []
    for method in METHODS:
        variants = [
            f"{name}={value}"
            for name, values in VARIANTS.get(method, {}).items()
            for value in values
        ]
        try:
            experiments.append(build(method, data, tower, protocol))
        except ConfigError:
            continue
        for variant in variants:
            experiments.append(build(method, data, tower, protocol, variant))
    return tuple(experiments)


TOWERS = ClipConfig(
    dim=DIM,
    vision=VisionConfig(image_size=12, patch_size=4, width=16, layers=2, heads=2, mlp_width=20),
    text=TextConfig(
        vocabulary_size=690, context_length=WORDS, width=16, layers=2, heads=2, mlp_width=24
    ),
)


WIDTHS = {"colour": 6, "scene": 11, "sound": 5}
EXPERTS = ExpertConfig(WIDTHS, "scene", text_dim=9, words_dim=10, dim=DIM)


def make_experts(generator: torch.Generator) -> PairBatch:
    """Five pairs with words, ids, graphs and three experts, of which the first video misses one."""
    mask = torch.ones(PAIRS, WORDS, dtype=torch.bool)
    words = torch.randn(PAIRS, WORDS, 10, generator=generator)
    ids = torch.randint(3, 60, (PAIRS, WORDS), generator=generator)
    graph = role_graphs([["a", "man", "rides", "a", "horse"]] * PAIRS, WORDS)
    texts = TextFeatures(
        torch.randn(PAIRS, 9, generator=generator), words, mask, tokens=Tokens(ids, mask),
        graph=graph,
    )  # fmt: skip
    experts = {}
    for name, width in WIDTHS.items():
        here = torch.ones(PAIRS, FRAMES, dtype=torch.bool)
        here[0] = name != "sound"
        values = torch.randn(PAIRS, FRAMES, width, generator=generator) * here[..., None]
        experts[name] = Expert(values, here)
    scene = experts["scene"]
    return PairBatch(
        texts, VideoFeatures(scene.values, scene.mask, experts=experts), torch.arange(PAIRS)
    )


def shrunken(experiment: Experiment) -> Experiment:
    """The same experiment with towers and heads that take milliseconds."""
    small = {
        "dim": DIM, "num_frames": FRAMES, "num_candidates": 2, "langevin_steps": 2,
        "replay_size": 9,
        "num_query_tokens": WORDS, "num_samples": 4, "num_positions": 20, "centres": {},
        "text_centres": 2, "hidden_dim": 24, "feed_forward": 16,
        "student_config": {"text_centres": 2},
    }  # fmt: skip
    names = {spec.name for spec in dataclasses.fields(experiment.method_config)}
    changes = {name: value for name, value in small.items() if name in names}
    if experiment.encoder.kind == "features":
        encoder = EncoderChoice("features", config=FeatureConfig(9, 11, DIM))
    elif experiment.encoder.kind == "experts":
        encoder = EncoderChoice("experts", config=EXPERTS)
    else:
        encoder = EncoderChoice("clip", "demo", TOWERS)
    return dataclasses.replace(
        experiment,
        method_config=dataclasses.replace(experiment.method_config, **changes),
        encoder=encoder,
        data=dataclasses.replace(
            experiment.data,
            frames=dataclasses.replace(
                experiment.data.frames, num_frames=FRAMES, sampling="uniform"
            ),
        ),
    )


def make_batch(experiment: Experiment) -> PairBatch:
    generator = torch.Generator().manual_seed(0)
    mask = torch.ones(PAIRS, FRAMES, dtype=torch.bool)
    ids = torch.arange(PAIRS)
    if experiment.encoder.kind == "experts":
        return make_experts(generator)
    if experiment.encoder.kind == "features":
        texts = TextFeatures(torch.randn(PAIRS, 9, generator=generator))
        frames = torch.randn(PAIRS, FRAMES, 11, generator=generator)
        return PairBatch(texts, VideoFeatures(frames, mask), ids)
    words = torch.randint(1, 600, (PAIRS, WORDS), generator=generator)
    words[:, -2], words[:, -1] = 689, 0
    frames = torch.randint(0, 255, (PAIRS, FRAMES, 3, 12, 12), generator=generator)
    clips = Clips(frames.to(torch.uint8), mask, torch.zeros(PAIRS, FRAMES))
    return PairBatch(Tokens(words, words > 0), clips, ids)


STEPPED: set[str] = set()
STEP = ("freeze", "precision", "optimizer", "decay", "accumulate", "accumulation", "augment")
"""The settings of training that choose what a step does."""


def kinds_of_step(small: Experiment) -> set[str]:
    """Model and way of training, up to the value of a number.

    Every form of a method takes a step, and every method takes one in each way of training: a
    form changes layers, which no way of training knows.
    """
    training = {name: getattr(small.training, name) for name in STEP}
    return {
        repr((small.method, signs(to_plain(small.method_config)), small.encoder)),
        repr((small.method, training, small.encoder)),
    }


def signs(plain: Any) -> Any:
    """A rate, a weight or a start is there or not, above zero or below it."""
    if isinstance(plain, dict):
        return {name: signs(entry) for name, entry in plain.items()}
    if isinstance(plain, list):
        return [signs(entry) for entry in plain]
    return (plain > 0) - (plain < 0) if isinstance(plain, float) else plain


@pytest.fixture(scope="module")
def one_tokenizer() -> Iterator[None]:
    """The demo's table of words is read once, not for each of the models."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(building, "build_tokenizer", functools.cache(building.build_tokenizer))
        yield


@pytest.mark.usefixtures("one_tokenizer")
@pytest.mark.parametrize(("data", "tower", "protocol"), CELLS)
def test_every_composition_builds(data: str, tower: str, protocol: str) -> None:
    names = set()
    for experiment in builds(data, tower, protocol):
        assert experiment.name not in names
        names.add(experiment.name)
        assert Experiment.from_plain(json.loads(json.dumps(experiment.to_plain()))) == experiment
        assert experiment.method_config.num_frames == experiment.data.frames.num_frames
    assert names


@pytest.mark.slow
@pytest.mark.usefixtures("one_tokenizer")
@pytest.mark.parametrize(("data", "tower", "protocol"), CELLS)
def test_every_composition_takes_a_step(data: str, tower: str, protocol: str) -> None:
    """One step for experiments that differ in nothing that a shrunken model can see."""
    for experiment in builds(data, tower, protocol):
        take_step(experiment)


def take_step(experiment: Experiment) -> None:
    small = shrunken(experiment)
    training = small.training
    kinds = kinds_of_step(small)
    if kinds <= STEPPED:
        return
    STEPPED.update(kinds)
    method = build_method(small).train()
    freeze_parameters(method, training.freeze)
    if training.precision == "fp16_weights":
        halve_towers(method)
    optimizer = training.make_optimizer(method)
    losses = training_losses(method, make_batch(small), training, World())
    optimizer.step()
    assert all(value.isfinite() for value in losses.terms.values())


@pytest.mark.slow
def test_building_a_recipe_imports_no_other_method() -> None:
    code = (
        "import sys; from eaglenet.research.recipes import Recipe; "
        "Recipe('xpool', 'msrvtt').build(); "
        "print([m for m in sys.modules if m.startswith('eaglenet.methods.')])"
    )
    printed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    assert "eaglenet.methods.xpool" in printed
    assert "eaglenet.methods.clip4clip" not in printed
    assert "eaglenet.methods.eaglenet" not in printed


def test_tables_have_the_rows_of_the_paper() -> None:
    sizes = {table: len(rows) for table, rows in TABLES.items()}
    assert sizes == {
        "components": 8, "energy": 3, "pooling": 5, "graph": 4, "coefficient": 3, "edges": 3,
    }  # fmt: skip
    for table, rows in TABLES.items():
        assert list(rows) == [row.label for row in paper_tables()[table].rows]


def test_rows_of_a_table_differ_from_each_other() -> None:
    for table, rows in TABLES.items():
        configs = {
            repr(build("eaglenet", "msrvtt", "", "", f"{table}={row}").method_config)
            for row in rows
        }
        assert len(configs) == len(rows)


@pytest.mark.parametrize(("data", "tower", "protocol"), CELLS)
def test_only_the_released_protocol_selects_on_test(data: str, tower: str, protocol: str) -> None:
    for experiment in builds(data, tower, protocol):
        is_released = protocol == "released"
        assert (experiment.training.select == "test") == is_released
        if is_released:
            assert "TEST" in experiment.notes
            changes = METHOD_TRAINING.get(experiment.method, {})
            assert experiment.training.precision == changes.get("precision", "fp16_weights")
        elif experiment.encoder.kind == "pretrained":
            assert experiment.training.lr_encoder >= 1e-6


def test_the_last_component_row_is_the_main_result() -> None:
    main = build("eaglenet", "msrvtt").method_config
    for variant in ("components=frl+eam+sigmoid", "graph=rgat+eam", "edges=full"):
        assert build("eaglenet", "msrvtt", "", "", variant).method_config == main
    literal = dataclasses.replace(main, edge_weights="raw")
    assert build("eaglenet", "msrvtt", "", "", "reading=literal").method_config == literal


@pytest.mark.parametrize(
    ("data", "protocol"),
    [("didemo", "paper"), ("msrvtt", "released"), ("didemo", "released"), ("demo", ""),
     ("features", "")],
)  # fmt: skip
def test_the_row_without_components_is_tmass(data: str, protocol: str) -> None:
    """The paper's first row has the numbers of T-MASS."""
    row = build("eaglenet", data, "", protocol, "components=none")
    assert row.method == "tmass"
    full = build("eaglenet", data, "", protocol, "components=frl+eam+sigmoid")
    assert row.data == full.data
    assert row.method_config.prior == "uniform"
    if protocol:
        assert row.training == full.training


def test_the_released_didemo_recipe_has_matrices_of_sixteen_pairs() -> None:
    training = build("eaglenet", "didemo", "clip-b16", "released").training
    assert training.batch_size // training.accumulate == 16
    assert training.accumulation == "split"


@pytest.mark.parametrize("data", DATASETS)
def test_frames_are_even_in_the_paper_and_one_per_second_in_the_released_code(data: str) -> None:
    paper, released = (
        build("eaglenet", data, "clip-b16", protocol).data for protocol in ("paper", "released")
    )
    assert (paper.frames.sampling, paper.frames.short) == ("uniform", "repeat")
    assert (released.frames.sampling, released.frames.short) == ("whole_rate", "zeros")
    assert (paper.frames.square_pixels, released.frames.square_pixels) == (False, True)
    frames = 64 if data == "didemo" else 12
    assert paper.frames.num_frames == released.frames.num_frames == frames
    assert paper.options == {}
    # The released code reads DiDeMo's videos up to second 31.
    assert released.options.get("window", "whole") == (
        "first_31_seconds" if data == "didemo" else "whole"
    )


def test_released_settings_mask_blank_frames_where_the_methods_own_code_does() -> None:
    for method in ORIGINALS:
        try:
            frames = build(method, "msrvtt", "clip-b16", "released").data.frames
        except ConfigError:
            continue
        assert frames.short == ("mask" if method in MASKS_FRAMES else "zeros"), method


@pytest.mark.parametrize("tower", ["clip-b16", "clip-b32"])
def test_the_main_results_train_as_the_benchmark_measures(tower: str) -> None:
    training = build("eaglenet", "msrvtt", tower).training
    assert (training.compile, training.checkpointing, training.checkpointed_blocks) == (
        True,
        True,
        3,
    )
    assert not training.deterministic


def test_masks_and_frames_are_options_of_their_own() -> None:
    released = EagleNetConfig.for_script()
    encoder = FeatureEncoder(FeatureConfig(512, 512, 512, identity=True))
    specs = {
        EagleNet.build(
            dataclasses.replace(released, energy=None, mask_frames=masked), encoder
        ).frame_spec
        for masked in (False, True)
    }
    assert len(specs) == 1


def test_every_method_has_one_budget_on_the_demo_world() -> None:
    """Two methods spend half of their epochs on bringing the towers together."""
    budgets = {
        dataclasses.replace(
            experiment.training,
            epochs=experiment.training.epochs + experiment.training.coarse_epochs,
            coarse_epochs=0,
            eval_every=1,
        )
        for experiment in builds("demo", "random", "equal")
    }
    assert len(budgets) == 1


def test_every_method_that_reads_experts_has_one_budget_on_experts() -> None:
    readers = [method for method in METHODS if METHODS[method].reads_experts]
    assert {"ce", "mmt", "t2vlad", "hit", "teachtext", "hgr"} <= set(readers)
    assert len({build(method, "experts").training for method in readers}) == 1


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        *(
            (Recipe(method, "features"), "works inside")
            for method in INSIDE_CLIP | INSIDE_PATCHES | INSIDE_TOWERS
        ),
        (Recipe("hgr", "features"), "choose --data experts"),
        (Recipe("hgr", "demo"), "choose --data experts"),
        (Recipe("supportset", "features"), "token ids"),
        (Recipe("ts2net", "msrvtt", "siglip2-b16"), "inside an image tower with patches"),
        (Recipe("xpool", "demo", "clip-b16"), "--tower clip-b16 cannot be .* choose one of random"),
        (Recipe("xpool", "msrvtt", "pe-b16", "released"), "choose one of paper"),
        (Recipe("xpool", "didemo", "clip-b16", "original"), "published: --data msrvtt"),
        (Recipe("wordframe", "msrvtt", "", "original"), "published: no dataset"),
        (Recipe("frozen", "msrvtt", "clip-b32", "original"), "published: .*clip-b16"),
        (Recipe("eaglenet", "demo", variants=("components=none", "edges=full")), "leave out"),
    ],
)  # fmt: skip
def test_refuses_what_cannot_be_combined(recipe: Recipe, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        recipe.build()


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        (Recipe("xpol"), "did you mean 'xpool'"),
        (Recipe("xpool", "moon"), "choose one of demo, folder"),
        (Recipe("xpool", "foldr"), "unknown data 'foldr'; did you mean 'folder'"),
        (Recipe("xpool", "folder", "small-froze"), "; did you mean 'small-frozen'"),
        (Recipe("xpool", "msrvtt", "b61"), r"unknown tower 'b61' \(choose one of clip-b16"),
        (Recipe("xpool", "msrvtt", "", "papre"), "'papre'; did you mean 'paper'\\? "),
        (Recipe("xpool", variants=("head=lstm",)), "xpool has no variant 'head'"),
        (Recipe("clip4clip", variants=("head=round",)), "choose one of mean, lstm"),
    ],
)
def test_unknown_names_list_the_choices(recipe: Recipe, message: str) -> None:
    with pytest.raises(UnknownNameError, match=message):
        recipe.build()


def test_defaults_follow_the_data_and_the_method() -> None:
    assert Recipe("xpool", "msrvtt").command.endswith("--tower clip-b16 --protocol paper")
    assert Recipe("xpool", "folder").command.endswith("--data folder --tower clip-b32")
    assert Recipe("xpool", "demo").command == "eaglenet train xpool --data demo"
    assert Recipe("ce", "msrvtt").resolve().tower == "experts"
    assert Recipe("eaglenet", "msrvtt").name == "eaglenet/msrvtt/clip-b16/paper"
    assert Recipe("eaglenet", variants=("edges=no-f2f",)).name == "eaglenet/demo/edges=no-f2f"


@pytest.mark.parametrize(
    ("method", "data", "tower", "expected"),
    [
        ("xpool", "msrvtt", "clip-b32", {"dropout": 0.3}),
        ("xpool", "msvd", "clip-b32", {"dropout": 0.4}),
        ("tmass", "msrvtt", "clip-b16", {"support_weight": 0.8, "num_frames": 12}),
        ("tmass", "didemo", "clip-b16", {"support_weight": 0.0, "num_frames": 12, "dropout": 0.4}),
        ("tvproxynet", "msrvtt", "clip-b32",
         {"text_sign": 1.0, "leader_sign": 1.0, "num_read": 4}),
        ("tvproxynet", "msrvtt", "clip-b16", {"text_sign": -1.0, "leader_sign": -1.0}),
        ("tvproxynet", "didemo", "clip-b16",
         {"num_read": 1, "proxy_weight": 1.0, "num_frames": 12, "dash": "linear"}),
        ("drl", "didemo", "clip-b32", {"num_frames": 64, "diagonal_weight": 0.14}),
        ("drl", "msrvtt", "clip-b16", {"diagonal_weight": 0.11}),
        ("glscl", "msrvtt", "clip-b32", {"consistency": 0.02}),
        ("glscl", "didemo", "clip-b32", {"consistency": 0.005, "num_frames": 64}),
        ("glscl", "msvd", "clip-b16", {"consistency": 0.005, "num_frames": 12}),
        ("ucofia", "didemo", "clip-b16", {"num_words": 64}),
        ("ce", "msvd", "experts", {"text_ghosts": 0, "text_centres": 12}),
    ],
)  # fmt: skip
def test_compared_methods_have_their_authors_settings_on_each_dataset(
    method: str, data: str, tower: str, expected: Any
) -> None:
    config = build(method, data, tower, "original").method_config
    assert {field: getattr(config, field) for field in expected} == pytest.approx(expected)


def test_originals_have_their_authors_data_and_optimizer() -> None:
    didemo = build("tvproxynet", "didemo", "clip-b16", "original")
    assert (didemo.data.max_words, didemo.training.batch_size, didemo.data.jitter) == (50, 64, 3)
    for method, batch_size in (("clipvip", 128), ("tvproxynet", 24)):
        activitynet = build(method, "activitynet", "clip-b32", "original")
        assert (activitynet.data.max_words, activitynet.data.frames.num_frames) == (70, 32)
        assert activitynet.training.batch_size == batch_size
    for method, window in (
        ("clip4clip", "first_31_seconds"), ("glscl", "first_31_seconds"), ("clipvip", "whole"),
        ("drl", "whole"),
    ):  # fmt: skip
        data = build(method, "didemo", "clip-b32", "original").data
        assert data.options.get("window", "whole") == window, method
    sizes = {
        tower: build("tvproxynet", "msrvtt", tower, "original").training.batch_size
        for tower in ("clip-b32", "clip-b16")
    }
    assert sizes == {"clip-b32": 128, "clip-b16": 112}
    xpool = build("xpool", "msrvtt", "clip-b32", "original")
    assert xpool.data.max_words == 77
    assert (xpool.training.augment, xpool.training.decay) == ("crop_flip", "all")
    assert xpool.training.second_beta == 0.999
    tempme = build("tempme", "msrvtt", "clip-b32", "original")
    assert tempme.training.augment == "rand_augment"
    assert build("tempme", "msrvtt", "clip-b32").training.augment == "none"
    clipbert = build("clipbert", "msrvtt", "clip-b32", "original")
    assert (clipbert.data.max_words, clipbert.training.schedule) == (20, "linear")


def test_expert_rows_have_their_authors_training_and_a_test_split() -> None:
    mmt = build("mmt", "msrvtt", "experts").training
    assert mmt.epochs * mmt.epoch_pairs // mmt.batch_size == 50_000
    assert mmt.epoch_pairs // mmt.batch_size == 1_000
    teachtext = build("teachtext", "msrvtt", "experts").training
    assert (teachtext.optimizer, teachtext.second_beta) == ("radam", 0.999)
    for data in DATASETS:
        for experiment in builds(data, "experts", "original"):
            assert experiment.data.options == {"test_root": ""}
            assert default_split(experiment.data) == "test"


@pytest.mark.parametrize("method", [m for m in ORIGINALS if m != "eaglenet"])
@pytest.mark.parametrize("data", DATASETS)
@pytest.mark.parametrize("protocol", ["paper", "released"])
def test_the_papers_protocol_is_one_budget_for_all_methods(
    method: str, data: str, protocol: str
) -> None:
    """E.4: all models are trained for 5 epochs with 64 pairs per batch."""
    ours = build("eaglenet", data, "clip-b16", protocol)
    peer = build(method, data, "clip-b16", protocol)
    short = peer.data.frames.short
    frames = dataclasses.replace(ours.data.frames, short=short)
    assert peer.data == dataclasses.replace(ours.data, frames=frames)
    assert (peer.training.epochs, peer.training.batch_size) == (5, 64)
    rates = dict(METHOD_TRAINING.get(method, {}))
    assert dataclasses.replace(ours.training, **rates) == peer.training


MAIN = [
    *(Recipe("eaglenet", data, tower, protocol) for data in DATASETS
      for tower in ("clip-b32", "clip-b16") for protocol in ("paper", "released")),
    *(Recipe("eaglenet", data, "", "", variants) for data in ("demo", "features", "didemo")
      for variants in ((), ("edges=full",), ("components=frl",), ("graph=rgat+eam",),
                       ("graph=gat+eam",))),
]  # fmt: skip


def small_scores(
    config: EagleNetConfig,
) -> tuple[Method, Tensor, tuple[TextFeatures, VideoFeatures]]:
    """A small model with random weights, its scores, and what it scored."""
    torch.manual_seed(0)
    small = dataclasses.replace(config, dim=DIM, num_frames=FRAMES, num_heads=2)
    encoder = FeatureEncoder(FeatureConfig(DIM, DIM, DIM))
    method = METHODS["eaglenet"].build(small, encoder).eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in method.parameters():
            parameter += torch.randn(parameter.shape, generator=generator) / DIM**0.5
    draw = torch.Generator().manual_seed(2)
    text = TextFeatures(torch.randn(3, DIM, generator=draw))
    frames = torch.randn(4, FRAMES, DIM, generator=draw)
    video = VideoFeatures(frames, torch.ones(4, FRAMES, dtype=torch.bool))
    return method, method.score(text, video).detach(), (text, video)


@pytest.mark.parametrize("recipe", MAIN, ids=lambda recipe: recipe.name)
def test_removing_frame_edges_changes_the_scores_of_every_main_recipe(recipe: Recipe) -> None:
    """Same weights, only the frame-to-frame edges removed."""
    config = recipe.build().method_config
    method, scores, (text, video) = small_scores(config)
    without, _, _ = small_scores(dataclasses.replace(config, frame_edges=False))
    shared = {key: value for key, value in method.state_dict().items()
              if key in without.state_dict()}  # fmt: skip
    without.load_state_dict(shared)
    changed = without.score(text, video).detach()
    assert (scores - changed).abs().max() > 1e-4


@pytest.mark.parametrize("data", ["msrvtt", "demo", "features"])
def test_in_the_literal_reading_frame_edges_have_no_effect(data: str) -> None:
    config = build("eaglenet", data, "", "", "reading=literal").method_config
    method, scores, (text, video) = small_scores(config)
    without, _, _ = small_scores(dataclasses.replace(config, frame_edges=False))
    without.load_state_dict(method.state_dict())
    assert torch.equal(scores, without.score(text, video).detach())


def test_every_head_of_clip4clip_can_be_chosen() -> None:
    heads = [
        build("clip4clip", data, "", "", f"head={head}").method_config.head
        for data in ("demo", "features", "msvd")
        for head in ("mean", "lstm", "transformer", "tight")
    ]
    assert heads == ["mean", "lstm", "transformer", "tight"] * 3


def test_a_setting_of_some_rows_is_left_out_of_the_others() -> None:
    from eaglenet.research.recipes.comparison import find_trials

    base = Recipe("", "features")
    settings = ["training.coarse_batch_size=64", "training.epochs=2"]
    (mean, xpool), _ = find_trials(["clip4clip", "xpool"], base, settings)
    assert mean.experiment.training.coarse_epochs == 0
    assert xpool.experiment.training.coarse_batch_size == 64
    assert mean.experiment.training.epochs == xpool.experiment.training.epochs == 2
    with pytest.raises(ConfigError, match=r"coarse_batch_size=.* would have no effect"):
        find_trials(["clip4clip"], base, settings)
