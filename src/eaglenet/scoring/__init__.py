"""The same scores, faster: one function, three back ends that agree."""

from eaglenet.scoring.score import TopK, score_all
from eaglenet.scoring.scorer import Scorer, check_choice, choose

__all__ = ["Scorer", "TopK", "check_choice", "choose", "score_all"]
