"""Index videos: find what changed, decode ahead in workers, encode in batches, commit often."""

from __future__ import annotations

import copy
import dataclasses
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from eaglenet.core.errors import UsageError
from eaglenet.core.hardware import AUTO, Precision, choose_precision, require_device
from eaglenet.core.object_storage import absolute_location, is_object_url
from eaglenet.core.platform import default_store
from eaglenet.core.progress import Progress
from eaglenet.encoders import int8 as int8_products
from eaglenet.encoders.base import TowerEncoder
from eaglenet.indexing.commit import Commit
from eaglenet.indexing.decoding import check_splitting, with_shared_frames
from eaglenet.indexing.executor import (
    ExecutorFactory,
    ExecutorSettings,
    find_executor,
    num_workers,
    supports_int8,
)
from eaglenet.indexing.fetching import find_listed_files, find_objects, parents_of
from eaglenet.indexing.files import CandidateFile, find_videos
from eaglenet.indexing.hubness import choose_hubness_bank, read_hubness_texts, set_hubness_bank
from eaglenet.indexing.ledger import Ledger
from eaglenet.indexing.report import IndexReport, OnProgress
from eaglenet.indexing.run import IndexOptions, IndexRun, Tally
from eaglenet.indexing.transcripts import OnScreenTextRecognizer, Recognizer, RecognitionRun, SpeechRecognizer, TranscriptRun
from eaglenet.methods.base import Method
from eaglenet.search.model import describe, load_model, model_of, put_on, refuse_other_model
from eaglenet.search.store.base import kind_of, open_store
from eaglenet.transcripts.ocr import OcrModel
from eaglenet.transcripts.speech import SpeechModel
from eaglenet.video.containers import looks_like_video

# The precision that an index run encodes in, and the model made for it.

logger = logging.getLogger(__name__)

MUCH_WORK = 2 * 2**20
"""Bytes of video from which ``auto`` takes int8: preparing it costs as much as about 40 frames of
`small` save, or 20 of a ViT-B/16; 2 MiB are some ten seconds of a camera's film, more of others."""


def prepare_for_precision(
    method: Method,
    wanted: str,
    files: Sequence[CandidateFile],
    others_take_int8: Callable[[], bool] = lambda: True,
) -> tuple[Method, Precision]:
    """The model to encode these files with, and in what.

    ``auto``: bf16 where the machine multiplies it, else int8 where it does and that pays: much to
    encode, onnxruntime installed, frames of the model as good (a cosine of 0.999 and more with
    those in fp32, tried on pictures now), else fp32. ``others_take_int8`` asks the machines that
    encode in the place of this one, only where their answer decides.
    """
    precision = choose_precision(method.device, wanted)
    if precision != "int8":
        return method, precision
    if wanted != AUTO:
        return to_int8(method), "int8"
    if sum(file.size for file in files) < MUCH_WORK or not int8_products.is_installed():
        return method, "fp32"
    if not others_take_int8():
        logger.info("encoding in fp32: not all machines that encode are known to be fast in int8")
        return method, "fp32"
    try:
        return to_int8(method), "int8"
    except UsageError as reason:
        logger.info("encoding in fp32: %s", reason)
        return method, "fp32"


def to_int8(method: Method) -> Method:
    """A copy of a model whose image tower multiplies int8; the text tower is shared."""
    encoder = method.encoder
    if not isinstance(encoder, TowerEncoder):
        raise UsageError(
            f"int8 products are for models with an image tower, and {method.name} on "
            f"{encoder.family} has none; encode with --precision fp32"
        )
    vision = int8_products.int8_tower(encoder.vision, encoder.image_size)
    twin = copy.deepcopy(method, {id(encoder.text): encoder.text, id(encoder.vision): vision})
    return twin.eval()


__all__ = ["IndexOptions", "index", "index_videos"]


def index(
    videos: str | Path | Sequence[str | Path],
    store: str | Path | None = None,
    model: str | Path | None = None,
    **options: Any,
) -> IndexReport:
    """Bring a store up to date with a folder of videos, or several folders and files.

    ``store`` None: that of ``EAGLENET_STORE``, or the one in the user's data folder. ``model``
    None: that of the store, or ``small`` for a new one. ``options`` are those of
    :class:`IndexOptions` by name: ``device="cuda"``, ``drop_missing=True``.
    """
    paths = [videos] if isinstance(videos, str | Path) else videos
    known = [spec.name for spec in dataclasses.fields(IndexOptions)]
    for name in options:
        if name not in known:
            raise UsageError(f"index has no option {name!r}; it has {', '.join(known)}")
    chosen = None if model is None else str(model)
    return index_videos(paths, store or default_store(), chosen, options=IndexOptions(**options))


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
) -> IndexReport:
    """Bring a store up to date with the videos under ``paths``, and those listed in ``files``.

    Both may be addresses of object storage.

    ``model`` None: that of the store, or ``small`` for a new one.
    ``method`` spares loading ``model``, whose name is still written down for those who search.
    ``on_progress`` is told of encoding, ``on_transcripts`` of reading text and hearing speech.
    """
    options = options or IndexOptions()
    make_executor = check_request(paths, store, options)
    roots = [absolute_location(path) for path in paths]
    found = _find(roots, files, store, options.exclude)
    readers: list[Recognizer] = [OnScreenTextRecognizer(OcrModel())] if options.read_text else []
    if options.listen is not None:
        readers.append(SpeechRecognizer(SpeechModel(options.listen, options.device)))
    model = model if model is not None else model_of(store)
    is_given = method is not None
    if not is_given:
        refuse_other_model(store, model)
    method = method if method is not None else load_model(model)
    method.eval()
    if options.device != AUTO or not is_given:
        put_on(method, options.device)
    choose_precision(method.device, options.precision)
    spec = dataclasses.replace(method.frame_spec, fast=options.fast)
    all_roots = [*roots, *parents_of(files)]
    splitting = with_shared_frames(options.splitting, spec)
    wanted = describe(method, model, spec, splitting, all_roots, prepare=options.prepare)
    bank = choose_hubness_bank(options.hubness, method, model)
    with kind_of(store).create(str(store), wanted) as opened:
        tables = opened.tables()
        if options.hubness is not None or not opened.is_searched:
            opened = set_hubness_bank(opened, tables, bank)
        if not opened.is_searched:
            opened.publish(tables)
        words = TranscriptRun(tables, retry=options.retry, subtitles=options.subtitles)
        ledger, commit = Ledger(tables, tags or {}), Commit(opened, tables)
        run = IndexRun(ledger, commit, Tally(), words, on_progress)
        todo = run.todo(found, retry=options.retry)
        others = partial(supports_int8, make_executor, options.cluster)
        method, precision = prepare_for_precision(method, options.precision, todo, others)
        setting = ExecutorSettings(
            method,
            opened.manifest,
            todo,
            options.workers,
            options.limits,
            precision,
            options.cluster,
        )
        run.encode(todo, make_executor(setting))
        workers = num_workers(todo, options.workers)
        # Words are read beside files of this machine alone.
        done = [file for file in run.done(found) if not is_object_url(file.path)]
        heard = None if options.transcripts_from is None else open_store(options.transcripts_from).words()
        if heard is not None:
            words.adopt(heard, {file.content for file in run.done(found)})
        words.read_subtitles(done, workers, options.limits)
        for reader in readers:
            RecognitionRun(words, reader, options.limits, on_transcripts).run(done, workers)
        report = run.finish(
            found, all_roots, drop_missing=options.drop_missing, exclude=options.exclude
        )
    report = dataclasses.replace(
        report, problems=(*report.problems, *words.all_problems()), lines=words.added
    )
    return dataclasses.replace(report, device=str(method.device), precision=precision)


def check_request(
    paths: Sequence[str | Path], store: str | Path, options: IndexOptions
) -> ExecutorFactory:
    """Refuse what cannot work before anything is loaded, which takes seconds; gives the executor.

    A path, a device, a precision, an executor or an extra that is not there; a place where no
    store can be.
    """
    check_splitting(options.splitting)
    for root in map(absolute_location, paths):
        if not is_object_url(root) and not Path(root).exists():
            raise UsageError(f"{root}: no such file or folder")
    require_device(options.device)
    choose_precision("cpu", options.precision)  # whether it goes with the device is asked later
    read_hubness_texts(options.hubness)
    if options.read_text:
        OcrModel.require()
    if options.listen is not None:
        SpeechModel.require()
    make_executor = find_executor(options.executor)
    kind_of(store).require_room(str(store))  # last: a bucket is asked over the network
    return make_executor


def _find(
    roots: Sequence[str], files: Sequence[str], store: str | Path, exclude: Sequence[str]
) -> list[CandidateFile]:
    """What to index, each path once."""
    folders = [Path(root) for root in roots if not is_object_url(root)]
    leave_out = Path(store).expanduser()
    found = list(find_videos(folders, looks_like_video, leave_out=leave_out, exclude=exclude))
    for root in roots:
        found += find_objects(root) if is_object_url(root) else ()
    return list({file.path: file for file in (*found, *find_listed_files(files))}.values())
