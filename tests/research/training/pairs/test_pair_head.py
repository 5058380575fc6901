"""The head that is made of training captions levels with the temperature of its towers."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F

from eaglenet.methods.wordframe import WordFrame
from eaglenet.models.files import PACKAGED
from eaglenet.models.folder import load, with_head
from eaglenet.research.data.frame_folder import FrameItem
from eaglenet.research.small.run import sample_captions, save_hubness_head


def test_sampled_captions_are_peoples_captions_of_videos() -> None:
    items = [
        FrameItem("0", "train", "coco", 1, {"people": ["a picture"]}),
        FrameItem("1", "train", "msrvtt", 5, {"people": ["a man", "a man", "a dog"]}),
        FrameItem("2", "train", "panda", 2, {"machine": ["a machine's words"]}),
    ]
    assert sorted(sample_captions(items, 900)) == ["a dog", "a man"]
    assert sample_captions(items, 1) == sample_captions(items, 1)
    assert sample_captions(items[:1], 900) == ["a picture"]


def test_the_head_has_the_temperature_of_its_towers(tmp_path: Path) -> None:
    for file in (PACKAGED / "small").iterdir():
        if file.is_file():
            (tmp_path / file.name).symlink_to(file)
    sentences = ["a dog runs on a beach", "a man cooks", "cars race"]
    save_hubness_head(tmp_path, sentences, 0.5)
    towers = load(tmp_path)
    head = with_head(towers, tmp_path / "head")
    assert isinstance(head, WordFrame)
    assert head.bank is not None
    assert head.bank.weight == 0.5
    scale = towers.encoder.logit_scale.exp()  # type: ignore[operator]
    torch.testing.assert_close(head.loss.scale(), scale)
    expected = F.normalize(towers.encode_text(sentences).sentence, dim=-1)
    torch.testing.assert_close(head.bank.stored_vectors(), expected, atol=1e-3, rtol=0)
