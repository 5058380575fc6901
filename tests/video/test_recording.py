"""Recording time, place and camera, written with FFmpeg and Pillow, then read."""

from datetime import UTC, datetime
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from eaglenet.core.errors import UsageError, VideoDecodeError
from eaglenet.video.recording import (
    Place,
    Recording,
    distances,
    parse_distance,
    parse_iso6709,
    parse_place,
    read_recording,
    recording_from_tags,
)

MUNICH = Place(48.1374, 11.5755)


def write_video(path: Path, tags: dict[str, str], **options: str) -> Path:
    with av.open(str(path), "w", options=options) as container:
        container.metadata.update(tags)
        stream = container.add_stream("mpeg4", rate=5)
        stream.width = stream.height = 32
        frame = av.VideoFrame.from_ndarray(np.zeros((32, 32, 3), np.uint8))
        container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return path


def seconds(*date: int) -> float:
    return datetime(*date, tzinfo=UTC).timestamp()  # type: ignore[misc,arg-type]


def test_an_iphone_video_has_time_place_and_camera(tmp_path: Path) -> None:
    tags = {
        "creation_time": "2023-07-20T09:00:00.000000Z",  # when it was exported
        "com.apple.quicktime.creationdate": "2023-07-14T18:02:11+0200",
        "com.apple.quicktime.location.ISO6709": "+48.1374+011.5755+519.000/",
        "com.apple.quicktime.make": "Apple",
        "com.apple.quicktime.model": "iPhone 14",
    }
    path = write_video(tmp_path / "a.mov", tags, movflags="use_metadata_tags")
    expected = Recording(seconds(2023, 7, 14, 16, 2, 11), MUNICH, "Apple iPhone 14")
    assert read_recording(path) == expected


def test_an_android_video_has_time_and_place(tmp_path: Path) -> None:
    tags = {"creation_time": "2022-12-24T17:30:00Z", "location": "+48.1374+011.5755/"}
    path = write_video(tmp_path / "a.mp4", tags)
    assert read_recording(path) == Recording(seconds(2022, 12, 24, 17, 30), MUNICH)


def test_matroska_has_its_own_name_for_the_date(tmp_path: Path) -> None:
    path = write_video(tmp_path / "a.mkv", {"DATE_RECORDED": "2021-05-01T08:00:00+00:00"})
    assert read_recording(path).recorded == seconds(2021, 5, 1, 8)


@pytest.mark.parametrize("suffix", ["jpg", "png", "webp", "tif", "avif", "heic"])
def test_a_photograph_has_time_place_and_camera(tmp_path: Path, suffix: str) -> None:
    if suffix == "heic":
        pytest.importorskip("pillow_heif").register_heif_opener()
    exif = Image.Exif()
    exif[0x010F], exif[0x0110] = "Canon", "Canon EOS 5D"
    exif.get_ifd(0x8769).update({0x9003: "2020:02:29 12:00:00", 0x9011: "-08:00"})
    exif.get_ifd(0x8825).update(
        {
            1: "S",
            2: (Fraction(33), Fraction(51), Fraction(54)),
            3: "W",
            4: (Fraction(151), Fraction(12), Fraction(36)),
        }
    )
    path = tmp_path / f"a.{suffix}"
    Image.new("RGB", (64, 64)).save(path, exif=exif.tobytes())
    recording = read_recording(path)
    assert recording.recorded == seconds(2020, 2, 29, 20)
    assert recording.camera == "Canon EOS 5D"
    assert recording.place is not None
    assert recording.place.latitude == pytest.approx(-33.865)
    assert recording.place.longitude == pytest.approx(-151.21)


@pytest.mark.parametrize("offset", ["   :  ", " ", "0", "+25:99x"])
def test_a_photograph_with_an_unknown_offset_has_a_time(tmp_path: Path, offset: str) -> None:
    """Cameras that do not know it write spaces and a colon, as EXIF says."""
    exif = Image.Exif()
    exif.get_ifd(0x8769).update({0x9003: "2020:02:29 12:00:00", 0x9011: offset})
    path = tmp_path / "a.jpg"
    Image.new("RGB", (8, 8)).save(path, exif=exif.tobytes())
    assert read_recording(path).recorded == datetime(2020, 2, 29, 12).timestamp()


@pytest.mark.parametrize("name", ["a.mp4", "a.mkv", "a.png", "a.jpg"])
def test_a_file_without_tags_says_nothing(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    if name.endswith("g"):
        Image.new("RGB", (8, 8)).save(path)
    else:
        write_video(path, {})
    assert read_recording(path) == Recording()


@pytest.mark.parametrize("name", ["a.mp4", "a.jpg"])
def test_a_file_that_is_no_video_is_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(b"nothing of the kind")
    with pytest.raises(VideoDecodeError):
        read_recording(path)


@pytest.mark.parametrize(
    "value",
    [
        "",
        "1904-01-01T00:00:00Z",
        "1970-01-01T00:00:00Z",
        "2999-01-01T00:00:00Z",
        "0000-00-00",
        "2023-02-30",
        "1984",
        "2019-07",
        "yesterday",
        "9" * 500,
    ],
)
def test_clocks_that_were_never_set_say_nothing(value: str) -> None:
    assert recording_from_tags({"creation_time": value}).recorded is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("+48.1374+011.5755/", MUNICH),
        ("+48.1374+011.5755+519.000/", MUNICH),
        ("+48.1374+011.5755+519.000CRSWGS_84/", MUNICH),
        ("+4808.244+01134.530/", MUNICH),
        ("+480814.64+0113431.8/", MUNICH),
        ("-33.8650-151.2100/", Place(-33.865, -151.21)),
        ("+48.1374+11.5755", MUNICH),  # Some phones write two digits.
    ],
)
def test_places_of_iso_6709(text: str, expected: Place) -> None:
    place = parse_iso6709(text)
    assert place.latitude == pytest.approx(expected.latitude, abs=1e-5)
    assert place.longitude == pytest.approx(expected.longitude, abs=1e-5)


@pytest.mark.parametrize(
    "value",
    ["", "/", "+48.1374/", "+99.0+011.0/", "+48.0+999.0/", "0+0", "+0.0+0.0/", "+4é+5/", "+" * 300],
)
def test_places_that_are_nowhere_say_nothing(value: str) -> None:
    assert recording_from_tags({"location": value}).place is None


@given(st.dictionaries(st.sampled_from(["location", "creation_time", "date", "make"]), st.text()))
def test_any_tags_can_be_read(tags: dict[str, str]) -> None:
    recording = recording_from_tags(tags)
    assert recording.camera.isprintable()


def test_distances_equal_published_ones() -> None:
    # Nashville to Los Angeles, the example of Rosetta Code for this radius, 2,886.45 km.
    nashville = Place(36.12, -86.67)
    kilometres = distances(
        nashville, np.array([33.94, 36.12, np.nan]), np.array([-118.40, -86.67, 0])
    )
    assert kilometres[:2] == pytest.approx([2886.45, 0.0], abs=0.01)
    assert np.isnan(kilometres[2])


def test_distances_cross_the_date_line_and_the_poles() -> None:
    across = distances(Place(0.0, 179.5), np.array([0.0]), np.array([-179.5]))
    assert across == pytest.approx([111.195], abs=0.01)
    assert distances(Place(89.5, 0.0), np.array([89.5]), np.array([180.0])) == pytest.approx(
        [111.195], abs=0.01
    )


@pytest.mark.parametrize("text", ["", "here", "48", "48,", "91,0", "0,181", "1,2,3", "nan,nan"])
def test_a_place_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="not a place"):
        parse_place(text)


def test_typed_places_and_distances() -> None:
    assert parse_place("48.1,11.6") == Place(48.1, 11.6)
    assert parse_place("-33.9, 151.2") == Place(-33.9, 151.2)
    assert parse_distance("5km") == 5
    assert parse_distance("3 mi") == pytest.approx(4.828032)
    for text in ("", "-5km", "0km", "5 parsecs", "1e400km"):
        with pytest.raises(UsageError, match="not a distance"):
            parse_distance(text)
