"""The options of `eaglenet search`, with what their help says."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Words = Annotated[list[str] | None, typer.Argument(metavar="QUERY", help="What should be seen.")]
Results = Annotated[int, typer.Option("-k", "--results", help="Number of results.")]
Shortlist = Annotated[
    int, typer.Option(min=1, help="Clips that are ranked exactly; at least -k are.")
]
ModelMoved = Annotated[str | None, typer.Option(help="Where the model is, if it moved.")]
SearchDevice = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
QueryFile = Annotated[
    Path | None, typer.Option(help="Text file with one query a line; - for standard input.")
]
Negatives = Annotated[
    list[str] | None, typer.Option("--not", help="A phrase to keep away from; repeatable.")
]
ImageFile = Annotated[Path | None, typer.Option(help="Search with a picture.")]
VideoFile = Annotated[Path | None, typer.Option(help="Search with a video file.")]
SimilarTo = Annotated[str | None, typer.Option(help="Search with a clip id.")]
CaptionFile = Annotated[
    Path | None,
    typer.Option(help="With --video or --similar: rank the lines of this file for it."),
]
Parts = Annotated[
    str,
    typer.Option(
        "--in",
        help="Where to look: pictures, speech (subtitles too), text in frames; several with "
        'commas. "Quotes" enclose an exact phrase of speech or text.',
    ),
]
Grouped = Annotated[bool, typer.Option("--group", help="One result a file.")]
Unfolded = Annotated[
    bool, typer.Option("--unfold", help="Show near copies of files and repeated moments too.")
]
PathPattern = Annotated[
    str | None, typer.Option(help="Only paths that match: '*.mov', 'holidays/*', or a part.")
]
After = Annotated[str | None, typer.Option(help="Only files changed since, 2026-05-31.")]
Before = Annotated[str | None, typer.Option(help="Only files changed before.")]
Seconds = Annotated[float | None, typer.Option(help="Seconds, of the file.")]
Tags = Annotated[list[str] | None, typer.Option(help="Only with this tag; repeatable.")]
SaveClips = Annotated[
    Path | None,
    typer.Option(metavar="FOLDER", help="Save the moment of each result here, with sound."),
]
Padding = Annotated[
    float, typer.Option(min=0, help="Seconds before and after a moment that are saved too.")
]
SaveAs = Annotated[str, typer.Option(help="video, gif, or sheet: frames in rows.")]
InTerminal = Annotated[
    bool, typer.Option("--pictures", help="Show pictures where the terminal can.")
]
OpenBest = Annotated[
    bool, typer.Option("--open", help="Play the best result in mpv, vlc or the browser.")
]
HtmlFile = Annotated[Path | None, typer.Option(help="Write a page with pictures.")]
PictureFile = Annotated[Path | None, typer.Option(help="Write the results as a PNG.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
