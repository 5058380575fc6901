"""Small files that unpack to large ones, ask for another program, or write to the terminal."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow
import pytest
import torch
from campaign import limits
from pyarrow import parquet

from eaglenet.core.errors import CheckpointError, ConfigError, DatasetError, UsageError
from eaglenet.core.text import escape_line
from eaglenet.core.types import FrameSpec
from eaglenet.encoders.clip_config import ClipConfig, VisionConfig
from eaglenet.encoders.clip_files import read_openai_weights
from eaglenet.encoders.tokenizers import ClipTokenizer
from eaglenet.indexing import exchange
from eaglenet.indexing.exchange import read_table
from eaglenet.models.folder import load
from eaglenet.research.data.hub_dataset import unpack_hub_dataset
from eaglenet.research.evaluation.postprocessing import read_scores
from eaglenet.video.decoding import decode_image

EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\nshowpage\n%%EOF\n"


def test_a_packed_table_that_unpacks_to_gigabytes_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "table.txt.gz"
    path.write_bytes(gzip.compress(bytes(200 * 2**20), 1))
    with limits(), pytest.raises(CheckpointError, match="unpacks to more"):
        ClipTokenizer.from_table(path)


def parquet_bomb(path: Path, columns: dict[str, pyarrow.Array]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pyarrow.table(columns), path, compression="zstd")
    assert path.stat().st_size < 2**20


def test_a_table_of_videos_that_unpacks_to_gigabytes_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit is lowered to 16 MiB, so that the table is written quickly."""
    monkeypatch.setattr(exchange, "MAX_UNPACKED_BYTES", 2**24)
    kind = pyarrow.struct({"bytes": pyarrow.binary(), "path": pyarrow.string()})
    video = pyarrow.array([{"bytes": bytes(30 * 2**20), "path": "a.mp4"}], kind)
    parquet_bomb(tmp_path / "data" / "test-0.parquet", {"video": video, "caption": ["a"]})
    del video
    with limits(), pytest.raises(DatasetError, match=r"unpack to 1 rows and 31(\.5)? MB"):
        unpack_hub_dataset(str(tmp_path))


def test_a_table_of_endless_rows_is_refused(tmp_path: Path) -> None:
    zeros = pyarrow.array(np.zeros(3 * 10**6, np.int8))
    parquet_bomb(tmp_path / "clips.parquet", {"number": zeros})
    with limits(), pytest.raises(ValueError, match="unpack to 3,000,000 rows"):
        next(read_table(tmp_path, "clips", "parquet"))


def script_archive(path: Path, tree: bytes, *, packing: int = zipfile.ZIP_STORED) -> None:
    with zipfile.ZipFile(path, "w", packing) as archive:
        archive.writestr("a/data.pkl", tree)
        archive.writestr("a/code/x.py", b"")
        archive.writestr("a/data/0", bytes(80 * 2**20 if packing else 40))


def test_an_archive_that_unpacks_to_gigabytes_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "weights.pt"
    script_archive(path, pickle.dumps({}), packing=zipfile.ZIP_DEFLATED)
    assert path.stat().st_size < 2**20
    with limits(), pytest.raises(CheckpointError, match="unpacks to much more"):
        read_openai_weights(path)


def test_a_pickle_cannot_ask_for_a_memo_of_gigabytes(tmp_path: Path) -> None:
    path = tmp_path / "weights.pt"
    script_archive(path, b"\x80\x02}r\xff\xff\xff\xff.")
    with limits(), pytest.raises(CheckpointError, match="beyond its size"):
        read_openai_weights(path)


def test_one_number_repeated_a_billion_times_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "weights.pt"
    torch.save({"a": torch.zeros(1).expand(10**9)}, path)
    with limits(), pytest.raises(CheckpointError, match="claims"):
        read_openai_weights(path)


def test_an_array_that_claims_more_than_its_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "scores.npy"
    buffer = io.BytesIO()
    header = {"descr": "<f4", "fortran_order": False, "shape": (10**6, 10**6)}
    np.lib.format.write_array_header_1_0(buffer, header)
    path.write_bytes(buffer.getvalue())
    with limits(), pytest.raises(UsageError, match="cannot be read"):
        read_scores(path)


@pytest.mark.parametrize(
    "changes",
    [
        {"pixel_std": (0.2, 0.0, 0.2)},
        {"pixel_mean": (0.2, float("nan"), 0.2)},
        {"dim": 0},
        {"dim": 10**9},
    ],
)
def test_impossible_configurations_are_refused(changes: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        replace(ClipConfig(), **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("changes", [{"heads": -1}, {"layers": 10**5}, {"width": 0}])
def test_impossible_towers_are_refused(changes: dict[str, int]) -> None:
    with pytest.raises(ConfigError):
        replace(VisionConfig(), **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(("frames", "size"), [(-1, 16), (0, 16), (10**6, 16), (4, -1), (4, 10**6)])
def test_impossible_frames_are_refused(frames: int, size: int) -> None:
    with pytest.raises(ConfigError, match="whole number"):
        FrameSpec(num_frames=frames, size=size)


def test_a_configuration_of_more_weights_than_there_are_is_not_built(sound_model: Path) -> None:
    path = sound_model / "config.json"
    sound = path.read_bytes()
    values = json.loads(sound)
    values["encoder"]["config"]["vision"].update(width=16_384, heads=2, layers=60)
    try:
        path.write_text(json.dumps(values))
        with limits(60), pytest.raises(CheckpointError, match="describes an encoder of"):
            load(sound_model)
    finally:
        path.write_bytes(sound)


def test_a_picture_that_is_a_program_is_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "holiday.jpg"
    path.write_bytes(EPS)

    def started(*arguments: object, **options: object) -> None:
        raise AssertionError("another program was started")

    monkeypatch.setattr("subprocess.Popen", started)
    with pytest.raises(UsageError, match="not an image"):
        decode_image(path, 16)


def test_a_picture_of_a_billion_pixels_is_refused(tmp_path: Path) -> None:
    from PIL import Image

    path = tmp_path / "wide.png"
    Image.new("1", (20_000, 6_000)).save(path)
    assert path.stat().st_size < 10**6
    with limits(), pytest.raises(UsageError, match="pixels"):
        decode_image(path, 16)


def test_names_of_files_cannot_write_to_the_terminal() -> None:
    assert escape_line("a\x1b[2Jb\nc\x07\u202e") == "a\\x1b[2Jb\\nc\\x07\\u202e"
