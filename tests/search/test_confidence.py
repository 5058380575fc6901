"""Confidence of hits: evidence, calibration, labels and the stored file."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from eaglenet.core.errors import CheckpointError
from eaglenet.search.confidence import (
    FEATURES,
    FILE,
    MAX_RIVALS,
    Calibration,
    fits_nothing,
    make_evidence,
)
from eaglenet.search.hit import label

WEIGHTS = {"bias": -1.0, "share": 1.0, "lead": 3.0, "score": 2.0, "mean": -1.0, "size": -0.1}


def evidence(scores: list[float], **changes: object) -> dict[str, np.ndarray]:
    options: dict[str, object] = {"mean": 0.1, "num_clips": 7, **changes}
    columns = make_evidence(np.array(scores), 10.0, **options)  # type: ignore[arg-type]
    return dict(zip(FEATURES, columns.T, strict=True))


def test_shares_are_the_logarithms_of_a_softmax() -> None:
    scores = np.array([0.5, 0.2, 0.4])
    expected = np.exp(10 * scores) / np.exp(10 * scores).sum()
    assert np.exp(evidence(scores.tolist())["share"]) == pytest.approx(expected)


def test_evidence_does_not_depend_on_the_order_of_the_shortlist() -> None:
    scores = [0.5, 0.2, 0.4, 0.1, 0.3]
    forward, backward = evidence(scores)["share"], evidence(scores[::-1])["share"]
    assert forward == pytest.approx(backward[::-1])


def test_clips_of_one_file_are_no_rivals() -> None:
    grouped = evidence([0.5, 0.48, 0.2], files=[3, 3, 8])["share"]
    assert grouped[0] == pytest.approx(evidence([0.5, 0.2])["share"][0])
    # The second clip of the file stands in for it, not beside the first.
    assert grouped[1] == pytest.approx(evidence([0.48, 0.2])["share"][0])


def test_a_single_clip_has_the_whole_share() -> None:
    assert evidence([0.5])["share"] == pytest.approx([0.0])
    assert evidence([0.5])["lead"] == pytest.approx([0.0])
    assert evidence([0.5, 0.4], files=[1, 1])["share"] == pytest.approx([0.0, 0.0])


def test_leads_are_over_the_best_clip_of_another_file() -> None:
    assert evidence([0.5, 0.2, 0.4])["lead"] == pytest.approx([0.1, -0.3, -0.1])
    leads = evidence([0.5, 0.48, 0.2], files=[3, 3, 8])["lead"]
    assert leads == pytest.approx([0.3, 0.28, -0.3])
    assert evidence([0.5, 0.5])["lead"] == pytest.approx([0.0, 0.0])


def test_only_the_first_files_are_rivals() -> None:
    first = [0.9 - 0.001 * number for number in range(MAX_RIVALS)]
    more = evidence([*first, *[0.5] * 900])["share"]
    assert more[0] == pytest.approx(evidence(first)["share"][0])
    assert np.isfinite(more).all()


def test_extreme_scores_stay_finite() -> None:
    calibration = Calibration("", "", 1000.0, WEIGHTS)
    values = calibration.confidences(np.array([1.0, -1.0, 1.0]), mean=-1.0, num_clips=10**9)
    assert np.isfinite(values).all()
    assert ((values >= 0) & (values <= 1)).all()


def test_an_empty_shortlist_has_no_confidences() -> None:
    assert (
        len(Calibration("", "", 30.0, WEIGHTS).confidences(np.zeros(0), mean=0.0, num_clips=0)) == 0
    )


def test_a_better_and_lonelier_hit_has_more_confidence() -> None:
    calibration = Calibration("", "", 30.0, WEIGHTS)
    alone = calibration.confidences(np.array([0.5, 0.1]), mean=0.0, num_clips=100)
    beside = calibration.confidences(np.array([0.5, 0.49]), mean=0.0, num_clips=100)
    assert alone[0] > beside[0] > beside[1]


def test_confidence_equals_a_number_worked_out_by_hand() -> None:
    calibration = Calibration("", "", 10.0, WEIGHTS)
    value = calibration.confidences(np.array([0.5, 0.2]), mean=0.1, num_clips=7)[0]
    share = np.log(np.exp(5) / (np.exp(5) + np.exp(2)))
    logit = -1.0 + share + 3 * 0.3 + 2 * 0.5 - 0.1 - 0.1 * np.log(7)
    assert value == pytest.approx(1 / (1 + np.exp(-logit)))


def test_labels_and_nothing() -> None:
    assert [label(value) for value in (0.7, 0.3, 0.29, None)] == [
        "sure",
        "likely",
        "unlikely",
        "not measured",
    ]
    assert fits_nothing([0.09, 0.01])
    assert not fits_nothing([0.11, 0.01])
    assert not fits_nothing([None, None])
    assert not fits_nothing([None, 0.01])  # The first was found by what is said.
    assert not fits_nothing([])


def test_a_sequence_has_weights_of_its_own() -> None:
    own = {**dict.fromkeys(WEIGHTS, 0.0), "bias": 1.0, "share": 2.0, "mean": 3.0}
    calibration = Calibration("", "", 10.0, WEIGHTS, sequences=own)
    scores = np.array([0.5, 0.2, 0.1])
    values = calibration.sequence_confidences(scores, mean=-0.2, num_files=7)
    share = np.log(np.exp(5) / (np.exp(5) + np.exp(2) + np.exp(1)))
    assert values[0] == pytest.approx(1 / (1 + np.exp(-(1 + 2 * share - 0.6))))
    assert values[0] > values[1] > values[2]


def test_a_calibration_is_read_as_it_was_saved(tmp_path: Path) -> None:
    calibration = Calibration("abc", "1800 texts", 30.0, WEIGHTS, {"auc": 0.8}, WEIGHTS)
    calibration.save(tmp_path)
    assert Calibration.load(tmp_path) == calibration
    assert Calibration.load(tmp_path / "other") is None


@pytest.mark.parametrize(
    "value",
    [
        [],
        {},
        {"identity": "a", "hubness": "", "scale": 0, "weights": WEIGHTS},
        {"identity": "a", "hubness": "", "scale": "30", "weights": WEIGHTS},
        {"identity": "a", "hubness": "", "scale": 30, "weights": {"bias": 1}},
        {"identity": "a", "hubness": "", "scale": 30, "weights": {**WEIGHTS, "size": float("inf")}},
        {"identity": "a", "hubness": "", "scale": 30, "weights": WEIGHTS, "more": 1},
        {"identity": "a", "hubness": "", "scale": 30, "weights": WEIGHTS, "sequences": {"bias": 1}},
        {"identity": "a", "hubness": "", "scale": 30, "weights": WEIGHTS, "sequences": [1]},
    ],
)
def test_a_broken_calibration_is_refused_by_name(tmp_path: Path, value: object) -> None:
    (tmp_path / FILE).write_text(json.dumps(value))
    with pytest.raises(CheckpointError, match=FILE):
        Calibration.load(tmp_path)


def test_confidence_needs_no_torch() -> None:
    code = "import sys, eaglenet.search.confidence; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
