"""A bias of each video from a bank of typical texts: hubs stop answering everything."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from eaglenet.cli.main import app
from eaglenet.core.errors import UsageError
from eaglenet.research.evaluation.postprocessing import (
    SUBJECTS,
    TEMPERATURE,
    hub_bias,
    typical_texts,
)


def test_the_bias_is_the_inverted_softmax_of_the_bank() -> None:
    """Against the sum written out, in the form of a ratio."""
    bank = torch.rand(7, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    scores = torch.rand(3, 5, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    biased_scores = scores + hub_bias(bank)
    for text in range(3):
        for video in range(5):
            total = sum(float((TEMPERATURE * bank[q, video]).exp()) for q in range(7)) / 7
            ratio = float((TEMPERATURE * scores[text, video]).exp()) / total
            assert float((TEMPERATURE * biased_scores[text, video]).exp()) == pytest.approx(ratio)


def test_a_hub_loses_its_place_and_the_ranking_of_texts_stays() -> None:
    scores = torch.eye(6) * 0.3 + 0.2
    scores[:, 2] = 0.6  # answers every question best
    bank = torch.full((9, 6), 0.2)
    bank[:, 2] = 0.6
    biased_scores = scores + hub_bias(bank)
    right = torch.arange(6)
    assert (scores.argmax(dim=1) == right).sum() == 1
    assert (biased_scores.argmax(dim=1) == right).sum() == 5
    assert torch.equal(
        biased_scores.argsort(dim=0, stable=True), scores.argsort(dim=0, stable=True)
    )


def test_large_scores_do_not_overflow() -> None:
    assert hub_bias(torch.full((4, 3), 1e4)).isfinite().all()


def test_the_bank_is_fixed_and_without_doubles() -> None:
    sentences = typical_texts()
    assert len(sentences) == len(set(sentences)) == 256
    assert sentences[0].startswith(SUBJECTS[0])


def test_metrics_has_the_same_arithmetic(tmp_path: Path) -> None:
    scores = np.eye(6, dtype=np.float32) * 0.3 + 0.2
    scores[:, 2] = 0.6
    bank = np.full((9, 6), 0.2, np.float32)
    bank[:, 2] = 0.6
    np.save(tmp_path / "sim.npy", scores)
    np.save(tmp_path / "bank.npy", bank)
    arguments = ["metrics", str(tmp_path / "sim.npy"), "--hubness", str(tmp_path / "bank.npy")]
    runner = CliRunner()
    record = json.loads(runner.invoke(app, [*arguments, "--json"]).output)
    assert record["hubness"]["t2v"]["R@1"] > record["t2v"]["R@1"]
    assert "fixed bank of texts" in runner.invoke(app, arguments).output
    np.save(tmp_path / "bank.npy", bank[:, :5])
    with pytest.raises(UsageError, match="the same videos"):
        runner.invoke(app, arguments, catch_exceptions=False)


def test_evaluate_ranks_again_with_the_bias_of_the_models_own_scores() -> None:
    """As evaluate does it: equal to the whole matrix with the bias of the bank added."""
    import eaglenet
    from eaglenet.research.data.demo.dataset import demo_split, render_clips
    from eaglenet.research.evaluation.evaluate import evaluate
    from eaglenet.research.evaluation.metrics import EvaluationOptions, retrieval_metrics

    method = eaglenet.load("demo")
    world = demo_split("test", test=12)
    clips = render_clips(world, method.frame_spec)
    owners = world.video_of_text
    with torch.no_grad():
        text = method.encode_text(method.tokenize(world.texts))
        bank = method.encode_text(method.tokenize(typical_texts()))
        video = method.encode_video(clips)
        biased_scores = method.score(text, video).double() + hub_bias(method.score(bank, video))
    options = EvaluationOptions(hubness=True)
    result = evaluate(method, list(world.texts), clips, owners, "demo", options)
    assert result.hubness is not None
    expected = retrieval_metrics(biased_scores, owners)
    assert result.hubness.t2v.to_dict() == expected.t2v.to_dict()
    assert "with hubness offsets" in str(result)
    few = typical_texts()[::16]
    with torch.no_grad():
        bank = method.encode_text(method.tokenize(few))
        biased_scores = method.score(text, video).double() + hub_bias(method.score(bank, video))
    options = EvaluationOptions(hubness=True, hubness_bank=tuple(few))
    result = evaluate(method, list(world.texts), clips, owners, "demo", options)
    assert result.hubness is not None
    assert result.hubness.t2v.to_dict() == retrieval_metrics(biased_scores, owners).t2v.to_dict()


def test_the_command_takes_the_sentences_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "sentences.txt"
    file.write_text("a red circle\na blue square moves\n")
    arguments = ["evaluate", "demo", "--data", "demo", "--split", "val", "--json"]
    arguments += ["--set", "val=8", "--hubness-bank"]
    runner = CliRunner()
    outcome = runner.invoke(app, [*arguments, str(file)])
    assert outcome.exit_code == 0, outcome.output
    assert "hubness" in json.loads(outcome.stdout)
    with pytest.raises(UsageError, match="use a file with one text per line"):
        runner.invoke(app, [*arguments, str(tmp_path / "none.txt")], catch_exceptions=False)
