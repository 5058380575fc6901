"""Recording dates, places and cameras: read by a confined worker, stored, and read again later."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from fastapi.testclient import TestClient
from index_cases import run, stored_files
from PIL import Image

from eaglenet.core.frame_spec import Splitting
from eaglenet.indexing.inspection import Inspection, check_inspection
from eaglenet.search.engine import Engine
from eaglenet.serve.app import create_app
from eaglenet.store.records import Changes
from eaglenet.store.store import LocalStore
from eaglenet.video.messages import MessageError, layout_of, pack, unpack
from eaglenet.video.recording import Place, Recording
from raw_file import write_dng
from synthetic_store import BagMethod

JULY = datetime(2023, 7, 14, 16, 2, 11, tzinfo=UTC).timestamp()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A video and a photograph that say when and where, and a photograph that says nothing."""
    path = tmp_path / "videos"
    path.mkdir()
    tags = {"creation_time": "2023-07-14T16:02:11Z", "location": "+48.1374+011.5755/"}
    with av.open(str(path / "a.mp4"), "w") as container:
        container.metadata.update(tags)
        stream = container.add_stream("mpeg4", rate=5)
        stream.width = stream.height = 32
        for _ in range(10):
            frame = av.VideoFrame.from_ndarray(np.zeros((32, 32, 3), np.uint8))
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    exif = Image.Exif()
    exif[0x010F], exif[0x0110] = "Canon", "Canon EOS 5D"
    exif.get_ifd(0x8769)[0x9003] = "2021:01:02 03:04:05"
    Image.new("RGB", (40, 30), "red").save(path / "b.jpg", exif=exif)
    Image.new("RGB", (30, 40), "blue").save(path / "c.png")
    return path


def test_a_confined_worker_reads_them_and_hits_carry_them(
    folder: Path, bag: BagMethod, zone: None
) -> None:
    run(folder, bag, workers=1)
    video, canon, plain = stored_files(folder)
    assert (video.recorded, video.latitude, video.longitude) == (JULY, 48.1374, 11.5755)
    # EXIF without a zone: local time, also inside the confined process.
    assert canon.recorded == datetime(2021, 1, 2, 10, 4, 5, tzinfo=UTC).timestamp()
    assert (canon.camera, plain.camera, plain.recorded) == ("Canon EOS 5D", "", None)
    engine = Engine.open(folder.parent / "store", bag)
    (hit,) = engine.search("red", near=(48.2, 11.5), within=10)
    assert Path(hit.path).name == "a.mp4"
    assert hit.metadata["recorded"] == JULY
    assert (hit.metadata["latitude"], hit.metadata["longitude"]) == (48.1374, 11.5755)
    (hit,) = engine.search("red", camera="eos")
    assert hit.metadata["camera"] == "Canon EOS 5D"
    assert [Path(hit.path).name for hit in engine.search("red", before="2022-01-01")] == ["b.jpg"]
    info = engine.info()
    assert (info["files_with_date"], info["files_with_place"]) == (2, 1)
    assert info["files_with_unread_metadata"] == 0


def test_a_confined_worker_indexes_the_preview_of_a_raw_photograph(
    tmp_path: Path, bag: BagMethod
) -> None:
    pytest.importorskip("rawpy")
    videos = tmp_path / "videos"
    videos.mkdir()
    write_dng(videos / "a.dng", Image.new("RGB", (320, 200), "red"))
    report = run(videos, bag, workers=1)
    assert (report.indexed, report.images, report.problems) == (1, 1, ())
    (file,) = stored_files(videos)
    assert (file.width, file.height, file.camera) == (320, 200, "Nikon Z 6")
    assert file.recorded == datetime(2022, 8, 9, 10, 11, 12).timestamp()


def test_files_of_an_earlier_store_get_them_without_a_model(folder: Path, bag: BagMethod) -> None:
    run(folder, bag)
    expected = stored_files(folder)
    unknown = {"recorded": None, "latitude": None, "longitude": None, "camera": None}
    with LocalStore.write(folder.parent / "store") as writer:
        writer.commit(Changes(files=[replace(file, **unknown) for file in expected]))
    assert Engine.open(folder.parent / "store", bag).info()["files_with_unread_metadata"] == 3
    (folder / "c.png").unlink()

    class Unused(BagMethod):
        def encode_frames(self, *arguments: Any, **options: Any) -> Any:
            raise AssertionError("nothing has to be encoded")

    report = run(folder, Unused(), workers=1)
    assert (report.indexed, report.unchanged) == (0, 2)
    assert stored_files(folder)[:2] == expected[:2]
    assert stored_files(folder)[2].camera is None  # It could not be read.


def test_a_copy_gets_them_from_its_own_content(folder: Path, bag: BagMethod) -> None:
    run(folder, bag)
    (folder / "d.jpg").write_bytes((folder / "b.jpg").read_bytes())
    run(folder, bag, splitting=Splitting(clip_seconds=6.0, overlap=1.0))
    assert stored_files(folder)[3].camera == "Canon EOS 5D"


@pytest.mark.parametrize(
    "recording",
    [
        {"recorded": float("nan")},
        {"recorded": float("inf")},
        {"recorded": -1.0},
        {"camera": "a\x1b[2J"},
        {"camera": "a" * 1000},
        {"place": (91.0, 0.0)},
        {"place": (0.0, float("nan"))},
    ],
)
def test_a_worker_cannot_send_what_no_file_says(recording: dict[str, Any]) -> None:
    value = object.__new__(Recording)
    place = recording.get("place")
    if place is not None:
        place = object.__new__(Place)
        for name, degrees in zip(("latitude", "longitude"), recording["place"], strict=True):
            object.__setattr__(place, name, degrees)
    for name, part in {"recorded": None, "camera": "", **recording, "place": place}.items():
        object.__setattr__(value, name, part)
    layout = layout_of(Recording)
    with pytest.raises(MessageError):
        unpack(layout, [np.frombuffer(pack(layout, value)[0][16:], np.uint8)])


def test_a_whole_recording_passes_the_check() -> None:
    from eaglenet.indexing.files import CandidateFile

    file = CandidateFile("/a.mp4", 1, 1)
    recording = Recording(JULY, Place(48.1, 11.6), "Canon")
    windows = ((0.0, 3.0),)
    check_inspection(file, Inspection(file, "a" * 32, 3.0, windows=windows, recording=recording))


def test_http_takes_and_returns_them(folder: Path, bag: BagMethod) -> None:
    run(folder, bag)
    engine = Engine.open(folder.parent / "store", bag)
    with TestClient(create_app(engine), base_url="http://localhost") as client:

        def find(status: int = 200, **parameters: Any) -> dict[str, Any]:
            answer = client.get("/api/search", params={"q": "red", **parameters})
            assert answer.status_code == status, answer.text
            body: dict[str, Any] = answer.json()
            return body

        (hit,) = find(near="48.2,11.5", within="10km")["hits"]
        assert (hit["recorded"], hit["latitude"], hit["longitude"]) == (JULY, 48.1374, 11.5755)
        clip = client.get(f"/api/clips/{hit['clip_id']}").json()
        assert (clip["recorded"], clip["camera"]) == (JULY, "")
        assert [each["camera"] for each in find(camera="canon")["hits"]] == ["Canon EOS 5D"]
        dated = find(q="red, July 2023")
        assert [each["name"] for each in dated["hits"]] == ["a.mp4"]
        assert "only recordings from 2023-07-01 to 2023-07-31" in dated["notice"]
        literal = find(q="red, July 2023", literal=True)
        assert (len(literal["hits"]), literal["notice"]) == (3, "")
        queries = {"queries": ["red in 2021", "red", "red in 1999"]}
        several = client.post("/api/search", json=queries).json()["results"]
        assert [len(each["hits"]) for each in several] == [1, 3, 0]
        assert "before 2000-01-01" in find(q="red in 1999")["note"]
        assert (
            "option 'literal'" in find(422, q="red in 2021", after="2022-01-01")["error"]["message"]
        )
        for bad in ("nowhere", "1", "\x00"):
            assert find(404, near=bad)["error"]["code"] == "not_found"
        assert find(422, near="91,0")["error"]["code"] == "invalid"
        find(422, within="5km")
        for bad in ("far", "0km", "-1km", "9" * 30):
            find(422, near="1,1", within=bad)
        find(422, near="")


def test_the_name_of_a_file_has_its_date_if_the_file_has_none(
    folder: Path, bag: BagMethod, zone: None
) -> None:
    (folder / "a.mp4").rename(folder / "VID-20200101-WA0001.mp4")
    (folder / "c.png").rename(folder / "z.png")
    (folder / "PXL_20230715_010203004.png").write_bytes((folder / "z.png").read_bytes())
    (folder / "IMG-20230716-WA0007.png").write_bytes((folder / "z.png").read_bytes())
    run(folder, bag)
    stored = {Path(file.path).name: file.recorded for file in stored_files(folder)}
    assert stored["PXL_20230715_010203004.png"] is None  # Stores made before are read as well.
    engine = Engine.open(folder.parent / "store", bag)
    times = {Path(hit.path).name: hit.metadata["recorded"] for hit in engine.search("red")}
    assert times["VID-20200101-WA0001.mp4"] == JULY
    # Three copies, of which one is not dated: the earliest date.
    expected = datetime(2023, 7, 15, 1, 2, 3, tzinfo=UTC).timestamp()
    assert times["IMG-20230716-WA0007.png"] == expected
    assert engine.info()["files_with_date"] == 3
    # The time in the name of a Pixel is UTC: 18:02 of the day before here.
    hits = engine.search("red", after="2023-07-14T18:00", before="2023-07-14T18:10")
    assert len(hits) == 1
