"""Datasets on the hub whose tables contain videos, unpacked for the dataset ``folder``.

Supports the two layouts of the text-video tasks of MTEB: one table with the columns video and
caption (``mteb/MSR-VTT``), and three tables, ``corpus`` (id, video), ``queries`` (id, text) and
``qrels`` (query-id, corpus-id, score). Tables are Parquet; a video is a struct of bytes and path.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eaglenet.core.errors import DatasetError
from eaglenet.core.files import atomic_folder, expand_home
from eaglenet.core.platform import cache_folder
from eaglenet.core.progress import Progress, report_progress
from eaglenet.encoders.hub import guard_downloads, is_hub_id, split_revision
from eaglenet.indexing.exchange import open_parquet
from eaglenet.research.data.records import clean_captions
from eaglenet.video.containers import VIDEO_SUFFIXES

logger = logging.getLogger(__name__)

CAPTIONS = "captions.jsonl"
CAPTION_COLUMNS = (
    "caption", "text", "sentence", "description", "summary", "video_caption", "av_caption",
)  # fmt: skip
"""Columns with captions in the datasets of MTEB; the first that a table has is used."""
QUERY, DOCUMENT, SCORE = "query-id", "corpus-id", "score"
VERSION = 2
"""Version of :func:`write_folder`; folders that another version unpacked are not used."""
NO_QUERY = "without queries"
"""Folder in the names of videos of a corpus to which no query belongs."""
SPLIT = r"(\w+)-\d+-of-\d+|([A-Za-z]+)"
"""Beginning of a file name, with the name of its split."""
ROWS = 2
"""Rows read at a time; a row contains a whole video."""
MIN_BYTES, MAX_EXPANSION = 2**30, 64
"""Videos and captions may take ``MAX_EXPANSION`` times the size of the tables when unpacked, or
``MIN_BYTES`` if that is more. Tables are smaller because Parquet stores repeated values once."""
MIN_VIDEO, MIN_CAPTION = 4096, 256
"""Smallest size counted for a video on disk and for a caption in memory, in bytes."""


@dataclass(frozen=True)
class Table:
    """Table of a dataset: the files of a split in one folder, in order."""

    name: str
    files: tuple[Path, ...]
    columns: frozenset[str]

    @property
    def caption(self) -> str | None:
        return next((name for name in CAPTION_COLUMNS if name in self.columns), None)

    @property
    def key(self) -> str | None:
        return next((name for name in ("id", "_id") if name in self.columns), None)

    def rows(self, *columns: str | None) -> Iterator[tuple[Any, ...]]:
        """Yield the values of columns row by row."""
        names = [name for name in columns if name is not None]
        for file in self.files:
            with _name_file(file):
                for batch in open_parquet(file).iter_batches(ROWS, columns=names):
                    yield from zip(*(batch.column(name).to_pylist() for name in names), strict=True)


def unpack_hub_dataset(name: str, split: str = "test", *, progress: Progress | None = None) -> Path:
    """Unpack a split into a folder of videos with ``captions.jsonl``, and return the folder.

    ``name`` is a dataset of the hub (``mteb/MSR-VTT``, optionally with ``@REVISION``) or a folder
    in one of its layouts. A dataset is downloaded and unpacked once, into the user's cache.
    """
    local = expand_home(name)
    if local.is_dir():
        files = sorted(path.relative_to(local).as_posix() for path in local.rglob("*.parquet"))
        paths = [local / file for file in choose_files(name, files, split)]
        return _unpack(name, split, paths, f"local-{_file_identity(paths)}", progress)
    identifier, revision = split_revision(name)
    if not is_hub_id(identifier):
        raise DatasetError(f"{name}: no such folder, and not the id of a dataset (OWNER/NAME)")
    commit, paths = download(identifier, revision, split, progress)
    return _unpack(identifier, split, paths, commit, progress)


def _file_identity(paths: Sequence[Path]) -> str:
    """Return a hash of the paths, sizes and times of files."""
    states = [(str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns) for path in paths]
    return hashlib.blake2b(json.dumps(states).encode(), digest_size=16).hexdigest()


def choose_files(name: str, files: Sequence[str], split: str) -> list[str]:
    """Return the Parquet files of a split, such as ``data/test-00000-of-00002.parquet``.

    If several splits share a corpus or queries, these have a single split of another name, such as
    ``corpus/corpus-00000-of-00001.parquet``.
    """
    files_of: dict[tuple[str, str], list[str]] = {}
    for file in sorted(files):
        if match := re.match(SPLIT, Path(file).name):
            name_of_split = match[1] or match[2]
            files_of.setdefault((Path(file).parent.name, name_of_split), []).append(file)
    splits = {split for _, split in files_of}
    if split not in splits:
        contents = f"it has {', '.join(sorted(splits))}" if splits else "it has no Parquet file"
        raise DatasetError(f"{name} has no split {split!r}: {contents}; choose one with --split")
    split_files: list[str] = []
    for folder in dict.fromkeys(folder for folder, _ in files_of):
        own_splits = [own for own_folder, own in files_of if own_folder == folder]
        if split in own_splits:
            split_files += files_of[folder, split]
        elif len(own_splits) == 1 and folder.endswith(("corpus", "queries")):
            split_files += files_of[folder, own_splits[0]]
    return sorted(split_files)


def download(
    identifier: str, revision: str | None, split: str, progress: Progress | None
) -> tuple[str, list[Path]]:
    """Download a split; return the commit of the dataset and the paths of the files."""
    import huggingface_hub
    from huggingface_hub import constants

    api = huggingface_hub.HfApi(endpoint=constants.ENDPOINT)
    try:
        info = api.dataset_info(identifier, revision=revision)
        files = [entry.rfilename for entry in info.siblings or () if entry.rfilename]
        tables = [file for file in files if file.endswith(".parquet")]
        split_files = choose_files(identifier, tables, split)
        paths = []
        for number, file in enumerate(split_files):
            report_progress(progress, "downloads", number, len(split_files))
            with guard_downloads():
                path = api.hf_hub_download(identifier, file, repo_type="dataset", revision=info.sha)
            paths.append(Path(path))
    except DatasetError:
        raise
    except Exception as error:  # The library has a class for each kind of failure.
        lines = str(error).splitlines() or [type(error).__name__]
        raise DatasetError(
            f"{identifier}: cannot be read from {constants.ENDPOINT} ({lines[0]}); check the name, "
            "the network, and for a gated dataset `hf auth login`"
        ) from error
    return str(info.sha), paths


def _unpack(
    name: str, split: str, files: Sequence[Path], identity: str, progress: Progress | None
) -> Path:
    # Without dots at the ends, so that it is never '..', the parent folder.
    title = name.strip("/.").replace("/", "--").replace("\\", "--")[-100:] or "dataset"
    if not re.fullmatch(r"[0-9A-Za-z-]{1,64}", identity):
        raise DatasetError(f"{name}: invalid commit {identity!r:.80} from the hub")
    target = cache_folder() / "datasets" / f"{identity}-{split}-{VERSION}" / title
    if not (target / CAPTIONS).is_file():
        tables = read_tables(files)
        target.parent.mkdir(parents=True, exist_ok=True)
        with atomic_folder(target) as folder:
            write_folder(name, tables, split, folder, progress)
    return target


def read_tables(files: Sequence[Path]) -> list[Table]:
    """Group files into tables by folder, and read the columns of their first file."""
    folders: dict[str, list[Path]] = {}
    for file in files:
        folders.setdefault(file.parent.name, []).append(file)
    tables = []
    for folder, members in folders.items():
        with _name_file(members[0]):
            columns = frozenset(open_parquet(members[0]).schema_arrow.names)
        tables.append(Table(folder, tuple(members), columns))
    return tables


def write_folder(
    name: str, tables: Sequence[Table], split: str, folder: Path, progress: Progress | None
) -> None:
    """Write videos as files, and ``captions.jsonl``."""
    (folder / "videos").mkdir()
    size = sum(file.stat().st_size for table in tables for file in table.files)
    budget = _Budget(max(MIN_BYTES, MAX_EXPANSION * size))
    captions_of: dict[str, list[str]] = {}
    known_videos: dict[tuple[str, bytes], str] = {}
    pairs = next((table for table in tables if "video" in table.columns and table.caption), None)
    if pairs is not None:
        for number, (value, text) in enumerate(pairs.rows("video", pairs.caption)):
            where = f"{name}: row {number}"
            captions = _captions(text, where, budget)
            video = _write_video(folder, number, value, where, budget, known_videos)
            captions_of.setdefault(video, []).extend(captions)
            report_progress(progress, "videos", number + 1, 0)
    else:
        captions_of = _write_corpus(name, tables, folder, budget, progress)
    if not any(captions_of.values()):
        raise DatasetError(f"{name}: the split {split!r} has no videos")
    with (folder / CAPTIONS).open("w", encoding="utf-8") as file:
        for video, captions in captions_of.items():
            row = {"video": video, "captions": captions, "split": split}
            file.write(json.dumps(row) + "\n")
    logger.info("%s: %d videos in %s", name, len(captions_of), folder)


@dataclass
class _Budget:
    """Bytes that may still be unpacked; a small table must not fill the disk or memory."""

    num_bytes: int

    def spend(self, num_bytes: int, where: str) -> None:
        self.num_bytes -= num_bytes
        if self.num_bytes < 0:
            raise DatasetError(
                f"{where}: videos and captions take {MAX_EXPANSION} times the size of the tables"
            )

    def spend_on_texts(self, value: Any, where: str) -> None:
        texts = value if isinstance(value, list) else [value]
        self.spend(sum(max(len(str(text)), MIN_CAPTION) for text in texts), where)


def _write_corpus(
    name: str, tables: Sequence[Table], folder: Path, budget: _Budget, progress: Progress | None
) -> dict[str, list[str]]:
    """Write the videos of a corpus; return the queries relevant to each as its captions."""
    corpus = next((table for table in tables if "video" in table.columns and table.key), None)
    queries = next(
        (table for table in tables if table.caption and table.key and table is not corpus), None
    )
    relevance = next((table for table in tables if {QUERY, DOCUMENT} <= table.columns), None)
    if corpus is None or queries is None or relevance is None:
        contents = "; ".join(
            f"{table.name}: {', '.join(sorted(table.columns))}" for table in tables
        )
        raise DatasetError(
            f"{name}: expected a table with the columns video and caption, or the tables corpus "
            f"(id, video), queries (id, text) and qrels ({QUERY}, {DOCUMENT}); it has {contents}"
        )
    texts: dict[str, Any] = {}
    for number, (key, text) in enumerate(queries.rows(queries.key, queries.caption)):
        budget.spend_on_texts(text, f"{name}: row {number} of {queries.name}")
        texts[str(key)] = text
    captions: dict[str, list[str]] = {}
    known_pairs: set[tuple[str, str]] = set()
    score = SCORE if SCORE in relevance.columns else None
    for number, (query, document, *scores) in enumerate(relevance.rows(QUERY, DOCUMENT, score)):
        where = f"{name}: row {number} of {relevance.name}"
        pair = str(query), str(document)
        if pair in known_pairs or not all(_is_relevant(value, where) for value in scores):
            continue
        known_pairs.add(pair)
        if str(query) not in texts:
            raise DatasetError(f"{where} names the query {query!r:.60}, which does not exist")
        captions.setdefault(str(document), []).extend(_captions(texts[str(query)], where, budget))
    captions_of: dict[str, list[str]] = {}
    known_keys = set(captions)
    for number, (key, value) in enumerate(corpus.rows(corpus.key, "video")):
        if str(key) in captions:
            where = f"{name}: row {number} of {corpus.name}"
            video = _write_video(folder, number, value, where, budget)
            captions_of[video] = captions.pop(str(key))
            report_progress(progress, "videos", number + 1, 0)
        elif str(key) not in known_keys:  # Counted as left out; its file is not needed.
            budget.spend_on_texts(str(key), f"{name}: row {number} of {corpus.name}")
            captions_of.setdefault(f"{NO_QUERY}/{key}", [])
    if captions:
        raise DatasetError(
            f"{name}: {relevance.name} names the video {next(iter(captions))!r:.60}, which does "
            f"not exist in {corpus.name}"
        )
    return captions_of


def _is_relevant(score: Any, where: str) -> bool:
    """Return whether a video is relevant to a query; a score of 0 or none marks one that is not."""
    try:
        return float(score or 0) > 0
    except (TypeError, ValueError):
        raise DatasetError(f"{where} has the score {score!r:.60}; expected a number") from None


def _captions(value: Any, where: str, budget: _Budget) -> list[str]:
    budget.spend_on_texts(value, where)
    texts, _ = clean_captions(value if isinstance(value, list) else [value], where)
    if not texts:
        raise DatasetError(f"{where} has no caption")
    return list(texts)


def _write_video(
    folder: Path,
    number: int,
    value: Any,
    where: str,
    budget: _Budget,
    known_videos: dict[tuple[str, bytes], str] | None = None,
) -> str:
    """Write a video and return its name in ``folder``.

    known_videos: names by path and hash, for tables that repeat a video for each of its captions.
    """
    content = value.get("bytes") if isinstance(value, Mapping) else None
    if not isinstance(content, bytes):
        raise DatasetError(
            f"{where}: the video is not in the table; only datasets that contain their videos can "
            "be read"
        )
    budget.spend(max(len(content), MIN_VIDEO), where)
    path = str(value.get("path") or "")
    suffix = Path(path).suffix.lower()
    name = f"videos/{number:06d}{suffix if suffix in VIDEO_SUFFIXES else '.mp4'}"
    if known_videos is not None:
        key = (path, hashlib.blake2b(content, digest_size=16).digest())
        if known_videos.setdefault(key, name) != name:
            return known_videos[key]
    (folder / name).write_bytes(content)
    return name


@contextmanager
def _name_file(file: Path) -> Iterator[None]:
    """Add the file name to errors of Arrow."""
    try:
        yield
    # The base classes of Arrow's errors.
    except (ValueError, OSError, KeyError, NotImplementedError) as error:
        lines = str(error).splitlines() or [type(error).__name__]
        raise DatasetError(f"{file}: not a readable Parquet table ({lines[0]})") from error
