"""Geographic places by name, from a local GeoNames table.

``EAGLENET_PLACES`` is the path of a table like ``cities15000.txt`` from
download.geonames.org/export/dump: one place per line, columns separated by tabs. Nothing is
downloaded.
"""

from __future__ import annotations

import os
import re
import unicodedata
from functools import lru_cache
from pathlib import Path

from eaglenet.core.errors import UsageError, cause_of
from eaglenet.core.files import expand_home
from eaglenet.video.recording import Place, parse_place

VARIABLE = "EAGLENET_PLACES"
DOWNLOAD = (
    "curl -O https://download.geonames.org/export/dump/cities15000.zip && unzip cities15000.zip "
    f'&& export {VARIABLE}="$PWD/cities15000.txt"'
)
"""Command that downloads the table of towns with 15,000 or more inhabitants."""
MAX_BYTES = 2**29
"""Maximum size of the table; the one of places with 500 or more inhabitants has 40 MB."""
NAMES = slice(1, 4)
"""Columns with the name, its ASCII form, and other names separated by commas."""
LATITUDE, LONGITUDE, COUNTRY, REGION, POPULATION = 4, 5, 8, 10, 14
NUM_COLUMNS = 19


def fold_accents(text: str) -> str:
    """Remove case and accents, composed or decomposed, so that texts can be compared.

    >>> fold_accents("Été à Genève")
    'ete a geneve'
    """
    if text.isascii():
        return text.lower()
    characters = unicodedata.normalize("NFKD", text.casefold())
    return "".join(each for each in characters if not unicodedata.combining(each))


def find_place(text: str) -> Place:
    """Parse ``48.1,11.6``, ISO 6709, or the name of a place: ``Munich`` or ``Paris, US``."""
    if not re.search(r"[^\W\d_]{2}", text) or text.lower().endswith("crswgs_84/"):
        return parse_place(text)
    table = os.environ.get(VARIABLE)
    if not table:
        raise UsageError(
            f"{text!r:.60}: place names need a table of towns; write degrees north and east, like "
            f"48.1,11.6, or get the table with: {DOWNLOAD}"
        )
    path = expand_home(table)
    try:
        status = path.stat()
        if status.st_size > MAX_BYTES:
            raise ValueError(f"more than {MAX_BYTES >> 20} MiB")
        place = _look_up(path, status.st_mtime_ns, " ".join(fold_accents(text).split()))
    except (OSError, ValueError) as error:
        # Clients of a service see this message; they must not learn the folder of the table.
        raise UsageError(f"{VARIABLE}, {path.name}: {cause_of(error)}") from error
    if place is None:
        raise UsageError(
            f"{text!r:.60} is not in {path.name}; write degrees north and east, like 48.1,11.6"
        )
    return place


@lru_cache(maxsize=64)
def _look_up(path: Path, modified_ns: int, text: str) -> Place | None:
    """Find a place by name; of several, the one with the most inhabitants.

    The code of a country or region may follow a comma: ``paris, us``, ``paris, tx``.
    """
    name, _, code = (part.strip() for part in text.partition(","))
    # Their ASCII form is in the line as well, and folding all lines takes seconds.
    prepare = str.lower if name.isascii() else fold_accents
    best: tuple[int, Place] | None = None
    # "replace" keeps one damaged name from hiding all others.
    with path.open(encoding="utf-8", errors="replace", newline="\n") as lines:
        for number, line in enumerate(lines, 1):
            if name not in prepare(line):
                continue
            columns = line.rstrip("\n").split("\t")
            if len(columns) != NUM_COLUMNS:
                raise ValueError(f"line {number} has {len(columns)} columns, not {NUM_COLUMNS}")
            names = fold_accents(",".join(columns[NAMES])).split(",")
            codes = [columns[COUNTRY].lower(), columns[REGION].lower()]
            if name not in names or (code and code not in codes):
                continue
            population = int(columns[POPULATION] or 0)
            if best is None or population > best[0]:
                best = population, Place(float(columns[LATITUDE]), float(columns[LONGITUDE]))
    return best[1] if best else None
