"""``eaglenet evaluate`` and ``eaglenet metrics``: recalls of a model, or of a score matrix."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eaglenet.cli.data import EXAMPLE, VideoFolders
from eaglenet.cli.data import Settings as DatasetSettings
from eaglenet.cli.options import AsJson, Device, argument, check_output_file
from eaglenet.cli.terminal import print_line
from eaglenet.core.errors import CheckpointError, UsageError
from eaglenet.core.files import expand_home, write_json
from eaglenet.core.progress import activity, show_progress
from eaglenet.core.settings import option, read_assignments
from eaglenet.core.text import escape_lines, pluralize
from eaglenet.models.files import EXPERIMENT
from eaglenet.research.names import refuse_unknown_names

if TYPE_CHECKING:
    from torch import Tensor


def evaluate(
    run: str = argument(
        "Run folder; with --data, a model folder or name; with --moments, a store."
    ),
    split: str | None = option(None, "Score test, val or train; default: test, or val for frames."),
    features: Path | None = option(None, "Score all videos of this features folder instead."),
    data: str | None = option(None, "Score any model on this data (demo, msrvtt, ...)."),
    root: str = option("", "With --data: read the dataset in this folder or file."),
    from_hub: str | None = option(
        None,
        "Score any model on a dataset of the hub that includes its videos (mteb/MSR-VTT); "
        "downloaded once.",
        metavar="OWNER/NAME",
        group="Data",
    ),
    videos: VideoFolders = None,
    settings: DatasetSettings = None,
    noise_seeds: int = option(
        0, "Also report mean and spread over this many noise seeds.", min=0, group="Scoring"
    ),
    pair_noise: bool = option(
        False,
        "Draw separate noise for each pair, as the authors do; slow. Default: the same "
        "noise for all pairs.",
        group="Scoring",
    ),
    device: Device = "auto",
    backend: str = option(
        "auto", "Score with auto, reference, factorised or kernel.", group="Scoring"
    ),
    precision: str = option(
        "auto", "Compute in auto (the model's), fp32, bf16, or fp16 (towers only).", group="Scoring"
    ),
    frames: list[str] | None = option(
        None,
        "Change how frames are read: num_frames, size, sampling, resize, short, fast or "
        "square_pixels; repeatable. The result lists differences from the model.",
        metavar="NAME=VALUE",
        group="Data",
    ),
    sinkhorn: int = option(
        0,
        "Also rank ucofia with Sinkhorn offsets from N training texts and videos.",
        metavar="N",
        min=0,
        group="Scoring",
    ),
    scores: Path | None = option(
        None,
        "Also write the scores, texts x videos, and SIM.videos.npy for `eaglenet metrics`.",
        metavar="SIM.npy",
        group="Scoring",
        check=lambda path: check_output_file(path, (".npy",)),
    ),
    hubness: bool = option(
        False, "Also rank with hubness offsets (from 256 typical texts).", group="Scoring"
    ),
    hubness_bank: str | None = option(
        None,
        "Also rank with hubness offsets from these texts (one per line).",
        metavar="FILE",
        group="Scoring",
    ),
    moments: Path | None = option(
        None,
        "Search a store for the texts of this annotation file (DiDeMo, QVHighlights, "
        "Charades-STA, ActivityNet Captions), and score the moments found.",
        metavar="FILE",
    ),
    output: Path | None = option(
        None,
        "Write the result as JSON; default for a run: RUN/evaluation-SPLIT.json.",
        check=check_output_file,
    ),
    as_json: AsJson = False,
) -> None:
    """Print recalls in both directions, with their split, protocol and time.

    With --moments, print R@1 at IoU 0.3, 0.5 and 0.7, mean IoU and mean average precision.
    """
    if moments is not None:
        if split or data or from_hub or root or features or frames or settings or videos or scores:
            raise UsageError("--moments scores a store; leave out options of data and splits")
        has_scoring = noise_seeds or pair_noise or sinkhorn or hubness or hubness_bank is not None
        if has_scoring or backend != "auto" or precision != "auto":
            raise UsageError(
                "--moments searches with the settings of the store; leave out options of scoring"
            )
        _evaluate_moments(run, moments, device, output, as_json=as_json)
        return
    from eaglenet.store.disk import has_database

    if data is None and features is None and has_database(expand_home(run)):
        raise UsageError(
            f"{run} is a store; score the moments found in it with --moments FILE, or name a run "
            "folder"
        )
    if from_hub is not None:
        if data or root or features or videos or settings:
            raise UsageError(
                "--from-hub includes its videos; leave out --data, --root, --features, --videos "
                "and --set"
            )
    elif data is None and (videos or settings):
        raise UsageError("--videos and --set need --data; a run is scored on its own data")
    elif features is not None and (split or data or root or frames):
        raise UsageError(
            "--features scores all videos of a folder; leave out --split, --data, --root and "
            "--frames"
        )
    elif data is None and root:
        raise UsageError("--root needs --data; a run is scored on its own data")
    elif data is None and not expand_home(run).exists():
        raise CheckpointError(
            f"{run}: no such run folder; to evaluate a model by its name or folder, name the data "
            "with --data"
        )
    refuse_unknown_names(dataset=data or "")
    with show_progress(quiet=as_json), activity("loading PyTorch"):
        from eaglenet.indexing.model import read_text_file
        from eaglenet.research.evaluation.metrics import EvaluationOptions
        from eaglenet.research.experiments.evaluation import (
            evaluate_model,
            evaluate_run,
            evaluated_split,
        )
        from eaglenet.research.experiments.runs import load_experiment

    if from_hub is not None:
        from eaglenet.research.data.hub_dataset import unpack_hub_dataset

        split = split or "test"
        with show_progress(quiet=as_json) as announce:
            root = str(unpack_hub_dataset(from_hub, split, progress=announce(from_hub)))
        data = "folder"
    options = read_assignments(settings, EXAMPLE)
    if videos:
        options["video_folders"] = [str(folder) for folder in videos]
    evaluation_options = EvaluationOptions(
        backend,
        precision,
        tuple(range(noise_seeds)),
        pair_noise,
        scores,
        hubness=hubness or hubness_bank is not None,
        hubness_bank=read_text_file(hubness_bank) if hubness_bank is not None else (),
        sinkhorn=sinkhorn,
    )
    if data is None and features is None:
        split = evaluated_split(load_experiment(expand_home(run)), split)
    if output is not None and split is not None and split != "test" and "test" in output.stem:
        raise UsageError(
            f"--output {output} names the test split, but {split} would be scored; add "
            f"--split test, or write evaluation-{split}.json"
        )
    with show_progress(quiet=as_json) as announce:
        shared_options: dict[str, Any] = {
            "options": evaluation_options,
            "frames": frames or (),
            "device": device,
            "progress": announce("evaluate"),
        }
        if data is None:
            result = evaluate_run(run, split=split, features=features, **shared_options)
        else:
            result = evaluate_model(
                run, data, root, split=split, data_options=options, **shared_options
            )
    record = result.to_dict()
    folder = expand_home(run)
    is_whole_run = data is None and features is None and not frames
    if output is None and is_whole_run and os.access(folder, os.W_OK):
        output = folder / f"evaluation-{result.split}.json"  # For `eaglenet report`.
    if output is not None:
        write_json(output, record)
    print(json.dumps(record, indent=2) if as_json else escape_lines(str(result)))


def _evaluate_moments(
    store: str, annotations: Path, device: str, output: Path | None, *, as_json: bool
) -> None:
    from eaglenet.research.data.annotation_files import read_moments
    from eaglenet.research.evaluation.moments import evaluate_store
    from eaglenet.search.engine import Engine

    if (expand_home(store) / EXPERIMENT).exists():
        raise UsageError(f"{store} is a run folder; --moments scores a store: name its folder")
    texts = read_moments(annotations)
    with show_progress(quiet=as_json) as announce:
        result = evaluate_store(
            Engine.open(store, device=device), texts, progress=announce("evaluate")
        )
    record = result.to_dict()
    if output is not None:
        write_json(output, record)
    if result.missing_videos:
        missing = pluralize(len(result.missing_videos), "annotated video")
        example = result.missing_videos[0]
        print_line(f"not in {store}: {missing} (first: {example})", is_error=True)
    print(json.dumps(record, indent=2) if as_json else escape_lines(str(result)))


def metrics(
    scores_file: Path = argument("Scores, texts x videos; higher is better.", metavar="SIM.npy"),
    video_of_text: Path | None = option(
        None,
        "Read the index of each text's video (from 0): .npy, .json list, or one number per "
        "line; default: SIM.videos.npy if it exists, else text i belongs to video i.",
    ),
    dual_softmax: bool = option(False, "Also apply the dual softmax over all queries."),
    qb_norm: Path | None = option(
        None,
        "Also apply QB-norm with these scores of training texts; text-to-video only.",
        metavar="TRAIN_SIM.npy",
    ),
    sinkhorn: Path | None = option(
        None,
        "Also apply UCoFiA's Sinkhorn normalisation with these scores of training texts; "
        "text-to-video only.",
        metavar="TRAIN_SIM.npy",
    ),
    hubness: Path | None = option(
        None,
        "Also apply hubness offsets from these scores of a bank of texts.",
        metavar="BANK_SIM.npy",
    ),
    as_json: AsJson = False,
) -> None:
    """Print R@1/5/10, MdR, MnR and Rsum in both directions. Ties count against the model.

    If ties matter, also prints the metrics with ties counted for the model, as in many published
    numbers; identical captions tie in every model. All score files have shape texts x videos.
    """
    from eaglenet.research.evaluation import postprocessing as post
    from eaglenet.research.evaluation.metrics import Metrics, raise_if_not_finite, retrieval_metrics
    from eaglenet.research.evaluation.postprocessing import hub_bias

    def read_bank(path: Path) -> Tensor:
        bank = post.read_scores(path)
        raise_if_not_finite(bank)
        return bank

    scores = post.read_scores(scores_file)
    # `evaluate --scores` writes it.
    file_beside = scores_file.with_suffix(".videos.npy")
    if video_of_text is None and file_beside.is_file():
        video_of_text = file_beside
    video_indices = (
        post.read_video_of_text(video_of_text, len(scores))
        if video_of_text is not None
        else post.default_video_of_text(scores)
    )
    plain = retrieval_metrics(scores, video_indices)
    record = {"texts": scores.shape[0], "videos": scores.shape[1], **plain.to_dict()}
    if video_of_text is not None:
        record["video_of_text"] = str(video_of_text)
    lenient = retrieval_metrics(scores, video_indices, ties="for")
    if lenient != plain:
        record["ties_for_the_model"] = lenient.to_dict()
    scores = scores.double()
    if dual_softmax:
        # Each direction has its own prior.
        t2v = retrieval_metrics(post.dual_softmax(scores), video_indices).t2v
        v2t = retrieval_metrics(post.dual_softmax(scores.T).T, video_indices).v2t
        record["dual_softmax"] = Metrics(t2v, v2t).to_dict()
    for name, path, normalise in (
        ("qb_norm", qb_norm, post.querybank_norm),
        ("sinkhorn", sinkhorn, post.sinkhorn_norm),
    ):
        if path is not None:
            metrics_with_bank = retrieval_metrics(
                normalise(scores, read_bank(path).double()), video_indices
            )
            record[name] = {"t2v": metrics_with_bank.t2v.to_dict()}
    if hubness is not None:
        bank = read_bank(hubness)
        if bank.shape[1] != scores.shape[1]:
            raise UsageError(
                f"{hubness} scores {bank.shape[1]} videos, {scores_file} {scores.shape[1]}; "
                "expected the same videos in the same order"
            )
        record["hubness"] = retrieval_metrics(scores + hub_bias(bank), video_indices).to_dict()
    if as_json:
        print(json.dumps(record, indent=2))
    else:
        _print_table(record)


def _print_table(record: dict[str, Any]) -> None:
    from eaglenet.research.evaluation.evaluate import GROUPED_CAPTIONS

    names = ("R@1", "R@5", "R@10", "MdR", "MnR")
    texts, videos = (pluralize(record[name], name[:-1]) for name in ("texts", "videos"))
    print_line(
        f"{texts} x {videos}"
        + (f"; video of each text: {record['video_of_text']}" if "video_of_text" in record else "")
    )
    print(f"{'':32}" + "".join(f"{name:>8}" for name in names))
    titles = {"t2v": "text-to-video", "v2t": "video-to-text"}
    for prefix, metrics in (
        ("", record),
        ("ties for model, ", record.get("ties_for_the_model")),
        ("dual softmax, ", record.get("dual_softmax")),
        ("QB-norm, ", record.get("qb_norm")),
        ("Sinkhorn, ", record.get("sinkhorn")),
        ("hubness offsets, ", record.get("hubness")),
    ):
        if not isinstance(metrics, dict):
            continue
        for direction, title in titles.items():
            if direction in metrics:
                row = "".join(f"{metrics[direction][name]:8.2f}" for name in names)
                print(f"{prefix + title:32}{row}")
        if "Rsum" in metrics:
            print(f"{prefix + 'Rsum':32}{metrics['Rsum']:8.2f}")
    if record["v2t"]["queries"] < record["t2v"]["queries"]:
        print(f"video-to-text: {GROUPED_CAPTIONS}")
    num_textless = record["videos"] - record["v2t"]["queries"]
    if num_textless:
        title = pluralize(num_textless, "video has", "videos have")
        print(f"{title} no text: candidates, but not queries")
    if "ties_for_the_model" in record:
        print("ties for model: equal scores count for the model, as in many published numbers")
    if {"dual_softmax", "qb_norm", "sinkhorn"} & set(record):
        print(
            "dual softmax, QB-norm and Sinkhorn use other queries: not comparable with plain scores"
        )
    if "hubness" in record:
        print("hubness offsets: computed from a fixed bank of texts, the same for every query")
