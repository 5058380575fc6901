"""Rows that took work to make, kept."""

from collections.abc import Mapping

import torch
from torch import Tensor

from eaglenet.search.torch_model import RowCache


class Maker:
    """Makes two tensors of a key and remembers which were asked for."""

    def __init__(self, keys: list[int]) -> None:
        self.keys = keys
        self.asked: list[int] = []

    def __call__(self, numbers: list[int]) -> Mapping[str, Tensor]:
        wanted = [self.keys[number] for number in numbers]
        self.asked += wanted
        return {
            "value": torch.tensor(wanted, dtype=torch.float32)[:, None].expand(-1, 3),
            "mask": torch.tensor([key % 2 == 0 for key in wanted]),
        }


ROW_BYTES = 3 * 4 + 1


def gathered(kept: RowCache, keys: list[int]) -> list[int]:
    """Checks the rows; gives the keys that had to be made."""
    make = Maker(keys)
    rows = kept.gather(keys, make)
    torch.testing.assert_close(rows["value"][:, 1], torch.tensor(keys, dtype=torch.float32))
    assert rows["mask"].tolist() == [key % 2 == 0 for key in keys]
    return make.asked


def test_computes_missing_rows_only_and_keeps_the_order() -> None:
    kept = RowCache(10 * ROW_BYTES)
    assert gathered(kept, [5, 3, 8]) == [5, 3, 8]
    assert gathered(kept, [8, 1, 5, 2, 3]) == [1, 2]
    assert gathered(kept, [2, 8]) == []
    assert len(kept) == 5


def test_evicts_the_least_recently_used_rows() -> None:
    kept = RowCache(4 * ROW_BYTES)
    gathered(kept, [1, 2, 3, 4])
    assert gathered(kept, [1, 5]) == [5]
    assert gathered(kept, [1, 3, 4, 5]) == []
    assert gathered(kept, [2]) == [2]
    assert len(kept) == 4


def test_returns_more_rows_than_fit() -> None:
    kept = RowCache(2 * ROW_BYTES)
    gathered(kept, [1, 2])
    assert gathered(kept, [2, 3, 4, 5])[:3] == [3, 4, 5]
    assert gathered(RowCache(0), [7, 8]) == [7, 8]


def test_equal_keys_share_a_row_and_do_not_displace_others() -> None:
    """Copies of a file have equal keys, and are on one shortlist."""
    kept = RowCache(10 * ROW_BYTES)
    assert gathered(kept, [5, 5, 3, 8, 5]) == [5, 3, 8]
    assert gathered(kept, [3, 8, 5, 5]) == []
    assert len(kept) == 3
    assert gathered(RowCache(2 * ROW_BYTES), [1, 1, 2, 3]) == [1, 2, 3, 1, 1, 2, 3]
    assert gathered(RowCache(0), [7, 7, 8]) == [7, 8, 7, 7, 8]
