"""The mean of several runs' weights: one model as good as many, at the cost of one.

Wortsman et al., Model soups (ICML 2022), the greedy form: runs from one beginning stay in one
valley of the loss, so that a mean of their weights is a model too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from torch import Tensor

Weights = Mapping[str, Tensor]


def mean_of_weights(parts: Sequence[Weights]) -> dict[str, Tensor]:
    """The mean of each weight over all parts."""
    names = parts[0].keys()
    return {
        name: sum((part[name] for part in parts[1:]), parts[0][name]) / len(parts) for name in names
    }


def greedy_soup(
    parts: Sequence[Weights], score: Callable[[Weights], float]
) -> tuple[dict[str, Tensor], list[int], float]:
    """Best part first; each next one stays in the mean if the score does not fall.

    Returns the mean, the numbers of the parts in it, and its score.
    """
    scores = [score(part) for part in parts]
    order = sorted(range(len(parts)), key=lambda number: -scores[number])
    chosen, best = [order[0]], scores[order[0]]
    for number in order[1:]:
        tried = score(mean_of_weights([parts[k] for k in [*chosen, number]]))
        if tried >= best:
            chosen, best = [*chosen, number], tried
    return mean_of_weights([parts[k] for k in chosen]), chosen, best
