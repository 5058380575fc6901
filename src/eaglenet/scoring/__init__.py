"""Scores of all texts with all videos by one of three back ends with equal results."""

from eaglenet.scoring.scorer import Scorer, TopK, check_choice, choose, score_all, score_best

__all__ = ["Scorer", "TopK", "check_choice", "choose", "score_all", "score_best"]
