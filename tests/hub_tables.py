"""Tables in the layouts of MTEB's text-video datasets on the hub, videos inside."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import parquet

VIDEO = pa.struct({"bytes": pa.binary(), "path": pa.string()})


def write_table(path: Path, columns: Mapping[str, Sequence[Any]]) -> Path:
    """A Parquet file as ``push_to_hub`` of the library datasets writes it, with its features."""
    features: dict[str, Any] = {}
    arrays = {}
    for name, values in columns.items():
        if name in ("video", "audio"):
            features[name] = {"_type": name.title()}
            rows = [{"bytes": file.read_bytes(), "path": file.name} for file in values]
            arrays[name] = pa.array(rows, VIDEO)
        else:
            arrays[name] = pa.array(values)
            kind = "int64" if pa.types.is_integer(arrays[name].type) else "string"
            features[name] = {"dtype": kind, "_type": "Value"}
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pa.table(arrays).replace_schema_metadata(metadata), path)
    return path


def write_pairs(folder: Path, videos: Sequence[Path], captions: Sequence[str]) -> Path:
    """One table with a video and a caption per row, as in ``mteb/MSR-VTT``, in two files."""
    middle = len(videos) // 2
    for number, part in enumerate((slice(0, middle), slice(middle, None))):
        write_table(
            folder / "data" / f"test-{number:05d}-of-00002.parquet",
            {"video": videos[part], "caption": captions[part]},
        )
    return folder


def write_three(folder: Path, videos: Sequence[Path], captions: Sequence[str]) -> Path:
    """The standard layout of retrieval tasks: corpus, queries and qrels."""
    documents = [f"d{number}" for number in range(len(videos))]
    queries = [f"q{number}" for number in range(len(captions))]
    write_table(
        folder / "corpus" / "test-00000-of-00001.parquet", {"id": documents, "video": videos}
    )
    write_table(
        folder / "queries" / "test-00000-of-00001.parquet", {"id": queries, "text": captions}
    )
    write_table(
        folder / "qrels" / "test-00000-of-00001.parquet",
        {"query-id": queries, "corpus-id": documents, "score": [1] * len(captions)},
    )
    return folder
