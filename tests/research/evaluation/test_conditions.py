"""Numbers stand beside what they were made under, ours and the paper's."""

from __future__ import annotations

from eaglenet.research.evaluation.conditions import (
    CLIP,
    CONDITIONS_BEFORE_CLIP,
    ERRATA,
    conditions_lines,
    paper_conditions,
    run_conditions,
)
from eaglenet.research.evaluation.paper import paper_tables
from eaglenet.research.recipes import Recipe


def test_every_row_before_clip_has_conditions_of_its_own() -> None:
    labels = {
        row.label
        for name in ("msrvtt", "others")
        for row in paper_tables()[name].rows
        if row.group == "other"
    }
    assert labels == set(CONDITIONS_BEFORE_CLIP)
    assert set(ERRATA) <= labels
    assert paper_conditions("XPool") == CLIP


def test_a_run_says_what_it_read_and_what_chose_its_epoch() -> None:
    experts = run_conditions(
        Recipe("ce", "experts").build().to_plain(), "demo (4 texts x 2 videos)"
    )
    assert experts.features == "stored experts: colour, motion, scene, shape, sound"
    assert (experts.split, experts.selection) == ("demo (4 texts x 2 videos)", "validation")
    released = run_conditions(
        Recipe("eaglenet", "msrvtt", "clip-b16", "released").build().to_plain()
    )
    assert released.pretraining == "openai/clip-vit-base-patch16"
    assert released.selection == "TEST"
    assert run_conditions(Recipe("ce", "demo").build().to_plain()).pretraining == "none"
    frozen = run_conditions(Recipe("xpool", "folder", "small-frozen").build().to_plain())
    assert (frozen.pretraining, frozen.features) == ("small", "frames and texts by frozen towers")
    assert run_conditions({}).features == "its tower, trained"
    # One evaluation leaves nothing to choose.
    single = {"training": {"select": "val", "epochs": 3, "eval_every": 3}}
    assert run_conditions(single).selection == "the last epoch"


def test_rows_that_differ_are_told_in_what() -> None:
    ours = [run_conditions(Recipe(name, "experts").build().to_plain()) for name in ("ce", "mmt")]
    assert conditions_lines(ours) == []
    mixed = [
        *ours,
        run_conditions(Recipe("eaglenet", "msrvtt", "clip-b16", "released").build().to_plain()),
    ]
    listed = "pre-training, features, split and epoch chosen on"
    assert conditions_lines(mixed) == [f"Rows differ in {listed}: compare only those that agree."]
    (line,) = conditions_lines(mixed)
    assert line.startswith("Rows differ in pre-training, features, split and epoch chosen on")
