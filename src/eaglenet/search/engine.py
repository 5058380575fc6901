"""The search engine: opens a store and its model, and answers queries."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack

import numpy as np

from eaglenet.core.errors import UsageError, VideoDecodeError, require_torch
from eaglenet.core.platform import default_store
from eaglenet.core.text import pluralize
from eaglenet.encoders.hardware import require_device
from eaglenet.models.files import model_folder
from eaglenet.models.light_model import MEANING_MODEL, LightModel, MeaningEncoder
from eaglenet.search.confidence import Calibration
from eaglenet.search.grammar import AnyQuery, clip_id_in, file_name_in, parse
from eaglenet.search.hit import Hit
from eaglenet.search.hits import (
    CaptionHit,
    Explanation,
    HitList,
    explain_clip,
    first_existing,
    rank_captions,
)
from eaglenet.search.model import (
    LIGHT_DEVICES,
    ManifestSource,
    NumpyModel,
    SearchModel,
    require_identity,
    require_model_name,
    runs_through_numpy,
)
from eaglenet.search.options import Filters, SearchChanges, SearchOptions, check_count
from eaglenet.search.query import Query, clean_text
from eaglenet.search.reranking import EncodedText
from eaglenet.search.retrieval import Retriever, StoreView, can_have_confidence
from eaglenet.search.shortlist import Scan
from eaglenet.search.transcripts import explain_no_match
from eaglenet.search.wording import (
    MIN_CUT_LENGTH,
    language_hint,
    long_text_notice,
    negation_in,
    texts_of,
)
from eaglenet.store.base import Store
from eaglenet.store.manifest import Manifest
from eaglenet.store.records import Clip, FileTable
from eaglenet.store.snapshot import OutdatedError, Snapshot
from eaglenet.store.store import open_store
from eaglenet.video.input_file import SharedFile, share_indexed_file

if TYPE_CHECKING:
    import torch

    from eaglenet.methods.base import Method
    from eaglenet.search.judge import Judge
    from eaglenet.video.frame_images import QueryDecoder


AUTO = "auto"
ATTEMPTS = 5
Result = TypeVar("Result")


class Engine:
    """Search engine of one store. Thread-safe; each search reads the newest version of the store.

    Close it, or use it in a ``with`` statement, to release the model and the files of the store.
    """

    def __init__(
        self,
        store: Store,
        *,
        model: str | Path | Method | None = None,
        device: torch.device | str = AUTO,
        scan: Scan | None = None,
        decoder: QueryDecoder | None = None,
    ) -> None:
        """Search an open store; :meth:`open` takes its location.

        ``scan`` makes the shortlists on other machines. ``decoder`` is a decoder to share.
        """
        self._scan = scan
        self._model_source = model
        self._device = device
        self._lock = threading.RLock()
        self._model: tuple[str, SearchModel] | None = None
        self._calibration: tuple[str, Calibration | None] | None = None
        self._encoder: MeaningEncoder | None = None
        self._decoder = decoder
        self._closed_location = ""
        self._open_view: StoreView | None = StoreView.open(store)

    @classmethod
    def open(
        cls,
        store: str | Path | None = None,
        model: str | Path | Method | None = None,
        device: torch.device | str = AUTO,
        decoder: QueryDecoder | None = None,
    ) -> Engine:
        """Open a store for searching. The model and the vectors are read on first use.

        ``store`` defaults to ``EAGLENET_STORE``, or else to the store in the user's data folder.
        ``model`` is only needed if the model folder of the store has moved. ``device`` ``auto``
        uses a GPU if there is one, and leaves a :class:`Method` on its device. A device that does
        not exist here is an error.
        """
        if not isinstance(store, str | Path | None):
            raise UsageError(f"expected the location of a store, not {store!r:.60}")
        if str(device) not in LIGHT_DEVICES:  # These need no torch, which takes long to import.
            require_device(device)
        existing_store = open_store(default_store() if store is None else store)
        return cls(existing_store, model=model, device=device, decoder=decoder)

    def __repr__(self) -> str:
        if self._closed_location:
            return f"<Engine closed, of {self.location}>"
        clips = pluralize(len(self._view.snapshot), "clip")  # Without reading the store again.
        return f"<Engine of {self.location}: {clips}, model {self._view.manifest.model!r}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the model and the store; using the engine afterwards is an error."""
        with self._lock:
            self._closed_location = self.location
            self._model = self._encoder = None
            self._open_view = None
            if self._decoder is not None:
                self._decoder.close()
                self._decoder = None

    @property
    def location(self) -> str:
        """Path or URL of the store."""
        return self._closed_location or self._view.store.location

    @property
    def _view(self) -> StoreView:
        view = self._open_view  # Another thread may close the engine.
        if view is None:
            raise UsageError(f"the engine of {self._closed_location} is closed; open it again")
        return view

    @property
    def manifest(self) -> Manifest:
        """Settings that the store was created with."""
        return self._current_view().manifest

    @property
    def snapshot(self) -> Snapshot:
        """Newest version of the store."""
        return self._current_view().snapshot

    @property
    def model(self) -> SearchModel:
        """The model, loaded on first use and checked to be the one that the store was made with."""
        return self._load_model(self._current_view())

    @property
    def decoder(self) -> QueryDecoder:
        """Sandboxed decoder for query files and for frames of hits."""
        from eaglenet.video.frame_images import QueryDecoder

        with self._lock:
            if self._decoder is None:
                self._decoder = QueryDecoder()
            return self._decoder

    @property
    def missing_shards(self) -> tuple[str, ...]:
        """Names of the shards of the store that cannot be reached now."""
        return self._scan.missing_shards if self._scan is not None else ()

    def missing_shards_since(self, start: float) -> tuple[str, ...]:
        """Return the names of the shards that a search after ``start`` may have left out.

        ``start``: a value of ``time.perf_counter``. A shard may answer again before a search ends.
        """
        return self._scan.missing_shards_since(start) if self._scan is not None else ()

    def _current_view(self) -> StoreView:
        """Read the store again if it has changed or was replaced."""
        try:
            if self._view.store.stamp() != self._view.snapshot.stamp:
                with self._lock:
                    if self._view.store.stamp() != self._view.snapshot.stamp:
                        self._open_view = StoreView.open(self._view.store)
        except OSError:
            pass  # The store was deleted; the open version can still be searched.
        return self._view

    def read(self, work: Callable[[StoreView], Result]) -> Result:
        """Call ``work`` with the newest version of the store; retry if a writer removes clips."""
        for _ in range(ATTEMPTS - 1):
            try:
                return work(self._current_view())
            except OutdatedError:
                continue
        return work(self._current_view())

    def _load_model(self, view: StoreView) -> SearchModel:
        """Return the model of a store; reload it if the store was replaced."""
        identity = view.manifest.identity
        with self._lock:
            if self._model is None or self._model[0] != identity:
                # Not of view.store, which another thread may have found replaced by now.
                self._model = identity, open_model(view, self._model_source, self._device)
            return self._model[1]

    def _retriever(self, view: StoreView) -> Retriever:
        return Retriever(
            view,
            partial(self._load_model, view),
            lambda: self.decoder,
            self._scan,
            self._load_calibration(view),
            partial(self._load_encoder, view),
        )

    def _load_encoder(self, view: StoreView) -> MeaningEncoder:
        """Return the encoder of transcripts; it shares its weights with an equal search model."""
        with self._lock:
            if self._encoder is None:
                light = LightModel.open(MEANING_MODEL)
                current = None if self._model is None else self._model[1]
                if isinstance(current, NumpyModel) and current.model.identity == light.identity:
                    light = current.model
                elif current is None and self._is_search_model(view, light):
                    self._model = light.identity, NumpyModel(light)
                self._encoder = MeaningEncoder(light)
            return self._encoder

    def _is_search_model(self, view: StoreView, light: LightModel) -> bool:
        """Return whether :meth:`_load_model` would load this compact model."""
        if self._model_source is not None or view.manifest.identity != light.identity:
            return False
        return runs_through_numpy(view.manifest.model, self._device)

    def _load_calibration(self, view: StoreView) -> Calibration | None:
        """Return the calibration of the model of a store; None if it has none."""
        identity = view.manifest.identity
        with self._lock:
            if self._calibration is None or self._calibration[0] != identity:
                source = self._model_source
                folder = model_folder(
                    source if isinstance(source, str | Path) else view.manifest.model
                )
                calibration = None if folder is None else Calibration.load(folder)
                if calibration is not None and calibration.identity != identity:
                    calibration = None
                self._calibration = identity, calibration
            return self._calibration[1]

    @property
    def has_confidence(self) -> bool:
        """True if the model of this store has a calibration, so that hits have a confidence."""
        return self._load_calibration(self._current_view()) is not None

    def warm_up(self) -> None:
        """Load the model and the vectors and run one query, so that the next one is fast."""
        _ = self.model
        if len(self.snapshot):
            self.search("warm up", k=1)

    def warm_up_images(self) -> None:
        """Load the image tower, so that the first search with an image is fast."""
        spec = self.manifest.frame_spec
        frames = np.zeros((1, spec.num_frames, 3, spec.size, spec.size), np.uint8)
        mask, seconds = np.ones(frames.shape[:2], np.bool_), np.zeros(frames.shape[:2], np.float32)
        self.model.encode_frames(frames, mask, seconds)

    def search(
        self,
        query: str | AnyQuery,
        k: int = 10,
        *,
        options: SearchOptions | None = None,
        judge: Judge | str | None = None,
        **changes: Unpack[SearchChanges],
    ) -> HitList:
        """Return the k best moments for a query, best first.

        A string is a text, or a composed or temporal query (:func:`eaglenet.search.grammar.parse`);
        dates in a text filter (:mod:`eaglenet.search.dates`). ``notice`` of the result reports such
        a date, a language that the model does not know, a negation, or a text that is longer than
        the model reads. Pass a :class:`Query` to search with an image, a video or a clip.

        ``changes`` are options and filters by name: ``shortlist=50, path="*.mp4"``; see
        :class:`SearchOptions` and :class:`Filters`. ``judge`` reorders the first hits: a
        :class:`Judge`, or the address of its server.
        """
        return self.search_many([query], k, options=options, judge=judge, **changes)[0]

    def search_many(
        self,
        queries: Iterable[str | AnyQuery],
        k: int = 10,
        *,
        options: SearchOptions | None = None,
        judge: Judge | str | None = None,
        **changes: Unpack[SearchChanges],
    ) -> list[HitList]:
        """Search for several queries at once, which is faster; see :meth:`search`."""
        if not isinstance(options, SearchOptions | None):
            raise UsageError(f"options must be SearchOptions, not {type(options).__name__}")
        options = (options or SearchOptions()).replace(changes)
        k = check_count(k)
        if isinstance(queries, str | bytes | AnyQuery) or not isinstance(queries, Iterable):
            raise UsageError(
                f"expected a list of queries, not {type(queries).__name__} {queries!r:.60}"
            )
        typed_queries = [
            query
            if isinstance(query, AnyQuery)
            else parse(clean_text(query), is_literal=options.literal)
            for query in queries
        ]
        if not typed_queries:
            return []
        if isinstance(judge, str):
            from eaglenet.search.judge import Judge

            judge = Judge(judge)
        elif judge is not None and not hasattr(judge, "rank"):
            raise UsageError(f"judge must be the address of a chat server, not {judge!r:.60}")
        count = k if judge is None else max(k, judge.count)

        lists = self.read(lambda view: self._retriever(view).search(typed_queries, count, options))
        results = []
        for query, hits in zip(typed_queries, lists, strict=True):
            notices = [query.dates.notice] if query.dates else []
            notices.append(self.file_name_notice(query, options))
            notices.append(self.language_hint(query, options))
            negation = negation_in(query, options)
            notices.append(negation.hint if negation else "")
            notices.append(self.long_text_notice(query, options))
            notices.append(self.few_clips_notice(query, hits, options))
            if judge is not None:
                judgement = judge.rank(query, hits, self)
                hits, notices = judgement.hits[:k], [*notices, judgement.notice]
            reason = "" if hits else self.why_empty(options, query)
            results.append(HitList(hits, self, "; ".join(filter(None, notices)), reason))
        return results

    def best_captions(self, query: Query, captions: Sequence[str], k: int = 10) -> list[CaptionHit]:
        """Rank captions for the video, image or clip of a query; return the k best."""
        if not isinstance(query, Query):
            raise UsageError(f"expected Query(image=...) or Query(video=...), not {query!r:.60}")
        if not captions:
            raise UsageError("captions is empty; pass at least one caption")
        k = check_count(k)

        def rank(view: StoreView) -> list[CaptionHit]:
            retriever = self._retriever(view)
            example = retriever.encode_example(query)
            return rank_captions(retriever.model, example.features, example.span, captions, k)

        return self.read(rank)

    def explain(self, query: str | Query, clip_id: str) -> Explanation:
        """Return the score of a clip for a text, as a whole and frame by frame."""
        query = query if isinstance(query, Query) else Query(clean_text(query))
        if query.text is None:
            raise UsageError("explain works with a text only, not with an image, a video or a clip")
        texts = [query.text, *query.negatives]

        def explain(view: StoreView) -> Explanation:
            retriever = self._retriever(view)
            encoded_text = EncodedText(retriever.model, retriever.model.encode_texts(texts))
            row = view.snapshot.row(clip_id)
            return explain_clip(view.snapshot, encoded_text, row, retriever.load(np.array([row])))

        return self.read(explain)

    def __contains__(self, clip_id: object) -> bool:
        return self.read(lambda view: clip_id in view.snapshot)

    def thumbnail(self, clip_id: str) -> bytes:
        """Return a small JPEG of the middle of a clip."""
        return self.read(lambda view: view.snapshot.thumbnail(view.snapshot.row(clip_id)))

    def frame(self, clip_id: str, seconds: float, size: int = 240) -> bytes:
        """Return a JPEG of the frame at a time; its shorter side has ``size`` pixels.

        Returns the thumbnail if the file does not exist, has changed or cannot be decoded.
        """
        from eaglenet.video.images import pixels_to_jpeg

        try:
            with contextlib.closing(self.open_file(clip_id)) as file:
                return pixels_to_jpeg(self.decoder.read_frame(file, seconds, size))
        except (VideoDecodeError, OSError):
            return self.thumbnail(clip_id)

    def short_id(self, clip_id: str) -> str:
        """Return the shortest prefix of a clip id that no clip of another file has."""
        return self.read(lambda view: view.snapshot.short_id(clip_id))

    def full_id(self, text: str) -> str:
        """Return the clip id with this prefix."""
        return self.read(lambda view: view.snapshot.full_id(text))

    def clip(self, clip_id: str) -> tuple[Clip, FileTable]:
        """Return a clip, and its file as a table with one row."""

        def find(view: StoreView) -> tuple[Clip, FileTable]:
            (clip,) = view.snapshot.clips([view.snapshot.row(clip_id)])
            return clip, view.snapshot.files([clip.content_id])

        return self.read(find)

    def file_of(self, clip_id: str) -> Path:
        """Return the file of a clip; of several copies, the first that exists."""
        return Path(first_existing(self.clip(clip_id)[1].paths[0]))

    def open_file(self, clip_id: str) -> SharedFile:
        """Open the file of a clip for a decoder; of several copies, the first that is unchanged.

        The error of the result says if there is none. Close the result.
        """
        _, files = self.clip(clip_id)
        version = files.sizes[0], float(files.modification_times[0]), files.contents[0]
        for path in files.paths[0]:
            file = share_indexed_file(path, *version, self.manifest.roots)
            if file.error is None:
                break
        return file

    def span_of(self, clip_id: str) -> tuple[float, float]:
        """Return the start and end of a clip in its file, in seconds."""
        clip, _ = self.clip(clip_id)
        return clip.start, clip.end

    def info(self) -> dict[str, Any]:
        """Describe the store and how it is searched."""
        return self.read(lambda view: view.info())

    def num_searched(self, query: AnyQuery, options: SearchOptions) -> int:
        """Return the number of clips that pass the filters and the dates in the query."""
        options = options.within_dates(query.dates)
        return self.read(lambda view: self._retriever(view).num_clips(options))

    def date_hint(self, query: AnyQuery, options: SearchOptions) -> str:
        """Return how many files a filter by date compared by modification time, else ``""``."""
        filters = options.within_dates(query.dates).filters
        return self.read(lambda view: filters.date_hint(view.files)) if filters else ""

    def file_name_notice(self, query: AnyQuery, options: SearchOptions) -> str:
        """Return a notice if a text is a clip id or a file that is not indexed, else ``""``."""
        clip_id = "" if options.literal else clip_id_in(query)
        if clip_id:
            return (
                f"'clip:{clip_id:.40}' was read as a text: clip: needs another part beside it, "
                f'as in clip:{clip_id:.40} + "at night"'
            )
        name = "" if options.literal else file_name_in(query)
        filters = Filters(path=os.path.basename(name))  # Stored paths are absolute.
        if not name or self.read(lambda view: filters.matches(view.files).any()):
            return ""
        return f"{name!r:.80} was read as a text: no file of this name is indexed"

    def language_hint(self, query: AnyQuery, options: SearchOptions) -> str:
        """Return a hint if a query is in a language that the model does not know, else ``""``."""
        return language_hint(query, self._view.manifest.model, options)

    def long_text_notice(self, query: AnyQuery, options: SearchOptions) -> str:
        """Return a notice if a text has more tokens than the model reads, else ``""``."""
        texts = [text for text in texts_of(query) if len(text) >= MIN_CUT_LENGTH]
        if not texts or "visual" not in options.modalities:
            return ""
        model: SearchModel = self.read(lambda view: self._retriever(view).model)
        notices = (long_text_notice(text, model) for text in texts)
        return next(filter(None, notices), "")

    def few_clips_notice(self, query: AnyQuery, hits: Sequence[Hit], options: SearchOptions) -> str:
        """Return a notice if too few clips were searched for a confidence, else ``""``."""
        return self.read(lambda view: self._retriever(view).few_clips_notice(query, hits, options))

    def why_empty(self, options: SearchOptions, query: AnyQuery | None = None) -> str:
        """Return why there are no hits, such as a filter that no file meets; may be empty."""

        def explain(view: StoreView) -> str:
            filters = options.within_dates(query.dates if query else None).filters
            reason = filters.why_empty(view.files) if filters else ""
            if not reason and options.min_confidence:
                if query is not None and not can_have_confidence(query):
                    return (
                        "queries with parts, images or texts to avoid have no confidence; search "
                        "without a least confidence"
                    )
                return f"no moment has a confidence of {options.min_confidence:.0%} or more"
            if reason or query is None or query.transcript is None or not len(view.snapshot):
                return reason
            return explain_no_match(query.transcript, options.modalities, view.snapshot.num_lines)

        return self.read(explain)


def open_model(
    store: ManifestSource, model: str | Path | Method | None, device: Any
) -> SearchModel:
    """Load the model of a store, and check that it is the one that the store was made with.

    ``model``: its new location, or a loaded model. Compact models run through numpy unless
    ``device`` names a GPU, all others through torch. ``device`` ``auto`` uses a GPU if there is
    one, and leaves a loaded model on its device.
    """
    source = model if model is not None else store.manifest.model
    if isinstance(source, str | Path) and runs_through_numpy(source, device):
        light = LightModel.open(source)
        require_identity(store, str(source), light.identity)
        return NumpyModel(light)
    if isinstance(model, str):
        require_model_name(model)
    name = source if isinstance(source, str | Path) else store.manifest.model
    require_torch(f"the model {str(name)!r}")
    from eaglenet.search.torch_model import TorchModel, load_for_search

    return TorchModel(load_for_search(store, model, device))


def open(
    store: str | Path | None = None,
    model: str | Path | Method | None = None,
    device: torch.device | str = AUTO,
) -> Engine:
    """Open a store for searching; see :meth:`Engine.open`."""
    return Engine.open(store, model, device)
