"""The demo world: scenes, their pictures, and both as a dataset, which importing this registers."""

from eaglenet.research.data.demo import dataset

__all__ = ["dataset"]
