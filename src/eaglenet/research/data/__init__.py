"""Datasets and their features. Importing this package registers the datasets."""

import eaglenet.research.data.benchmark_datasets
import eaglenet.research.data.demo.dataset
import eaglenet.research.data.own_folder  # noqa: F401
from eaglenet.research.data.records import (
    DATASETS,
    DatasetSpec,
    RetrievalProtocol,
    Split,
    VideoRecord,
)
from eaglenet.research.data.sources import SOURCES, Source, SourceSpec, add_dataset, add_source

__all__ = [
    "DATASETS",
    "SOURCES",
    "DatasetSpec",
    "RetrievalProtocol",
    "Source",
    "SourceSpec",
    "Split",
    "VideoRecord",
    "add_dataset",
    "add_source",
]
