"""Dates in names of files that phones and messengers write, and numbers that are no dates."""

from datetime import UTC, datetime

import pytest

from eaglenet.store.name_dates import time_from_name

pytestmark = pytest.mark.usefixtures("zone")
MORNING = (2023, 7, 14, 10, 11, 12)
EVENING = (2023, 12, 24, 18, 30, 12)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("20230714_101112.mp4", MORNING),
        ("IMG_20230714_101112.jpg", MORNING),
        ("VID_20230714_101112345.mp4", MORNING),
        ("Screenshot_20230714-101112.png", MORNING),
        ("Screenshot_20230714-101112_Chrome.png", MORNING),
        ("DJI_20230714101112_0001_D.MP4", MORNING),
        ("signal-2023-07-14-10-11-12-345.mp4", MORNING),
        ("signal-2023-07-14-101112.mp4", MORNING),
        ("photo_2023-07-14_10-11-12.jpg", MORNING),
        ("2023-07-14 10.11.12.mp4", MORNING),
        ("2023-07-14T10:11:12.mp4", MORNING),
        ("WhatsApp Video 2023-12-24 at 18.30.12.mp4", EVENING),
        ("WhatsApp Video 2023-12-24 at 18.30.12_ab12cd34.mp4", EVENING),
        ("WhatsApp Image 2023-12-24 at 6.30.12 PM.jpeg", EVENING),
        ("WhatsApp Image 2023-12-24 at 6.30.12\u202fPM (1).jpeg", EVENING),
        ("WhatsApp Image 2023-12-24 at 12.30.12 AM.jpeg", (2023, 12, 24, 0, 30, 12)),
        ("VID-20230715-WA0003.mp4", (2023, 7, 15, 12)),
        ("IMG-20230715-WA0007.jpg", (2023, 7, 15, 12)),
        ("2023-07-14_beach.mp4", (2023, 7, 14, 12)),
        ("20230714.mp4", (2023, 7, 14, 12)),
        ("20230714 beach 1080p.mp4", (2023, 7, 14, 12)),
        ("beach 2023-07-14.mp4", (2023, 7, 14, 12)),
        ("19900101.mp4", (1990, 1, 1, 12)),
        ("2023-02-30 2023-03-01.mp4", (2023, 3, 1, 12)),
    ],
)
def test_a_name_has_a_local_time(name: str, expected: tuple[int, ...]) -> None:
    assert time_from_name(name) == datetime(*expected).timestamp()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "name",
    ["PXL_20230714_101112345.mp4", "PXL_20230714_101112345~2.jpg", "PXL_20230714_101112345.TS.mp4"],
)
def test_names_of_pixel_phones_are_in_utc(name: str) -> None:
    assert time_from_name(name) == datetime(*MORNING, tzinfo=UTC).timestamp()


@pytest.mark.parametrize(
    "name",
    [
        "",
        "IMG_0001.MOV",
        "12345678.mp4",
        "20231399.mp4",
        "20230230.mp4",
        "2023-13-01.mp4",
        "video_99991231.mp4",
        "1920x1080.mp4",
        "call_0049123456789.mp4",
        "shutterstock_20110517.mp4",
        "a20110517.mp4",
        "\u00e420110517_101112.mp4",
        "20110517ab3f.mp4",
        "120230714.mp4",
        "2023071410.mp4",
        "720230714101112.mp4",
        "IMG_20230714_256199.jpg",
        "2023-07-14 99.99.99.mp4",
        "12023-07-14.mp4",
        "2023-07-141.mp4",
        "19891231.mp4",
        "20991231.mp4",
        "2023-07.mp4",
    ],
)
def test_other_numbers_are_no_dates(name: str) -> None:
    assert time_from_name(name) is None
