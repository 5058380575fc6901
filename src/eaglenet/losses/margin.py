"""Margin loss of the methods before CLIP."""

from __future__ import annotations

from jaxtyping import Bool, Float
from torch import Tensor


def margin_loss(
    scores: Float[Tensor, "pairs pairs"],
    positives: Bool[Tensor, "pairs pairs"],
    margin: float,
    *,
    hardest: bool = False,
) -> Float[Tensor, ""]:
    r"""Hinge terms of every wrong pair against the right pairs of its row and its column.

    .. math:: [m + S_{ij} - S_{ii}]_+ \quad\text{and}\quad [m + S_{ji} - S_{ii}]_+, \quad j \neq i

    Text ``i`` belongs to video ``i``; other right pairs (captions of one video) are not negatives.
    Returns the mean of all terms; with ``hardest``, the largest term of each row, averaged over
    rows, plus the largest of each column, averaged over columns.
    """
    right = scores.diagonal()
    negatives = ~positives
    by_row = (margin + scores - right[:, None]).clamp_min(0.0).masked_fill(~negatives, 0.0)
    by_column = (margin + scores - right[None, :]).clamp_min(0.0).masked_fill(~negatives, 0.0)
    if hardest:
        return by_row.amax(dim=1).mean() + by_column.amax(dim=0).mean()
    count = (2 * negatives.sum()).clamp_min(1)
    return (by_row.sum() + by_column.sum()) / count
