"""Scores of all texts with all videos: one function, three back ends with equal results."""

from eaglenet.scoring.score import TopK, score_all
from eaglenet.scoring.scorer import Scorer, check_choice, choose

__all__ = ["Scorer", "TopK", "check_choice", "choose", "score_all"]
