"""The same scores, faster: one function, three back ends that agree."""

from eaglenet.scoring.results import TopK
from eaglenet.scoring.score import score_all
from eaglenet.scoring.scorer import Scorer, check_choice, choose

__all__ = ["Scorer", "TopK", "check_choice", "choose", "score_all"]
