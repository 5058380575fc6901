"""`eaglenet metrics`: recalls and ranks of any similarity matrix."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from eaglenet.core.errors import UsageError


def register(app: typer.Typer) -> None:
    app.command("metrics")(metrics)


def metrics(
    scores_file: Annotated[
        Path, typer.Argument(metavar="SIM.npy", help="Scores, texts x videos; higher is better.")
    ],
    video_of_text: Annotated[
        Path | None,
        typer.Option(
            "--video-of-text",
            help="Video of each text, from 0: .npy, .json list, or one number per line; "
            "default: text i belongs to video i.",
        ),
    ] = None,
    dual_softmax: Annotated[
        bool, typer.Option("--dual-softmax", help="Also apply the dual softmax over all queries.")
    ] = False,
    qb_norm: Annotated[
        Path | None,
        typer.Option(
            "--qb-norm",
            metavar="TRAIN_SIM.npy",
            help="Also apply QB-norm with these training texts x videos; text-to-video only.",
        ),
    ] = None,
    sinkhorn: Annotated[
        Path | None,
        typer.Option(
            "--sinkhorn",
            metavar="TRAIN_SIM.npy",
            help="Also apply UCoFiA's Sinkhorn normalisation with these training texts x videos; "
            "text-to-video only.",
        ),
    ] = None,
    hubness: Annotated[
        Path | None,
        typer.Option(
            "--hubness",
            metavar="BANK_SIM.npy",
            help="Also apply hubness offsets from these scores, bank texts x videos.",
        ),
    ] = None,
    transpose: Annotated[
        bool, typer.Option("--transpose", help="Read the file as videos x texts.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Print R@1/5/10, MdR, MnR and Rsum in both directions. Ties count against the model.

    Where it makes a difference, the same metrics with ties counted for the model follow: many
    published numbers count them so, and identical captions tie in every model.
    """
    from eaglenet.research.evaluation.metrics import Metrics, raise_if_not_finite, retrieval_metrics
    from eaglenet.research.evaluation.postprocessing import (
        default_video_of_text,
        dual_softmax_both,
        querybank_norm,
        read_scores,
        read_video_of_text,
        sinkhorn_norm,
    )
    from eaglenet.scoring.hubness import hub_bias

    scores = read_scores(scores_file)
    scores = scores.T.contiguous() if transpose else scores
    owners = (
        read_video_of_text(video_of_text, len(scores))
        if video_of_text is not None
        else default_video_of_text(scores)
    )
    plain = retrieval_metrics(scores, owners)
    record = {"texts": scores.shape[0], "videos": scores.shape[1], **plain.to_dict()}
    lenient = retrieval_metrics(scores, owners, ties="for")
    if lenient != plain:
        record["ties_for_the_model"] = lenient.to_dict()
    if dual_softmax:
        t2v, v2t = dual_softmax_both(scores.double())
        both = Metrics(retrieval_metrics(t2v, owners).t2v, retrieval_metrics(v2t, owners).v2t)
        record["dual_softmax"] = both.to_dict()
    if qb_norm is not None:
        bank = read_scores(qb_norm)
        raise_if_not_finite(bank)
        normalised = querybank_norm(scores.double(), bank.double())
        record["qb_norm"] = {"t2v": retrieval_metrics(normalised, owners).t2v.to_dict()}
    if sinkhorn is not None:
        bank = read_scores(sinkhorn)
        raise_if_not_finite(bank)
        normalised = sinkhorn_norm(scores.double(), bank.double())
        record["sinkhorn"] = {"t2v": retrieval_metrics(normalised, owners).t2v.to_dict()}
    if hubness is not None:
        bank = read_scores(hubness)
        raise_if_not_finite(bank)
        if bank.shape[1] != scores.shape[1]:
            raise UsageError(
                f"{hubness} scores {bank.shape[1]} videos, {scores_file} {scores.shape[1]}; "
                "expected the same videos in the same order"
            )
        record["hubness"] = retrieval_metrics(scores.double() + hub_bias(bank), owners).to_dict()
    if as_json:
        print(json.dumps(record, indent=2))
    else:
        _print_table(record)


def _print_table(record: dict[str, object]) -> None:
    names = ("R@1", "R@5", "R@10", "MdR", "MnR")
    print(f"{record['texts']} texts x {record['videos']} videos")
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
    without = int(str(record["videos"])) - int(record["v2t"]["queries"])  # type: ignore[index]
    if without:
        print(f"{without} videos have no text: candidates, but not queries")
    if "ties_for_the_model" in record:
        print("ties for model: equal scores count for the model, as in many published numbers")
    if {"dual_softmax", "qb_norm", "sinkhorn"} & set(record):
        print(
            "dual softmax, QB-norm and Sinkhorn use other queries: not comparable with plain scores"
        )
    if "hubness" in record:
        print("hubness offsets: from a fixed bank of texts, the same for every query")
