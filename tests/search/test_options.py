"""Search options: changes by name, and errors for impossible values."""

from __future__ import annotations

import pytest

from eaglenet.core.errors import UsageError
from eaglenet.search.engine import Engine
from eaglenet.search.options import MAX_RESULTS, Filters, SearchOptions
from eaglenet.search.query import Query
from synthetic_store import content_of


def test_replaces_options_and_filters_by_name() -> None:
    options = SearchOptions(Filters(path="*.mov", min_duration=2.0), group_files=True)
    changed = options.replace(
        {"path": "*.mp4", "tags": "odd", "shortlist": 7, "after": "1970-01-02T00:00:00+00:00"}
    )
    assert changed == SearchOptions(
        Filters(path="*.mp4", min_duration=2.0, after=86400.0, tags=("odd",)),
        group_files=True,
        shortlist=7,
    )
    assert options.replace({}) is options
    assert options.replace({"after": 3.5}).filters.after == 3.5


def test_unknown_options_are_refused() -> None:
    with pytest.raises(UsageError, match=r"option 'colour', 'size'; known: k, .*after, .*short"):
        SearchOptions().replace({"size": 1, "colour": "red", "path": "x"})
    with pytest.raises(UsageError, match=r"option 'aftr' \(did you mean 'after'\?\); "):
        SearchOptions().replace({"aftr": "2023-07-01"})
    with pytest.raises(UsageError, match=r"option 'limit' \(did you mean 'k'\?\); "):
        SearchOptions().replace({"limit": 3})


@pytest.mark.parametrize(
    ("kind", "fields", "message"),
    [
        (
            SearchOptions,
            {"k": 1},
            r"SearchOptions has no field 'k' \(.*engine\.search\(query, k=10\)\); known: filters, ",
        ),
        (SearchOptions, {"path": "x"}, r"SearchOptions\(filters=Filters\(path=\.\.\.\)\)"),
        (SearchOptions, {"shortlst": 3}, r"'shortlst' \(did you mean 'shortlist'\?\); known: "),
        (
            SearchOptions,
            {"k": 3, "foo": 1, "shortlst": 3},
            r"'k' \(.*\), 'foo', 'shortlst' \(did you mean 'shortlist'\?\); known: ",
        ),
        (Filters, {"colour": "red"}, r"Filters has no field 'colour'; known: path, "),
        (Filters, {"taggs": "a", "literal": 1}, r"'taggs' \(.*'tags'\?\), 'literal' \(it b"),
        (
            Query,
            {"txt": "a", "k": 1},
            r"no field 'txt' \(.*'text'\?\), 'k'; known: text, ",
        ),
    ],
)
def test_unknown_fields_are_refused_with_advice(kind: type, fields: dict, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        kind(**fields)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"after": float("nan")}, "after must be a date, a time or seconds since 1970, not float"),
        ({"before": float("inf")}, "before must be a date"),
        ({"path": 3}, "path must be a text, not 3"),
        ({"camera": b"x"}, "camera must be a text"),
        ({"tags": 3}, "tags must be texts, not 3"),
        ({"tags": [3]}, "tags must be texts"),
        ({"min_duration": "3"}, "duration must be 0 seconds or more, not '3'"),
        ({"min_confidence": "0.5"}, "between 0 and 1, not '0.5'"),
        ({"group_files": "yes"}, "group_files must be True or False, not 'yes'"),
        ({"literal": None}, "literal must be True or False"),
        ({"filters": {"path": "x"}}, r"filters must be Filters\(...\), not {'path': 'x'}"),
    ],
)
def test_values_of_another_type_are_refused_by_name(change: dict, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        SearchOptions().replace(change)


def test_one_tag_is_a_tag_and_no_list_of_letters() -> None:
    assert Filters(tags="sea") == Filters(tags=["sea"]) == Filters(tags=("sea",))
    assert SearchOptions().replace({"tags": "sea"}).filters == Filters(tags=["sea"])


def test_no_filters_allow_everything() -> None:
    assert SearchOptions(None) == SearchOptions()
    assert not SearchOptions().filters


@pytest.mark.parametrize(
    ("shortlist", "k", "size"), [(100, 10, 100), (5, 10, 20), (10**9, 10, MAX_RESULTS)]
)
def test_shortlist_has_room_for_all_results(shortlist: int, k: int, size: int) -> None:
    assert SearchOptions(shortlist=shortlist).shortlist_size(k) == size


def test_every_query_takes_the_same_options(engine: Engine) -> None:
    options = SearchOptions(Filters(path="*/5.mp4"), group_files=True)
    by_name = {"path": "*/5.mp4", "group_files": True}
    assert engine.search("red car", 3, options=options) == engine.search("red car", 3, **by_name)
    clip = Query(clip_id=f"{content_of(2)[:16]}-1")
    assert engine.search(clip, 3, options=options) == engine.search(clip, 3, **by_name)
    assert [hit.path for hit in engine.search("red car", 3, **by_name)] == ["/videos/5.mp4"]
