"""The engine as a Python program uses it: closing, tables, notebooks, dates and images."""

from __future__ import annotations

import base64
import copy
import io
import pickle
import subprocess
import sys
import tempfile
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import av
import numpy as np
import pytest
from PIL import Image

import eaglenet
from eaglenet.core.errors import UsageError
from eaglenet.search.engine import Engine
from eaglenet.search.hit import Hit, Moment, TranscriptMatch
from eaglenet.search.hits import COLUMNS, HitList, _player
from eaglenet.search.options import Filters
from eaglenet.search.query import Query
from eaglenet.video.input_file import SharedFile, share_file
from eaglenet.video.writing import write_video
from small_videos import colour_video
from synthetic_store import BagMethod

HOSTILE = Hit(1, "0123456789abcdef-0", '/v/<script>"a".mp4', 0.5, 0.4, Moment(61, 65.5, 63), 90.0)


class Files:
    """Thumbnails, and one file, for hits without an engine."""

    location = "a store"

    def __init__(self, path: Path = Path("/gone.mp4")) -> None:
        self.path = path

    def thumbnail(self, clip_id: str) -> bytes:
        return b"jpeg"

    def open_file(self, clip_id: str) -> SharedFile:
        return share_file(self.path)


def test_an_engine_is_closed_by_with(store_folder: Path, bag: BagMethod) -> None:
    with eaglenet.open(store_folder, bag) as engine:
        assert isinstance(engine, eaglenet.Engine)
        assert engine.search("red", k=1)
    assert engine.location == str(store_folder)
    with pytest.raises(UsageError, match="is closed"):
        engine.search("red")
    engine.close()


def test_nothing_is_left_open(store_folder: Path) -> None:
    code = (
        "import sys, eaglenet\n"
        "with eaglenet.open(sys.argv[1]) as engine:\n"
        "    print(engine.info()['clips'])\n"
        "other = eaglenet.open(sys.argv[1])\n"
        "print(other.info()['files'])\n"
    )
    run = subprocess.run(
        [sys.executable, "-W", "error", "-X", "dev", "-c", code, str(store_folder)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout.split() == ["18", "6"]
    assert "ResourceWarning" not in run.stderr


def test_an_engine_and_hits_print_as_people_read_them(engine: Engine) -> None:
    assert repr(engine) == f"<Engine of {engine.location}: 18 clips, model 'bag'>"
    hits = engine.search("red", k=2)
    lines = repr(hits).splitlines()
    assert [line.split()[0] for line in lines] == ["1.", "2."]
    assert f"score {hits[0].score:.3f}" in lines[0]
    assert lines[0].endswith(hits[0].path)
    assert repr(HitList()) == "no hits"
    nothing = engine.search("red", path="<nowhere>*")
    reason = "none of the 6 files has a file or folder name like '<nowhere>*'"
    assert repr(nothing) == f"no hits: {reason}"
    assert "No moments found: none of the 6 files" in nothing._repr_html_()
    assert "<nowhere>" not in nothing._repr_html_()
    assert pickle.loads(pickle.dumps(nothing)).why_empty == nothing.why_empty == reason
    hint = HitList(notice="<b>this looks like German")
    assert repr(hint).endswith("note: <b>this looks like German")
    assert "&lt;b&gt;this looks like German" in hint._repr_html_()


def test_hits_are_hashable_and_equal_by_value(engine: Engine) -> None:
    first, again = engine.search("red", k=3), engine.search("red", k=3)
    assert first == again
    assert len({*first, *again}) == len(first)


def test_hits_become_tables(engine: Engine) -> None:
    hits = engine.search("red", k=3)
    rows = hits.to_rows()
    assert [row["path"] for row in rows] == [hit.path for hit in hits]
    assert list(rows[0]) == COLUMNS
    assert [row["match"] for row in rows] == [hit.match for hit in hits]
    assert rows[0]["steps"] == []
    table = pytest.importorskip("pyarrow") and hits.to_arrow()
    assert table.to_pylist() == rows
    empty = HitList().to_arrow()
    assert (empty.num_rows, empty.schema) == (0, table.schema)
    steps = engine.search('"red" then "blue"', k=1).to_arrow()
    assert steps.schema == table.schema
    assert len(steps["steps"][0]) == 2


def test_hits_become_a_data_frame(engine: Engine) -> None:
    pytest.importorskip("pandas")
    hits = engine.search("red", k=3)
    frame = hits.to_pandas()
    assert list(frame["clip_id"]) == [hit.clip_id for hit in hits]
    assert list(HitList().to_pandas().columns) == COLUMNS
    # Without a value too: a mean of numbers that are all missing is NaN, not an error.
    assert (frame["confidence"].dtype, frame["latitude"].dtype) == ("float64", "float64")
    assert frame["rank"].dtype == "int64"
    assert list(HitList().to_pandas().dtypes) == list(frame.dtypes)


def test_tables_have_the_time_of_a_recording() -> None:
    """A number of seconds would have to be converted, with a guess at its zone."""
    pandas, pyarrow = pytest.importorskip("pandas"), pytest.importorskip("pyarrow")
    dated = replace(HOSTILE, metadata={"recorded": 1689350531.2504})
    hits = HitList([dated, replace(HOSTILE, metadata={"recorded": None})])
    expected = datetime(2023, 7, 14, 16, 2, 11, 250_000, tzinfo=UTC)
    column = hits.to_pandas()["recorded"]
    assert column[0] == pandas.Timestamp(expected)
    assert column[0].tz_convert("Asia/Tokyo").hour == 1
    assert pandas.isna(column[1])
    assert hits.to_arrow()["recorded"].to_pylist() == [expected, None]
    kinds = {HitList(each).to_pandas()["recorded"].dtype for each in ([], hits[1:], hits[:1])}
    assert list(map(str, kinds)) == ["datetime64[ms, UTC]"]
    types = {HitList(each).to_arrow()["recorded"].type for each in ([], hits[1:], hits[:1])}
    assert types == {pyarrow.timestamp("ms", "UTC")}
    assert hits.to_rows()[0]["recorded"] == 1689350531.2504


def test_a_missing_table_library_is_named(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UsageError, match="pip install pandas"):
        HitList().to_pandas()
    with pytest.raises(UsageError, match=r"eaglenet\[parquet\]"):
        HitList().to_arrow()


def test_times_are_shown_in_milliseconds_and_kept_as_they_are() -> None:
    moment = Moment(41.0, 43.1666666, float(np.float32(42.583332)))
    steps = [{"query": "a", "clip_id": "0-0", **vars(moment)}]
    hit = replace(HOSTILE, moment=moment, duration=90.00049, metadata={"steps": steps})
    assert hit.moment.best == float(np.float32(42.583332))
    assert repr(moment) == "Moment(start=41.0, end=43.167, best=42.583)"
    (row,) = HitList([hit]).to_rows()
    times = {"start": 41.0, "end": 43.167, "best": 42.583}
    assert times.items() <= row.items()
    assert row["duration"] == 90.0
    assert row["steps"] == [{"query": "a", "clip_id": "0-0", **times}]
    record = hit.to_dict()
    assert (record["moment"], record["match"]) == (times, "not measured")
    assert record["metadata"]["steps"] == row["steps"]


def test_a_notebook_shows_thumbnails_times_and_paths(engine: Engine) -> None:
    page = HitList([HOSTILE], Files())._repr_html_()
    assert "<script>" not in page
    assert "1:01.0 to 1:05.5" in page
    assert "href" not in page  # A browser opens no local file from a page of Jupyter.
    assert "data:image/jpeg;base64,anBlZw==" in page
    assert engine.search("red", k=2)._repr_html_().count("<img") == 2
    # A clip that is gone meanwhile has no picture, and the rest is shown.
    page = HitList([HOSTILE], engine)._repr_html_()
    assert "<img" not in page
    assert "No thumbnails: the engine is closed" in page
    assert "No moments" in HitList()._repr_html_()


def test_a_notebook_plays_one_hit(tmp_path: Path) -> None:
    (gone,) = HitList([HOSTILE], Files())
    page = gone._repr_html_()
    assert page is not None
    assert "<script>" not in page
    assert "data:image/jpeg;base64,anBlZw==" in page, "the thumbnail of a file that is gone"
    assert replace(HOSTILE)._repr_html_() is None, "no engine, plain text"
    colour_video(tmp_path / "red.mp4", ["red"] * 2)
    line = TranscriptMatch("<b>hello", 0.0, 1.0, "speech")
    played = replace(
        HOSTILE,
        path=str(tmp_path / "red.mp4"),
        moment=Moment(0, 1, 0.5),
        transcript=(line,),
    )
    page = HitList([played], Files(tmp_path / "red.mp4"))[0]._repr_html_()
    assert page is not None
    video = base64.b64decode(page.split("base64,")[1].split('"')[0])
    assert video[4:8] == b"ftyp"
    assert "&ldquo;&lt;b&gt;hello&rdquo;" in page


def test_a_moment_for_a_notebook_is_small_and_quick(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frames = np.zeros((2, 3, 64, 2560), np.uint8)
    write_video(tmp_path / "large.mp4", frames, 4)
    hit = replace(
        HOSTILE,
        path=str(tmp_path / "large.mp4"),
        moment=Moment(0, 0.5, 0.2),
    )
    files = Files(tmp_path / "large.mp4")
    content = base64.b64decode(_player(hit, files).split("base64,")[1].split('"')[0])
    with av.open(io.BytesIO(content)) as container:
        assert (container.streams.video[0].width, container.streams.video[0].height) == (1280, 32)
    monkeypatch.setattr("eaglenet.search.hits.MAX_ENCODING_SECONDS", 0.0)
    assert _player(hit, files) == ""


def test_hits_are_sliced_copied_and_pickled_without_the_engine(engine: Engine) -> None:
    hits = engine.search("red", k=3)
    assert "<img" in hits[:2]._repr_html_()
    assert "1. " in repr(hits[:2])
    for copies in (pickle.loads(pickle.dumps(hits)), copy.deepcopy(hits)):
        assert isinstance(copies, HitList)
        assert copies == hits
        assert copies[0]._repr_html_() is None
    assert pickle.loads(pickle.dumps(hits[0])) == hits[0]
    assert "\x1b" not in repr(HitList([replace(HOSTILE, path="/v/\x1b[2J.mp4")]))


def test_a_notebook_is_executed(
    store_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    traitlets_config = pytest.importorskip("traitlets.config")
    cells = [
        "import eaglenet\nfrom eaglenet.search.hits import HitList",
        f"engine = eaglenet.open({str(store_folder)!r})",
        "clip = engine.snapshot.clips([0])[0]\n"
        "HitList([eaglenet.Hit(1, clip.id, '/v/a.mp4', .5, .4, eaglenet.Moment(0, 1, 0), 9.0)], "
        "engine)",
        f"eaglenet.index({str(tmp_path)!r}, {str(store_folder)!r})",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    # The home folder may be read-only.
    for name in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name))
    # Jupyter chooses free ports, which another process may take before the kernel does.
    sockets = traitlets_config.Config({"KernelManager": {"transport": "ipc"}})
    with tempfile.TemporaryDirectory(prefix="nb", dir="/tmp") as short:
        monkeypatch.setenv("JUPYTER_RUNTIME_DIR", short)
        client = nbclient.NotebookClient(notebook, timeout=600, startup_timeout=600, config=sockets)
        client.execute()
    assert "<img" in notebook.cells[2].outputs[0]["data"]["text/html"]
    progress, report = notebook.cells[3].outputs
    assert progress["data"]["text/html"] == "", "the bar is removed at the end"
    assert "18 clips in the store" in report["data"]["text/html"]


def test_wrong_arguments_of_a_search_are_named(engine: Engine) -> None:
    with pytest.raises(UsageError, match="options must be SearchOptions, not dict"):
        engine.search("red", options={"shortlist": 3})  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="address of a chat server, not 3"):
        engine.search("red", judge=3)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="no clip None in this store"):
        engine.thumbnail(None)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"tests: not a regular file$"):
        engine.search(Query(image=Path(__file__).parents[1]))


def test_a_hit_prints_as_one_short_line(engine: Engine) -> None:
    hit = engine.search("red", k=1)[0]
    assert str(hit) == repr(hit)
    assert len(repr(hit)) < 200
    assert f"path={hit.path!r}, clip_id={hit.clip_id!r})" in repr(hit)
    assert repr(hit).startswith(
        f"Hit(rank=1, score={hit.score:.3f}, confidence=None, moment=Moment("
    )


def test_filters_take_dates_and_times(engine: Engine) -> None:
    noon = datetime(2024, 5, 31, 12, tzinfo=UTC)
    assert Filters(after=noon).after == noon.timestamp()  # type: ignore[arg-type]
    day = date(2024, 5, 31)
    assert Filters(before=day).before == datetime(2024, 5, 31).timestamp()  # type: ignore[arg-type]
    assert Filters(after=np.float32(8)).after == 8.0  # type: ignore[arg-type]
    assert engine.search("red", after=date.today() + timedelta(days=2)) == []
    with pytest.raises(UsageError, match="a date, a time or seconds"):
        engine.search("red", after=b"2024")  # type: ignore[arg-type]


def test_an_image_is_a_path_bytes_an_array_or_of_pillow() -> None:
    pixels = np.full((8, 12, 3), 200, np.uint8)
    image = Image.fromarray(pixels)
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    for given in (buffer.getvalue(), pixels, image):
        found = Query(image=given).image
        assert isinstance(found, Image.Image)
        assert np.array_equal(np.asarray(found), pixels)
    assert Query(image="a.jpg").image == "a.jpg"
    for wrong in (b"no image", np.zeros((8, 8), np.uint8), np.zeros((8, 8, 3)), 7):
        with pytest.raises(UsageError) as refusal:
            Query(image=wrong)  # type: ignore[arg-type]
        assert " object at 0x" not in str(refusal.value)
