"""Evaluation of a method on a split: encode, score and rank, with the time of each stage."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from eaglenet.core.errors import NonFiniteError, UsageError
from eaglenet.core.progress import Progress
from eaglenet.core.text import pluralize
from eaglenet.core.types import Clips, TensorRecord, TextFeatures, Tokens, VideoFeatures
from eaglenet.encoders.features import FeatureEncoder
from eaglenet.methods.base import Method, evaluating
from eaglenet.research.evaluation.metrics import (
    EvaluationOptions,
    EvaluationProcess,
    Metrics,
    check_video_of_text,
    rank_pairs,
    retrieval_metrics,
)
from eaglenet.research.evaluation.postprocessing import (
    Direction,
    hub_bias,
    sinkhorn_levels,
    typical_texts,
)
from eaglenet.scoring import score_all


def mean_and_spread(records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the mean and the sample standard deviation of nested dictionaries of numbers."""
    return {
        "mean": _reduce(records, statistics.fmean),
        "std": _reduce(records, lambda v: statistics.stdev(v) if len(v) > 1 else 0.0),
    }


def _reduce(records: Sequence[dict[str, Any]], function: Any) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in records[0].items():
        column = [record[key] for record in records]
        result[key] = _reduce(column, function) if isinstance(value, dict) else function(column)
    return result


def format_result(record: dict[str, Any]) -> str:
    """Format an evaluation record for a terminal, with the protocol of every score."""
    lines = []
    for direction, title in (("t2v", "text-to-video"), ("v2t", "video-to-text")):
        row = record[direction]
        queries = pluralize(row["queries"], "query", "queries")
        if direction == "v2t" and row["queries"] < record["t2v"]["queries"]:
            queries += f"; {GROUPED_CAPTIONS}"
        lines.append(
            f"{title} [{record['protocol']}]  {_format_recalls(row)}  MdR {row['MdR']:.1f}  "
            f"MnR {row['MnR']:.1f}  ({queries})"
        )
    seconds = record["seconds"]
    preparation = record["preparation_seconds"]
    is_stored = record.get("stored_features", False)
    lines.append(
        f"Rsum [{record['protocol']}] {record['Rsum']:.1f}; "
        f"{pluralize(record['videos_found'], 'video')} found, "
        f"{record['videos_missing']} missing; "
        + (f"preparing the data {preparation:.1f} s, " if preparation else "")
        + f"{'head over stored features:' if is_stored else 'encoding'} texts "
        f"{seconds['encode_text']:.2f} s, "
        f"videos {seconds['encode_video']:.2f} s, scoring {seconds['score']:.3f} s"
    )
    if "noise" in record:
        mean, deviation = record["noise"]["mean"], record["noise"]["std"]
        lines.append(
            f"over {len(record['noise']['seeds'])} noise seeds [{record['protocol']}]  "
            f"t2v R@1 {mean['t2v']['R@1']:.2f} +- {deviation['t2v']['R@1']:.2f}  "
            f"v2t R@1 {mean['v2t']['R@1']:.2f} +- {deviation['v2t']['R@1']:.2f}"
        )
    if "hubness" in record:
        recalls = _format_recalls(record["hubness"]["t2v"])
        lines.append(
            f"with hubness offsets [{record['protocol']}]  t2v {recalls}  "
            "(from a fixed bank of texts)"
        )
    if "sinkhorn" in record:
        for direction in ("t2v", "v2t"):
            recalls = _format_recalls(record["sinkhorn"][direction])
            lines.append(
                f"with Sinkhorn offsets [{record['protocol']}]  {direction} {recalls}  "
                "(from training texts and videos)"
            )
    lines += [f"note: {note}" for note in record["notes"]]
    return "\n".join(lines)


def _format_recalls(row: Mapping[str, Any]) -> str:
    return "  ".join(f"{name} {row[name]:.1f}" for name in ("R@1", "R@5", "R@10"))


GROUPED_CAPTIONS = "captions of one video are one candidate, with their best score"
PAIR_NOISE_NOTE = "each pair has its own candidate noise, as in the authors' evaluation"
MAX_NAMES = 20
"""Largest number of missing videos that a result lists by name; it counts all of them."""


@dataclass(frozen=True)
class Timings:
    """Seconds of each stage, from frames or stored features in memory.

    With stored features, ``encode_text`` and ``encode_video`` are those of the head alone.
    """

    encode_text: float
    encode_video: float
    score: float


@dataclass(frozen=True)
class NoiseSpread:
    """Metrics with each seed of the evaluation noise."""

    seeds: tuple[int, ...]
    metrics: tuple[Metrics, ...]

    def to_dict(self) -> dict[str, Any]:
        return {"seeds": list(self.seeds)} | mean_and_spread([m.to_dict() for m in self.metrics])


@dataclass(frozen=True)
class EvaluationResult:
    """Metrics of a method under a protocol, and the conditions of the evaluation.

    preparation_seconds: time before ``timings`` to read the data: to decode videos and to encode
    them with frozen towers, or to read what an earlier run stored. has_stored_features: towers did
    not run during ``timings``.
    """

    method: str
    protocol: str
    metrics: Metrics
    timings: Timings
    num_texts: int
    num_videos: int
    num_missing_videos: int = 0
    missing_videos: tuple[str, ...] = ()
    device: str = "cpu"
    backend: str = "auto"
    precision: str = "fp32"
    noise: NoiseSpread | None = None
    hubness: Metrics | None = None
    sinkhorn: Metrics | None = None
    split: str = ""
    notes: tuple[str, ...] = field(default=())
    preparation_seconds: float = 0.0
    has_stored_features: bool = False

    def to_dict(self) -> dict[str, Any]:
        record: dict[str, Any] = {
            "method": self.method,
            "protocol": self.protocol,
            **({"split": self.split} if self.split else {}),
            **self.metrics.to_dict(),
            "texts": self.num_texts,
            "videos_found": self.num_videos,
            "videos_missing": self.num_missing_videos,
            "missing_videos": list(self.missing_videos),
            "seconds": asdict(self.timings),
            "preparation_seconds": round(self.preparation_seconds, 3),
            "stored_features": self.has_stored_features,
            "device": self.device,
            "backend": self.backend,
            "precision": self.precision,
            "notes": list(self.notes),
        }
        for name in ("noise", "hubness", "sinkhorn"):
            entry = getattr(self, name)
            if entry is not None:
                record[name] = entry.to_dict()
        return record

    def __str__(self) -> str:
        return format_result(self.to_dict())


def evaluate(
    method: Method,
    texts: Tokens | TextFeatures | Sequence[str] | Iterable[Tokens | TextFeatures],
    videos: Clips | VideoFeatures | Iterable[Clips | VideoFeatures],
    video_of_text: Int[Tensor, "texts"],
    protocol: Any,
    options: EvaluationOptions | None = None,
    *,
    device: torch.device | str | None = None,
    missing_videos: Sequence[str] = (),
    sinkhorn_bank: tuple[Iterable[Any], Iterable[Any]] | None = None,
    process: EvaluationProcess | None = None,
    progress: Progress | None = None,
) -> EvaluationResult:
    """Evaluate ``method``: encode texts and videos, score all pairs, rank in both directions.

    Args:
        texts: a record of all texts, a list of strings, or an iterable of batches in order.
        videos: a record of all videos, or an iterable of batches in order, for splits that do not
            fit into memory.
        video_of_text: index of the video of each text.
        protocol: a protocol or its name, for the result.
        missing_videos: ids of the protocol that were not found, for the result.
        sinkhorn_bank: batches of training texts and of training videos, to rank again with Sinkhorn
            offsets (UCoFiA; one process only).
        process: this process, if several evaluate together. ``texts`` and ``videos`` are then its
            part of the split, and every process returns the metrics of the whole split.
        progress: called with the number of scores computed so far.

    Raises:
        NonFiniteError: features or scores are NaN or infinite.
    """
    options = (options or EvaluationOptions()).resolve(method)
    check_abilities(method, options, needs_levels=sinkhorn_bank is not None)
    target_device = torch.device(device) if device is not None else method.device
    method.to(target_device)
    with evaluating(method), torch.no_grad():
        start = _now(target_device)
        text_batches = _batches(method, texts, options.text_batch)
        text = _encode(method, text_batches, target_device, options.precision, process)
        text_end = _now(target_device)
        video_batches = _batches(method, videos, options.video_batch)
        video = _encode(method, video_batches, target_device, options.precision, process)
        video_end = _now(target_device)
        if len(text) != len(video_of_text):
            raise UsageError(
                f"{len(text)} texts were encoded but video_of_text has {len(video_of_text)} "
                "entries: it needs one entry per text, in the same order"
            )
        check_video_of_text(video_of_text, len(video))
        settings: dict[str, Any] = {
            "backend": options.backend,
            "precision": options.scoring_precision,
            "max_scores": options.max_scores,
            "process": process,
        }
        if options.pair_noise:
            settings["pair_noise"] = 0

        def rank(**changes: Any) -> Metrics:
            return rank_pairs(method, text, video, video_of_text, **{**settings, **changes})

        metrics = rank(
            scores_file=options.scores_file, ranks_file=options.ranks_file, progress=progress
        )
        score_end = _now(target_device)
        noise = None
        if options.noise_seeds:
            noise = _noise_spread(method, rank, options)
        hubness = None
        if options.hubness:
            bank_texts = options.hubness_bank or typical_texts()
            bank_batches = _batches(method, bank_texts, options.text_batch)
            hubness_text = _encode(method, bank_batches, target_device, options.precision, None)
            scores = score_all(
                method,
                hubness_text,
                video,
                backend=options.backend,
                precision=options.scoring_precision,
            )
            hubness = rank(bias=hub_bias(scores))
        sinkhorn = None
        if sinkhorn_bank is not None:
            bank_features = [
                _encode(method, iter(batches), target_device, options.precision, None)
                for batches in sinkhorn_bank
            ]
            sinkhorn = sinkhorn_metrics(method, text, video, video_of_text, *bank_features)
    device_name = str(target_device)
    if process is not None:
        device_name = f"{process.size} x {target_device.type}"
    elif target_device.type == "cuda":
        device_name = torch.cuda.get_device_name(target_device)
    return EvaluationResult(
        method=getattr(method, "name", type(method).__name__),
        protocol=str(getattr(protocol, "name", protocol)),
        metrics=metrics,
        timings=Timings(text_end - start, video_end - text_end, score_end - video_end),
        num_texts=len(text),
        num_videos=len(video),
        num_missing_videos=len(missing_videos),
        missing_videos=tuple(missing_videos[:MAX_NAMES]),
        device=device_name,
        backend=options.backend,
        precision=options.precision,
        noise=noise,
        hubness=hubness,
        sinkhorn=sinkhorn,
        notes=(PAIR_NOISE_NOTE,) if options.pair_noise else (),
        has_stored_features=isinstance(getattr(method, "encoder", None), FeatureEncoder),
    )


def check_abilities(
    method: Method, options: EvaluationOptions, *, needs_levels: bool = False
) -> None:
    """Raise, before anything is encoded, if the method lacks what an option needs."""
    name = getattr(method, "name", type(method).__name__)
    is_noisy = options.pair_noise or hasattr(method, "reseed")
    if options.noise_seeds and not is_noisy:
        raise UsageError(f"{name} has no evaluation noise to reseed; leave out --noise-seeds")
    if (options.sinkhorn or needs_levels) and not hasattr(method, "levels"):
        raise UsageError(
            f"{name} has no levels of similarity to normalise; Sinkhorn offsets are for "
            "ucofia (for a score matrix of any method: eaglenet metrics --sinkhorn)"
        )


def sinkhorn_metrics(
    method: Method,
    text: TextFeatures,
    video: VideoFeatures,
    video_of_text: Int[Tensor, "texts"],
    bank_text: TextFeatures,
    bank_video: VideoFeatures,
) -> Metrics:
    """Compute metrics with Sinkhorn offsets per level of similarity, as UCoFiA's authors do.

    Text to video: one offset per video, from training texts. Video to text: one offset per text,
    from training videos.
    """
    scores = level_scores(method, text, video)
    by_direction: dict[Direction, list[Tensor]] = {
        "text_to_video": level_scores(method, bank_text, video),
        "video_to_text": level_scores(method, text, bank_video),
    }
    t2v, v2t = (
        retrieval_metrics(sinkhorn_levels(scores, banks, direction=direction), video_of_text)
        for direction, banks in by_direction.items()
    )
    return Metrics(t2v.t2v, v2t.v2t)


def level_scores(
    method: Method, text: TextFeatures, video: VideoFeatures
) -> list[Float[Tensor, "texts videos"]]:
    """Compute the logits of each level of similarity of a method (UCoFiA), in tiles."""
    levels: Any = getattr(method, "levels")  # noqa: B009 (only UCoFiA has it)
    rows, columns = method.score_tile
    blocks = [
        [
            torch.stack(levels(text[row : row + rows], video[column : column + columns])).cpu()
            for column in range(0, len(video), columns)
        ]
        for row in range(0, len(text), rows)
    ]
    return list(torch.cat([torch.cat(line, dim=2) for line in blocks], dim=1).double())


def _noise_spread(
    method: Method, rank: Callable[..., Metrics], options: EvaluationOptions
) -> NoiseSpread:
    reseed = getattr(method, "reseed", None)
    results = []
    with _restored_buffers(method):
        for seed in options.noise_seeds:
            if not options.pair_noise and reseed is not None:
                reseed(seed)
            results.append(rank(**({"pair_noise": seed} if options.pair_noise else {})))
    return NoiseSpread(options.noise_seeds, tuple(results))


@contextmanager
def _restored_buffers(method: Method) -> Iterator[None]:
    """Restore all buffers on exit, including the evaluation noise."""
    copies = {name: buffer.clone() for name, buffer in method.named_buffers()}
    try:
        yield
    finally:
        for name, buffer in method.named_buffers():
            if name in copies:
                buffer.copy_(copies[name])


def _batches(method: Method, source: Any, batch_size: int) -> Iterator[Any]:
    """Split a record or a list of strings into batches; pass an iterable of batches through."""
    is_text = isinstance(source, Sequence) and bool(source) and isinstance(source[0], str)
    if not is_text and not isinstance(source, TensorRecord):
        yield from source
        return
    for start in range(0, len(source), batch_size):
        batch: Any = source[start : start + batch_size]
        yield method.tokenize(batch) if is_text else batch


def _encode(
    method: Method,
    batches: Iterator[Any],
    device: torch.device,
    precision: str,
    process: EvaluationProcess | None,
) -> Any:
    chunks: list[Any] = []
    for cpu_batch in batches:
        batch = cpu_batch.to(device)
        is_text = isinstance(batch, Tokens | TextFeatures)
        half = torch.float16 if precision == "fp16" else torch.bfloat16
        with torch.autocast(device.type, half, enabled=precision != "fp32"):
            features = method.encode_text(batch) if is_text else method.encode_video(batch)
        features = features.to(device, torch.float32)
        if process is None:
            _check_finite(features)
        chunks.append(features)
    if not chunks:
        raise UsageError("nothing to evaluate: there are no texts or no videos; check the split")
    features = type(chunks[0]).concatenate(chunks)
    if process is not None:
        features = process.gather(features, int(process.total(torch.tensor(len(features)))))
        _check_finite(features)  # After gathering, so that all processes raise.
    return features


def _check_finite(features: TextFeatures | VideoFeatures) -> None:
    if isinstance(features, TextFeatures):
        name, values = "text", features.sentence
    else:
        name, values = "frame", features.frames[features.mask]
    count = int((~values.isfinite()).any(dim=-1).sum())
    if count:
        raise NonFiniteError(
            f"{count} of {values.shape[0]} {name} features are NaN or infinite: check the "
            "weights or the stored features"
        )


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
