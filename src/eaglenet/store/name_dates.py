"""Recording times in names of files: messengers remove those inside the files.

A date without dashes counts at the beginning of a name, after ``IMG`` or ``VID``, or with a time of
day; elsewhere eight digits are more often a number than a date.
"""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime

_NAME_DATE = re.compile(
    # The lookbehind is not first: a search is faster if the pattern begins with known digits.
    r"((?:19(?=9)|20)(?<![^\W_]\d\d)\d\d)(-?)(\d\d)\2(\d\d)"
    # One digit is an hour only before a separator.
    r"((?:T|[-_ ]+(?:at )?)?(\d\d|\d(?=\D))([-._:]?)(\d\d)\7(\d\d)"
    r"(?:[-.]?\d{3})?(?:\s?([AP])M)?)?(?![^\W_])",
    re.IGNORECASE,
)
"""Year, dash, month, day; time of day as a whole, hour, separator, minute, second, A or P."""
_BEFORE_DAY = ("", "IMG-", "IMG_", "VID-", "VID_")


def time_from_name(name: str) -> float | None:
    """Return the recording time that a phone, camera or messenger wrote into the name of a file.

    In seconds since 1970. Names of Pixel phones are in UTC, all others in the zone of this machine.
    A day without a time is its noon, which is the same day in most other zones.

    >>> time_from_name("PXL_20230714_101112345.mp4")
    1689329472.0
    >>> time_from_name("IMG_0001.MOV")
    """
    for match in _NAME_DATE.finditer(name):
        year, dash, month, day, clock, hour, _, minute, second, half = match.groups()
        beginning = name[: match.start()].upper()
        if not (clock or dash or beginning in _BEFORE_DAY):
            continue
        hours = int(hour or 12)
        if half and 1 <= hours <= 12:
            hours = hours % 12 + (12 if half in "Pp" else 0)
        zone = UTC if beginning == "PXL_" else None
        try:
            days = int(year), int(month), int(day)
            moment = datetime(*days, hours, int(minute or 0), int(second or 0), tzinfo=zone)
            seconds = moment.timestamp()
        except (ValueError, OverflowError, OSError):
            continue
        # Two days of tolerance: one for time zones, one for wrong clocks.
        if seconds <= time.time() + 2 * 86400:
            return seconds
    return None
