"""Filters keep what they say, and say which of them left nothing."""

import dataclasses
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eaglenet.core.errors import UsageError
from eaglenet.search.options import Filters, expand_path, parse_date, path_matcher
from eaglenet.store.records import FileTable

FILES = FileTable(
    ids=np.arange(1, 4),
    contents=["a", "b", "c"],
    paths=[["/home/x/cats.mp4"], ["/home/x/dogs.mov", "/backup/copy.mov"], ["/tmp/o'k.mkv"]],
    modification_times=np.array([100.0, 200.0, 300.0]),
    durations=np.array([5.0, 50.0, 500.0]),
    widths=[1, 1, 1],
    heights=[1, 1, 1],
    tags=[["Home"], ["home", "pets"], []],
    sizes=[10, 20, 30],
    recording_times=np.array([np.nan, 50.0, np.nan]),
    latitudes=np.array([np.nan, 48.1374, -33.865]),
    longitudes=np.array([np.nan, 11.5755, 151.21]),
    cameras=[None, "Apple iPhone 14", ""],
)


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        (Filters(), [1, 1, 1]),
        (Filters(path="*.mp4"), [1, 0, 0]),
        (Filters(path="/home/*"), [1, 1, 0]),
        (Filters(path="/backup/*.mov"), [0, 1, 0]),
        (Filters(path="home"), [1, 1, 0]),
        (Filters(path="x/*"), [1, 1, 0]),
        (Filters(path="home/x/*.mov"), [0, 1, 0]),
        (Filters(path="me/*"), [0, 0, 0]),
        (Filters(path="[x"), [0, 0, 0]),
        (Filters(path="DOGS"), [0, 1, 0]),
        (Filters(path="*.MP4"), [1, 0, 0]),
        (Filters(path="/HOME/*/[C]*"), [1, 0, 0]),
        (Filters(after=200), [0, 0, 1]),
        (Filters(before=200), [1, 1, 0]),
        (Filters(after=50, before=60), [0, 1, 0]),
        (Filters(near="48.2,11.6"), [0, 1, 0]),
        (Filters(near=(48.2, 11.6), within="5km"), [0, 0, 0]),
        (Filters(near=[-33.9, 151.2], within=5), [0, 0, 1]),
        (Filters(camera="IPHONE"), [0, 1, 0]),
        (Filters(camera="canon"), [0, 0, 0]),
        (Filters(min_duration=50), [0, 1, 1]),
        (Filters(max_duration=50), [1, 1, 0]),
        (Filters(tags=("HOME",)), [1, 1, 0]),
        (Filters(tags=("home", "pets")), [0, 1, 0]),
        (Filters(path="*'k*", min_duration=1), [0, 0, 1]),
    ],
)
def test_filters_allow_matching_files(filters: Filters, expected: list[int]) -> None:
    assert filters.matches(FILES).tolist() == [bool(value) for value in expected]


def test_explains_which_filter_matches_no_file() -> None:
    """One that no file meets is named alone; otherwise all are, with how many files meet each."""
    assert Filters().why_empty(FILES) == ""
    assert Filters(path="x/*", tags=("pets",)).why_empty(FILES) == ""
    reason = Filters(path="y/*", tags=("home", "no")).why_empty(FILES)
    assert reason == "none of the 3 files has a path like 'y/*' or the tag 'no'"
    since = Filters(after=parse_date("2026-05-31")).why_empty(FILES)
    undated = "; 2 files have no recording date: the modification time was used"
    assert since == f"none of the 3 files has a date since 2026-05-31{undated}"
    reason = Filters(before=200, min_duration=500).why_empty(FILES)
    assert reason.startswith("none of the 3 files has all of: a date before 1970-01-01")
    assert reason.endswith(undated)
    dated = dataclasses.replace(FILES, recording_times=np.array([1.0, 2.0, 3.0]))
    assert "recording date" not in Filters(after=200).why_empty(dated)
    reason = Filters(max_duration=5, tags=("pets",)).why_empty(FILES)
    conditions = "at most 5 s (1 files), the tag 'pets' (1 files)"
    assert reason == f"none of the 3 files has all of: {conditions}"
    folder = Filters(path="*hom\u00e9*").why_empty(FILES)
    name = "a file or folder name like '*hom\u00e9*'"
    hint = "; 2 paths contain it: write 'hom\u00e9' without *"
    assert folder == f"none of the 3 files has {name}{hint}"
    assert (
        Filters(path="nowhere*").why_empty(FILES).endswith("a file or folder name like 'nowhere*'")
    )


def test_explains_that_no_file_has_a_position_or_names_a_camera() -> None:
    far = Filters(near="1,1", camera="canon")
    some = "none of the 3 files has a place within 10 km of 1,1 or a camera like 'canon'"
    assert far.why_empty(FILES) == some
    unknown = np.full(3, np.nan)
    bare = dataclasses.replace(FILES, latitudes=unknown, longitudes=unknown, cameras=[None] * 3)
    assert far.why_empty(bare) == f"{some}; no file has a position; no file names a camera"
    assert Filters(camera="canon").why_empty(bare).endswith("'canon'; no file names a camera")


def test_expands_typed_paths(monkeypatch: pytest.MonkeyPatch) -> None:
    """``~/`` and ``./``, which no stored path begins with."""
    monkeypatch.setenv("HOME", "/home")
    monkeypatch.setattr("os.getcwd", lambda: "/home/x")
    assert Filters(path=expand_path("~/x/*")).matches(FILES).tolist() == [True, True, False]
    assert expand_path("./*.mov") == "/home/x/*.mov"
    assert expand_path(".") == "/home/x"
    assert expand_path("..") == "/home"


@pytest.mark.parametrize(
    ("pattern", "path", "is_meant"),
    [
        ("film [2020].mp4", "/v/Film [2020].mp4", True),
        ("trip [hd]/*", "/v/trip [hd]/a.mp4", True),
        ("*[hd]*", "/v/a [hd].mp4", True),
        ("part[12].mp4", "/v/part2.mp4", True),
        ("part[12].mp4", "/v/part3.mp4", False),
        ("sub/*", "/v/sub/deep/a.mp4", True),
        ("sub/*", "/v/other-sub/a.mp4", False),
        ("sub/", "/v/sub/a.mp4", True),
    ],
)
def test_path_patterns(pattern: str, path: str, is_meant: bool) -> None:
    """Names in brackets are names first; a folder is one wherever it lies."""
    assert path_matcher(pattern)(path) is is_meant


@pytest.mark.parametrize("pattern", ["ete", "\u00c9T\u00c9", "e\u0301te\u0301", "*ete*"])
@pytest.mark.parametrize("name", ["\u00c9t\u00e9 2023.mp4", "E\u0301te\u0301 2023.mp4"])
def test_paths_are_compared_without_accents(pattern: str, name: str) -> None:
    assert path_matcher(pattern)(f"/videos/{name}")
    assert not path_matcher(pattern)("/videos/hiver.mp4")


def test_names_of_folders_below_the_indexed_one_match_too() -> None:
    files = dataclasses.replace(
        FILES,
        paths=[
            ["/home/x/\u00c9t\u00e9 23/a.mp4"],
            ["/home/x/23.mp4"],
            ["/mnt/\u00e9t\u00e9/b.mp4"],
        ],
        roots=("/home/x", "/home/x/\u00c9t\u00e9 23", "/mnt/\u00e9t\u00e9"),
    )
    assert Filters(path="ete*").matches(files).tolist() == [True, False, False]
    assert Filters(path="*23*").matches(files).tolist() == [True, True, False]
    assert not Filters(path="h*").matches(files).any(), "a folder above the indexed one"
    windows = path_matcher("tri*", [r"C:\Videos"], separator="\\")
    assert windows(r"c:\videos\Trip\a.mp4")
    bucket = path_matcher("tri*", ["s3://bucket/videos"])
    assert bucket("s3://bucket/videos/trip/a.mp4")
    assert not bucket("s3://bucket/videos/other/a.mp4")


def test_empty_filters_are_false_and_dates_are_parsed() -> None:
    assert not Filters(path=expand_path(""))
    assert parse_date("2026-05-31") == parse_date("2026-05-31T00:00")
    with pytest.raises(UsageError, match="2026-05-31"):
        parse_date("yesterday'; DROP TABLE clips; --")


@settings(deadline=None, max_examples=60)
@given(
    pattern=st.text(max_size=60),
    tag=st.text(max_size=20),
    number=st.floats(allow_nan=True, allow_infinity=True),
)
def test_any_text_is_a_valid_filter(pattern: str, tag: str, number: float) -> None:
    if number >= 0:
        filters = Filters(path=pattern, tags=(tag,), min_duration=number)
    else:
        with pytest.raises(UsageError, match="0 seconds or more"):
            Filters(min_duration=number)
        filters = Filters(path=pattern, tags=(tag,))
    if math.isfinite(number):
        filters = dataclasses.replace(filters, after=number)
    else:
        with pytest.raises(UsageError, match="after must be a date"):
            Filters(after=number)
    assert filters.matches(FILES).shape == (3,)
    assert bool(filters.why_empty(FILES)) != bool(filters.matches(FILES).any())
    for text in ("' OR 1=1 --", '"; DROP TABLE files; --', "%' UNION SELECT *"):
        assert not Filters(path=text).matches(FILES).any()
        assert not Filters(tags=(text,)).matches(FILES).any()


@pytest.mark.parametrize(
    "values",
    [
        {"near": "91,0"},
        {"near": "nowhere"},
        {"near": "48.1"},
        {"near": ""},
        {"near": (1, 2, 3)},
        {"near": 5},
        {"near": (float("nan"), 0)},
        {"near": "48.1,11.6", "within": "far"},
        {"near": "48.1,11.6", "within": 0},
        {"near": "48.1,11.6", "within": float("nan")},
        {"near": "48.1,11.6", "within": True},
        {"within": 5},
    ],
)
def test_impossible_places_and_distances_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        Filters(**values)


ROW = "\t".join(
    [*(f"{{{number}}}" for number in range(6)), "P", "PPLA", "{6}", "", "{7}", *[""] * 3, "{8}"]
)
ROW += "\t\t\tEurope/Berlin\t2024-01-01"
TOWNS = [
    (1, "München", "Munchen", "Munich,Monaco di Baviera", 48.13743, 11.57549, "DE", "02", 1260391),
    (2, "Munich", "Munich", "", 48.6697, -98.8543, "US", "ND", 190),
    (3, "Paris", "Paris", "Lutetia", 48.85341, 2.3488, "FR", "11", 2138551),
    (4, "Paris", "Paris", "", 33.66094, -95.55551, "US", "TX", 24782),
    (5, "北京", "Beijing", "Peking,北京市", 39.9075, 116.39723, "CN", "22", 18960744),
    (6, "Seoul", "Seoul", "서울,서울특별시", 37.566, 126.9784, "KR", "11", 10349312),
    (7, "Łódź", "Lodz", "Лодзь", 51.77058, 19.47395, "PL", "74", 768755),
    (8, "Yoshkar-Ola", "Yoshkar-Ola", "Йошкар-Ола", 56.63877, 47.89078, "RU", "45", 281248),
    (9, "Athens", "Athens", "Αθήνα", 37.98376, 23.72784, "GR", "ESYE31", 664046),
]


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A table as GeoNames has it."""
    path = tmp_path / "cities.txt"
    path.write_text("".join(ROW.format(*town) + "\n" for town in TOWNS), "utf-8")
    monkeypatch.setenv("EAGLENET_PLACES", str(path))
    return path


@pytest.mark.parametrize(
    ("name", "latitude"),
    [
        ("Munich", 48.13743),
        ("munchen", 48.13743),
        ("MÜNCHEN", 48.13743),
        ("monaco di  baviera", 48.13743),
        ("Munich, US", 48.6697),
        ("Paris", 48.85341),
        ("Paris, tx", 33.66094),
        ("北京", 39.9075),
        # Removing accents changes these in the table, too.
        ("서울", 37.566),
        ("Łódź", 51.77058),
        ("lodz", 51.77058),
        ("йошкар-ола", 56.63877),
        ("Αθήνα", 37.98376),
        ("αθηνα", 37.98376),
    ],
)
def test_names_of_places_come_from_a_table(table: Path, name: str, latitude: float) -> None:
    near = Filters(near=name).near
    assert near is not None
    assert near[0] == latitude


@pytest.mark.parametrize("name", ["Pari", "Paris, DE", "Atlantis", "P", "\t"])
def test_a_name_that_is_not_in_the_table_is_refused(table: Path, name: str) -> None:
    with pytest.raises(UsageError, match=r"48\.1,11\.6"):
        Filters(near=name)


def test_a_bad_table_is_named(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table.write_text("Paris\n")
    with pytest.raises(UsageError, match="line 1 has 1 columns, not 19"):
        Filters(near="Paris")
    table.write_text(ROW.format(1, "Paris", "Paris", "", 95, 2, "FR", "11", 1) + "\n")
    with pytest.raises(UsageError, match="not a position on earth"):
        Filters(near="Paris")
    monkeypatch.setenv("EAGLENET_PLACES", str(table.with_name("none.txt")))
    with pytest.raises(UsageError, match=r"none.txt: no such file"):
        Filters(near="Paris")
    monkeypatch.delenv("EAGLENET_PLACES")
    with pytest.raises(
        UsageError, match=r"48\.1,11\.6, or get the table with: curl .* export EAGLENET_PLACES="
    ):
        Filters(near="Paris")


def test_deep_folders_take_time_in_proportion_to_their_depth() -> None:
    folders = ["/v" + "/a" * depth for depth in range(0, 2000, 2)]
    matches = path_matcher("*.mov", ["/w"])
    start = time.process_time()
    assert not any(matches(f"{folder}/film.mp4") for folder in folders)
    assert matches(f"{folders[-1]}/film.mov")
    # 10 ms; 13 s if the path of each folder above is put together.
    assert time.process_time() - start < 3
