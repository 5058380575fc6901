"""Every kind of data is a row of one table; a new one is one registration."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from eaglenet.core.errors import ConfigError, DatasetError, UnknownNameError
from eaglenet.core.types import Clips
from eaglenet.research.data import (
    SOURCES,
    DatasetSpec,
    RetrievalProtocol,
    VideoRecord,
    add_dataset,
    add_source,
)
from eaglenet.research.data.records import DATASETS, Split, make_split
from eaglenet.research.data.sources import DataChoice, OpenContext, Source, SourceSpec, clip_source
from eaglenet.research.experiments.build import build_method, check_data, default_split, load_source
from eaglenet.research.recipes import Recipe

COLOURS = {"a red sheet": (255, 0, 0), "a green sheet": (0, 255, 0), "a blue sheet": (0, 0, 255)}


def open_colours(data: DataChoice, split: str, context: OpenContext) -> Source:
    """Three videos of one colour each, made in memory."""
    records = [VideoRecord(name, (name,)) for name in COLOURS]
    size, frames = data.frames.size, data.frames.num_frames
    pictures = torch.tensor(list(COLOURS.values()), dtype=torch.uint8)
    clips = Clips(
        pictures[:, None, :, None, None].expand(-1, frames, -1, size, size).clone(),
        torch.ones(len(records), frames, dtype=torch.bool),
        torch.arange(frames, dtype=torch.float32).expand(len(records), -1).clone(),
    )
    tokens = context.reader.tokenize(list(COLOURS), data.max_words)
    made = make_split("colours", split, RetrievalProtocol("colours"), records)
    return clip_source(made, tokens, lambda rows: clips[rows])


@pytest.fixture
def colours() -> Iterator[str]:
    """The made-up source, known for as long as a test runs."""
    add_source(SourceSpec("colours", "Sheets", open=open_colours, needs_folder=False))
    yield "colours"
    del SOURCES._entries["colours"]


def test_a_source_is_opened_by_its_name_with_the_models_tokens(colours: str) -> None:
    experiment = (
        Recipe("eaglenet", "demo").build().override([f"data.dataset={colours}", "data.options={}"])
    )
    check_data(experiment.data)
    method = build_method(experiment)
    source = load_source(experiment.data, "train", method, cache=Path(), device=torch.device("cpu"))
    batch = source.pairs([2, 0])
    assert source.describe()["videos_found"] == 3
    assert batch.videos[0:1].frames[0, 0, :, 0, 0].tolist() == [0, 0, 255]
    assert default_split(experiment.data) == "test"


def test_an_unknown_source_lists_the_known_ones() -> None:
    with pytest.raises(UnknownNameError, match=r"did you mean 'features'.*msrvtt.*demo"):
        check_data(DataChoice("feature"))


@pytest.mark.parametrize("name", ["demo", "features", "msrvtt", "didemo", "folder"])
def test_the_special_ones_are_rows_like_the_others(name: str) -> None:
    assert SOURCES[name].name == name


def test_a_source_without_its_folder_says_which_option_names_it() -> None:
    with pytest.raises(DatasetError, match=r"--data msrvtt needs a folder.*--root"):
        check_data(DataChoice("msrvtt"))
    check_data(DataChoice("demo"))


def test_a_dataset_of_files_is_one_registration(tmp_path: Path) -> None:
    """It is then known to the checks of files and to training alike."""

    def load(root: Path | str, split: str) -> Split:
        video = VideoRecord("a", ("a sheet",), Path(root))
        return make_split("sheets", split, RetrievalProtocol("sheets"), [video])

    add_dataset(DatasetSpec("sheets", "Sheets", load, max_words=9))
    try:
        assert SOURCES["sheets"].max_words == 9
        look = SOURCES["sheets"].inspect
        assert look is not None
        data = DataChoice("sheets", str(tmp_path))
        assert look(data, "train").description["videos_found"] == 1
        with pytest.raises(ConfigError, match=r"data.options.speed: sheets has no such option"):
            look(DataChoice("sheets", str(tmp_path), {"speed": 3}), "train")
    finally:
        del SOURCES._entries["sheets"]
        del DATASETS._entries["sheets"]
