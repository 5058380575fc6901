"""The grammar of queries: what is composed, what stays plain text, and what is refused."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eaglenet.core.errors import UsageError
from eaglenet.search.grammar import (
    AnyQuery,
    ComposedQuery,
    TemporalQuery,
    from_json,
    parse,
    parse_duration,
)
from eaglenet.search.query import Query
from query_json import to_json


def parts_of(query: AnyQuery) -> list[tuple[float, str]]:
    assert isinstance(query, ComposedQuery)
    return [(part.weight, part.query.title) for part in query.parts]


@pytest.mark.parametrize(
    "text",
    [
        "a man opens a door",
        "first a red ball and then a blue one",
        "first a dog - then a cat",
        "Breaking Bad - Ozymandias",
        "dog + cat",
        "spider-man",
        "1 + 1",
        "- ",
        "+",
        "then",
        "10:30 train",
        "2: a dog",
        'signs that say "no entry"',
        '"no entry"',
        'a man says "stop" then he runs',
        '"stop" he says then',
        '"unclosed + "',
        '"a" then "b',
        "a dog within 30s",
        "photo.jpg",
        "clip:3f",
    ],
)
def test_plain_text_stays_plain_text(text: str) -> None:
    assert parse(text) == Query(text)


def test_parts_have_weights_and_signs(tmp_path: Path) -> None:
    (tmp_path / "pool.jpg").touch()
    query = parse('"2: a retriever" + pool.jpg - "fruit"', folder=tmp_path)
    assert parts_of(query) == [
        (2.0, "a retriever"),
        (1.0, str(tmp_path / "pool.jpg")),
        (-0.5, "fruit"),
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('2: "a dog" - 0.25: "a cat"', [(2.0, "a dog"), (-0.25, "a cat")]),
        ("“a dog” + „a cat“", [(1.0, "a dog"), (1.0, "a cat")]),
        ('a dog on grass - "a leash"', [(1.0, "a dog on grass"), (-0.5, "a leash")]),
        ('clip:3f2a + "at night"', [(1.0, "3f2a"), (1.0, "at night")]),
        ('"10:30 train" + "snow"', [(1.0, "10:30 train"), (1.0, "snow")]),
        ('- "fruit" + "a retriever"', [(-0.5, "fruit"), (1.0, "a retriever")]),
    ],
)
def test_operands_of_a_composed_query(text: str, expected: list[tuple[float, str]]) -> None:
    assert parts_of(parse(text)) == expected


def test_a_quoted_name_with_spaces_is_a_file_if_it_exists(tmp_path: Path) -> None:
    (tmp_path / "my pool.mp4").touch()
    query = parse('"a dog" + "my pool.mp4"', folder=tmp_path)
    assert isinstance(query, ComposedQuery)
    assert query.parts[1].query.video == tmp_path / "my pool.mp4"
    assert parse(query.title, folder=tmp_path) == query
    query = parse('"a dog" + 2: "my pool.mp4"', folder=tmp_path)
    assert query.parts[1].query.video == tmp_path / "my pool.mp4"
    assert parse(query.title, folder=tmp_path) == query
    query = parse('"a dog" + 2: my pool.mp4 then "a cat"', folder=tmp_path)
    assert isinstance(query, TemporalQuery)
    assert query.steps[0].parts[1].query.video == tmp_path / "my pool.mp4"
    (tmp_path / "now then - or never.GIF").touch()
    for text in ('"a dog" + "2: my pool.mp4"', '"a dog" - "now then - or never.GIF"'):
        query = parse(text, folder=tmp_path)
        assert isinstance(query, ComposedQuery)
        assert query.parts[1].query.video is not None


@pytest.mark.parametrize(
    "name",
    ["my pool.jpg", "pool.MP4", "./pool.heic", "sub/my pool.gif", "2: pool.mov", "a song.mp3"],
)
@pytest.mark.parametrize("form", ['"a dog" + "{}"', '"a dog" + {}', '"{}" then "a cat"'])
def test_a_part_that_names_no_file_is_refused(tmp_path: Path, name: str, form: str) -> None:
    with pytest.raises(UsageError, match="no such file; to search for a text, leave out"):
        parse(form.format(name), folder=tmp_path)
    with pytest.raises(UsageError, match="files cannot be named here"):
        parse(form.format(name))
    text = form.format(name)
    assert parse(text, folder=tmp_path, is_literal=True) == Query(text)


@pytest.mark.parametrize("name", ["~nobody-here/pool.mp4", f"{'a' * 300}.jpg", "a\0b.jpg"])
@pytest.mark.parametrize("form", ['"a dog" + "{}"', '"a dog" + {}'])
def test_a_name_that_no_path_can_have_is_refused(tmp_path: Path, name: str, form: str) -> None:
    with pytest.raises(UsageError, match="no such file"):
        parse(form.format(name), folder=tmp_path)


@pytest.mark.parametrize("form", ['"a dog" + "{}"', '"a dog" + {}'])
def test_a_file_of_the_home_folder_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("pool.mp4", "my pool.mp4"):
        (tmp_path / name).touch()
        query = parse(form.format(f"~/{name}"), folder=Path("elsewhere"))
        assert isinstance(query, ComposedQuery)
        assert query.parts[1].query.video == tmp_path / name


def test_an_audio_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "bark.mp3").touch()
    with pytest.raises(UsageError, match=r"'bark.mp3' is an audio file"):
        parse('"a dog" + bark.mp3', folder=tmp_path)


@pytest.mark.parametrize(
    "text", ["a sign that says exit.", "mp4", "version 1.2", "node.js", ".jpg"]
)
def test_other_names_stay_texts(tmp_path: Path, text: str) -> None:
    assert parts_of(parse(f'"a dog" + "{text}"', folder=tmp_path))[1] == (1.0, text)


@pytest.mark.parametrize(
    ("text", "steps", "within"),
    [
        ('"a" then "b"', ['"a"', '"b"'], None),
        ('"a" then "b" within 30s', ['"a"', '"b"'], 30.0),
        ('"a" then "b" THEN "c" within 2 minutes', ['"a"', '"b"', '"c"'], 120.0),
        ('"a" - "b" then "2: c" + "d"', ['"a" - "b"', '"2: c" + "d"'], None),
        ('clip:12 then "b" within 90', ["clip:12", '"b"'], 90.0),
    ],
)
def test_steps_follow_each_other(text: str, steps: list[str], within: float | None) -> None:
    query = parse(text)
    assert isinstance(query, TemporalQuery)
    assert [step.title for step in query.steps] == steps
    assert query.within == within


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('- "a" - "b"', "every part is subtracted"),
        ('"a" + + "b"', "two operators"),
        ('"a" + "b" -', "nothing follows '-'"),
        ('"a" +', "nothing follows"),
        ('"a dog" then', 'nothing follows .then.; .*: "a dog" then "another part"'),
        ('"a" then "b" then', "nothing follows"),
        ('"a dog" then a cat', '"a dog" then "a cat"; or .* option .literal'),
        ('"a" then within 30s', "in quotation marks"),
        ('"" + "b"', "empty"),
        ('"a" then "b" within soon', "not a duration"),
        ('"a" then "b" within 0s', "more than 0"),
        ('"a" then "b" within 9999999 hours', "7 days"),
        ('"a" + "b" within 30s', "two steps"),
        ('"a" then a dog - "b"', "in quotation marks"),
        ('"a" + "c" then a dog - "b"', "every step in quotation marks"),
        ('"0: a" + "b"', "weight"),
        ('"1000: a" + "b"', "weight"),
        ('"a" + missing.jpg', "no such file"),
        (" + ".join(['"a"'] * 17), "17 parts"),
        (" then ".join(['"a"'] * 9), "2 to 8 steps, not 9"),
    ],
)
def test_bad_queries_are_refused_with_a_reason(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=message):
        parse(text, folder=tmp_path)


def test_a_service_refuses_names_of_files() -> None:
    with pytest.raises(UsageError, match="upload"):
        parse('"a dog" + /etc/secret.jpg')


@given(st.text(alphabet='ab" +-then within 30s:2.jpg,clip', max_size=60))
def test_any_text_is_a_query_or_a_usage_error(text: str) -> None:
    try:
        query = parse(text)
    except UsageError:
        return
    if not isinstance(query, Query):
        assert parse(query.title) == query
        assert from_json(to_json(query)) == query


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        "a dog",
        {},
        {"text": 3},
        {"text": "a", "clip_id": "b"},
        {"words": "a"},
        {"parts": []},
        {"parts": "ab"},
        {"parts": [{"text": "a"}] * 17},
        {"parts": [{"text": "a", "weight": "2"}]},
        {"parts": [{"text": "a", "weight": True}]},
        {"parts": [{"text": "a", "weight": 10**400}]},
        {"steps": [{"text": "a"}, {"text": "b"}], "within": 10**400},
        {"parts": [{"text": "a", "weight": float("nan")}]},
        {"parts": [{"text": "a", "weight": 0}]},
        {"parts": [{"text": "a", "weight": -1}]},
        {"parts": [{"parts": [{"text": "a"}]}]},
        {"steps": [{"text": "a"}]},
        {"steps": [{"text": "a"}, {"steps": [{"text": "a"}, {"text": "b"}]}]},
        {"steps": [{"text": "a"}, {"text": "b"}], "within": -1},
        {"steps": [{"text": "a"}, {"text": "b"}], "within": True},
        {"text": "a", "within": 3},
    ],
)
def test_bad_json_is_refused(value: object) -> None:
    with pytest.raises(UsageError):
        from_json(value)


def test_json_and_text_mean_the_same() -> None:
    value = {
        "steps": [{"parts": [{"text": "a"}, {"text": "b", "weight": -0.5}]}, {"text": "c"}],
        "within": 5,
    }
    assert from_json(value) == parse('"a" - "b" then "c" within 5s')


@pytest.mark.parametrize(
    ("text", "seconds"), [("30", 30), ("1.5h", 5400), ("2 min", 120), ("3seconds", 3)]
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


def test_the_examples_of_the_page_mean_the_same_everywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from eaglenet.cli.queries import make_queries
    from eaglenet.serve.api import _parse_query

    page = (Path(__file__).parents[2] / "docs" / "reference" / "queries.md").read_text("utf-8")
    table = page.split("| query | finds |")[1].split("\n\n")[0]
    examples = re.findall(r"^\| `(.+?)` \|", table, re.MULTILINE)
    assert len(examples) == 11
    monkeypatch.chdir(tmp_path)
    for name in ("pool.jpg", "my dog.jpg"):
        (tmp_path / name).touch()
    kinds = []
    for text in examples:
        (typed,) = make_queries([text], None, {})
        kinds.append(type(typed).__name__)
        if ".jpg" in text:
            with pytest.raises(UsageError, match="files cannot be named here"):
                _parse_query(text)
        else:
            assert _parse_query(text) == typed == parse(text)
            assert parse(typed.title) == typed
    expected = ["Query"] * 3 + ["ComposedQuery"] * 5 + ["TemporalQuery"] * 2 + ["Query"]
    assert kinds == expected


def test_a_title_names_whole_minutes_and_is_read_again() -> None:
    for text, title in (("2min", "2min"), ("90s", "90s"), ("1h", "60min")):
        query = parse(f'"a" then "b" within {text}')
        assert query.title == f'"a" then "b" within {title}'
        assert parse(query.title) == query
