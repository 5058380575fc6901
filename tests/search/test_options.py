"""One value says how to search, and mistakes in it are named."""

from __future__ import annotations

import pytest
from synthetic_store import content_of

from eaglenet.core.errors import UsageError
from eaglenet.search.engine import Engine
from eaglenet.search.filters import Filters
from eaglenet.search.options import MAX_RESULTS, SearchOptions


def test_changes_reach_options_and_filters_by_their_names() -> None:
    options = SearchOptions(Filters(path="*.mov", min_duration=2.0), group_files=True)
    changed = options.changed(
        {"path": "*.mp4", "tags": "odd", "shortlist": 7, "after": "1970-01-02T00:00:00+00:00"}
    )
    assert changed == SearchOptions(
        Filters(path="*.mp4", min_duration=2.0, after=86400.0, tags=("odd",)),
        group_files=True,
        shortlist=7,
    )
    assert options.changed({}) is options
    assert options.changed({"after": 3.5}).filters.after == 3.5


def test_a_name_that_nobody_knows_is_told_with_those_that_are() -> None:
    with pytest.raises(UsageError, match=r"no option colour, size; it knows after, .*shortlist"):
        SearchOptions().changed({"size": 1, "colour": "red", "path": "x"})


def test_no_filters_are_filters_that_allow_all() -> None:
    assert SearchOptions(None) == SearchOptions()
    assert not SearchOptions().filters


def test_negatives_are_cleaned_and_a_single_sentence_is_not_taken_for_its_letters() -> None:
    assert SearchOptions(negatives=[" a\x00 dog "]).negatives == ("a dog",)
    with pytest.raises(UsageError, match="a list of sentences"):
        SearchOptions(negatives="a dog")


@pytest.mark.parametrize(
    ("shortlist", "k", "width"), [(100, 10, 100), (5, 10, 20), (10**9, 10, MAX_RESULTS)]
)
def test_at_least_as_many_clips_are_ranked_as_are_asked_for(
    shortlist: int, k: int, width: int
) -> None:
    assert SearchOptions(shortlist=shortlist).width(k) == width


def test_every_way_to_search_takes_the_same_options(engine: Engine) -> None:
    clip_id = f"{content_of(2)[:16]}-1"
    options = SearchOptions(Filters(path="*/5.mp4"), group_files=True)
    by_name = {"path": "*/5.mp4", "group_files": True}
    assert engine.search("red car", 3, options=options) == engine.search("red car", 3, **by_name)
    assert engine.similar(clip_id, 3, options=options) == engine.similar(clip_id, 3, **by_name)
    assert engine.search_video(clip_id, 3, options=options) == engine.similar(clip_id, 3, **by_name)
    assert [hit.path for hit in engine.search("red car", 3, **by_name)] == ["/videos/5.mp4"]
    with pytest.raises(UsageError, match="work with sentences only"):
        engine.similar(clip_id, negatives=["dog"])
