"""Annotations to records, records to batches. Importing this package registers the datasets."""

from eaglenet.data import datasets, demo
from eaglenet.data.records import DATASETS, DatasetSpec, RetrievalProtocol, Split, VideoRecord
from eaglenet.data.sources import SOURCES, Source, SourceSpec, add_source
from eaglenet.data.video_files import add_dataset

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
    "datasets",
    "demo",
]
