"""The same scores, faster: one function, three back ends that agree."""

from eaglenet.scoring.score import score_all
from eaglenet.scoring.tiles import TopK

__all__ = ["TopK", "score_all"]
