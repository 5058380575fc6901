"""Annotations to records, records to batches. Importing this package registers the datasets."""

from eaglenet.data import datasets, demo
from eaglenet.data.records import DATASETS, DatasetSpec, Protocol, Split, VideoRecord

__all__ = ["DATASETS", "DatasetSpec", "Protocol", "Split", "VideoRecord", "datasets", "demo"]
