"""Embedded subtitles in each container."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from eaglenet.transcripts.lines import TranscriptLine
from eaglenet.transcripts.subtitles import read_embedded_subtitles
from eaglenet.video.decoding import write_video
from subtitled import CODECS, write_with_subtitles

LINES = [
    (1.0, 2.5, "Gr\u00fc\u00df dich, <i>Welt</i>"),
    (3.0, 4.0, "\u4f60\u597d\uff0c\u4e16\u754c"),
]


@pytest.mark.parametrize("suffix", sorted(CODECS))
def test_reads_text_streams_with_times_and_language(tmp_path: Path, suffix: str) -> None:
    path = write_with_subtitles(tmp_path / f"film{suffix}", LINES)
    assert read_embedded_subtitles(path) == [
        TranscriptLine(1.0, 2.5, "Gr\u00fc\u00df dich, Welt", "de"),
        TranscriptLine(3.0, 4.0, "\u4f60\u597d\uff0c\u4e16\u754c", "de"),
    ]


def test_video_without_subtitles_has_no_lines(tmp_path: Path) -> None:
    path = tmp_path / "plain.mp4"
    write_video(path, torch.zeros(10, 3, 48, 64, dtype=torch.uint8), 5)
    assert read_embedded_subtitles(path) == []


def test_truncated_file_gives_the_lines_it_has(tmp_path: Path) -> None:
    path = write_with_subtitles(tmp_path / "film.mkv", LINES)
    content = path.read_bytes()
    for size in (len(content) // 3, len(content) * 2 // 3):
        path.write_bytes(content[:size])
        assert len(read_embedded_subtitles(path)) <= len(LINES)
