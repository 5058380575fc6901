"""Training two towers on pairs: the loss by hand, draws within their item, a run that learns."""

from __future__ import annotations

import io
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from eaglenet.core.errors import ConfigError, DatasetError
from eaglenet.core.types import Tokens
from eaglenet.encoders.compact import (
    CompactConfig,
    CompactEncoder,
    CompactTextConfig,
    CompactVisionConfig,
)
from eaglenet.research.data.frame_folder import FrameFolder, FrameFolderWriter, FrameItem
from eaglenet.research.small.pairs import PairData, load_pairs, random_views
from eaglenet.research.small.trainer import (
    PairTrainer,
    PairTrainingConfig,
    equal_texts,
    pair_loss,
    pool_frames,
)

COLOURS = {"red": (220, 20, 20), "green": (20, 200, 20), "blue": (20, 20, 230), "grey": (120,) * 3}
WORDS = {word: number for number, word in enumerate(["", "a", "picture", *COLOURS], start=0)}


def tokenize(texts: object) -> Tokens:
    """One number a word."""
    rows = [[WORDS[word] for word in text.split()] for text in texts]  # type: ignore[attr-defined]
    ids = torch.zeros(len(rows), max(map(len, rows)), dtype=torch.long)
    for number, row in enumerate(rows):
        ids[number, : len(row)] = torch.tensor(row)
    return Tokens(ids, ids != 0)


def jpeg(colour: tuple[int, ...]) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(np.full((24, 24, 3), colour, np.uint8)).save(buffer, "JPEG")
    return buffer.getvalue()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Four images and four videos of three frames, a colour each, in two splits."""
    place = tmp_path / "frames"
    writer = FrameFolderWriter(place, 24)
    for split in ("train", "validation"):
        for name, colour in COLOURS.items():
            captions = {"people": [f"a {name} picture"], "machine": [name]}
            writer.add(FrameItem(f"{split}-{name}", split, "test", 1, captions), [jpeg(colour)])
            item = FrameItem(f"{split}-{name}-video", split, "test", 3, {"people": [f"a {name}"]})
            writer.add(item, [jpeg(colour)] * 3)
    writer.close()
    return place


def make_bank(folder: Path, split: str = "train") -> PairData:
    return load_pairs([folder], split, tokenize, size=24, device="cpu", threads=2)


def test_the_loss_of_two_pairs_by_hand() -> None:
    pictures = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    sentences = torch.tensor([[1.0, 0.0], [0.6, 0.8]])
    scale = torch.tensor(math.log(2.0))
    rows = [2 * 1.0 - math.log(math.exp(2.0) + math.exp(1.2)), 1.6 - math.log(1 + math.exp(1.6))]
    columns = [2 - math.log(math.exp(2.0) + 1), 1.6 - math.log(math.exp(1.2) + math.exp(1.6))]
    expected = -(sum(rows) + sum(columns)) / 4
    assert pair_loss(pictures, sentences, scale).item() == pytest.approx(expected, rel=1e-5)


def test_sentences_of_one_meaning_share_the_target() -> None:
    """With all meanings alike the soft part is the mean over the row, whatever the diagonal."""
    torch.manual_seed(0)
    pictures, sentences = torch.randn(3, 5), torch.randn(3, 5)
    meanings = torch.ones(3, 1)
    log_scale = torch.tensor(1.0)
    soft = pair_loss(pictures, sentences, log_scale, meanings=meanings, soft_weight=0.999999)
    shuffled = pair_loss(
        pictures, sentences[[1, 2, 0]], log_scale, meanings=meanings, soft_weight=0.999999
    )
    assert soft.item() == pytest.approx(shuffled.item(), rel=1e-4)


def test_equal_sentences_are_no_wrong_answers_of_each_other() -> None:
    """The target of both is even over both; a batch without such has the plain loss."""
    torch.manual_seed(0)
    pictures, sentences = torch.randn(3, 5), torch.randn(3, 5)
    log_scale, ids = torch.tensor(1.0), torch.tensor([[1, 2, 0], [1, 2, 0], [1, 0, 0]])
    is_same = equal_texts(ids)
    assert is_same.tolist() == [[True, True, False], [True, True, False], [False, False, True]]
    sentences[1] = sentences[0]
    given = pair_loss(pictures, sentences, log_scale, is_same=is_same)
    swapped = pair_loss(pictures[[1, 0, 2]], sentences, log_scale, is_same=is_same)
    assert given.item() == pytest.approx(swapped.item(), rel=1e-6)
    plain = pair_loss(pictures, sentences, log_scale)
    alone = pair_loss(pictures, sentences, log_scale, is_same=torch.eye(3, dtype=torch.bool))
    assert alone.item() == pytest.approx(plain.item(), rel=1e-6)


def test_draws_stay_within_their_item(folder: Path) -> None:
    bank = make_bank(folder)
    generator = torch.Generator().manual_seed(0)
    items = torch.arange(len(bank.items)).repeat(50)
    for rows in (bank.draw_frames(items, 2, generator) - bank.first_frame[items, None],):
        assert int(rows.min()) == 0
        assert bool((rows < bank.num_frames[items, None]).all())
    sentences = bank.draw_texts(items, 0.5, generator)
    own = [
        set(item.captions["people"]) | set(item.captions.get("machine", [])) for item in bank.items
    ]
    drawn = [(bank.texts[row], own[item]) for row, item in zip(sentences, items, strict=True)]
    assert all(sentence in sentences_of_item for sentence, sentences_of_item in drawn)
    assert len({sentence for sentence, _ in drawn}) == len(bank.texts)


def test_views_keep_the_colour_of_a_plain_picture() -> None:
    frames = torch.full((5, 3, 24, 24), 100, dtype=torch.uint8)
    views = random_views(frames, 16, 0.4, torch.Generator().manual_seed(0))
    assert views.shape == (5, 3, 16, 16)
    # Contrast leaves a plain picture alone, brightness moves it by 25 at most.
    assert bool(((views - 100).abs() <= 25.01).all())
    assert float(views.flatten(1).std(dim=1).max()) < 1e-3


def test_videos_are_the_unit_mean_of_unit_frames() -> None:
    frames = torch.tensor([[2.0, 0.0], [0.0, 5.0], [3.0, 4.0]])
    pooled = pool_frames(frames, num_videos=1, frames_per_video=2)
    half = math.sqrt(0.5)
    torch.testing.assert_close(pooled, torch.tensor([[half, half], [0.6, 0.8]]))


def test_a_run_learns_colours_and_keeps_the_best_weights(folder: Path, tmp_path: Path) -> None:
    vision = CompactVisionConfig(16, 4, 16, 2, 2, 32)
    text = CompactTextConfig(len(WORDS) + 1, 32, 16, 1, 2, 32)
    encoder = CompactEncoder(CompactConfig(16, vision, text), seed=0)
    config = PairTrainingConfig(
        steps=60,
        batch_items=8,
        lr_towers=3e-3,
        lr_heads=1e-2,
        warmup_steps=5,
        drop_path=0.0,
        average=0.9,
        evaluate_every=30,
        word_dropout=0.0,
        crop=0.8,
        soft_targets=0.1,
    )
    trainer = PairTrainer(
        encoder,
        make_bank(folder),
        {"validation": make_bank(folder, "validation")},
        config,
        tmp_path / "run",
        report=lambda line: None,
    )
    trainer.run()
    lines = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").open()]
    assert [line["step"] for line in lines] == [30, 60]
    assert lines[-1]["validation"]["t2v"]["R@5"] > 80
    assert lines[-1]["loss"] < lines[0]["loss"]
    best = torch.load(tmp_path / "run" / "best.pt", weights_only=True)
    encoder.load_state_dict(best["weights"])


def test_a_folder_that_lost_a_shard_is_refused(folder: Path) -> None:
    next(folder.glob("frames-*.tar")).unlink()
    with pytest.raises(DatasetError, match="shards have 0"):
        make_bank(folder)


def test_an_unfinished_folder_is_refused(folder: Path) -> None:
    (folder / "index.jsonl").unlink()
    with pytest.raises(DatasetError, match="did not finish"):
        FrameFolder.open(folder)


@pytest.mark.parametrize(
    "change",
    [
        {"steps": 0},
        {"video_share": 1.0},
        {"crop": 0.0},
        {"lr_heads": -1.0},
        {"lr_towers": math.nan},
    ],
)
def test_impossible_settings_are_refused(change: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        PairTrainingConfig(**change)  # type: ignore[arg-type]
