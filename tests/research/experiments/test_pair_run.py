"""From pictures and captions to a model folder that indexes: `data frames`, then `train small`."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from typer.testing import CliRunner

import eaglenet
from eaglenet.cli.main import app
from eaglenet.core.errors import ConfigError, DatasetError, UsageError
from eaglenet.core.files import write_json
from eaglenet.core.settings import to_plain
from eaglenet.models.files import head_folder
from eaglenet.models.folder import with_head
from eaglenet.research.data.frame_folder import (
    FrameFolder,
    FrameFolderWriter,
    FrameItem,
    FramePreparation,
    prepare_frames,
)
from eaglenet.research.small.run import PairExperiment, load_validation, refuse_other_settings

COLOURS = {"red": (230, 20, 20), "green": (20, 210, 20), "blue": (20, 20, 230)}
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "picture", *COLOURS, "##s", "\u4e2d"]


def write_pictures(folder: Path) -> Path:
    """Pictures 1 to 6 as files with leading zeros, and captions of five of them."""
    images = folder / "images"
    images.mkdir()
    captions = {}
    for number in range(1, 7):
        name, colour = list(COLOURS.items())[number % 3]
        pixels = np.full((30, 40, 3), colour, np.uint8)
        Image.fromarray(pixels).save(images / f"{number:06d}.jpg")
        captions[str(number)] = [f"a {name} picture"]
    del captions["6"]
    (folder / "captions.json").write_text(json.dumps(captions))
    return images


def write_start(folder: Path) -> None:
    """Random towers of the true layout, tiny, and a word-piece tokenizer."""
    from transformers import BertConfig, BertModel, Dinov2Config, Dinov2Model

    torch.manual_seed(0)
    Dinov2Model(
        Dinov2Config(
            hidden_size=16,
            num_hidden_layers=2,
            num_attention_heads=2,
            mlp_ratio=2,
            image_size=16,
            patch_size=4,
        )
    ).save_pretrained(folder / "vision")
    BertModel(
        BertConfig(
            vocab_size=len(PIECES),
            hidden_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=32,
            max_position_embeddings=40,
        ),
        add_pooling_layer=False,
    ).save_pretrained(folder / "text")
    ids = {piece: number for number, piece in enumerate(PIECES)}
    backend = Tokenizer(models.WordPiece(ids, unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer()
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    backend.save(str(folder / "text" / "tokenizer.json"))


def test_pictures_and_captions_become_a_folder_and_a_model(tmp_path: Path) -> None:
    images = write_pictures(tmp_path)
    write_start(tmp_path)
    runner = CliRunner()
    prepared = runner.invoke(
        app,
        [
            "data",
            "frames",
            "--images",
            str(images),
            "--captions",
            f"people={tmp_path / 'captions.json'}",
            "--source",
            "test",
            "--size",
            "24",
            "--validation",
            "2",
            "--output",
            str(tmp_path / "frames"),
        ],
    )
    assert prepared.exit_code == 0, prepared.output
    assert "5 items, 5 frames" in prepared.output
    settings = {
        "folders": tmp_path / "frames", "picture_size": 24, "start.vision": tmp_path / "vision",
        "start.text": tmp_path / "text", "towers.dim": 8, "towers.vision.patch_size": 4,
        "towers.vision.image_size": 16, "towers.vision.heads": 2, "towers.vision.width": 16,
        "towers.vision.mlp_width": 32, "towers.vision.layers": 2,
        "towers.text.vocabulary_size": len(PIECES), "towers.text.context_length": 32,
        "towers.text.heads": 2, "towers.text.width": 16, "towers.text.layers": 1,
        "towers.text.mlp_width": 32, "beginning.steps": 3, "beginning.batch_items": 4,
        "beginning.evaluate_every": 3, "ingredients": "seed=1", "further": "seed=2",
        "unlabelled": tmp_path / "frames", "agreeing": "seed=3 unlabelled_items=2",
        "finishing": "seed=4 patch_dropout=0", "joined": "frames",
    }  # fmt: skip
    options = [part for name, value in settings.items() for part in ("--set", f"{name}={value}")]
    command = ["train", "small", "--output", str(tmp_path / "run"), *options]
    refused = runner.invoke(app, [*command, "--set", "joined=frame"])
    assert refused.exit_code != 0
    assert "joined=frame: no validation items; folders that have some: frames" in str(
        refused.exception
    )
    assert not (tmp_path / "run" / "beginning").exists()
    trained = runner.invoke(app, command)
    assert trained.exit_code == 0, trained.output
    # Completed runs are kept, so none of their settings may change.
    changed = runner.invoke(app, [*command, "--set", "beginning.steps=4"])
    assert "completed runs with other settings (beginning.steps: 3 -> 4)" in str(changed.exception)
    plain = json.loads((tmp_path / "run" / "experiment.json").read_text())
    assert plain["beginning"]["steps"] == 3
    model = eaglenet.load(tmp_path / "run" / "model")
    assert model.tokenizer is not None
    # The Chinese piece is not kept, so its number is gone and the rest is as before.
    assert model.tokenizer.vocabulary_size == len(PIECES) - 1
    assert model.tokenizer(["a red picture"]).ids[0, :5].tolist() == [2, 4, 6, 5, 3]
    for stage in ("further-0", "agreeing-0", "finishing-0"):
        assert (tmp_path / "run" / stage / "done").exists()
    head = head_folder(tmp_path / "run" / "model")
    assert head is not None
    assert with_head(model, head).name == "wordframe"


def test_frames_of_a_video_are_found_by_a_pattern_and_cut_in_halves(tmp_path: Path) -> None:
    images = tmp_path / "images"
    for shot in (2, 10):
        place = images / f"clip_video7-shot{shot}"
        place.mkdir(parents=True)
        pixels = np.zeros((20, 40, 3), np.uint8)
        pixels[:, 20:] = 20 * shot
        Image.fromarray(pixels).save(place / "pair.png")
    (tmp_path / "captions.json").write_text(
        json.dumps({"sentences": [{"video_id": "video7", "caption": "a man"}]})
    )
    plan = FramePreparation(
        images, {"people": tmp_path / "captions.json"}, "msrvtt", 16, r"_(video\d+)-", halves=True
    )
    counts = prepare_frames(plan, tmp_path / "frames")
    assert counts["frames"] == 4
    folder = FrameFolder.open(tmp_path / "frames")
    frames, starts = folder.read_frames(folder.items, 16, threads=1)
    assert starts.tolist() == [0, 4]
    # Left halves are black; right ones grey, shot 2 before shot 10.
    brightness = frames.float().mean(dim=(1, 2, 3))
    torch.testing.assert_close(brightness, torch.tensor([0.0, 40, 0, 200]), atol=3, rtol=0)


def test_images_that_cannot_be_read_are_counted_and_left_out(tmp_path: Path) -> None:
    images = write_pictures(tmp_path)
    plan = FramePreparation(
        images, {"people": tmp_path / "captions.json"}, "test", 24, validation=4
    )
    Image.new("1", (20000, 10000)).save(images / "000001.jpg", "PNG")  # 200 megapixels
    (images / "000002.jpg").write_bytes(b"")
    counts = prepare_frames(plan, tmp_path / "frames")
    assert (counts["items"], counts["unreadable"]) == (3, 2)
    items = FrameFolder.open(tmp_path / "frames").items
    assert counts["validation"] == sum(item.split == "validation" for item in items)
    for number in (3, 4, 5):
        (images / f"{number:06d}.jpg").write_bytes(b"")
    with pytest.raises(DatasetError, match="none of the 5 images with captions can be read"):
        prepare_frames(plan, tmp_path / "none")


def test_captions_of_other_items_are_an_error_that_shows_both_names(tmp_path: Path) -> None:
    images = write_pictures(tmp_path)
    (tmp_path / "captions.json").write_text('{"video1": ["a man"]}')
    plan = FramePreparation(images, {"people": tmp_path / "captions.json"}, "test", 24)
    with pytest.raises(DatasetError, match=r"look like 1, 2, 3 and video1"):
        prepare_frames(plan, tmp_path / "frames")


def test_a_folder_of_test_items_has_no_other_split(tmp_path: Path) -> None:
    images = write_pictures(tmp_path)
    (tmp_path / "captions.json").write_text('{"1": ["a man"], "2": ["a dog"]}')
    files = {"people": tmp_path / "captions.json"}
    plan = FramePreparation(images, files, "own", 24, test=True)
    prepare_frames(plan, tmp_path / "frames")
    assert FrameFolder.open(tmp_path / "frames").splits == {"test": 2}
    with pytest.raises(UsageError, match="--test and --validation"):
        FramePreparation(images, files, "own", 24, validation=1, test=True)


def test_a_pattern_without_a_group_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="one group"):
        FramePreparation(tmp_path, {}, "test", item="video")


def test_stages_that_have_not_run_yet_may_change(tmp_path: Path) -> None:
    experiment = PairExperiment("small", folders="a,b", further=("seed=1",))
    write_json(tmp_path / "experiment.json", to_plain(experiment))
    other_start = experiment.override(["beginning.seed=7"])
    refuse_other_settings(other_start, tmp_path)  # Nothing is completed.
    (tmp_path / "ingredient-0").mkdir()
    (tmp_path / "ingredient-0" / "done").touch()
    settings = ["further=seed=2", "joined=b", "head_texts=0"]
    refuse_other_settings(experiment.override(settings), tmp_path)
    for changed in (other_start, experiment.override(["folders=b"])):
        with pytest.raises(ConfigError, match="completed runs with other settings"):
            refuse_other_settings(changed, tmp_path)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("ingredients=seed=1,lr_towrs=5e-5", "lr_towrs"),
        ("finishing=crop=0", "expected crop above 0"),
        ("head_texts=-1", "head_texts is -1; expected 0 or more"),
        ("head_weight=nan", "head_weight=nan: expected a number"),
        ("picture_size=0", "picture_size is 0; expected 1 or more"),
    ],
)
def test_settings_of_later_stages_are_checked_before_the_first(setting: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        PairExperiment("small").override([setting])


def test_folders_of_one_name_are_refused(tmp_path: Path) -> None:
    """The validation items of one would replace those of the other."""
    experiment = PairExperiment("small", folders=f"{tmp_path}/a/frames,{tmp_path}/b/frames")
    with pytest.raises(ConfigError, match="2 folders are called 'frames'; rename them"):
        _ = experiment.frame_folders


def test_items_described_only_by_a_captioner_do_not_stop_an_evaluation(tmp_path: Path) -> None:
    writer = FrameFolderWriter(tmp_path / "labels", 16)
    picture = io.BytesIO()
    Image.new("RGB", (16, 16)).save(picture, "JPEG")
    for split in ("train", "validation"):
        item = FrameItem(split, split, "test", 1, {"machine": ["a photo"]})
        writer.add(item, [picture.getvalue()])
    writer.close()
    lines: list[str] = []
    validation = load_validation(
        [tmp_path / "labels"], lambda *_: pytest.fail("loaded"), lines.append
    )
    assert validation == {}
    assert lines == [
        f"{tmp_path / 'labels'}: validation items without captions by people are not used"
    ]


def test_training_says_what_is_missing(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["train", "small", "--output", str(tmp_path / "run")])
    assert result.exit_code != 0
    assert "start.vision" in str(result.exception or "") + result.output
