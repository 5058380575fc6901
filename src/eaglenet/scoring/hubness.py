"""Hubness offsets of videos that match every text, from a fixed bank of typical texts.

The bank does not depend on the queries or the videos of a test. So, unlike a dual softmax over all
test texts, the correction applies to a single query as well.
"""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from eaglenet.layers.hubness import soft_maximum
from eaglenet.store.hubness import TEMPERATURE

SUBJECTS = (
    "a man", "a woman", "a child", "two people", "a group of people", "a dog", "a cat", "a girl",
    "a boy", "a cartoon character", "a player", "a singer", "a chef", "a car", "an animal",
    "someone",
)  # fmt: skip
ACTIONS = (
    "is talking to the camera", "is cooking food", "is playing a game", "is singing a song",
    "is dancing", "is running", "is driving on a road", "is playing with a ball",
    "is showing how to make something", "is walking outside", "is swimming in water",
    "is fixing a machine", "is eating at a table", "is sitting in a room", "is using a computer",
    "is laughing on a stage",
)  # fmt: skip


def typical_sentences() -> list[str]:
    """Return 256 typical queries: every subject with every action."""
    return [f"{subject} {action}" for subject in SUBJECTS for action in ACTIONS]


def hub_bias(
    bank: Float[Tensor, "bank videos"], *, temperature: float = TEMPERATURE
) -> Float[Tensor, "videos"]:
    r"""Return the offset to add to the scores of each video; lower for hubs.

    .. math:: b_v = -\frac{1}{\beta} \log \frac{1}{Q} \sum_q \exp(\beta s_{qv})

    The inverted softmax of QB-norm (Bogolin et al., CVPR 2022, eq. 2) as a logarithm. It is equal
    for all texts, so the ranking of texts for a video does not change.
    """
    return -soft_maximum(bank.double(), temperature)
