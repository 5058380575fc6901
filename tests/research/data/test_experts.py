"""Folders of experts: packed sets, missing ones, graphs, loud checks, and the demo world's."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from eaglenet.cli.main import app
from eaglenet.core.errors import DatasetError, NonFiniteError, UsageError
from eaglenet.core.types import Expert
from eaglenet.research.data.demo.dataset import TOKENS, WIDTHS, write_experts
from eaglenet.research.data.experts import add_experts, load_expert_folder, save_teacher
from eaglenet.research.data.features import FeatureSplit, load_feature_folder

VIDEOS = 14


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Fourteen clips of the demo world."""
    folder = tmp_path_factory.mktemp("experts") / "demo"
    write_experts(folder, count=VIDEOS)
    return folder


@pytest.fixture
def folder(written: Path, tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    copy = tmp_path / "copy"
    copy.mkdir()
    for file in written.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    return copy


@pytest.fixture(scope="module")
def split(written: Path) -> FeatureSplit:
    """The folder of experts, read back."""
    return load_expert_folder(written)


def change_index(folder: Path, **changes: object) -> None:
    index = json.loads((folder / "index.json").read_text())
    (folder / "index.json").write_text(json.dumps({**index, **changes}))


def test_every_expert_has_its_width_and_some_are_missing(split: FeatureSplit) -> None:
    assert split.expert_widths == dict(sorted(WIDTHS.items()))
    batch = split.video_batch([3, 1])
    assert batch.experts is not None
    assert list(batch.experts) == sorted(WIDTHS)
    for name, expert in batch.experts.items():
        assert expert.values.shape == (2, TOKENS[name], WIDTHS[name])
    everything = split.videos.experts
    assert everything is not None
    assert everything["scene"].present.all()
    for name in ("colour", "shape", "motion", "sound"):
        present = everything[name].present
        assert 0 < present.sum() < VIDEOS
        assert everything[name].values[~present].abs().sum() == 0


def test_a_batch_equals_a_loop_over_the_packed_files(written: Path, split: FeatureSplit) -> None:
    counts = np.load(written / "expert_colour_counts.npy")
    values = np.load(written / "expert_colour.npy").astype(np.float32)
    seconds = np.load(written / "expert_colour_seconds.npy")
    experts = split.videos.experts
    assert experts is not None
    colour = experts["colour"]
    assert colour.seconds is not None
    for video, count in enumerate(counts):
        start = int(counts[:video].sum())
        rows = slice(start, start + count)
        assert colour.mask[video].sum() == count
        torch.testing.assert_close(colour.values[video, :count], torch.from_numpy(values[rows]))
        torch.testing.assert_close(colour.seconds[video, :count], torch.from_numpy(seconds[rows]))


def test_selected_videos_bring_their_experts_and_texts(split: FeatureSplit) -> None:
    part = split.select([9, 2, 5])
    whole, chosen = split.videos.experts, part.videos.experts
    assert whole is not None
    assert chosen is not None
    for name in WIDTHS:
        torch.testing.assert_close(chosen[name].values, whole[name][[9, 2, 5]].values)
    texts = split.video_of_text == 2
    words, own = split.texts[texts].words, part.texts[part.video_of_text == 1].words
    assert words is not None
    assert own is not None
    torch.testing.assert_close(own, words)
    graph, own_graph = split.texts[texts].graph, part.texts[part.video_of_text == 1].graph
    assert graph is not None
    assert own_graph is not None
    assert torch.equal(graph.spans, own_graph.spans)


def test_words_are_chosen_by_name(written: Path) -> None:
    assert load_expert_folder(written).words_dim == 24
    assert load_expert_folder(written, words="gpt").words_dim == 32
    with pytest.raises(UsageError, match="it has glove, gpt"):
        load_expert_folder(written, words="bert")


def test_other_methods_read_the_same_folder(written: Path) -> None:
    plain = load_feature_folder(written)
    assert plain.frame_dim == WIDTHS["scene"]
    assert plain.videos.experts is None


def test_a_plain_feature_folder_has_one_expert(folder: Path) -> None:
    change_index(folder, experts={}, words={}, frames="")
    (folder / "graphs.npz").unlink()
    split = load_expert_folder(folder)
    assert split.expert_widths == {"frames": WIDTHS["scene"]}


def test_teachers_stand_beside_the_features(folder: Path) -> None:
    save_teacher(folder, "first", torch.ones(4 * VIDEOS, 7), torch.zeros(VIDEOS, 7))
    save_teacher(folder, "second", torch.ones(4 * VIDEOS, 7), torch.zeros(VIDEOS, 7))
    split = load_expert_folder(folder)
    texts, videos = split.text_batch([5]).teachers, split.video_batch([0, 3]).teachers
    assert texts is not None
    assert videos is not None
    assert (texts.shape, videos.shape) == ((1, 2, 7), (2, 2, 7))
    with pytest.raises(DatasetError, match="the same width"):
        save_teacher(folder, "third", torch.ones(4 * VIDEOS, 5), torch.zeros(VIDEOS, 5))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda f: (f / "expert_shape.npy").unlink(), "expert_shape.npy is missing"),
        (lambda f: (f / "expert_shape_counts.npy").unlink(), "counts.npy is missing"),
        (
            lambda f: np.save(f / "expert_shape_counts.npy", np.full(VIDEOS, 3, np.int32)),
            "sums to 42",
        ),
        (lambda f: np.save(f / "expert_shape_counts.npy", np.zeros(3, np.int32)), "expected 14"),
        (lambda f: np.save(f / "expert_shape_seconds.npy", np.zeros(3)), "one finite number"),
        (lambda f: change_index(f, frames="picture"), "not among the experts"),
        (lambda f: change_index(f, experts=["scene"]), "object of names"),
        (lambda f: change_index(f, experts={"scene": 12}), "should have a dim"),
        (lambda f: change_index(f, experts={"scene": {"dim": 99}}), "99"),
        (lambda f: change_index(f, experts={"scene": {"dim": 12}, "../x": {"dim": 1}}), "use only"),
        (lambda f: change_index(f, graphs="bert"), "refers to words 'bert'"),
        (lambda f: (f / "graphs.npz").write_bytes(b"no"), "cannot be read"),
        (lambda f: (f / "graphs.npz").write_bytes(b"PK\x03\x04" + bytes(99)), "cannot be read"),
        (lambda f: np.savez(f / "graphs.npz", spans=np.zeros(1)), "roles, edges missing"),
        (lambda f: np.save(f / "token_ids.npy", np.zeros((2, 2))), "one axis of whole numbers"),
    ],
)
def test_a_damaged_folder_is_told_what_is_wrong(folder: Path, damage: object, message: str) -> None:
    damage(folder)  # type: ignore[operator]
    with pytest.raises(DatasetError, match=message):
        load_expert_folder(folder)


def test_experts_and_teachers_that_are_refused_leave_the_folder_as_it_was(folder: Path) -> None:
    change_index(folder, experts={}, words={}, frames="")
    for path in folder.glob("[egtw]*_*"):
        path.unlink()
    (folder / "graphs.npz").unlink()
    contents = {path: path.read_bytes() for path in folder.iterdir()}
    split = load_expert_folder(folder)
    # Too large for float16, as which features are stored.
    values = torch.full((split.num_videos, 1, 5), 1e6)
    expert = Expert(values, torch.ones(split.num_videos, 1, dtype=torch.bool))
    with pytest.raises(NonFiniteError):
        add_experts(folder, {"audio": expert}, models={}, frames="frames")
    texts = torch.full((split.num_texts, 4), float("nan"))
    with pytest.raises(NonFiniteError):
        save_teacher(folder, "first", texts, torch.zeros(split.num_videos, 4))
    assert {path: path.read_bytes() for path in folder.iterdir()} == contents


def test_nan_is_never_a_missing_expert(folder: Path) -> None:
    values = np.load(folder / "expert_motion.npy")
    values[1, 2] = np.nan
    np.save(folder / "expert_motion.npy", values)
    with pytest.raises(NonFiniteError, match="row 1"):
        load_expert_folder(folder)


def test_the_commands_write_and_check_a_folder(tmp_path: Path) -> None:
    runner = CliRunner()
    output = str(tmp_path / "made")
    made = runner.invoke(app, ["data", "demo-experts", "--output", output, "--count", "4"])
    assert made.exit_code == 0, made.output
    told = runner.invoke(app, ["data", "check", "features", "--root", output, "--json"])
    content = json.loads(told.stdout)
    assert content["experts"] == WIDTHS
    assert content["has_graphs"]
    assert set(content["videos_missing_experts"]) == set(WIDTHS) - {"scene"}
    plain = runner.invoke(app, ["data", "check", "features", "--root", output])
    assert "expert motion: 18 wide" in plain.stdout
    again = runner.invoke(app, ["data", "demo-experts", "--output", output, "--count", "4"])
    assert again.exit_code != 0


def test_several_models_write_one_folder(tmp_path: Path) -> None:
    runner = CliRunner()
    output = str(tmp_path / "models")
    made = runner.invoke(
        app,
        ["data", "features", "demo", "demo", "--split", "val", "--set", "val=4", "--output", output,
         "--expert", "second=demo", "--json"],
    )  # fmt: skip
    assert made.exit_code == 0, made.output
    split = load_expert_folder(output)
    assert split.expert_widths == {"frames": 64, "second": 64}
    assert split.words_dim == 64
    text = split.text_batch([0])
    assert text.graph is not None
    assert text.tokens is not None
    assert text.words_mask is not None
    # A start and an end stand around the words; every word of the demo world is one token.
    words = split.captions[0].split()
    assert int(text.tokens.mask.sum()) == len(words) + 2
    assert text.graph.spans[0, 0].nonzero().flatten().tolist() == list(range(1, len(words) + 1))
    experts = split.videos.experts
    assert experts is not None
    torch.testing.assert_close(experts["frames"].values, experts["second"].values)
    wrong = runner.invoke(
        app,
        ["data", "features", "demo", "demo", "--output", output + "2", "--expert", "second"],
    )
    assert "NAME=MODEL" in str(wrong.exception)
