"""`eaglenet convert`: turn a checkpoint of the authors into a model folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

POOLINGS = ("mean", "max", "min")


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("convert")(convert)


def convert(
    checkpoint: Annotated[Path, typer.Argument(help="Released .bin file (a state_dict).")],
    out: Annotated[Path, typer.Argument(help="Model folder to write.")],
    dataset: Annotated[
        str | None,
        typer.Option(
            help="Script it was trained with: msrvtt-b32, msrvtt-b16, didemo, msvd or vatex. "
            "Sets the weight of the support energy, which the weights do not determine."
        ),
    ] = None,
    energy_pooling: Annotated[
        str, typer.Option(help="Pooling of energies over frames: mean, max or min; default mean.")
    ] = "mean",
    tokenizer: Annotated[
        Path | None,
        typer.Option(help="Copy CLIP's vocabulary from this folder or BPE table."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Turn a checkpoint of the authors' released code into a model folder.

    Weights without effect are left out and listed; unknown names are an error.
    """
    from eaglenet.core.errors import UsageError
    from eaglenet.encoders.tokenizers import ClipTokenizer
    from eaglenet.methods.eaglenet_config import EagleNetConfig
    from eaglenet.models.folder import save
    from eaglenet.models.released import convert as convert_weights
    from eaglenet.models.released import read_released

    if energy_pooling not in POOLINGS:
        raise UsageError(f"--energy-pooling {energy_pooling}: choose one of {', '.join(POOLINGS)}")
    changes: dict[str, Any] = {"energy_pooling": energy_pooling}
    if dataset is not None:
        changes["energy_support_weight"] = EagleNetConfig.released(dataset).energy_support_weight
    conversion = convert_weights(read_released(checkpoint), **changes)
    if tokenizer is not None:
        conversion.method.tokenizer = (
            ClipTokenizer.from_table(tokenizer)
            if tokenizer.is_file()
            else ClipTokenizer.from_folder(tokenizer)
        )
    save(conversion.method, out)
    if as_json:
        print(json.dumps({"folder": str(out), "unused": conversion.unused}, indent=2))
        return
    print(f"Wrote {out}")
    habits, frames = conversion.method.habits, conversion.method.frame_spec
    print(
        f"`eaglenet evaluate` runs it as its authors did: {frames.num_frames} frames "
        f"({frames.sampling}, short videos {frames.short}, square pixels), {habits.max_words} "
        f"words, towers in {habits.precision}; change the frames with --frames NAME=VALUE."
    )
    if conversion.unused:
        print(f"Left out {len(conversion.unused)} weights without effect:")
    for name, why in conversion.unused.items():
        print(f"  {name}: {why}")
    if tokenizer is None:
        print("Without a vocabulary the model scores features and token ids, not texts.")
        print("Add one with --tokenizer FOLDER (a CLIP folder with tokenizer.json).")
