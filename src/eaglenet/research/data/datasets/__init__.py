"""One file a dataset: its annotation files to records. Importing this package registers them."""

from eaglenet.research.data.datasets import didemo, msrvtt, msvd, own_folder, vatex

__all__ = ["didemo", "msrvtt", "msvd", "own_folder", "vatex"]
