"""Videos that answer every question: a bias of each, from a bank of typical sentences.

The bank is fixed and knows neither the questions nor the videos of a test, so one sentence asked
alone is scored with it as well: unlike QB-norm over training texts or a dual softmax, it is no
different protocol, only a different score.
"""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from eaglenet.layers.sentence_bank import level_of_videos
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
    """256 sentences of the kind people ask for: every subject with every action."""
    return [f"{subject} {action}" for subject in SUBJECTS for action in ACTIONS]


def hub_bias(
    bank: Float[Tensor, "bank videos"], *, temperature: float = TEMPERATURE
) -> Float[Tensor, "videos"]:
    r"""What to add to a video's score: the less, the better it answers the bank as a whole.

    .. math:: b_v = -\frac{1}{\beta} \log \frac{1}{Q} \sum_q \exp(\beta s_{qv})

    QB-norm's inverted softmax (Bogolin et al., CVPR 2022, eq. 2) as a logarithm. The same for every
    text, so the ranking of texts for a video does not change.
    """
    return -level_of_videos(bank.double(), temperature)
