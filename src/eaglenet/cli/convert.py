"""``eaglenet convert`` and ``eaglenet push``: import checkpoints, and publish models."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eaglenet.cli.options import AsJson, argument, check_output_folder
from eaglenet.cli.terminal import print_record
from eaglenet.core.errors import UsageError, shell_quote
from eaglenet.core.files import expand_home
from eaglenet.core.settings import option, read_assignments

if TYPE_CHECKING:
    from eaglenet.core.types import Tokenizer
    from eaglenet.methods.base import Method

POOLINGS = ("mean", "max", "min")
EXAMPLE = "num_frames=12"


def convert(
    checkpoint: Path = argument("Checkpoint of the authors (a state_dict)."),
    out: Path = argument("Folder to write the model to.", check=check_output_folder),
    source: str = option(
        "eaglenet", "Read the checkpoint format of this method.", name="--from", metavar="METHOD"
    ),
    dataset: str | None = option(
        None,
        "Take settings that the weights do not determine from this script of EagleNet: "
        "msrvtt-b32, msrvtt-b16, didemo, msvd or vatex.",
    ),
    changes: list[str] | None = option(
        None,
        f"Change a setting that the weights do not determine, e.g. {EXAMPLE}; repeatable.",
        name="--set",
    ),
    energy_pooling: str = option(
        "mean", "Pool energies over frames in EagleNet: mean, max or min."
    ),
    tokenizer: Path | None = option(
        None, "Copy the vocabulary from this folder (CLIP, BERT) or BPE table of CLIP."
    ),
    as_json: AsJson = False,
) -> None:
    """Turn a checkpoint of a method's official code into a model folder.

    Weights that have no effect are left out and listed; unknown names are an error. Settings that
    the checkpoint does not determine are set with --dataset or --set.
    """
    from eaglenet.methods.official import checkpoint as official
    from eaglenet.methods.official.files import read_released
    from eaglenet.models.files import EXPERIMENT
    from eaglenet.models.folder import save
    from eaglenet.research.recipes.authors import ORIGINALS

    settings = read_assignments(changes, EXAMPLE)
    if not expand_home(checkpoint).exists():
        raise UsageError(f"{checkpoint}: no such file")
    for folder in (checkpoint, *checkpoint.parents[:2]):
        if (folder / EXPERIMENT).is_file():
            raise UsageError(
                f"{checkpoint} belongs to the run {folder}, which needs no conversion: eaglenet "
                f"evaluate {shell_quote(folder)}, or eaglenet index FOLDER --store NEW "
                f"--model {shell_quote(folder)}"
            )
    conversion: Any
    if source == "eaglenet":
        settings = _eaglenet_settings(dataset, energy_pooling, settings)
        conversion = official.convert_eaglenet(read_released(checkpoint), **settings)
    else:
        original = ORIGINALS.get(source)
        conversion = official.convert_official(source, read_released(checkpoint), settings)
        if original is not None:
            method = conversion.method
            frames, max_words = original.inputs_with(method.frame_spec.num_frames)
            method.frame_spec = dataclasses.replace(method.frame_spec, **frames)
            if method.habits.max_words is None:
                method.habits = dataclasses.replace(method.habits, max_words=max_words)
    method, unused_weights = conversion.method, conversion.unused_weights
    if tokenizer is not None:
        method.tokenizer = _read_vocabulary(tokenizer, method)
    save(method, out)
    record = {"folder": str(out), "unused": unused_weights}
    print_record(record, as_json, f"Wrote {out}", *summary(method, unused_weights))


def summary(method: Method, unused_weights: dict[str, str]) -> list[str]:
    """Describe the inputs and the evaluation of the model, and the weights that were left out."""
    from eaglenet.encoders.features import ExpertEncoder

    habits, frames = method.habits, method.frame_spec
    encoder = method.encoder
    reads_features = isinstance(encoder, ExpertEncoder)
    lines = []
    if isinstance(encoder, ExpertEncoder):
        experts = ", ".join(f"{name} {width}" for name, width in encoder.config.experts.items())
        lines.append(
            f"Reads stored features ({experts}; texts {encoder.config.words_dim} wide): "
            "`eaglenet evaluate MODEL --data features --root FOLDER` (docs/how-to/experts.md)."
        )
    else:
        lines.append(
            f"Evaluated as its authors did: {frames.num_frames} frames ({frames.sampling}, short "
            f"videos {frames.short}), {habits.max_words} words, towers in {habits.precision}; "
            "`eaglenet evaluate --frames NAME=VALUE` changes the frames."
        )
    for reason in dict.fromkeys(unused_weights.values()):
        names = [name for name, why in unused_weights.items() if why == reason]
        examples = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
        lines.append(f"Left out {len(names)} weights, {examples}: {reason}")
    if method.tokenizer is None and not reads_features:
        lines += [
            "The model has no vocabulary: it scores features and token ids, but not texts.",
            f"Add one with --tokenizer FOLDER (a {_vocabulary_of(method)} folder with "
            "tokenizer.json).",
        ]
    return lines


def _vocabulary_of(method: Method) -> str:
    return {"vit_bert": "DistilBERT", "resnet_bert": "BERT"}.get(method.encoder.family, "CLIP")


def _read_vocabulary(path: Path, method: Method) -> Tokenizer:
    from eaglenet.encoders.tokenizers import FILE, ClipTokenizer, JsonTokenizer, TokenizerSettings

    model = _vocabulary_of(method)
    if model == "CLIP":
        is_table = path.is_file()
        return ClipTokenizer.from_table(path) if is_table else ClipTokenizer.from_folder(path)
    encoder = method.encoder
    if not (path / FILE).is_file():
        raise UsageError(f"--tokenizer {path}: no {FILE} in it; pass a {model} folder")
    settings = TokenizerSettings(context_length=encoder.context_length or 512)
    tokenizer = JsonTokenizer.from_file(path / FILE, settings)
    if tokenizer.vocabulary_size != encoder.vocabulary_size:
        raise UsageError(
            f"--tokenizer {path}: {tokenizer.vocabulary_size} tokens, but the checkpoint has "
            f"{encoder.vocabulary_size}; pass the folder of its {model}"
        )
    return tokenizer


def _eaglenet_settings(
    dataset: str | None, energy_pooling: str, settings: dict[str, Any]
) -> dict[str, Any]:
    """Complete ``settings`` with those that the checkpoint does not determine."""
    from eaglenet.methods.eaglenet import EagleNetConfig
    from eaglenet.methods.official import checkpoint as official

    if energy_pooling not in POOLINGS:
        raise UsageError(f"--energy-pooling {energy_pooling}: choose one of {', '.join(POOLINGS)}")
    scripts = official.UNDETERMINED["eaglenet"]
    missing_settings = {name: value for name, value in scripts.items() if name not in settings}
    if dataset is None and missing_settings:
        options = " ".join(f"--set {name}={value}" for name, value in missing_settings.items())
        raise UsageError(
            f"the checkpoint does not determine {', '.join(missing_settings)}; name the authors' "
            f"script with --dataset, or set them (the authors' values: {options})"
        )
    if dataset is not None:
        weight = EagleNetConfig.for_script(dataset).energy_support_weight
        settings = {**scripts, "energy_support_weight": weight, **settings}
    return {**settings, "energy_pooling": energy_pooling}


def push(
    folder: Path = argument("Run or model folder."),
    repository: str = argument("Repository on the hub, OWNER/NAME."),
    licence: str = option("", "Publish under this licence, such as apache-2.0.", name="--license"),
    private: bool = option(False, "Create a private repository."),
    dry_run: bool = option(False, "Print the model card; upload nothing."),
    as_json: AsJson = False,
) -> None:
    """Upload a model with a model card to the Hugging Face hub.

    The card describes the model, its training and its results, from the files of the run. Log in
    first with `hf auth login`, or set HF_TOKEN.
    """
    from eaglenet.research.experiments.publication import find_model, model_card, push_model

    model = find_model(folder)
    card = model_card(folder, repository, licence)
    if dry_run:
        print(card)
        return
    address = push_model(model, repository, card, private=private)
    record = {"repository": repository, "address": address}
    print_record(record, as_json, f"{folder} is at {address}")
