"""A model behind MTEB's interfaces, on a task in the format of MTEB's hub datasets."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from eaglenet.core.errors import UsageError
from eaglenet.models.folder import load
from eaglenet.video.inputs import clips_of
from hub_tables import write_pairs, write_table, write_three
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


@pytest.mark.usefixtures("offline")
def test_titles_and_instructions_are_read_as_mteb_reads_them() -> None:
    """The interface for search gets raw tables, that for encoders joined texts."""
    import datasets
    from mteb.models.search_wrappers import SearchEncoderWrapper
    from mteb.types import PromptType

    from eaglenet.mteb import MtebModel

    corpus = datasets.Dataset.from_dict(
        {"id": ["d0", "d1"], "title": ["a red car", ""], "text": ["on a road", "a dog runs"]}
    )
    queries = datasets.Dataset.from_dict(
        {"id": ["q0"], "text": ["a vehicle"], "instruction": ["that is red"]}
    )
    metadata = mteb.get_task("NFCorpus").metadata
    assert metadata.get_modalities(PromptType.query) == ["text"]
    results = []
    for wrap in (lambda model: model, SearchEncoderWrapper):
        model = wrap(MtebModel("small", device="cpu"))
        named = {"task_metadata": metadata, "hf_split": "test", "hf_subset": "default"}
        model.index(corpus, **named, encode_kwargs={}, num_proc=None)
        results.append(model.search(queries, **named, top_k=2, encode_kwargs={}, num_proc=None))
    own, wrapped = results
    assert own["q0"] == pytest.approx(wrapped["q0"], abs=1e-5)


def write_rows(folder: Path, columns: Mapping[str, Any], features: Mapping[str, Any]) -> Path:
    """A table of a task as ``push_to_hub`` writes it, with videos as bytes."""
    import datasets

    rows = {
        name: [{"bytes": value.read_bytes(), "path": value.name} for value in values]
        if isinstance(values[0], Path)
        else values
        for name, values in columns.items()
    }
    kinds = {
        name: datasets.Video() for name, values in columns.items() if isinstance(values[0], Path)
    }
    schema = {
        name: kinds.get(name, datasets.Value("string")) for name in columns
    } | dict(features)  # fmt: skip
    table = datasets.Dataset.from_dict(rows, datasets.Features(schema))
    folder.mkdir()
    table.to_parquet(folder / "test-00000-of-00001.parquet")
    return folder


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize(
    ("name", "score", "least"),
    [
        ("OmniVideoBenchVideoCentricQA", "accuracy", 0),
        ("BreakfastClassification", "accuracy", 1),
        ("RAVDESSVideoClustering", "v_measure", 0.7),  # Of clusters from random starts.
        ("HumanAnimalCartoonVPairClassification", "max_ap", 0.999),
        ("MELDVideoZeroShot", "accuracy", 1),
    ],
)
def test_every_kind_of_task_of_the_text_video_benchmark(
    name: str, score: str, least: float, tmp_path: Path, videos: list[Path]
) -> None:
    """The tasks of MVEB(text, video) themselves, over other videos: all its kinds but retrieval."""
    import datasets

    from eaglenet.mteb import MtebModel

    colours = datasets.ClassLabel(names=CAPTIONS)
    count = 2 if name.startswith("Breakfast") else 3
    many, labels = videos[:count] * 8, [*range(count)] * 8
    columns: dict[str, Any]
    features: dict[str, Any] = {}
    if name.startswith("OmniVideoBench"):
        columns = {
            "video": videos,
            "question": ["What colour is it?"] * 3,
            "candidates": [CAPTIONS] * 3,
            "answer": CAPTIONS,
        }
        features = {"candidates": datasets.List(datasets.Value("string"))}
    elif "Pair" in name:
        columns = {
            "video1": many,
            "video2": [videos[(label + number % 2) % 3] for number, label in enumerate(labels)],
            "label": [(number + 1) % 2 for number in range(len(labels))],
        }
        features = {"label": datasets.Value("int64")}
    else:
        label = "label" if name.startswith("Breakfast") else "emotion"
        columns, features = {"video": many, label: labels}, {label: colours}
    folder = write_rows(tmp_path / "task", columns, features)
    task = mteb.get_task(name)
    task.metadata = task.metadata.model_copy(
        update={"dataset": {"path": str(folder), "revision": "1"}}
    )
    model = MtebModel("small", device="cpu")
    results = mteb.evaluate(model, [task], cache=None, encode_kwargs={"batch_size": 5})
    (split,) = results.task_results[0].scores["test"]
    assert split[score] >= least
    if "question" in columns:
        method = load("small")
        texts = method.encode_text(["What colour is it?", *CAPTIONS]).sentence
        question, *answers = torch.nn.functional.normalize(texts, dim=-1)
        inputs = method.coarse_vectors(method.encode_video(clips_of(videos, method.frame_spec)))
        ranks = ((inputs + question) @ torch.stack(answers).T).argmax(dim=1)
        assert split[score] == pytest.approx(
            (ranks == torch.arange(3)).float().mean().item(), abs=1e-5
        )


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize(
    ("name", "caption"),
    [
        ("VALOR32KT2VARetrieval", "description"),
        ("VATEXVA2TRetrieval", "caption"),
        ("AVMemeExamAT2VRetrieval", "summary"),
    ],
)
def test_audio_beside_videos_and_texts_is_not_read(
    name: str, caption: str, tmp_path: Path, videos: list[Path]
) -> None:
    """Retrieval of MVEB with audio, which mteb lets models without audio take part in."""
    from eaglenet.mteb import MtebModel

    (tmp_path / "a.wav").write_bytes(b"no sound")
    folder = tmp_path / "task"
    write_table(
        folder / "test-00000-of-00001.parquet",
        {"video": videos, caption: CAPTIONS, "audio": [tmp_path / "a.wav"] * 3},
    )
    task = mteb.get_task(name)
    task.metadata = task.metadata.model_copy(
        update={"dataset": {"path": str(folder), "revision": "1"}}
    )
    results = mteb.evaluate(MtebModel("small", device="cpu"), [task], cache=None)
    assert results.task_results[0].scores["test"][0]["recall_at_1"] == 1


def test_audio_alone_is_refused() -> None:
    import datasets

    from eaglenet.mteb import MtebModel

    model = MtebModel("small", device="cpu")
    table = datasets.Dataset.from_dict({"id": ["a"], "audio": ["b"]})
    with pytest.raises(UsageError, match="video, images and text, but no audio"):
        model._vectors(table, 1)
    with pytest.raises(ValueError, match="modalities"):
        mteb.evaluate(model, mteb.get_tasks(["RAVDESSAVClassification"]), cache=None)
