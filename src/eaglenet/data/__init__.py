"""Annotations to records, files to frames. Importing this package registers the datasets."""

from eaglenet.data import didemo, folder, msrvtt, msvd, synthetic, vatex
from eaglenet.data.records import DATASETS, DatasetSpec, Protocol, Split, VideoRecord

__all__ = [
    "DATASETS",
    "DatasetSpec",
    "Protocol",
    "Split",
    "VideoRecord",
    "didemo",
    "folder",
    "msrvtt",
    "msvd",
    "synthetic",
    "vatex",
]
