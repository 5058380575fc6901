"""A model behind MTEB's interfaces, on a task in the format of MTEB's hub datasets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from eaglenet.core.errors import UsageError
from eaglenet.models.folder import load
from hub_tables import write_pairs, write_three
from small_videos import colour_video

mteb = pytest.importorskip("mteb")
pytestmark = [
    pytest.mark.slow,  # mteb imports a thousand tasks
    pytest.mark.filterwarnings("default"),
]

COLOURS = ("red", "green", "blue")
CAPTIONS = ["a red wall", "green", "the colour blue"]


@pytest.fixture(scope="module")
def videos(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("videos")
    return [colour_video(folder / f"{name}.mp4", [name], 1) for name in COLOURS]


def task_of(kind: str, folder: Path) -> Any:
    """MTEB's own task class, reading another dataset."""
    from mteb.tasks.retrieval.eng import msr_vtt

    base = getattr(msr_vtt, kind)
    metadata = base.metadata.model_copy(
        update={
            "name": f"Colours{kind}",
            "dataset": {"path": str(folder), "revision": "1"},
            "is_beta": False,
        }
    )
    return type(f"Colours{kind}", (base,), {"metadata": metadata})()


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import datasets.config

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "datasets")


@pytest.mark.usefixtures("offline")
def test_a_text_video_task_gives_the_ranks_of_the_models_own_scores(
    tmp_path: Path, videos: list[Path]
) -> None:
    from eaglenet.mteb import MtebModel

    folder = write_pairs(tmp_path / "colours", videos, CAPTIONS)
    tasks = [task_of(kind, folder) for kind in ("MSRVTTT2V", "MSRVTTV2T")]
    model = MtebModel("small", device="cpu")
    results = mteb.evaluate(model, tasks, cache=None, encode_kwargs={"batch_size": 2})
    scores = load("small").similarity(CAPTIONS, videos)
    for result, table in zip(results.task_results, (scores, scores.T), strict=True):
        (split,) = result.scores["test"]
        expected = (table.argmax(dim=1) == table.new_tensor(range(3))).float().mean().item()
        assert split["recall_at_1"] == pytest.approx(expected)
        assert expected == 1


@pytest.mark.usefixtures("offline")
def test_the_command_line_of_mteb_takes_a_model_of_this_package(
    tmp_path: Path, videos: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    from eaglenet.mteb import main

    task = task_of("MSRVTTT2V", write_pairs(tmp_path / "colours", videos, CAPTIONS))
    monkeypatch.setattr(mteb, "get_tasks", lambda **_: [task])
    main(["run", "-m", "small", "-t", task.metadata.name, "--output-folder", str(tmp_path / "out")])
    (file,) = (tmp_path / "out").rglob(f"{task.metadata.name}.json")
    assert json.loads(file.read_text())["scores"]["test"][0]["recall_at_1"] == 1
    assert "eaglenet__small" in str(file)


@pytest.mark.usefixtures("offline")
def test_the_standard_layout_and_the_encoder_interface(tmp_path: Path, videos: list[Path]) -> None:
    """Corpus, queries and qrels as separate configurations, ranked by vectors through mteb."""
    import datasets
    from mteb.abstasks.retrieval_dataset_loaders import RetrievalSplitData
    from mteb.models.search_wrappers import SearchEncoderWrapper

    from eaglenet.mteb import MtebModel

    folder = write_three(tmp_path / "three", videos, CAPTIONS)
    parts = {
        name: datasets.load_dataset(
            "parquet", data_files=str(folder / name / "*.parquet"), split="train"
        )
        for name in ("corpus", "queries")
    }
    task = task_of("MSRVTTT2V", folder)
    relevant = {f"q{number}": {f"d{number}": 1} for number in range(3)}
    task.dataset = {"default": {"test": RetrievalSplitData(
        corpus=parts["corpus"], queries=parts["queries"], relevant_docs=relevant, top_ranked=None
    )}}  # fmt: skip
    task.data_loaded = True

    results = mteb.evaluate(
        SearchEncoderWrapper(MtebModel("small", device="cpu")), [task], cache=None
    )
    assert results.task_results[0].scores["test"][0]["recall_at_1"] == 1


def test_tables_that_no_model_reads_are_refused() -> None:
    import datasets

    from eaglenet.mteb import MtebModel

    model = MtebModel("small", device="cpu")
    table = datasets.Dataset.from_dict({"id": ["a"], "audio": ["b"]})
    with pytest.raises(UsageError, match="exactly one of video, image and text"):
        list(model._features(table, 1))
