"""TeachText: the student's loss plus Huber of its scores and the teachers'."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from expert_inputs import VIDEOS, build, random, texts, videos
from typer.testing import CliRunner

from eaglenet.cli.main import app
from eaglenet.core.errors import ConfigError
from eaglenet.core.types import TextFeatures, VideoFeatures
from eaglenet.encoders.features import (
    ExpertConfig,
    ExpertEncoder,
    FeatureConfig,
    FeatureEncoder,
)
from eaglenet.methods import METHODS, Method
from eaglenet.research.data.experts import load_expert_folder


def make_features() -> tuple[TextFeatures, VideoFeatures]:
    """Inputs with two teachers of width 6."""
    text = dataclasses.replace(texts(VIDEOS), teachers=random(VIDEOS, 2, 6, seed=20))
    return text, dataclasses.replace(videos(), teachers=random(VIDEOS, 2, 6, seed=21))


def teachtext() -> Method:
    return build("teachtext", student_config={"text_centres": 3}, teacher_weight=0.5)


def test_the_loss_equals_numbers_by_hand() -> None:
    method = teachtext().train()
    text, video = make_features()
    eye = torch.eye(VIDEOS, dtype=torch.bool)
    features = method.encode_text(text), method.encode_video(video)
    losses = method.losses(*features, eye)
    scores = method.score(*features)
    assert text.teachers is not None
    assert video.teachers is not None
    total = 0.0
    for i in range(VIDEOS):
        for j in range(VIDEOS):
            teacher_score = (
                sum(float(text.teachers[i, k] @ video.teachers[j, k]) for k in range(2)) / 2
            )
            away = abs(float(scores[i, j].detach()) - teacher_score)
            total += away**2 / 2 if away < 1 else away - 0.5
    assert losses.terms["teachers"].item() == pytest.approx(total / VIDEOS**2, abs=1e-9)
    assert losses.total.item() == pytest.approx(
        losses.terms["margin"].item() + 0.5 * total / VIDEOS**2, abs=1e-9
    )


def test_a_student_that_needs_the_ids_of_videos_gets_them() -> None:
    """Without them, HiT takes the keys of a text's own video for wrong ones."""
    student = {"num_layers": 1, "text_layers": 1, "num_heads": 2, "hidden_dim": 12, "bank_size": 9}
    assert build("teachtext", student="hit", student_config=student).needs_ids
    assert not teachtext().needs_ids


def test_search_knows_what_scores_of_the_student_contain() -> None:
    """Hubness offsets of a store would be subtracted a second time."""
    spec = METHODS["teachtext"]

    def taught(student: str) -> Method:
        encoder = FeatureEncoder(FeatureConfig(8, 8, 8))
        return spec.build(spec.config_class(student=student, num_frames=3, dim=8), encoder)

    method = taught("wordframe")
    assert method.hubness_layer is None
    method.student.bank.add(torch.randn(4, 8))
    assert method.hubness_layer is not None
    assert method.reads_words
    assert taught("pair_reader").is_cross_encoder
    plain = taught("clip4clip")
    assert not plain.is_cross_encoder
    assert not plain.reads_words


@torch.no_grad()
def test_teachers_are_not_seen_outside_of_training() -> None:
    method = teachtext()
    text, video = (method.encode_text(make_features()[0]), method.encode_video(make_features()[1]))
    assert text.teachers is None
    assert video.teachers is None


def test_a_student_that_reads_no_experts_is_refused_there() -> None:
    encoder = ExpertEncoder(ExpertConfig({"scene": 7}, "scene", text_dim=9, words_dim=10))
    spec = METHODS["teachtext"]
    with pytest.raises(ConfigError, match="does not read several experts"):
        spec.build(spec.config_class(student="clip4clip"), encoder)
    with pytest.raises(ConfigError, match="student_config of ce"):
        spec.build(spec.config_class(student_config={"centre": 1}), encoder)


def test_a_run_teaches_and_a_student_learns_with_the_commands(tmp_path: Path) -> None:
    def run(*arguments: object) -> str:
        result = CliRunner().invoke(app, [str(argument) for argument in arguments])
        assert result.exit_code == 0, result.output
        return result.stdout

    folder = tmp_path / "experts"
    run("data", "demo-experts", "--output", folder, "--count", 24)
    small = ["--set", f"data.root={folder}", "--set", "data.val_videos=8", "--set",
             "training.epochs=1", "--set", "training.batch_size=16"]  # fmt: skip
    run("train", "ce", "--data", "experts", "--output", tmp_path / "teacher", *small,
        "--set", "encoder.config.words=gpt", "--set", "encoder.config.words_dim=32",
        "--set", "method_config.text_centres=2")  # fmt: skip
    outcome = run("data", "teach", tmp_path / "teacher", "--root", folder, "--name", "gpt")
    assert "96 texts and 24 videos" in outcome
    assert load_expert_folder(folder).text_teachers is not None
    run("train", "teachtext", "--data", "experts", "--output", tmp_path / "student", *small)
    log = (tmp_path / "student" / "log.jsonl").read_text()
    assert '"teachers"' in log
    run("evaluate", tmp_path / "student", "--split", "val")
