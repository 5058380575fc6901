"""A paired bootstrap draws videos with all their queries; checked against a plain loop."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from eaglenet.core.errors import UsageError
from eaglenet.core.types import TextFeatures, VideoFeatures
from eaglenet.methods import METHODS
from eaglenet.research.evaluation.differences import (
    compare_ranks,
    difference_blocks,
    paired_bootstrap,
    read_ranks,
)
from eaglenet.research.evaluation.document import to_markdown
from eaglenet.research.evaluation.metrics import EvaluationOptions, rank_pairs, retrieval_metrics
from eaglenet.research.evaluation.run_records import RecipeGroup


def loop(
    first: NDArray[np.float64],
    second: NDArray[np.float64],
    groups: NDArray[np.int64],
    draws: int,
    seed: int,
) -> list[float]:
    """The differences of all draws, one query at a time."""
    generator = np.random.default_rng(seed)
    names = sorted(set(groups.tolist()))
    found = []
    for _ in range(draws):
        counts = generator.multinomial(len(names), [1 / len(names)] * len(names))
        left = right = total = 0.0
        for name, count in zip(names, counts, strict=True):
            for query in range(len(groups)):
                if groups[query] == name:
                    left += count * first[query]
                    right += count * second[query]
                    total += count
        found.append(left / total - right / total)
    return found


def test_the_interval_is_that_of_a_plain_loop() -> None:
    draw = np.random.default_rng(3)
    groups = np.array([7, 2, 2, 5, 7, 7, 9, 5, 2, 11, 11])
    first, second = draw.random(11) * 100, draw.random(11) * 100
    found = paired_bootstrap(first, second, groups, draws=130, seed=4)
    # The generator is asked in pieces of 100 draws, which gives the same numbers.
    values = loop(first, second, groups, 130, 4)
    assert found.mean == pytest.approx(first.mean() - second.mean())
    assert found.low == pytest.approx(np.quantile(values, 0.025))
    assert found.high == pytest.approx(np.quantile(values, 0.975))


def test_pairing_finds_what_the_spread_of_recalls_hides() -> None:
    draw = np.random.default_rng(0)
    second = (draw.random(600) < 0.4) * 100.0
    first = second.copy()
    worse = np.flatnonzero(second == 0)[:18]
    first[worse] = 100.0  # better on 18 of 600 queries, worse on none
    found = paired_bootstrap(first, second, np.arange(600))
    assert found.mean == pytest.approx(3.0)
    assert found.is_clear
    assert found.low > 1.5
    same = paired_bootstrap(second, second, np.arange(600))
    assert (same.mean, same.low, same.high) == (0.0, 0.0, 0.0)
    assert not same.is_clear


def test_captions_of_one_video_widen_the_interval() -> None:
    """20 copies of each query tell nothing new, so they must not make the interval narrower."""
    draw = np.random.default_rng(1)
    values = (draw.random(50) < 0.5) * 100.0
    zeros = np.zeros(1000)
    repeated = np.repeat(values, 20)
    alone = paired_bootstrap(values, np.zeros(50), np.arange(50))
    grouped = paired_bootstrap(repeated, zeros, np.repeat(np.arange(50), 20))
    naive = paired_bootstrap(repeated, zeros, np.arange(1000))
    assert grouped.high - grouped.low == pytest.approx(alone.high - alone.low)
    assert naive.high - naive.low < 0.5 * (alone.high - alone.low)


@pytest.mark.parametrize("size", [0, 300, -1])
def test_ranks_of_an_interrupted_evaluation_are_named(tmp_path: Path, size: int) -> None:
    path = tmp_path / "ranks-val.npz"
    ranks = np.arange(500)
    np.savez_compressed(path, t2v=ranks, v2t=ranks, video_of_text=ranks)
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(UsageError, match="ranks cannot be read"):
        read_ranks(path)


def test_other_queries_are_refused() -> None:
    with pytest.raises(UsageError, match="same queries"):
        paired_bootstrap(np.zeros(3), np.zeros(4), np.arange(3))
    one = {"t2v": np.ones(3), "v2t": np.ones(2), "video_of_text": np.array([0, 1, 1])}
    other = {**one, "video_of_text": np.array([0, 0, 1])}
    with pytest.raises(UsageError, match="different queries"):
        compare_ranks([one], [other])


def test_ranks_are_kept_in_the_order_of_the_texts(tmp_path: Path) -> None:
    """Texts come unsorted; their ranks are those of a plain count."""
    spec = METHODS["clip4clip"]
    from eaglenet.encoders.features import FeatureConfig, FeatureEncoder

    method = spec.build(spec.config_class(), FeatureEncoder(FeatureConfig(6, 6, 6, identity=True)))
    generator = torch.Generator().manual_seed(0)
    owner = torch.tensor([2, 0, 3, 0, 1, 2, 2])
    text = TextFeatures(torch.randn(7, 6, generator=generator))
    mask = torch.ones(4, 3, dtype=torch.bool)
    video = VideoFeatures(torch.randn(4, 3, 6, generator=generator), mask)
    path = tmp_path / "ranks-val.npz"
    metrics = rank_pairs(method.eval(), text, video, owner, ranks_file=path)
    scores = method.score(text, video).detach()
    expected = [int((scores[row] >= scores[row, owner[row]]).sum()) for row in range(7)]
    kept = read_ranks(path)
    assert kept["t2v"].tolist() == expected
    assert len(kept["v2t"]) == 4
    assert kept["video_of_text"].tolist() == owner.tolist()
    assert metrics == retrieval_metrics(scores, owner)
    assert EvaluationOptions(ranks_file=path).ranks_file == path


def test_each_interval_of_a_report_is_printed_once(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    groups: list[RecipeGroup] = []
    for label, best_rank in (("first", 3), ("best", 1), ("other", 2)):
        folder = tmp_path / label
        folder.mkdir()
        ranks = generator.integers(best_rank, 4, 50)
        np.savez(folder / "ranks-val.npz", t2v=ranks, v2t=ranks, video_of_text=np.arange(50))
        run = SimpleNamespace(folder=folder, evaluations={})
        groups.append(Mock(spec=RecipeGroup, label=label, runs=[run]))
    text = to_markdown("Report", difference_blocks(groups))
    assert text.count("paired bootstrap") == 1
    assert [line for line in text.splitlines() if line.startswith("R@1 minus")] == [
        "R@1 minus that of best:",
        "R@1 minus that of first:",
    ]
    # Three pairs of recipes, each in both directions of retrieval.
    assert text.count("[") == 6


def test_only_results_of_one_protocol_are_compared(tmp_path: Path) -> None:
    """MSR-VTT 1k-A and LSMDC both have 1,000 queries, each of another video."""
    groups: list[RecipeGroup] = []
    for label, protocol in (("a", "MSR-VTT"), ("b", "LSMDC"), ("c", "LSMDC"), ("d", "MSR-VTT")):
        folder = tmp_path / label
        folder.mkdir()
        ranks = np.full(50, 1 + len(groups))
        np.savez(folder / "ranks-test.npz", t2v=ranks, v2t=ranks, video_of_text=np.arange(50))
        evaluations = {"evaluation-test": {"protocol": f"{protocol} (50 texts x 50 videos)"}}
        run = SimpleNamespace(folder=folder, evaluations=evaluations)
        groups.append(Mock(spec=RecipeGroup, label=label, runs=[run]))
    blocks = list(map(str, difference_blocks(groups)))
    assert len(blocks) == 2 + 2 * 3
    assert blocks[2].startswith("Protocol: MSR-VTT")
    assert "| d | -100.0" in blocks[4]
    assert blocks[5].startswith("Protocol: LSMDC")
    assert "| c |" in blocks[7]
