"""Notes and hints of ``eaglenet search`` on standard error."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from eaglenet.cli.terminal import print_line
from eaglenet.core.errors import shell_join, shell_quote, store_option
from eaglenet.core.text import pluralize
from eaglenet.search.grammar import AnyQuery, clip_id_in, file_name_in
from eaglenet.search.options import Filters, SearchOptions
from eaglenet.search.query import Query
from eaglenet.search.wording import negation_in
from eaglenet.store.object_storage import absolute_location, is_inside
from eaglenet.video.containers import INDEXED_SUFFIXES, is_image

if TYPE_CHECKING:
    from eaglenet.search.engine import Engine
    from eaglenet.search.hits import HitList, SearchResult

_note = partial(print_line, is_error=True)
NO_TRANSCRIPTS = (
    "this store has no transcripts. Subtitles in and beside videos are indexed by default; "
    "`eaglenet index --listen MODEL` adds speech, `--read-text` adds on-screen text, `--describe "
    "URL` adds descriptions"
)


def print_notes(
    engine: Engine,
    store: str,
    results: list[SearchResult],
    options: SearchOptions,
    as_json: bool,
) -> None:
    """Print notes on the searched store and on missing results to standard error."""
    from eaglenet.indexing.files import is_missing_file

    hits = [hit for result in results for hit in result.hits]
    num_clips = len(engine.snapshot)
    if not num_clips:
        note_empty_store(store)
    elif "visual" not in options.modalities and not engine.info()["transcript_lines"]:
        _note(NO_TRANSCRIPTS)
    elif not as_json:
        # Several queries may have different dates: report the one that searches most.
        num_searched = max(engine.num_searched(result.query, options) for result in results)
        part = "" if num_searched == num_clips else f"{num_searched:,} of "
        note = "" if engine.has_confidence else "; confidence was not measured for this model"
        clips = pluralize(num_clips, "clip")
        # Without hits, the reason says it.
        hints = (engine.date_hint(result.query, options) for result in results if result.hits)
        note += next(filter(None, hints), "")
        _note(f"searched {part}{clips} in {store}{note}")
    has_moments = any(hit.duration and not hit.transcript for hit in hits)
    if has_moments and engine.manifest.layout.num_frames == 1 and not as_json:
        _note("moments are whole clips: this model has one vector per clip")
    if not as_json and len(results) == 1:
        print_name_hint(engine, results[0], options)
    copies = {path for hit in hits for path in hit.metadata.get("copies", ())}
    if copies and not as_json:
        count = pluralize(len(copies), "near copy", "near copies")
        _note(f"{count} not shown; show them with --keep-duplicates")
    if any("from_keyframes" in hit.metadata for hit in hits) and not as_json:
        _note(
            "some hits are approximate (keyframes only); complete them with: eaglenet "
            f"index {shell_join(engine.manifest.roots or ('FOLDER',))}{store_option(store)}"
        )
    paths = dict.fromkeys(hit.path for hit in hits)
    missing_paths = [path for path in paths if is_missing_file(path)]
    if missing_paths:
        files = pluralize(
            len(missing_paths), "indexed file no longer exists", "indexed files no longer exist"
        )
        advice = _removal_advice(missing_paths[0], engine.manifest.roots, store)
        _note(f"{files} (first: {missing_paths[0]}); {advice}")


def note_empty_store(store: str) -> None:
    command = f"eaglenet index PATH{store_option(store)}"
    _note(f"{store} contains no clips yet; add videos with: {command}")


def note_indexed_folder(path: Path | None, roots: Sequence[str]) -> None:
    """Say if moments were saved where the next index run finds them."""
    if path is None:
        return
    root = next((root for root in roots if is_inside(absolute_location(path), root)), None)
    if root is not None:
        _note(f"{path} is in the indexed folder {root}: what was saved there will be indexed, too")


def _removal_advice(path: str, roots: Sequence[str], store: str) -> str:
    """Return how to remove a file that no longer exists from a store."""
    root = next((root for root in roots if is_inside(path, root)), None)
    if root is None or os.path.exists(root):
        folder = "FOLDER" if root is None else root
        return (
            f"remove from the store with: eaglenet index {shell_quote(folder)}"
            f"{store_option(store)} --drop-missing"
        )
    # `index` refuses a folder that does not exist.
    return (
        f"{root} does not exist: if it was renamed, index it under its new name, and remove the "
        f"old one from the store with: eaglenet store remove {shell_quote(root)}"
        f"{store_option(store)}"
    )


def print_name_hint(engine: Engine, result: SearchResult, options: SearchOptions) -> None:
    """Print a hint if paths contain a text that looks like a name or has no likely hit."""
    text = (result.query.text or "").strip('"') if isinstance(result.query, Query) else ""
    is_found = any(hit.transcript or hit.match in ("sure", "likely") for hit in result.hits)
    is_found = is_found and not re.search(r"[0-9_]", text) and not file_name_in(result.query)
    if not text or is_found or options.filters or any(char in text for char in "*?["):
        return
    is_match = engine.read(lambda view: Filters(path=text).matches(view.files))
    count = int(is_match.sum())
    if 0 < count < len(is_match):
        files = pluralize(count, "path contains", "paths contain")
        _note(f"{files} this text; search only there: --path {shell_quote(text)}")


def print_notice(query: AnyQuery, hits: HitList, options: SearchOptions) -> None:
    if not hits.notice:
        return
    notice = hits.notice
    if query.dates:
        date = query.dates.notice
        notice = notice.replace(date, f"{date} (--literal searches for the text as it is)", 1)
    negation = negation_in(query, options)
    if negation is not None and negation.text:
        words = [negation.text, *(word for each in negation.negatives for word in ("--not", each))]
        arguments = shell_join(words)
        if negation.query:
            advice = f" (or: {arguments})"
        else:
            advice = f"; to rank such moments lower, write: {arguments}"
        notice = notice.replace(negation.hint, f"{negation.hint}{advice}", 1)
    clip_id = clip_id_in(query)
    if clip_id:
        notice += f"; find moments like this clip: --similar {shell_quote(clip_id)}"
    name = file_name_in(query)
    # Unlike `Path.is_file`, this does not raise for a name that is too long.
    if os.path.isfile(name) and Path(name).suffix.lower() in INDEXED_SUFFIXES:
        option = "--image" if is_image(name) else "--video"
        notice += f"; search with this file: {option} {shell_quote(name)}"
    _note(notice)
