"""One-bit codes: the nearest, in one part or several."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from eaglenet.store import codes as module
from eaglenet.store.codes import (
    MAX_SUM,
    Codes,
    codes_of,
    merge_best,
    num_bits,
    num_ranked,
    rotation,
    scan_blocks,
    weights_of,
)

DIM = 40


def make_vectors(count: int, seed: int = 0) -> NDArray[np.float32]:
    vectors = np.random.default_rng(seed).standard_normal((count, DIM)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def brute(vectors: NDArray[np.float32], query: NDArray[np.float32], count: int) -> list[int]:
    """Rows of the ``count`` best codes, one step after the other."""
    codes, weights = codes_of(vectors), weights_of(query).astype(np.int64)
    differing = np.unpackbits(codes ^ np.packbits(weights > 0), axis=1).sum(axis=1)
    nearest = np.sort(np.argsort(differing, kind="stable")[: num_ranked(count)])
    scores = np.unpackbits(codes[nearest], axis=1) @ weights
    return sorted(nearest[np.argsort(-scores, kind="stable")[:count]].tolist())


def test_the_rotation_is_orthonormal_and_never_changes() -> None:
    matrix = rotation(DIM)
    assert matrix.shape == (num_bits(DIM), DIM) == (64, DIM)
    assert np.allclose(matrix.T @ matrix, np.eye(DIM), atol=1e-5)
    codes = codes_of(np.sin(np.arange(1, 25)).astype(np.float32)[None])
    assert codes.tobytes().hex() == "5dd78aba9cbffc66"


@pytest.mark.parametrize("dim", [24, 64, 100, 512])
def test_rotation_preserves_cosines(dim: int) -> None:
    assert rotation(dim).shape == (num_bits(dim), dim)
    np.testing.assert_allclose(rotation(dim).T @ rotation(dim), np.eye(dim), atol=1e-5)


def test_share_of_differing_bits_is_the_angle() -> None:
    vectors = np.random.default_rng(0).standard_normal((300, 512)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    sums = vectors[::-1] + 2 * vectors
    differing = np.bitwise_count(codes_of(vectors) ^ codes_of(sums)).sum(axis=1) / 512
    cosines = (vectors * sums).sum(axis=1) / np.linalg.norm(sums, axis=1)
    assert abs(differing - np.arccos(cosines) / np.pi).mean() < 0.02


def test_codes_are_compared_in_full_where_their_prefixes_are_near(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    generator = np.random.default_rng(0)
    vectors = generator.standard_normal((3333, 256)).astype(np.float32)
    query = generator.standard_normal(256).astype(np.float32)
    near = generator.permutation(3333)[:20]
    vectors[near] = 0.2 * vectors[near] + query
    codes = Codes(scan_blocks(codes_of(vectors)), len(vectors))
    row_mask = generator.random(3333) < 0.1
    plain = [codes.nearest(query, 200), codes.nearest(query, 20, row_mask)]
    monkeypatch.setattr(module, "PREFIX_ROWS", 1)
    monkeypatch.setattr(module, "PREFIX_FRACTION", 20)
    by_prefixes = [codes.nearest(query, 200), codes.nearest(query, 20, row_mask)]
    assert np.isin(near, by_prefixes[0]).all()
    assert codes.nearest(query, 20).tolist() == sorted(near.tolist())
    for rows, expected in zip(by_prefixes, plain, strict=True):
        assert len(rows) == len(expected)
        assert np.isin(rows, expected).mean() > 0.8
    assert row_mask[by_prefixes[1]].all()
    few = np.arange(3333) < 7
    assert codes.nearest(query, 20, few).tolist() == list(range(7))


@pytest.mark.parametrize("by_prefixes", [False, True])
def test_the_nearest_are_those_of_a_full_comparison(
    by_prefixes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SCAN_BLOCK", 100)
    if by_prefixes:
        monkeypatch.setattr(module, "PREFIX_ROWS", 1)
        monkeypatch.setattr(module, "num_compared", lambda count, num_rows: num_rows)
    vectors = make_vectors(777)
    parts = [codes_of(vectors[:350]), codes_of(vectors[350:])]
    codes = Codes([block for part in parts for block in scan_blocks(part)], len(vectors))
    for seed in range(5):
        query = make_vectors(1, seed + 1)[0]
        assert codes.nearest(query, 20).tolist() == brute(vectors, query, 20)


@pytest.mark.parametrize("by_prefixes", [False, True])
def test_parts_together_find_what_the_whole_finds(
    by_prefixes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if by_prefixes:
        monkeypatch.setattr(module, "PREFIX_ROWS", 1)
        monkeypatch.setattr(module, "PREFIX_FACTOR", 2)
        monkeypatch.setattr(module, "WORD_BITS", 128)
    vectors = make_vectors(900)
    whole = Codes(scan_blocks(codes_of(vectors)), len(vectors))
    parts = [
        Codes(scan_blocks(codes_of(vectors[first : first + 300])), len(vectors), first)
        for first in (0, 300, 600)
    ]
    for seed in range(5):
        query = make_vectors(1, seed + 1)[0]
        near = [part.best_in_part(weights_of(query), 15) for part in parts]
        expected = whole.nearest(query, 15)
        assert merge_best(near, 15, len(vectors)).tolist() == expected.tolist()


def test_only_allowed_rows_are_found() -> None:
    vectors = make_vectors(200)
    codes = Codes(scan_blocks(codes_of(vectors)), len(vectors))
    row_mask = np.zeros(200, bool)
    row_mask[[3, 50, 120]] = True
    assert codes.nearest(vectors[7], 10, row_mask).tolist() == [3, 50, 120]


def test_weights_are_the_rotated_query_and_their_sums_are_exact() -> None:
    for dim in (24, 512, 2000):
        query = np.random.default_rng(dim).standard_normal(dim).astype(np.float32)
        weights = weights_of(query)
        assert weights.shape == (num_bits(dim),)
        assert np.abs(weights.astype(np.int64)).sum() < MAX_SUM
        coordinates = rotation(dim) @ query
        np.testing.assert_allclose(
            weights / weights.max(), coordinates / coordinates.max(), atol=1e-3
        )
    assert not weights_of(np.zeros(24, np.float32)).any()


def test_ranking_by_the_numbers_of_the_query_finds_more_than_distances_alone() -> None:
    generator = np.random.default_rng(0)
    vectors = generator.standard_normal((20_000, 128)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    codes = Codes(scan_blocks(codes_of(vectors)), len(vectors))
    shares = {"distances": 0.0, "numbers": 0.0}
    for query in generator.standard_normal((20, 128)).astype(np.float32):
        best = np.argsort(-(vectors @ query))[:20]
        differing = np.bitwise_count(codes_of(vectors) ^ codes_of(query[None])).sum(axis=1)
        nearest = np.argsort(differing, kind="stable")[:500]
        shares["distances"] += np.isin(best, nearest).mean() / 20
        shares["numbers"] += np.isin(best, codes.nearest(query, 500)).mean() / 20
    assert shares["numbers"] > shares["distances"] + 0.05
