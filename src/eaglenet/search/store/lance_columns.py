"""How clips and files lie in the columns of LanceDB's tables."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eaglenet.search.store.layout import FeatureLayout


def clip_schema(layout: FeatureLayout, dim: int) -> Any:
    """Columns of the table of clips, whose coarse vectors have ``dim`` values."""
    import pyarrow as pa

    frames = layout.num_frames
    return pa.schema(
        [
            ("clip_id", pa.string()),
            ("content", pa.string()),
            ("number", pa.int32()),
            ("path", pa.string()),
            ("start", pa.float64()),
            ("end", pa.float64()),
            ("vector", pa.list_(pa.float32(), dim)),
            ("frames", pa.list_(pa.float16(), frames * layout.dim)),
            ("mask", pa.list_(pa.uint8(), frames)),
            ("seconds", pa.list_(pa.float32(), frames)),
            ("extra", pa.binary()),
            ("thumbnail", pa.binary()),
            ("check", pa.uint32()),
        ]
    )


def file_schema() -> Any:
    """Columns of the table of files."""
    import pyarrow as pa

    return pa.schema(
        [
            ("path", pa.string()),
            ("size", pa.int64()),
            ("modified_ns", pa.int64()),
            ("content", pa.string()),
            ("status", pa.string()),
            ("reason", pa.string()),
            ("duration", pa.float64()),
            ("width", pa.int32()),
            ("height", pa.int32()),
            ("num_clips", pa.int32()),
            ("tags", pa.string()),
            ("check", pa.uint32()),
        ]
    )


def row_check(row: Mapping[str, Any]) -> int:
    """Checksum of a file's row, its own column left out."""
    return zlib.crc32(json.dumps(row, sort_keys=True).encode())


def fixed(values: NDArray[Any], dtype: Any) -> Any:
    """Arrow fixed-size list column of an array ``[rows, ...]``."""
    import pyarrow as pa

    # A copy: columns of records are not aligned, and Arrow wants them to be.
    flat = np.array(values, dtype, order="C").reshape(len(values), -1)
    return pa.FixedSizeListArray.from_arrays(pa.array(flat.reshape(-1)), flat.shape[1])


def dense(column: Any) -> NDArray[Any]:
    """All values of a fixed-size list column, flat."""
    return np.concatenate(
        [chunk.flatten().to_numpy(zero_copy_only=False) for chunk in column.chunks]
    )
