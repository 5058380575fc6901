"""The paper's numbers are consistent with each other and cannot be taken for ours."""

import pytest

from eaglenet.core.errors import UnknownNameError
from eaglenet.research.evaluation.paper import paper_tables, recall_against_time


def test_every_table_is_there_with_its_rows() -> None:
    counts = {name: len(paper_tables()[name].rows) for name in paper_tables()}
    assert counts == {
        "msrvtt": 38,
        "others": 31,
        "components": 8,
        "energy": 3,
        "pooling": 5,
        "graph": 4,
        "coefficient": 3,
        "edges": 3,
        "time": 13,
    }


def test_sums_of_recalls_are_the_sum_of_their_columns() -> None:
    # The paper's own rows are rounded before the sum: a few differ by one or two tenths.
    for row in paper_tables()["msrvtt"].rows:
        if None not in row.values:
            recalls = row.values[:3] + row.values[5:8]
            assert sum(recalls) == pytest.approx(row.values[-1], abs=0.35)


def test_the_full_model_has_one_number_in_every_table() -> None:
    tables = paper_tables()
    full = tables["msrvtt"].row("EagleNet", "ViT-B/16").values[:3]
    assert full == (51.0, 76.2, 85.6)
    assert tables["components"].row("frl+eam+sigmoid").values[:3] == full
    assert tables["energy"].row("bilinear").values[:3] == full
    assert tables["pooling"].row("mean").values[:3] == full
    assert tables["graph"].row("rgat+eam").values[:3] == full
    assert tables["coefficient"].row("1.0").values[:3] == full
    assert tables["edges"].row("full").values[:3] == full


def test_a_wrong_row_is_answered_with_the_known_ones() -> None:
    with pytest.raises(UnknownNameError, match="bilinear"):
        paper_tables()["energy"].row("bilinaer")


def test_recall_against_time_pairs_the_two_tables() -> None:
    points = recall_against_time()
    assert points["EagleNet"] == (141.7, 51.0)
    assert points["UCoFiA"] == (2969.8, 48.6)
    assert len(points) == 12
