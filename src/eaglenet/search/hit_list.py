"""A list of hits that tables and notebooks can show."""

from __future__ import annotations

import base64
import html
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eaglenet.core.errors import EagleNetError, UsageError
from eaglenet.core.extras import missing_extra
from eaglenet.core.hits import Hit

if TYPE_CHECKING:
    import pandas
    import pyarrow

Thumbnails = Callable[[str], bytes]


class HitList(list[Hit]):
    """The hits of one query, best first: a list with tables and a picture for notebooks."""

    def __init__(
        self, hits: Iterable[Hit] = (), thumbnails: Thumbnails | None = None, notice: str = ""
    ) -> None:
        """``thumbnails`` gives the JPEG of a clip id, for notebooks."""
        super().__init__(hits)
        self._thumbnails = thumbnails
        self.notice = notice
        """How the text was read, if not as it is written; why a judge did not rate all hits."""

    def to_rows(self) -> list[dict[str, Any]]:
        """One flat dictionary per hit."""
        return [
            {
                "rank": hit.rank,
                "score": hit.score,
                "confidence": hit.confidence,
                "path": hit.path,
                "start": hit.moment.start,
                "end": hit.moment.end,
                "best": hit.moment.best,
                "duration": hit.duration,
                "clip_id": hit.clip_id,
                "matched_in": ",".join(hit.matched_in),
                "text": " / ".join(line.text for line in hit.transcript),
                **{name: hit.metadata.get(name) for name in RECORDING},
            }
            for hit in self
        ]

    def to_pandas(self) -> pandas.DataFrame:
        """A data frame with the columns of :meth:`to_rows`."""
        try:
            import pandas
        except ModuleNotFoundError as error:
            raise UsageError("to_pandas needs pandas: pip install pandas") from error
        return pandas.DataFrame(self.to_rows(), columns=COLUMNS)

    def to_arrow(self) -> pyarrow.Table:
        """An Arrow table with the columns of :meth:`to_rows`."""
        try:
            import pyarrow
        except ModuleNotFoundError as error:
            raise missing_extra(error, "to_arrow") or error from error
        rows = self.to_rows()
        return pyarrow.table({name: [row[name] for row in rows] for name in COLUMNS})

    def _repr_html_(self) -> str:
        """What a notebook shows: thumbnail, time and a link that plays each moment."""
        if not self:
            return "<p>No moments found.</p>"
        cards = "".join(map(self._card, self))
        return f'<div style="display:flex;flex-wrap:wrap;gap:12px">{cards}</div>'

    def _card(self, hit: Hit) -> str:
        name = html.escape(Path(hit.path).name)
        span = f"{_clock(hit.moment.start)} to {_clock(hit.moment.end)}"
        link = html.escape(f"{_file_url(hit.path)}#t={hit.moment.start:.2f}", quote=True)
        return (
            f'<a href="{link}" title="{html.escape(hit.path, quote=True)}" target="_blank" '
            'style="width:180px;text-decoration:none;color:inherit">'
            f"{self._image(hit)}<div><b>{hit.rank}. {name}</b></div>"
            f"<div>{span} &middot; {hit.score:.3f}</div></a>"
        )

    def _image(self, hit: Hit) -> str:
        if self._thumbnails is None:
            return ""
        try:
            data = base64.b64encode(self._thumbnails(hit.clip_id)).decode()
        except (EagleNetError, OSError):
            return ""  # The clip is gone meanwhile; the rest of the table still helps.
        return f'<img alt="" style="width:180px" src="data:image/jpeg;base64,{data}">'


RECORDING = ("recorded", "latitude", "longitude", "camera")
COLUMNS = [
    *("rank", "score", "confidence", "path", "start", "end", "best", "duration", "clip_id"),
    *("matched_in", "text"),
    *RECORDING,
]


def _clock(seconds: float) -> str:
    """Hours, minutes and seconds.

    >>> _clock(3725.4)
    '1:02:05'
    """
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _file_url(path: str) -> str:
    return path if "://" in path else Path(path).absolute().as_uri()
