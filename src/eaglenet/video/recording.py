"""Time, place and camera of a recording, from the container or EXIF of its file.

The modification time of a file is often that of a copy. Cameras and phones write the recording time
as ``creation_time`` (UTC), ``com.apple.quicktime.creationdate`` (with time zone) or EXIF
``DateTimeOriginal``, the place as ISO 6709 or EXIF GPS, and their make and model.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eaglenet.core.errors import UsageError, VideoDecodeError
from eaglenet.video.containers import is_image, open_container

EARTH_KM = 6371.0088
"""Mean radius of the earth, IUGG."""
MAX_TAG = 200
"""Maximum characters of a tag."""
MAX_CAMERA = 80
OLDEST = datetime(1971, 1, 1, tzinfo=UTC).timestamp()
"""Earlier times come from clocks that were never set: QuickTime starts in 1904, Unix in 1970."""
LATEST = datetime(9000, 1, 1, tzinfo=UTC).timestamp()
"""Upper limit that calendar libraries can represent in every time zone."""
DATE_TAGS = (
    "com.apple.quicktime.creationdate",
    "date_recorded",
    "date_digitized",
    "creation_time",
    "icrd",  # RIFF, in AVI
    "date",
)
"""Tags with the recording time, the most precise first."""
PLACE_TAGS = (
    "com.apple.quicktime.location.iso6709",
    "location",
    "location-eng",
    "xyz",
)
MAKE_TAGS = ("com.apple.quicktime.make", "com.android.manufacturer", "make")
MODEL_TAGS = ("com.apple.quicktime.model", "com.android.model", "model")
_DATE_ORIGINAL, _OFFSET_ORIGINAL, _DATE = 0x9003, 0x9011, 0x0132
_MAKE, _MODEL = 0x010F, 0x0110
_COORDINATE = re.compile(r"([+-]\d+(?:\.\d+)?)([+-]\d+(?:\.\d+)?)([+-]\d+(?:\.\d+)?)?(?:CRS\w*)?/?")


@dataclass(frozen=True)
class Place:
    """A position on earth in degrees north and east."""

    latitude: float
    longitude: float

    def __post_init__(self) -> None:
        if not (abs(self.latitude) <= 90 and abs(self.longitude) <= 180):
            raise ValueError(f"{self.latitude}, {self.longitude} is not a position on earth")


@dataclass(frozen=True)
class Recording:
    """Recording details of a file; None or empty if unknown.

    recorded: recording time in seconds since 1970. A time without time zone is interpreted in that
        of the machine that reads it.
    camera: make and model.
    """

    recorded: float | None = None
    place: Place | None = None
    camera: str = ""

    def __post_init__(self) -> None:
        """Refuse impossible values, which a worker that a file has taken over may send."""
        if self.recorded is not None and not OLDEST <= self.recorded < LATEST:
            raise ValueError(f"{self.recorded} is not a recording time")
        if len(self.camera) > MAX_CAMERA or not self.camera.isprintable():
            raise ValueError("not the name of a camera")


def read_recording(path: str | Path) -> Recording:
    """Read the tags of a video or image without decoding it."""
    if is_image(path):
        return _read_image(Path(path))
    try:
        with open_container(Path(path)) as container:
            tags = dict(container.metadata)
            for stream in container.streams:
                for name, value in stream.metadata.items():
                    tags.setdefault(name, value)
    except (OSError, ValueError) as error:
        raise VideoDecodeError(path, str(error)) from error
    return recording_from_tags(tags)


def _read_image(path: Path) -> Recording:
    from eaglenet.video.images import read_exif  # Not needed for videos or for filters.

    try:
        return recording_from_exif(read_exif(path))
    # Pillow raises exceptions of any type for broken EXIF.
    except Exception as error:
        raise VideoDecodeError(path, str(error)) from error


def recording_from_tags(tags: Mapping[str, str]) -> Recording:
    """Return the recording details in the tags of a container; invalid tags count as missing.

    >>> recording_from_tags({"location": "+48.1374+011.5755/"}).place
    Place(latitude=48.1374, longitude=11.5755)
    """
    values = {name.lower(): str(value)[:MAX_TAG] for name, value in tags.items()}
    times = (_parse_time(values.get(name, "")) for name in DATE_TAGS)
    places = (_place(values.get(name, "")) for name in PLACE_TAGS)
    make, model = (
        next((values[name] for name in names if values.get(name)), "")
        for names in (MAKE_TAGS, MODEL_TAGS)
    )
    return Recording(
        next((time for time in times if time), None),
        next((place for place in places if place), None),
        _camera(make, model),
    )


def recording_from_exif(exif: Any) -> Recording:
    """Return the recording details in the result of :meth:`PIL.Image.Image.getexif`."""
    from eaglenet.video.images import EXIF_IFD, GPS_IFD

    details = exif.get_ifd(EXIF_IFD)
    text = str(details.get(_DATE_ORIGINAL) or exif.get(_DATE) or "")
    match = re.match(r"(\d{4}):(\d\d):(\d\d)[ T](\d\d:\d\d:\d\d)", text)
    seconds = None
    if match is not None:
        # An unknown offset has spaces for its digits.
        zone = re.fullmatch(r"\s*([+-]\d\d:?\d\d|Z)\s*", str(details.get(_OFFSET_ORIGINAL) or ""))
        seconds = _parse_time("{}-{}-{}T{}".format(*match.groups()) + (zone[1] if zone else ""))
    return Recording(
        seconds,
        _exif_place(exif.get_ifd(GPS_IFD)),
        _camera(str(exif.get(_MAKE) or ""), str(exif.get(_MODEL) or "")),
    )


def _exif_place(gps: Mapping[int, Any]) -> Place | None:
    try:
        degrees = [
            sum(float(part) / 60**power for power, part in enumerate(gps[number]))
            * (-1 if str(gps.get(number - 1, "")).upper().startswith(negative) else 1)
            for number, negative in ((2, "S"), (4, "W"))
        ]
        return _checked_place(*degrees)
    except (KeyError, TypeError, ValueError, ZeroDivisionError, OverflowError):
        return None


def parse_iso6709(text: str) -> Place:
    """Parse a place in ISO 6709: degrees, with minutes, or with minutes and seconds.

    >>> parse_iso6709("+4808.244+01134.530+519/")
    Place(latitude=48.1374, longitude=11.5755)
    """
    match = _COORDINATE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r:.40} is not a place in ISO 6709")
    latitude = _degrees(match.group(1), 2)
    return Place(latitude, _degrees(match.group(2), 3))


def _degrees(text: str, width: int) -> float:
    """Parse ``+DD.D``, ``+DDMM.M`` or ``+DDMMSS.S``; ``width`` is the number of degree digits."""
    sign, digits = (-1.0 if text[0] == "-" else 1.0), text[1:]
    integer_part = digits.split(".")[0]
    if len(integer_part) == width + 2:
        value = float(digits[:width]) + float(digits[width:]) / 60
    elif len(integer_part) == width + 4:
        minutes, seconds = float(digits[width : width + 2]), float(digits[width + 2 :])
        value = float(digits[:width]) + minutes / 60 + seconds / 3600
    elif len(integer_part) <= width:
        value = float(digits)
    else:
        raise ValueError(f"{text!r:.40} has too many digits")
    return round(sign * value, 7)


def _place(text: str) -> Place | None:
    try:
        place = parse_iso6709(text)
        return _checked_place(place.latitude, place.longitude)
    except ValueError:
        return None


def _checked_place(latitude: float, longitude: float) -> Place | None:
    """Return the place; None for 0, 0, which receivers without a signal write."""
    if not (math.isfinite(latitude) and math.isfinite(longitude)) or latitude == longitude == 0:
        return None
    return Place(latitude, longitude)


def _parse_time(text: str) -> float | None:
    text = text.strip().replace(" UTC", "Z").replace("/", "-")
    if re.fullmatch(r"\d{4}(-\d\d)?", text):
        return None  # A year or month is that of a release.
    try:
        seconds = datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError):
        return None
    # Two days of tolerance: one for time zones, one for wrong clocks.
    return seconds if OLDEST <= seconds <= time.time() + 2 * 86400 else None


def _camera(make: str, model: str) -> str:
    """Return make and model on one line, without repeating the make.

    >>> _camera("Canon", "Canon EOS 5D")
    'Canon EOS 5D'
    """
    make, model = (
        " ".join("".join(c if c.isprintable() else " " for c in text).split())
        for text in (make, model)
    )
    name = model if model.lower().startswith(make.lower()) else f"{make} {model}"
    return name.strip()[:MAX_CAMERA]


def parse_place(text: str) -> Place:
    """Parse a place typed by a user: ``48.1,11.6`` or ISO 6709.

    >>> parse_place("48.1, 11.6")
    Place(latitude=48.1, longitude=11.6)
    """
    parts = text.split(",")
    try:
        if len(parts) == 2:
            return Place(*(float(part) for part in parts))
        return parse_iso6709(text)
    except ValueError:
        raise UsageError(
            f"{text!r:.60} is not a place; write degrees north and east, like 48.1,11.6"
        ) from None


def parse_distance(text: str) -> float:
    """Parse a distance such as ``5km``, ``800m``, ``3mi`` or ``5``; return kilometres.

    >>> parse_distance("800 m")
    0.8
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(km|m|mi)?\s*", text.lower())
    if match is None or not 0 < float(match.group(1)) < 1e9:
        raise UsageError(f"{text!r:.40} is not a distance; write it like 5km, 800m or 3mi")
    return float(match.group(1)) * {"km": 1.0, "m": 0.001, "mi": 1.609344}[match.group(2) or "km"]


def distances(
    place: Place, latitudes: NDArray[np.floating[Any]], longitudes: NDArray[np.floating[Any]]
) -> NDArray[np.float64]:
    """Return great-circle distances in kilometres; NaN for coordinates that are NaN."""
    north, own = np.radians(np.asarray(latitudes, float)), math.radians(place.latitude)
    east = np.radians(np.asarray(longitudes, float) - place.longitude)
    # The haversine formula is exact for near places, where the arc cosine loses all digits.
    half = np.sin((north - own) / 2) ** 2 + np.cos(north) * math.cos(own) * np.sin(east / 2) ** 2
    result: NDArray[np.float64] = 2 * EARTH_KM * np.arcsin(np.sqrt(np.clip(half, 0, 1)))
    return result
