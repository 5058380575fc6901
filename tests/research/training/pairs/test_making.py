"""Soups and the stages of a run that makes towers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from eaglenet.core.errors import ConfigError
from eaglenet.encoders.compact import (
    CompactConfig,
    CompactEncoder,
    CompactTextConfig,
    CompactVisionConfig,
    drop_patches,
)
from eaglenet.research.small.pairs import PairData, join_pairs
from eaglenet.research.small.run import PairExperiment, Stages, average_weights, greedy_soup
from eaglenet.research.small.trainer import (
    BEST,
    PairTrainer,
    PairTrainingConfig,
    UnlabelledData,
    agreement_loss,
)

TINY = CompactConfig(
    16,
    CompactVisionConfig(16, 4, 16, 2, 2, 32),
    CompactTextConfig(9, 32, 16, 3, 2, 32),
)


def bank(items: int = 6, frames: int = 2) -> PairData:
    """Random pictures with a sentence each."""
    torch.manual_seed(0)
    rows = torch.arange(items)
    spans = torch.stack([rows, rows + 1], dim=1)
    return PairData(
        items=(),
        frames=torch.randint(0, 255, (items * frames, 3, 24, 24), dtype=torch.uint8),
        first_frame=rows * frames,
        num_frames=torch.full((items,), frames),
        texts=("a",) * items,
        ids=torch.randint(1, 9, (items, 5)),
        people=spans,
        machine=torch.stack([rows, rows], dim=1),
    )


def tiny_training(**change: float) -> PairTrainingConfig:
    plain: dict[str, float] = {
        "steps": 2,
        "batch_items": 4,
        "evaluate_every": 2,
        "video_share": 0.9,
    }
    return PairTrainingConfig(**(plain | change))  # type: ignore[arg-type]


def test_patches_are_left_out_and_the_class_stays() -> None:
    tokens = torch.arange(2 * 11 * 3).reshape(2, 11, 3).float()
    kept = drop_patches(tokens, 0.4)
    assert kept.shape == (2, 7, 3)
    torch.testing.assert_close(kept[:, 0], tokens[:, 0])
    for image in range(2):
        rows = {tuple(row.tolist()) for row in kept[image, 1:]}
        assert len(rows) == 6
        assert rows <= {tuple(row.tolist()) for row in tokens[image, 1:]}


def test_the_loss_of_pictures_without_sentences_by_a_loop() -> None:
    torch.manual_seed(0)
    pictures, sentences = torch.randn(4, 5), torch.randn(3, 5)
    seen, said = (F.normalize(torch.randn(rows, 5), dim=-1) for rows in (4, 3))
    p, s = F.normalize(pictures, dim=-1), F.normalize(sentences, dim=-1)
    expected = 0.0
    for i in range(4):
        q, r = (math.exp(1.5) * s @ p[i]).softmax(0), (7.0 * said @ seen[i]).softmax(0)
        expected += float((r * (r.log() - q.log())).sum()) / 4 / 2
    for j in range(3):
        q, r = (math.exp(1.5) * p @ s[j]).softmax(0), (7.0 * seen @ said[j]).softmax(0)
        expected += float((r * (r.log() - q.log())).sum()) / 3 / 2
    earlier = {"earlier_images": seen, "earlier_texts": said, "scale": torch.tensor(7.0)}
    loss = agreement_loss(pictures, sentences, torch.tensor(1.5), **earlier)
    assert loss.item() == pytest.approx(expected, rel=1e-4)


def test_pictures_that_look_as_before_have_no_loss() -> None:
    """Half precision of what is kept is what is left of it."""
    encoder, data = CompactEncoder(TINY, seed=1).eval(), bank()
    unlabelled = UnlabelledData.encode(encoder, data.frames, data.ids)
    images, texts = unlabelled.image_vectors[[3, 0, 5]], unlabelled.text_vectors[[1, 4]]
    earlier = {"earlier_images": images, "earlier_texts": texts, "scale": unlabelled.scale}
    loss = agreement_loss(images.float(), texts, encoder.logit_scale, **earlier)
    assert abs(loss.item()) < 1e-4
    moved = images.float().roll(1, 0)
    assert agreement_loss(moved, texts, encoder.logit_scale, **earlier) > 1e-3


def test_pictures_without_sentences_train_too(tmp_path: Path) -> None:
    """Two runs that differ in nothing else end with different weights."""
    config = tiny_training(lr_towers=1e-2, unlabelled_items=3, drop_path=0.0)
    ends = []
    for pictures in (None, bank(9, 1).frames):
        encoder = CompactEncoder(TINY, seed=1)
        PairTrainer(encoder, bank(), {}, config, tmp_path, lambda line: None, pictures).run()
        ends.append(encoder.vision.class_embedding)
    assert torch.isfinite(ends[1]).all()
    assert not torch.equal(*ends)


def test_joined_banks_keep_frames_and_sentences_together() -> None:
    first, second = bank(4, 2), bank(3, 1)
    both = join_pairs(first, second)
    assert (len(both.num_frames), len(both.frames), len(both.texts)) == (7, 11, 7)
    assert torch.equal(both.frames[both.first_frame[5]], second.frames[1])
    assert torch.equal(both.ids[both.people[5, 0]], second.ids[1])
    assert torch.equal(both.ids[both.people[2, 0]], first.ids[2])


def test_a_soup_keeps_what_helps_and_leaves_out_what_does_not() -> None:
    """The score is how near the weight is to 3: of 1, 4 and 40 the mean of 4 and 1 is nearest."""
    parts = [{"w": torch.tensor([value])} for value in (40.0, 1.0, 4.0)]

    def score(weights: Mapping[str, Tensor]) -> float:
        return -abs(float(weights["w"]) - 3.0)

    mean, chosen, best = greedy_soup(parts, score)
    assert chosen == [2, 1]
    assert mean["w"].item() == pytest.approx(2.5)
    assert best == pytest.approx(-0.5)
    assert average_weights(parts)["w"].item() == pytest.approx(15.0)


def test_lower_blocks_get_lower_rates(tmp_path: Path) -> None:
    encoder = CompactEncoder(TINY)
    config = tiny_training(lr_towers=1e-2, lr_heads=1.0, layer_decay=0.5)
    trainer = PairTrainer(encoder, bank(), {}, config, tmp_path)
    rates = {name: trainer._peak_rate(name) for name, _ in encoder.named_parameters()}
    assert rates["vision.projection.weight"] == rates["logit_scale"] == 1.0
    assert rates["vision.norm.weight"] == rates["vision.blocks.1.scale_1"] == 1e-2
    assert rates["vision.blocks.0.scale_1"] == rates["text.blocks.1.ln_1.weight"] == 5e-3
    assert rates["vision.class_embedding"] == 2.5e-3
    assert rates["text.embedding.weight"] == rates["text.norm.weight"] == 1.25e-3


def test_stages_that_are_done_are_not_run_again(tmp_path: Path) -> None:
    experiment = PairExperiment(
        "tiny",
        towers=TINY,
        beginning=tiny_training(),
        ingredients=("seed=1 patch_dropout=0.3", "seed=2"),
        further=("seed=3",),
        agreeing=("seed=4 unlabelled_items=2",),
        finishing=("seed=5 patch_dropout=0", "seed=6"),
    )
    said: list[str] = []
    data = bank()
    stages = Stages(experiment, tmp_path, data, {"all": data}, said.append, bank(5, 1).frames)
    beginning = stages._train("beginning", stages._towers(), experiment.beginning)
    made = stages.finish(beginning)
    assert made.config == TINY
    assert {path.parent.name for path in tmp_path.glob("*/done")} == {
        "beginning",
        "ingredient-0",
        "ingredient-1",
        "further-0",
        "agreeing-0",
        "finishing-0",
        "finishing-1",
    }
    assert any("mean of ingredients" in line for line in said)
    assert not any("only on pairs" in line for line in said)
    said.clear()
    (tmp_path / "finishing-1" / "done").unlink()
    again = stages.finish(beginning)
    assert sum("finished before" in line for line in said) == 5
    for name, value in made.state_dict().items():
        torch.testing.assert_close(again.state_dict()[name], value)


def test_what_was_held_out_is_trained_on_in_the_last_stages(tmp_path: Path) -> None:
    """Neither compared by nor chosen with any more; a folder that holds nothing out is an error."""
    experiment = PairExperiment("tiny", towers=TINY, beginning=tiny_training(), joined="videos")
    held = {"videos": bank(3), "pictures": bank(2, 1)}
    stages = Stages(experiment, tmp_path, bank(), held, lambda line: None)
    last = stages.join_validation()
    assert (len(stages.train.num_frames), len(last.train.num_frames)) == (6, 9)
    assert list(last.validation) == ["pictures"]
    wrong = Stages(replace(experiment, joined="video"), tmp_path, bank(), held, lambda line: None)
    with pytest.raises(ConfigError, match=r"joined=video: no validation items.*: videos, pictures"):
        wrong.join_validation()


def test_a_run_without_the_pictures_it_asks_for_says_so(tmp_path: Path) -> None:
    experiment = PairExperiment(
        "tiny", towers=TINY, beginning=tiny_training(), agreeing=("unlabelled_items=2",)
    )
    said: list[str] = []
    stages = Stages(experiment, tmp_path, bank(), {}, said.append)
    stages.run_stage("agreeing", experiment.agreeing, stages._towers())
    assert sum("agreeing-0: `unlabelled` is not set" in line for line in said) == 1


def test_the_last_weights_are_kept_where_nothing_is_held_out(tmp_path: Path) -> None:
    encoder = CompactEncoder(TINY)
    trainer = PairTrainer(encoder, bank(), {}, tiny_training(evaluate_every=1), tmp_path)
    trainer.run()
    assert torch.load(tmp_path / BEST, weights_only=True)["step"] == 2


@pytest.mark.parametrize(
    "change", [{"patch_dropout": 1.0}, {"layer_decay": 0.0}, {"unlabelled_items": -1}]
)
def test_impossible_settings_are_refused(change: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        PairTrainingConfig(**change)  # type: ignore[arg-type]
