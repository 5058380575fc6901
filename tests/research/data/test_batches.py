"""Sources of pairs: features and cached frames; a broken video is a counted skip."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from eaglenet.core.errors import DatasetError
from eaglenet.core.types import FrameSpec, PairBatch, TextFeatures, Tokens, VideoFeatures
from eaglenet.research.data.features import FeatureSplit, PackedTokens
from eaglenet.research.data.frame_cache import FrameCache
from eaglenet.research.data.records import RetrievalProtocol, Split, VideoRecord, make_split
from eaglenet.research.data.sources import cached_source
from eaglenet.research.experiments.stored_data import feature_source
from eaglenet.research.training.epochs import prefetch
from eaglenet.video.decoding import decode, write_video

SPEC = FrameSpec(num_frames=3, size=32)
NUM_VIDEOS = 6


def tokenizer(texts: Sequence[str], max_length: int = 32) -> Tokens:
    """The number in a caption as its one token."""
    numbers = torch.tensor([[int(text.split()[-1])] for text in texts])
    ids = torch.nn.functional.pad(numbers, (0, max_length - 1))
    return Tokens(ids, ids > 0)


@pytest.fixture
def split(tmp_path: Path) -> Split:
    """Video v has brightness 20 v and the captions "c 2v+1" and "c 2v+2"."""
    records = []
    for number in range(NUM_VIDEOS):
        path = tmp_path / "videos" / f"v{number}.mp4"
        path.parent.mkdir(exist_ok=True)
        frames = torch.full((4, 3, 32, 32), 20 * number, dtype=torch.uint8)
        write_video(path, frames, fps=4)
        captions = (f"c {2 * number + 1}", f"c {2 * number + 2}")
        records.append(VideoRecord(f"v{number}", captions, path))
    return make_split("toy", "train", RetrievalProtocol("toy"), records)


def brightness(batch: PairBatch) -> list[int]:
    """Index of each video of a batch, read off its pixels."""
    return [round(float(frames.float().mean()) / 20) for frames in batch.videos.frames]


def test_feature_pairs_match_texts_with_their_videos() -> None:
    split = FeatureSplit(
        frames=PackedTokens(
            torch.arange(6.0)[:, None].expand(6, 4).half(),
            torch.tensor([0, 1, 3]),
            torch.tensor([1, 2, 3]),
        ),
        text_vectors=torch.arange(5.0)[:, None].expand(5, 7).half(),
        text_scales=None,
        text_row=torch.arange(5),
        video_of_text=torch.tensor([0, 1, 1, 2, 2]),
        video_ids=("a", "b", "c"),
        captions=("1", "2", "3", "4", "5"),
        protocol=RetrievalProtocol("toy"),
    )
    batch = feature_source(split).pairs([4, 0, 3])
    assert isinstance(batch.texts, TextFeatures)
    assert isinstance(batch.videos, VideoFeatures)
    assert batch.texts.sentence[:, 0].tolist() == [4.0, 0.0, 3.0]
    assert batch.videos.frames[:, 0, 0].tolist() == [3.0, 0.0, 3.0]
    assert batch.video_ids.tolist() == [2, 0, 2]


def test_cached_pairs_are_the_decoded_files_and_their_captions(
    split: Split, tmp_path: Path
) -> None:
    cache = FrameCache.build(split, SPEC, tmp_path / "cache")
    indices = [7, 0, 1, 10]
    cached = cached_source(split, cache, tokenizer, max_words=9).pairs(indices)
    decoded = [decode(split.videos[video].path, SPEC) for video in (3, 0, 0, 5)]
    assert torch.equal(cached.videos.frames, torch.stack([video.frames for video in decoded]))
    assert torch.equal(cached.videos.mask, torch.stack([video.mask for video in decoded]))
    assert cached.texts.ids.shape == (4, 9)
    assert cached.texts.ids[:, 0].tolist() == [8, 1, 2, 11]
    assert cached.video_ids.tolist() == [3, 0, 0, 5]
    assert brightness(cached) == [3, 0, 0, 5]


def test_videos_that_the_cache_skipped_leave_the_pairs_and_are_counted(
    split: Split, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    split.videos[2].path.write_bytes(b"broken")
    cache = FrameCache.build(split, SPEC, tmp_path / "cache")
    source = cached_source(split, cache, tokenizer)
    assert len(source.video_of_text) == 2 * (NUM_VIDEOS - 1)
    assert source.missing == ("v2",)
    assert "5 of 6 videos are in the frame cache" in caplog.text
    assert source.protocol.name == "toy (10 texts x 5 of 6 videos)"
    batch = source.pairs(torch.arange(10))
    assert brightness(batch) == [0, 0, 1, 1, 3, 3, 4, 4, 5, 5]


def test_a_cache_of_other_videos_is_an_error(split: Split, tmp_path: Path) -> None:
    part = split.only(["v0"])
    cache = FrameCache.build(part, SPEC, tmp_path / "cache")
    with pytest.raises(DatasetError, match="none of the 5 videos"):
        cached_source(split.only(split.video_ids[1:]), cache, tokenizer)


def test_prefetching_keeps_order_and_raises_errors_where_they_are_read() -> None:
    assert list(prefetch(range(17), depth=3)) == list(range(17))

    def failing() -> Iterator[Any]:
        yield 1
        raise ValueError("broken source")

    ahead = prefetch(failing())
    assert next(ahead) == 1
    with pytest.raises(ValueError, match="broken source"):
        next(ahead)


def test_prefetching_stops_when_the_reader_does() -> None:
    made = []

    def endless() -> Iterator[Any]:
        number = 0
        while True:
            made.append(number)
            yield number
            number += 1

    ahead = prefetch(endless(), depth=2)
    assert next(ahead) == 0
    ahead.close()
    count = len(made)
    assert count <= 5
    assert len(made) == count
