"""Index videos: find what changed, decode ahead in workers, encode in batches, commit often.

A run without new files neither loads a model nor imports torch.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, cast

from eaglenet.core.errors import UsageError
from eaglenet.core.files import expand_home
from eaglenet.core.frame_spec import Splitting
from eaglenet.core.platform import default_store
from eaglenet.core.progress import Progress, ProgressUpdate, activity, is_watched, show_progress
from eaglenet.core.settings import from_plain
from eaglenet.core.text import list_unknown
from eaglenet.encoders import hardware
from eaglenet.indexing.decoding import check_splitting
from eaglenet.indexing.describe import ClipDescriber, DescriptionRun
from eaglenet.indexing.encoding import prepare_for_precision
from eaglenet.indexing.executor import (
    Executor,
    ExecutorFactory,
    ExecutorSettings,
    check_decode,
    find_executor,
    num_workers,
    supports_int8,
)
from eaglenet.indexing.fetching import find_listed_files, find_objects, parents_of
from eaglenet.indexing.files import CandidateFile, find_videos, real_folders
from eaglenet.indexing.ignore import Exclusions
from eaglenet.indexing.ledger import Ledger
from eaglenet.indexing.model import ModelSource, read_hubness_texts
from eaglenet.indexing.options import IndexOptions
from eaglenet.indexing.recognition import (
    OnScreenTextRecognizer,
    RecognitionRun,
    Recognizer,
    SpeechRecognizer,
)
from eaglenet.indexing.report import IndexReport, OnProgress, show_on
from eaglenet.indexing.run import Commit, IndexRun, Tally
from eaglenet.indexing.transcripts import TranscriptRun, encode_transcripts
from eaglenet.search.chat import ChatServer
from eaglenet.store.manifest import Manifest
from eaglenet.store.object_storage import absolute_location, is_object_url, require_names
from eaglenet.store.store import check_location, kind_of, open_store
from eaglenet.transcripts.ocr import OcrModel
from eaglenet.transcripts.speech import SpeechModel

if TYPE_CHECKING:
    from eaglenet.methods.base import Method

__all__ = ["IndexOptions", "index", "index_videos"]

EXACT_SECONDS = 60.0
"""Seconds of video that a run encodes exactly from the start: about 4 s of work for `small` on two
cores. Later files are first encoded from keyframes, then exactly in a second pass."""


Fields = ParamSpec("Fields")


class IndexFunction(Protocol[Fields]):
    """Type of :func:`index`, with the fields of its options as arguments by name."""

    def __call__(
        self,
        videos: str | Path | Iterable[str | Path],
        store: str | Path | None = None,
        model: str | Path | None = None,
        progress: bool = True,
        *args: Fields.args,
        **options: Fields.kwargs,
    ) -> IndexReport: ...


def _with_fields_of(
    options: Callable[Fields, IndexOptions],
) -> Callable[[Callable[..., IndexReport]], IndexFunction[Fields]]:
    """Tell type checkers which options a function has; changes nothing else."""
    return lambda function: cast(IndexFunction[Fields], function)


@_with_fields_of(IndexOptions)
def index(
    videos: str | Path | Iterable[str | Path],
    store: str | Path | None = None,
    model: str | Path | None = None,
    progress: bool = True,
    **options: Any,
) -> IndexReport:
    """Bring a store up to date with a folder of videos, or with several folders and files.

    ``store`` defaults to ``EAGLENET_STORE``, or to the store in the user's data folder. ``model``
    defaults to the store's own, and to ``small`` for a new store. ``options`` are the fields of
    :class:`IndexOptions`, such as ``device="cuda"`` or ``drop_missing=True``. ``progress`` is
    shown in terminals and notebooks only.
    """
    several = [videos] if isinstance(videos, str | Path) else videos
    paths = list(several) if isinstance(several, Iterable) else [several]
    if not all(isinstance(path, str | Path) for path in paths):
        raise UsageError(f"expected a folder, or a list of folders and files, not {videos!r:.60}")
    if not paths:
        raise UsageError("nothing to index: there are no paths; pass folders or files")
    if not isinstance(store, str | Path | None):
        raise UsageError(f"expected the location of a store, not {store!r:.60}")
    if not isinstance(progress, bool):
        raise UsageError(f"progress should be True or False, not {progress!r:.60}")
    names = [spec.name for spec in dataclasses.fields(IndexOptions)]
    unknown = [name for name in options if name not in names]
    if unknown:
        known = ["store", "model", "progress", *names]
        raise UsageError(f"index has no option {list_unknown(unknown, known, _advise)}")
    model = None if model is None else str(model)
    typed_options = from_plain(
        IndexOptions, {name: _as_plain_text(value) for name, value in options.items()}
    )
    with show_progress(quiet=not progress or not is_watched()) as announce:
        display = announce("")
        if display is not None:  # Finding files and loading the model take seconds.
            display(ProgressUpdate("indexing", 0, 1, "looking for videos", is_counted=False))
        return index_videos(
            paths,
            default_store() if store is None else store,
            model,
            options=typed_options,
            on_progress=show_on(display),
            on_transcripts=display,
        )


def _advise(name: str) -> str:
    """Return where an option of the command line belongs in Python; empty for others."""
    is_length = name in (spec.name for spec in dataclasses.fields(Splitting))
    form = f"pass splitting=Splitting({name}=...), from eaglenet.core.frame_spec"
    return form if is_length else ""


def _as_plain_text(value: Any) -> Any:
    """Return paths and torch devices as text."""
    return str(value) if isinstance(value, Path) or type(value).__module__ == "torch" else value


def index_videos(
    paths: Sequence[str | Path],
    store: str | Path,
    model: str | None = None,
    *,
    options: IndexOptions | None = None,
    tags: Mapping[str, tuple[str, ...]] | None = None,
    on_progress: OnProgress | None = None,
    method: Method | None = None,
    files: Sequence[str] = (),
    on_transcripts: Progress | None = None,
    source: ModelSource | None = None,
    droppable: Set[str] | None = None,
) -> IndexReport:
    """Bring a store up to date with the videos under ``paths``, and those listed in ``files``.

    Both may be URLs of object storage. ``method`` is a loaded ``model``; ``source`` keeps a model
    for several runs. ``droppable``: the files that ``options.drop_missing`` may drop; None: all.
    ``on_progress`` reports encoding, ``on_transcripts`` the recognition of speech and of text.
    """
    options = options or IndexOptions()
    make_executor = check_request(paths, store, options)
    roots = [absolute_location(path) for path in (*paths, *parents_of(files))]
    other_paths: list[str] = []
    hidden_paths: set[str] = set()
    with activity("looking for videos"):
        candidates = _find_files(paths, files, store, options, other_paths.append, hidden_paths.add)
    source = source or ModelSource(store, model, options, method)
    with activity("preparing the model"):
        manifest, bank = source.manifest(roots), source.hubness_bank()
    recognizers: list[Recognizer] = []
    if options.read_text:
        recognizers.append(OnScreenTextRecognizer(options.limits))
    if options.listen is not None:
        recognizers.append(SpeechRecognizer(options.listen, options.device))
    describer = (
        None if options.describe is None else ClipDescriber(options.describe, options.limits)
    )
    if describer is not None:
        describer.load()
    with ExitStack() as stack:
        writer = stack.enter_context(kind_of(store).write(str(store), manifest, bank))
        if options.hubness is not None:
            writer.set_hubness(bank)
        folders = (
            None
            if options.follow_links
            else real_folders([root for root in roots if not is_object_url(root)])
        )
        transcripts = TranscriptRun(
            writer, retry=options.retry, subtitles=options.subtitles, folders=folders
        )
        ledger = Ledger(writer, tags or {})
        run = IndexRun(ledger, Commit(writer), Tally(), transcripts, on_progress)
        run.tally.add_other(other_paths)
        executors = stack.enter_context(
            closing(ExecutorSource(source, make_executor, writer.manifest, options))
        )
        todo = run.todo(candidates, retry=options.retry)
        if todo:
            for recognizer in recognizers:
                # Checked now, so that a wrong name does not end a long run.
                with activity(f"loading the model for {recognizer.title}"):
                    recognizer.load()
            source.require_same(writer.manifest, roots)
            run.encode(todo, executors.executor(todo), executors.exact_seconds)
        else:
            run.write()
        workers = num_workers(todo, options.workers)
        run.read_recordings(candidates, workers, options.limits)
        stored_files = run.stored_files(candidates)
        if options.transcripts_from is not None:
            other = open_store(options.transcripts_from).snapshot()
            transcripts.copy_from(other, {file.content for file in stored_files})
        # Transcripts are read from local files only.
        local_files = [file for file in stored_files if not is_object_url(file.path)]
        transcripts.read_subtitles(local_files, workers, options.limits)
        inexact_files = [] if options.quick else run.reopen(candidates)
        if inexact_files:
            source.require_same(writer.manifest, roots)
            run.encode(inexact_files, executors.executor(inexact_files))
        for recognizer in recognizers:
            RecognitionRun(transcripts, recognizer, options.limits, on_transcripts).run(
                local_files, options.workers
            )
        if describer is not None:
            snapshot = open_store(store).snapshot()
            DescriptionRun(transcripts, describer, snapshot, on_transcripts).run(
                local_files, options.workers
            )
        encode_transcripts(writer, on_transcripts)
        report = run.finish(candidates, roots, options, droppable)
    return dataclasses.replace(
        report,
        problems=(*report.problems, *transcripts.all_problems()),
        transcript_lines=transcripts.num_added,
        hidden=len(hidden_paths),
        device=str(source.method.device) if todo or inexact_files else report.device,
        precision=executors.precision,
    )


class ExecutorSource:
    """The executors of both passes of a run, usually the same one, made when it is needed."""

    def __init__(
        self,
        source: ModelSource,
        factory: ExecutorFactory,
        manifest: Manifest,
        options: IndexOptions,
    ) -> None:
        self.source = source
        self.factory = factory
        self.manifest = manifest
        self.options = options
        self.precision = "fp32"
        self._executor: Executor | None = None
        self._num_bytes = 0
        """Bytes of the files that the executor was made for."""

    @property
    def exact_seconds(self) -> float:
        """Seconds of video after which a first pass uses keyframes; infinity if it never does.

        It never does in ``fast`` stores, which have keyframes only, nor, without ``quick``, on a
        GPU or a cluster, which encode faster than files are found.
        """
        if self.manifest.frame_spec.fast:
            return math.inf
        is_slow = self.options.executor == "local" and str(self.source.method.device) == "cpu"
        return EXACT_SECONDS if is_slow or self.options.quick else math.inf

    def executor(self, files: Sequence[CandidateFile]) -> Executor:
        """Return an executor made for these files, or for larger ones.

        A second pass may continue that of an earlier run, after a first pass over one small file,
        for which one process and fp32 are fastest.
        """
        num_bytes = sum(file.size for file in files)
        if self._executor is None or num_bytes > self._num_bytes:
            self.close()
            self._num_bytes, options = num_bytes, self.options
            with activity("preparing the model"):
                encoder, self.precision = prepare_for_precision(
                    self.source.method,
                    options.precision,
                    files,
                    lambda: supports_int8(self.factory, options.cluster),
                )
            settings = ExecutorSettings(
                encoder,
                self.manifest,
                files,
                options.workers,
                options.limits,
                self.precision,
                options.cluster,
                options.decode,
            )
            self._executor = self.factory(settings)
        return self._executor

    def close(self) -> None:
        """End the processes of the executor, if it has any."""
        getattr(self._executor, "close", lambda: None)()


def check_request(
    paths: Sequence[str | Path], store: str | Path, options: IndexOptions
) -> ExecutorFactory:
    """Raise an error for a request that cannot work, before anything is loaded.

    Checks paths, patterns, decoder, device, precision, extras, and whether a store can be made.
    """
    check_splitting(options.splitting)
    require_names(paths)
    for root in map(absolute_location, paths):
        if not is_object_url(root) and not Path(root).exists():
            raise UsageError(f"{root}: no such file or folder")
    Exclusions(".", options.exclude)
    check_decode(options.decode)
    if options.device != "auto" or options.precision != "auto":
        is_cpu = options.device == "cpu" or (options.device == "auto" and not hardware.has_gpu())
        device = "cpu" if is_cpu else hardware.require_device(options.device)
        hardware.choose_precision(device, options.precision)
    if options.hubness is not None:
        read_hubness_texts(options.hubness)
    if options.read_text:
        OcrModel.require()
    if options.listen is not None:
        SpeechModel.require()
    if options.describe is not None:
        ChatServer(options.describe)
    make_executor = find_executor(options.executor)
    check_location(store)  # Last, because it may need the network.
    return make_executor


def _find_files(
    paths: Sequence[str | Path],
    listed_files: Sequence[str],
    store: str | Path,
    options: IndexOptions,
    on_other: Callable[[str], None],
    on_hidden: Callable[[str], None],
) -> list[CandidateFile]:
    """Return the candidate files, each path once; see :func:`find_videos` for the callbacks."""
    roots = [absolute_location(path) for path in paths]
    files = list(
        find_videos(
            [Path(root) for root in roots if not is_object_url(root)],
            skip_folder=expand_home(store),
            exclude=options.exclude,
            follow_links=options.follow_links,
            on_other=on_other,
            on_hidden=on_hidden,
        )
    )
    for root in roots:
        files += find_objects(root) if is_object_url(root) else ()
    return list({file.path: file for file in (*files, *find_listed_files(listed_files))}.values())
