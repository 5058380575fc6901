"""Every recipe builds, travels through JSON, and takes a step with shrunken towers."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Iterator
from dataclasses import replace
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
from eaglenet.methods.eaglenet import build
from eaglenet.methods.eaglenet_config import EagleNetConfig
from eaglenet.research.data.role_graphs import role_graphs
from eaglenet.research.evaluation.paper import paper_tables
from eaglenet.research.experiments import build as building
from eaglenet.research.experiments.build import build_method
from eaglenet.research.experiments.experiment import EncoderChoice, Experiment
from eaglenet.research.recipes import RECIPES, TABLES, build_recipe
from eaglenet.research.recipes.benchmarks import DATASETS, num_frames, released_training
from eaglenet.research.recipes.originals import MASKED_FRAMES, ORIGINALS, PAPER_CHANGES
from eaglenet.research.recipes.registry import add_recipe
from eaglenet.research.recipes.stored_features import NEED_EXPERTS, NEED_IDS, NEED_TOWERS
from eaglenet.research.training.distributed import World
from eaglenet.research.training.optimizer import (
    build_optimizer,
    freeze_parameters,
    halve_towers,
    parameter_groups,
)
from eaglenet.research.training.step import StepOptions, training_losses

DIM, FRAMES, WORDS, PAIRS = 8, 3, 7, 5
WORLDS = ("didemo-b16", "msrvtt-b16-released", "didemo-b16-released", "demo", "features")
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


CANNOT_RUN = {f"features/{method}" for method in NEED_TOWERS | NEED_EXPERTS | NEED_IDS}


TAKEN: set[str] = set()
STEP = ("freeze", "precision", "optimizer", "decay", "accumulate", "accumulation", "augment")
"""The settings of training that choose what a step does."""


def kind_of_step(small: Experiment) -> str:
    """The same for two experiments whose steps differ in the value of a number alone."""
    training = {name: getattr(small.training, name) for name in STEP}
    return repr((small.method, signs(to_plain(small.method_config)), small.encoder, training))


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
@pytest.mark.parametrize("name", [name for name in RECIPES if name not in CANNOT_RUN])
def test_every_recipe_builds_and_takes_a_step(name: str) -> None:
    """One step for recipes that differ in nothing that a step of a shrunken model can see."""
    experiment = build_recipe(name)
    assert experiment.name == name
    assert Experiment.from_plain(json.loads(json.dumps(experiment.to_plain()))) == experiment
    assert experiment.method_config.num_frames == experiment.data.frames.num_frames
    document = RECIPES[name].__doc__ or ""
    assert document.startswith(f"eaglenet train {name} --output DIR")
    small = shrunken(experiment)
    training = small.training
    kind = kind_of_step(small)
    if kind in TAKEN:
        return
    TAKEN.add(kind)
    method = build_method(small).train()
    freeze_parameters(method, training.freeze)
    if training.precision == "fp16_weights":
        halve_towers(method)
    groups = parameter_groups(
        method,
        lr_encoder=training.lr_encoder,
        lr_head=training.lr_head,
        weight_decay=training.weight_decay,
        optimizer=training.optimizer,
        decay=training.decay,
    )
    optimizer = build_optimizer(groups, training.optimizer, beta=training.second_beta)
    options = StepOptions(
        training.precision, training.accumulate, training.accumulation, augment=training.augment
    )
    losses = training_losses(method, make_batch(small), options, World())
    optimizer.step()
    assert all(value.isfinite() for value in losses.terms.values())


def test_there_is_a_recipe_for_every_row_of_the_papers_tables() -> None:
    for dataset in ("msrvtt", "didemo", "msvd", "vatex"):
        for tower in ("b32", "b16"):
            assert f"{dataset}-{tower}" in RECIPES
            assert f"{dataset}-{tower}-released" in RECIPES
    sizes = {table: len(rows) for table, rows in TABLES.items()}
    assert sizes == {
        "components": 8, "energy": 3, "pooling": 5, "graph": 4, "coefficient": 3, "edges": 3,
    }  # fmt: skip
    for table, rows in TABLES.items():
        for row in rows:
            for prefix in (*(f"{world}/" for world in WORLDS), ""):
                assert f"{prefix}{table}/{row.slug}" in RECIPES


def test_every_row_stands_in_the_papers_table_and_no_other_is_missing() -> None:
    for table, rows in TABLES.items():
        assert {row.label for row in rows} == {row.label for row in paper_tables()[table].rows}


def test_rows_of_a_table_differ_from_each_other() -> None:
    for table, rows in TABLES.items():
        configs = {repr(build_recipe(f"{table}/{row.slug}").method_config) for row in rows}
        assert len(configs) == len(rows)


def test_modern_recipes_select_on_validation_and_released_ones_say_test() -> None:
    for name in RECIPES:
        experiment = build_recipe(name)
        is_released = "-released" in name
        assert (experiment.training.select == "test") == is_released
        if is_released:
            assert "TEST" in experiment.notes
            changes = PAPER_CHANGES.get(name.split("/")[-1])
            expected = changes.training.get("precision") if changes else None
            assert experiment.training.precision == (expected or "fp16_weights")
        elif experiment.encoder.kind == "pretrained":
            assert experiment.training.lr_encoder >= 1e-6


def test_the_last_component_row_is_the_main_result() -> None:
    main = build_recipe("msrvtt-b16").method_config
    assert build_recipe("components/frl+eam+sigmoid").method_config == main
    assert build_recipe("graph/rgat+eam").method_config == main
    assert build_recipe("edges/full").method_config == main
    literal = dataclasses.replace(main, edge_weights="raw")
    assert build_recipe("msrvtt-b16-literal").method_config == literal


def test_the_row_without_components_is_tmass() -> None:
    """The paper's first row has the numbers of T-MASS."""
    for world in WORLDS:
        row = build_recipe(f"{world}/components/none")
        assert row.method == "tmass"
        full = build_recipe(f"{world}/components/frl+eam+sigmoid")
        assert row.data == full.data
        assert row.method_config.prior == "uniform"
    # Test chooses the epoch there, as everywhere in released settings.
    assert build_recipe("msrvtt-b16-released/components/none").training == released_training(
        "msrvtt"
    )


def test_the_released_didemo_recipe_has_matrices_of_sixteen_pairs() -> None:
    training = build_recipe("didemo-b16-released").training
    assert training.batch_size // training.accumulate == 16
    assert training.accumulation == "split"


@pytest.mark.parametrize("dataset", DATASETS)
def test_frames_are_even_in_the_paper_and_one_a_second_in_the_released_code(dataset: str) -> None:
    paper, released = (build_recipe(f"{dataset}-b16{end}").data for end in ("", "-released"))
    assert (paper.frames.sampling, paper.frames.short) == ("uniform", "repeat")
    assert (released.frames.sampling, released.frames.short) == ("whole_rate", "zeros")
    assert (paper.frames.square_pixels, released.frames.square_pixels) == (False, True)
    assert paper.frames.num_frames == released.frames.num_frames == num_frames(dataset)
    assert paper.options == {}
    # The released code reads DiDeMo's videos up to second 31.
    assert released.options.get("window", "whole") == (
        "first_31_seconds" if dataset == "didemo" else "whole"
    )


@pytest.mark.parametrize("tower", ["b16", "b32"])
def test_the_main_results_train_as_the_benchmark_measures(tower: str) -> None:
    training = build_recipe(f"msrvtt-{tower}").training
    assert (training.compile, training.checkpointing, training.checkpointed_blocks) == (
        True,
        True,
        3,
    )
    assert not training.deterministic


def test_masks_and_frames_are_options_of_their_own() -> None:
    released = EagleNetConfig.released()
    encoder = FeatureEncoder(FeatureConfig(512, 512, 512, identity=True))
    specs = {
        build(dataclasses.replace(released, energy=None, mask_frames=masked), encoder).frame_spec
        for masked in (False, True)
    }
    assert len(specs) == 1


def test_two_recipes_of_one_name_are_an_error() -> None:
    with pytest.raises(ValueError, match="twice"):
        add_recipe("msrvtt-b16", lambda: build_recipe("demo"), "another")


def test_every_method_has_a_demo_recipe_with_one_budget() -> None:
    """Two spend half of their epochs on bringing the towers together."""
    recipes = [build_recipe(f"demo/{name}") for name in METHODS if name not in NEED_EXPERTS]
    budgets = {
        replace(
            recipe.training,
            epochs=recipe.training.epochs + recipe.training.coarse_epochs,
            coarse_epochs=0,
            eval_every=1,
        )
        for recipe in recipes
    }
    assert len(budgets) == 1


def test_every_method_that_reads_experts_has_a_recipe_with_one_budget() -> None:
    readers = [method for method in METHODS if METHODS[method].reads_experts]
    assert {"ce", "mmt", "t2vlad", "hit", "teachtext", "hgr"} <= set(readers)
    assert len({build_recipe(f"experts/{method}").training for method in readers}) == 1


@pytest.mark.parametrize("method", sorted(NEED_TOWERS | NEED_EXPERTS | NEED_IDS))
def test_methods_that_need_towers_say_that_they_cannot_run_on_features(method: str) -> None:
    with pytest.raises(ConfigError, match="frozen features"):
        build_method(build_recipe(f"features/{method}"))


def test_an_unknown_recipe_suggests_a_near_one() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'msrvtt-b16'"):
        build_recipe("msrvtt-b61")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("msrvtt-b32/xpool-original", {"dropout": 0.3}),
        ("msvd-b32/xpool-original", {"dropout": 0.4}),
        ("msrvtt-b16/tmass-original", {"support_weight": 0.8, "num_frames": 12}),
        ("didemo-b16/tmass-original", {"support_weight": 0.0, "num_frames": 12, "dropout": 0.4}),
        ("msrvtt-b32/tvproxynet-original", {"text_sign": 1.0, "leader_sign": 1.0, "num_read": 4}),
        ("msrvtt-b16/tvproxynet-original", {"text_sign": -1.0, "leader_sign": -1.0}),
        (
            "didemo-b16/tvproxynet-original",
            {"num_read": 1, "proxy_weight": 1.0, "num_frames": 12, "dash": "linear"},
        ),
        ("didemo-b32/drl-original", {"num_frames": 64}),
    ],
)
def test_compared_methods_have_their_authors_settings_on_each_dataset(
    name: str, expected: Any
) -> None:
    config = build_recipe(name).method_config
    assert {field: getattr(config, field) for field in expected} == expected


def test_originals_have_their_authors_data_and_optimizer() -> None:
    didemo = build_recipe("didemo-b16/tvproxynet-original")
    assert (didemo.data.max_words, didemo.training.batch_size, didemo.data.jitter) == (50, 128, 3)
    xpool = build_recipe("msrvtt-b32/xpool-original")
    assert xpool.data.max_words == 77
    assert (xpool.training.augment, xpool.training.decay) == ("crop_flip", "all")
    assert xpool.training.second_beta == 0.999
    assert build_recipe("msrvtt-b32/tempme-original").training.augment == "rand_augment"
    assert build_recipe("msrvtt-b32/tempme").training.augment == "none"
    for name in ("msvd-b32/tmass-original", "msvd-b32/ts2net-original"):
        assert name not in RECIPES  # their authors gave no settings there


def test_settings_follow_the_authors_scripts() -> None:
    for tower, weight in (("b32", 0.14), ("b16", 0.11)):
        for recipe in (f"msrvtt-{tower}/drl", f"msvd-{tower}/drl-original"):
            assert build_recipe(recipe).method_config.diagonal_weight == weight
    for dataset, weight in (("msrvtt", 0.02), ("didemo", 0.005), ("msvd", 0.005)):
        recipe = build_recipe(f"{dataset}-b32/glscl-original")
        assert recipe.method_config.consistency == weight
    assert build_recipe("msrvtt-b16/tvproxynet-original").training.batch_size == 112
    assert build_recipe("msvd-experts/ce").method_config.text_ghosts == 0
    mmt = build_recipe("msrvtt-experts/mmt").training
    steps = mmt.epochs * -(-8_500 // mmt.batch_size)
    assert abs(steps - 50_000) <= 100
    assert mmt.rate_decay ** (1_000 / (8_500 / 32)) == pytest.approx(0.95, rel=1e-3)


@pytest.mark.parametrize("method", list(ORIGINALS))
@pytest.mark.parametrize("dataset", DATASETS)
@pytest.mark.parametrize("end", ["", "-released"])
def test_the_papers_protocol_is_one_budget_for_all_methods(
    method: str, dataset: str, end: str
) -> None:
    """E.4: all models are trained for 5 epochs with 64 pairs a batch."""
    ours = build_recipe(f"{dataset}-b16{end}")
    peer = build_recipe(f"{dataset}-b16{end}/{method}")
    frames = ours.data.frames
    if method in MASKED_FRAMES and end:  # their own code masks blank frames, EagleNet's does not
        frames = dataclasses.replace(frames, short="mask")
    assert peer.data == dataclasses.replace(ours.data, frames=frames)
    assert (peer.training.epochs, peer.training.batch_size) == (5, 64)
    rates = {} if method not in PAPER_CHANGES else dict(PAPER_CHANGES[method].training)
    assert dataclasses.replace(ours.training, **rates) == peer.training
    assert "5 epochs, 64 pairs" in peer.notes


MAIN = [
    *(f"{dataset}-{tower}{end}" for dataset in DATASETS for tower in ("b32", "b16")
      for end in ("", "-released")),
    "demo", "features", "demo/eaglenet", "features/eaglenet",
    *(f"{prefix}{table}" for prefix in ("", "didemo-b16/", "demo/", "features/")
      for table in ("edges/full", "components/frl", "graph/rgat+eam", "graph/gat+eam")),
]  # fmt: skip


def small_scores(
    config: EagleNetConfig,
) -> tuple[Method, Tensor, tuple[TextFeatures, VideoFeatures]]:
    """The number of weights of a small model with random ones, and its scores."""
    torch.manual_seed(0)
    small = dataclasses.replace(config, dim=DIM, num_frames=FRAMES, num_heads=2)
    encoder = FeatureEncoder(FeatureConfig(DIM, DIM, DIM))
    method = METHODS["eaglenet"].build(small, encoder).eval()
    shaken = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in method.parameters():
            parameter += torch.randn(parameter.shape, generator=shaken) / DIM**0.5
    draw = torch.Generator().manual_seed(2)
    text = TextFeatures(torch.randn(3, DIM, generator=draw))
    frames = torch.randn(4, FRAMES, DIM, generator=draw)
    video = VideoFeatures(frames, torch.ones(4, FRAMES, dtype=torch.bool))
    return method, method.score(text, video).detach(), (text, video)


@pytest.mark.parametrize("name", MAIN)
def test_removing_frame_edges_changes_the_scores_of_every_main_recipe(name: str) -> None:
    """Same weights, only the frame-to-frame edges gone: frames must hear of each other."""
    config = build_recipe(name).method_config
    method, scores, (text, video) = small_scores(config)
    without, _, _ = small_scores(dataclasses.replace(config, frame_edges=False))
    shared = {key: value for key, value in method.state_dict().items()
              if key in without.state_dict()}  # fmt: skip
    without.load_state_dict(shared)
    changed = without.score(text, video).detach()
    assert (scores - changed).abs().max() > 1e-4


@pytest.mark.parametrize("name", ["msrvtt-b16-literal", "demo/literal", "features/literal"])
def test_in_the_literal_reading_frame_edges_have_no_effect(name: str) -> None:
    config = build_recipe(name).method_config
    method, scores, (text, video) = small_scores(config)
    without, _, _ = small_scores(dataclasses.replace(config, frame_edges=False))
    without.load_state_dict(method.state_dict())
    assert torch.equal(scores, without.score(text, video).detach())


@pytest.mark.parametrize("world", ["msrvtt-b16", "didemo-b32", "demo", "features", "frames"])
def test_recipes_say_how_they_read_edge_weights(world: str) -> None:
    """Which is which stands with each: after the LeakyReLU, or as printed; never both."""
    main, literal = (
        RECIPES[world].__doc__ or "",
        RECIPES[f"{world}-literal" if "-b" in world else f"{world}/literal"].__doc__ or "",
    )
    assert "after the LeakyReLU" in main
    assert "literal" not in main
    assert "before the LeakyReLU" in literal
    notes = build_recipe("msrvtt-b16-literal").notes
    assert "before the LeakyReLU" in notes
    assert "after the LeakyReLU" not in notes


def test_every_recipe_of_an_approximate_method_says_so() -> None:
    variants = {name: build_recipe(name) for name in RECIPES}
    shown = [name for name, recipe in variants.items() if METHODS[recipe.method].is_approximate]
    assert {"msrvtt-experts/hit", "msrvtt-b16/tvmm", "experts/supportset"} <= set(shown)
    silent = [name for name in shown if "Approximate" not in (RECIPES[name].__doc__ or "")]
    assert silent == []


def test_every_head_of_clip4clip_can_be_compared() -> None:
    heads = [
        build_recipe(f"{world}/clip4clip{name}").method_config.head
        for world in ("demo", "features", "msvd-b32")
        for name in ("", "-lstm", "-transformer", "-tight")
    ]
    assert heads == ["mean", "lstm", "transformer", "tight"] * 3
