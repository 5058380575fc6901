"""Every command of docs/how-to/reproduce.md starts, with the settings of the paper that it names.

`paper_settings.toml` holds the papers' settings. Commands run with `--dry-run` on datasets and
towers of the real layout and of small sizes.
"""

from __future__ import annotations

import functools
import json
import re
import shlex
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import typer
from typer.testing import CliRunner

from clip_folder import learn_tokenizer, save_clip
from eaglenet.cli.main import app
from eaglenet.core.types import Expert, FrameSpec, TextFeatures, VideoFeatures
from eaglenet.encoders.clip import ClipEncoder
from eaglenet.encoders.clip_config import ClipConfig, TextConfig, VisionConfig
from eaglenet.losses import SigmoidLoss, SoftmaxLoss, fixed_softmax_loss, margin_loss
from eaglenet.methods import METHODS, Method
from eaglenet.research.data.experts import add_experts
from eaglenet.research.data.features import save_feature_folder
from eaglenet.research.data.role_graphs import role_graphs
from eaglenet.research.evaluation.paper import paper_tables
from eaglenet.research.experiments import build
from eaglenet.research.experiments.experiment import Experiment
from eaglenet.research.recipes import TABLES, paper_recipes
from eaglenet.research.recipes.authors import EXPERT_ROWS
from eaglenet.research.recipes.recipe import METHODS_OF_LABELS
from sampling import one_in

HERE = Path(__file__).parent
PAGE = (HERE.parents[2] / "docs" / "how-to" / "reproduce.md").read_text("utf-8")
SETTINGS = tomllib.loads((HERE / "paper_settings.toml").read_text("utf-8"))
BLOCKS = re.findall(r"^```\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)
LINES = [line for block in BLOCKS for line in block.splitlines()]
COMMANDS = [line for line in LINES if not line.startswith("#")]
ROWS = [name for name in paper_recipes() if name.startswith(("table1/", "table2/"))]
ROOTS = {"msrvtt": "MSRVTT", "didemo": "DIDEMO", "msvd": "MSVD", "vatex": "VATEX"}
TRAINING_VIDEOS = 640
"""Enough for 500 held-out videos and a batch of 128."""


# What the page says.


@pytest.mark.parametrize("name", ROWS)
def test_every_row_has_its_command(name: str) -> None:
    recipe = paper_recipes()[name]
    index = next(i for i, line in enumerate(LINES) if line.startswith(f"eaglenet train {name} "))
    words = shlex.split(LINES[index])
    assert words[-2:] == ["--output", f"runs/{name}"]
    root = words[words.index("--root") + 1]
    assert root.startswith(ROOTS[recipe.data])
    # Stored features have no test split of their own.
    has_test_root = any(word.startswith("data.options.test_root=") for word in words)
    assert has_test_root == (recipe.tower == "experts")
    label, _, rest = LINES[index - 1].removeprefix("# ").partition(": ")
    value, _, axes = rest.partition("; ")
    assert f"eaglenet train {axes}" == recipe.command
    is_approximate = METHODS[recipe.method].is_approximate
    assert ("approximate" in label) == is_approximate
    assert METHODS_OF_LABELS[label.split(" (")[0]] == recipe.method
    assert float(value) == published(name, label.split(" (")[0])


def published(name: str, label: str) -> float | None:
    """The paper's text-to-video R@1 of a row."""
    size = re.search(r"-(b32|b16)$", name)
    group = {"b32": "ViT-B/32", "b16": "ViT-B/16"}[size.group(1)] if size else "other"
    if name.startswith("table1/"):
        return paper_tables()["msrvtt"].value(label, "t2v R@1", group)
    titles = {"didemo": "DiDeMo", "msvd": "MSVD", "vatex": "VATEX"}
    return paper_tables()["others"].value(label, f"{titles[name.split('/')[1]]} R@1", group)


def test_every_ablation_table_has_its_commands() -> None:
    for table in TABLES:
        for data, root in (("msrvtt", "MSRVTT"), ("didemo", "DIDEMO")):
            command = f"eaglenet ablate {table} --data {data} --root {root} --output "
            assert any(line.startswith(command) for line in LINES), command


@pytest.mark.parametrize("line", [c for c in COMMANDS if not c.startswith("eaglenet train ")])
def test_every_other_command_of_the_page_parses(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, name, *arguments = shlex.split(line)
    if program == "python":
        assert (HERE.parents[2] / name).is_file()
        return
    monkeypatch.chdir(tmp_path)
    for argument in arguments:  # Folders of results must exist.
        (tmp_path / argument).parent.mkdir(parents=True, exist_ok=True)
    command = typer.main.get_command(app).commands[name]  # type: ignore[attr-defined]
    command.make_context(name, arguments)


# What the commands would run.


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Datasets by the names that the page gives them, and CLIP's towers at small widths."""
    root = tmp_path_factory.mktemp("reproduce")
    write_msrvtt(root / "MSRVTT")
    for name in ("DIDEMO", "MSVD", "VATEX"):
        write_dataset(root / name)
    for size, patch in (("clip-b32", 32), ("clip-b16", 16)):
        save_towers(root / size, patch)
    return root


def touch_videos(folder: Path, ids: list[str]) -> None:
    """Files that look like videos from outside."""
    folder.mkdir(parents=True)
    for video_id in ids:
        (folder / f"{video_id}.mp4").touch()


def write_lines(path: Path, lines: list[str]) -> None:
    path.write_text("\n".join(lines) + "\n", "utf-8")


def write_msrvtt(root: Path) -> None:
    """640 videos in the 9k list, the first 630 of them in the 7k list, 3 in the 1k-A test."""
    train = [f"video{number}" for number in range(TRAINING_VIDEOS)]
    test = [f"video{TRAINING_VIDEOS + number}" for number in range(3)]
    touch_videos(root / "videos", [*train, *test])
    sentences = [{"caption": "a car", "video_id": video_id} for video_id in train]
    videos = [{"video_id": video_id} for video_id in train]
    (root / "MSRVTT_data.json").write_text(json.dumps({"videos": videos, "sentences": sentences}))
    write_lines(root / "MSRVTT_train.9k.csv", ["video_id", *train])
    write_lines(root / "MSRVTT_train.7k.csv", ["video_id", *train[:-10]])
    rows = [f"ret{n},msr{n},{video_id},a car" for n, video_id in enumerate(test)]
    write_lines(root / "MSRVTT_JSFUSION_test.csv", ["key,vid_key,video_id,sentence", *rows])


def write_dataset(root: Path) -> None:
    """DiDeMo, MSVD or VATEX."""
    import pickle

    splits = {
        "train": [f"train{number}" for number in range(140)],
        "val": ["val0", "val1"],
        "test": ["test0", "test1", "test2"],
    }
    every_id = [video_id for ids in splits.values() for video_id in ids]
    touch_videos(root / "videos", every_id)
    for split, ids in splits.items():
        write_lines(root / f"{split}_list.txt", ids)
        entries = [{"video": video_id, "description": "a car"} for video_id in ids]
        (root / f"{split}_data.json").write_text(json.dumps(entries))
    words = {video_id: [["a", "car"]] for video_id in every_id}
    (root / "raw-captions.pkl").write_bytes(pickle.dumps(words, protocol=2))
    captions = {video_id: ["a car"] for video_id in every_id}
    (root / "ref_captions.json").write_text(json.dumps(captions))


def save_towers(folder: Path, patch: int) -> None:
    """CLIP with the pixels, blocks and output width of the real one, narrow inside."""
    torch.manual_seed(0)
    tokenizer = learn_tokenizer(["a", "car"])
    narrow = {"width": 16, "layers": 12, "heads": 2, "mlp_width": 16}
    config = ClipConfig(
        dim=512,
        vision=VisionConfig(image_size=224, patch_size=patch, **narrow),
        text=TextConfig(vocabulary_size=tokenizer.vocabulary_size, context_length=77, **narrow),
    )
    save_clip(ClipEncoder(config), tokenizer, folder)


SENTENCE = ["a", "man", "drives", "a", "car"]


@functools.cache
def graphs_of(videos: int) -> Any:
    """Graphs of that many sentences, the same for every method."""
    return role_graphs([SENTENCE] * videos, 5)


def write_expert_folder(folder: Path, method: str, dataset: str, videos: int) -> None:
    """One token per expert, of the widths that the authors' extractors give."""
    row = EXPERT_ROWS[method, dataset]
    mask = torch.ones(videos, 1, dtype=torch.bool)
    experts = {
        name: Expert(torch.ones(videos, 1, width), mask, torch.zeros(videos, 1))
        for name, width in row.experts.items()
    }
    frames = experts.pop(row.frames)
    save_feature_folder(
        folder,
        TextFeatures(torch.ones(videos, row.words_dim)),
        VideoFeatures(frames.values, frames.mask),
        video_of_text=torch.arange(videos),
        video_ids=[f"{folder.name}{number}" for number in range(videos)],
        captions=[" ".join(SENTENCE)] * videos,
        frame_spec=FrameSpec(num_frames=1),
        model="test",
        dataset=dataset,
        split=folder.name,
        protocol=f"{folder.name} of {dataset}",
    )
    words = torch.ones(videos, 5, row.words_dim)
    add_experts(
        folder,
        experts,
        models=dict.fromkeys((*row.experts, "words"), "test"),
        frames=row.frames,
        frames_model="test",
        frame_seconds=torch.zeros(videos),
        words={"words": (words, torch.ones(videos, 5, dtype=torch.bool))},
        token_ids=[[1, 3, 4, 5, 3, 6, 2]] * videos,
        graphs=graphs_of(videos),
        graph_words="words",
    )
    if method == "teachtext":
        for side in ("text", "video"):
            np.save(folder / f"teacher_first_{side}.npy", np.ones((videos, 4), np.float32))


class LossNames:
    """Names of the losses that one training step calls, with margin or temperature."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.names: set[str] = set()
        for loss_class, name in ((SoftmaxLoss, "softmax"), (SigmoidLoss, "sigmoid")):
            self._watch(monkeypatch, loss_class, "forward", lambda *_, name=name, **__: name)
        functions: dict[str, Callable[..., str]] = {
            "margin_loss": lambda scores, positives, margin, hardest=False: (
                "hardest " * hardest + f"margin {margin:.4g}"
            ),
            "fixed_softmax_loss": lambda scores, positives, temperature: (
                f"fixed softmax {temperature:g}"
            ),
        }
        assert {margin_loss.__name__, fixed_softmax_loss.__name__} == set(functions)
        for module_name, module in list(sys.modules.items()):
            if module_name.startswith("eaglenet.methods"):
                for function, describe in functions.items():
                    if hasattr(module, function):
                        self._watch(monkeypatch, module, function, describe)
        from eaglenet.methods.early.clipbert import ClipBERT
        from eaglenet.methods.early.hit import KeyBank

        self._watch(monkeypatch, KeyBank, "negatives", lambda *_, **__: "queues")
        self._watch(monkeypatch, ClipBERT, "pair_logits", lambda *_, **__: "matching")

    def _watch(
        self, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, describe: Callable[..., str]
    ) -> None:
        function = getattr(owner, name)

        def watched(*arguments: Any, **options: Any) -> Any:
            self.names.add(describe(*arguments, **options))
            return function(*arguments, **options)

        monkeypatch.setattr(owner, name, watched)


LOSSES_SEEN: dict[str, set[str]] = {}
FITTED: set[str] = set()


@pytest.fixture(autouse=True)
def fit_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A dry run sends a blank pair through the model; once for each method and tower here."""
    check_fit = build.check_fit

    def check_once(method: Method, data: Any) -> None:
        key = f"{method.name} {getattr(method.encoder, 'config', None)}"
        if key not in FITTED:
            check_fit(method, data)
            FITTED.add(key)

    monkeypatch.setattr(build, "check_fit", check_once)


@pytest.fixture
def loss_names(monkeypatch: pytest.MonkeyPatch) -> Callable[[], set[str]]:
    """The losses of two pairs, computed where a dry run times its steps; once for each method."""
    found: list[set[str]] = []

    def one_step(
        experiment: Experiment, method: Method, make_batch: Any, num_steps: int, device: Any
    ) -> Any:
        settings = comparable_settings(experiment)
        if settings in LOSSES_SEEN:
            found.append(LOSSES_SEEN[settings])
            return build.Estimate(num_steps, 0.0, None)
        watched = LossNames(monkeypatch)
        batch = make_batch(2)
        method.train()
        text, video = method.encode_text(batch.texts), method.encode_video(batch.videos)
        if method.needs_ids:
            video = build_ids(video)
        method.losses(text, video, torch.eye(2, dtype=torch.bool))
        LOSSES_SEEN[settings] = watched.names
        found.append(watched.names)
        return build.Estimate(num_steps, 0.0, None)

    monkeypatch.setattr(build, "estimate_run", one_step)
    monkeypatch.setattr(build, "estimate_preparation", lambda *_, **__: build.Preparation())
    return lambda: found[-1]


def comparable_settings(experiment: Experiment) -> str:
    """Method and settings without those that follow the dataset's lengths and the tower."""
    config = dict(vars(experiment.method_config))
    for name in ("num_frames", "num_words", "energy"):
        config.pop(name, None)
    return f"{experiment.method} {config}"


def build_ids(video: VideoFeatures) -> VideoFeatures:
    import dataclasses

    return dataclasses.replace(video, ids=torch.arange(len(video)))


def dry_run(line: str, folder: Path, *options: str) -> dict[str, Any]:
    """JSON of a command of the page, with its folders under ``folder``."""
    words = shlex.split(line)[1:]
    for index, word in enumerate(words):
        name, equals, value = word.rpartition("=")
        if value.split("/")[0].removesuffix("_EXPERTS") in ROOTS.values():
            words[index] = f"{name}{equals}{folder / value}"
    result = CliRunner().invoke(app, [*words, *options, "--dry-run", "--json", "--device", "cpu"])
    assert result.exit_code == 0, result.exception
    return json.loads(result.stdout)


def train_line(name: str) -> str:
    return next(line for line in COMMANDS if line.startswith(f"eaglenet train {name} "))


ON_TOWERS = [row for row in ROWS if paper_recipes()[row].tower != "experts"]
ON_EXPERTS = [row for row in ROWS if paper_recipes()[row].tower == "experts"]


@pytest.mark.parametrize("name", one_in(20, ON_TOWERS))
def test_rows_on_towers_have_the_papers_settings(
    name: str, folder: Path, loss_names: Callable[[], set[str]]
) -> None:
    recipe = paper_recipes()[name]
    source = folder / recipe.tower
    # A pair network of twelve layers takes ten seconds for two pairs.
    smaller = ["--set", "method_config.num_layers=1"] if recipe.method == "clipbert" else []
    found = dry_run(train_line(name), folder, "--set", f"encoder.source={source}", *smaller)
    experiment = found["experiment"]
    dataset = SETTINGS["datasets"][recipe.data]
    assert experiment["data"]["dataset"] == recipe.data
    assert found["data"]["train"]["protocol"].startswith(dataset["train"])
    assert experiment["training"]["select"] == "val"
    data = Experiment.from_plain(experiment).data
    test = build.inspect_split(data, "test", None).description
    assert test["protocol"].startswith(dataset["test"])
    assert test["videos_found"] == 3
    expected = expected_settings(name)
    check_settings(experiment, expected)
    if recipe.data == "msrvtt":
        in_list = {"9k": TRAINING_VIDEOS, "7k": TRAINING_VIDEOS - 10}[expected["training_list"]]
        assert found["data"]["train"]["videos_found"] == in_list - 500
        assert found["data"]["val"]["videos_found"] == 500
    loss = expected.get("loss") or SETTINGS["losses"][recipe.method]
    assert loss_names() == {loss}
    if recipe.method == "eaglenet":
        assert experiment["method_config"]["energy"] == SETTINGS["energies"][recipe.data]


@pytest.mark.parametrize("name", one_in(11, ON_EXPERTS))
def test_rows_on_experts_have_the_papers_settings(
    name: str, tmp_path: Path, loss_names: Callable[[], set[str]]
) -> None:
    recipe = paper_recipes()[name]
    root = tmp_path / f"{ROOTS[recipe.data]}_EXPERTS"
    for split, videos in (("train", TRAINING_VIDEOS), ("test", 3)):
        write_expert_folder(root / split, recipe.method, recipe.data, videos)
    found = dry_run(train_line(name), tmp_path)
    experiment, expected = found["experiment"], SETTINGS["originals"][name]
    check_settings(experiment, expected)
    assert found["data"]["train"]["videos_found"] == TRAINING_VIDEOS - 500
    assert loss_names() == {expected["loss"]}
    data = Experiment.from_plain(experiment).data
    assert build.default_split(data) == "test"
    assert Path(data.options["test_root"]) == root / "test"


@pytest.mark.parametrize("name", ROWS)
def test_the_recipe_of_every_row_has_the_papers_settings(name: str) -> None:
    """What needs no data; dry runs of all rows, which need it, are slow."""
    recipe = paper_recipes()[name]
    experiment = recipe.build().to_plain()
    expected = expected_settings(name)
    is_stored = recipe.tower == "experts"
    assert experiment["data"]["dataset"] == ("features" if is_stored else recipe.data)
    assert experiment["training"]["select"] == "val"
    check_settings(experiment, expected)


def expected_settings(name: str) -> dict[str, Any]:
    """Settings of a row: the paper's for all methods, or those of the method's authors."""
    recipe = paper_recipes()[name]
    original = SETTINGS["originals"].get(name)
    if recipe.tower == "experts":
        assert original is not None
        return original  # type: ignore[no-any-return]
    dataset = SETTINGS["datasets"][recipe.data]
    if original is not None:
        return {**dataset, **original}
    adapters = SETTINGS["paper"]["adapters"]
    is_adapter = recipe.method in adapters["methods"]
    return {**SETTINGS["paper"], **dataset, **(adapters if is_adapter else {})}


def check_settings(experiment: dict[str, Any], expected: dict[str, Any]) -> None:
    """Training, and frames, words, training list, experts and steps where the row has them."""
    check_training(experiment, expected)
    data, training = experiment["data"], experiment["training"]
    if "experts" in expected:
        assert len(experiment["encoder"]["config"]["experts"]) == expected["experts"]
    else:
        frames = expected["frames"]
        assert data["frames"]["num_frames"] == frames
        assert experiment["method_config"].get("num_frames", frames) == frames
        assert data["max_words"] == expected["words"]
    if "training_list" in expected:
        assert data["options"].get("train", "9k") == expected["training_list"]
    if "steps" in expected:
        per_epoch = training["epoch_pairs"] // training["batch_size"]
        assert per_epoch * training["epochs"] == expected["steps"]


def check_training(experiment: dict[str, Any], expected: dict[str, Any]) -> None:
    names = {
        "epochs": "epochs",
        "batch": "batch_size",
        "tower_rate": "lr_encoder",
        "head_rate": "lr_head",
        "captions": "captions",
        "optimizer": "optimizer",
        "rate_decay": "rate_decay",
        "schedule": "schedule",
    }
    training = experiment["training"]
    compared = {name: training[field] for name, field in names.items() if name in expected}
    assert compared == {name: expected[name] for name in compared}


@pytest.mark.parametrize(
    "line", one_in(12, [c for c in COMMANDS if c.startswith("eaglenet ablate ")])
)
def test_ablations_have_the_papers_settings(
    line: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "estimate_run", lambda *_: "not timed")
    monkeypatch.setattr(build, "estimate_preparation", lambda *_, **__: build.Preparation())
    found = dry_run(line, folder, "--set", f"encoder.source={folder / 'clip-b16'}")
    table, data = shlex.split(line)[2], shlex.split(line)[4]
    assert list(found) == list(TABLES[table])
    is_released = "--protocol released" in line
    for check in found.values():
        experiment = check["experiment"]
        dataset = SETTINGS["datasets"][data]
        expected = {**SETTINGS["paper"], **dataset}
        if is_released:
            expected["tower_rate"] = 1e-7
        check_training(experiment, expected)
        assert experiment["training"]["select"] == ("test" if is_released else "val")
        assert experiment["data"]["dataset"] == data
        assert experiment["data"]["frames"]["num_frames"] == dataset["frames"]
        assert experiment["data"]["max_words"] == dataset["words"]
