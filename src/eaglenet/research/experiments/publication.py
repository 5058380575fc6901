"""Publication of a trained model on the hub, with a model card from the files of its run."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from eaglenet.core import untrusted
from eaglenet.core.errors import UsageError, shell_quote
from eaglenet.core.files import expand_home
from eaglenet.core.text import escape_line, pluralize
from eaglenet.encoders.catalogue import HUB_IDS
from eaglenet.encoders.hub import is_hub_id, split_revision, split_st_name
from eaglenet.methods import METHODS
from eaglenet.models.files import CONFIG, EXPERIMENT, MODEL, WEIGHTS, WHOLE_MODEL
from eaglenet.research.data import SOURCES
from eaglenet.research.data.sources import FEW_VIDEOS, few_videos
from eaglenet.research.evaluation.run_records import RESULT, is_unfinished
from eaglenet.research.experiments.stored_data import TOWERS
from eaglenet.version import __version__

CARD = "README.md"
EVALUATIONS = "evaluation*.json"
"""Results of ``eaglenet evaluate RUN``."""
ARCHITECTURES = {
    "clip": "towers of CLIP's architecture",
    "compact": "towers of the architecture of `small`",
    "experts": "stored features of several experts",
    "features": "stored features",
    "openclip": "a model of open_clip",
    "perception": "towers of Perception Encoder's architecture",
    "resnet_bert": "ResNet-50 and BERT",
    "siglip": "towers of SigLIP's architecture",
    "st": "a model of sentence-transformers",
    "vit_bert": "a space-time ViT and BERT",
}
"""Description of each kind of encoder, for models without the run that names their towers."""
STORED = ("features", "experts")
"""Kinds of encoders that read stored features: such models cannot encode videos."""
APPROXIMATE = " It is approximate: read from the abstract of its paper."


def find_model(folder: Path) -> Path:
    """Return the model folder of a run, with its towers if they are stored, or a model folder."""
    folder = expand_home(folder)
    for candidate in (folder / WHOLE_MODEL, folder / MODEL, folder):
        if (candidate / CONFIG).is_file() and (candidate / WEIGHTS).is_file():
            return candidate
    raise UsageError(
        f"{folder} has no model ({CONFIG} and {WEIGHTS}); use a run folder or a model folder"
    )


def model_card(folder: Path, repository: str, licence: str = "") -> str:
    """Return the model card as Markdown: metadata for the hub, usage, training and recalls.

    Values read from files are escaped, so that they cannot add a line, such as one of metadata.
    """
    folder = expand_home(folder)
    config_path = find_model(folder) / CONFIG
    config = _read(config_path)
    if folder.name in (MODEL, WHOLE_MODEL) and not (folder / EXPERIMENT).exists():
        folder = folder.parent  # The model of a run, whose other files are beside it.
    experiment, result = _read(folder / EXPERIMENT), _read(folder / RESULT)
    with _name_file(config_path):
        method, tower = config.get("method", ""), config.get("encoder", {}).get("kind", "")
        frame_spec = config.get("frame_spec", {})
        frames, size = (frame_spec.get(name, "?") for name in ("num_frames", "size"))
        is_approximate = method in METHODS and METHODS[method].is_approximate
    with _name_file(folder / EXPERIMENT):
        training_lines = _training_lines(experiment, result)
        source = _tower_name(experiment)
        towers = f"`{source}`" if source else ARCHITECTURES.get(tower, f"`{tower}`")
    name = repository.rpartition("/")[2]
    lines = [
        "---",
        "library_name: eaglenet",
        "tags:",
        "- text-video-retrieval",
        "- video-search",
        *([f"license: {licence}"] if licence else []),
        *([f"base_model: {base}"] if (base := _base_model(source)) else []),
        "---",
        f"# {name}",
        "",
        f"The method `{method}` over {towers}, for text-video retrieval and video search with "
        f"[eaglenet](https://pypi.org/project/eaglenet/) {__version__}."
        f"{APPROXIMATE * is_approximate}",
        "",
        "## Use",
        "",
        "```",
        f"hf download {shell_quote(repository)} --local-dir {shell_quote(name)}",
        *_use_lines(name, tower),
        *([] if tower in STORED else [f"It reads {frames} frames of {size} pixels per video."]),
        *training_lines,
        *(["Training was not finished."] if is_unfinished(folder) else []),
        *_result_lines(folder, result),
    ]
    return "\n".join(map(escape_line, lines)) + "\n"


def _use_lines(name: str, tower: str) -> list[str]:
    """Return the commands that use a model, to the end of the section."""
    if tower in STORED:
        return [
            f"eaglenet evaluate {shell_quote(f'./{name}')} --data features --root FOLDER",
            "```",
            "",
            "It is a head over stored features, which FOLDER contains "
            "(`eaglenet data features` writes them).",
        ]
    return [
        f"eaglenet index VIDEOS --store STORE --model {shell_quote(f'./{name}')}",
        'eaglenet search "a dog runs on the beach" --store STORE',
        "```",
        "",
        "```python",
        "import eaglenet",
        "",
        f'model = eaglenet.load("./{name}")',
        'scores = model.similarity(["a dog runs on the beach"], ["video.mp4"])',
        "```",
        "",
    ]


def _tower_name(experiment: Mapping[str, Any]) -> str:
    """Return the model whose towers a run started from or read features of; "" if unknown."""
    encoder, data = experiment.get("encoder", {}), experiment.get("data", {})
    source = str(encoder.get("source") or "")
    if source or encoder.get("kind") != "features" or data.get("dataset") not in SOURCES:
        return source
    if SOURCES[data["dataset"]].is_features:
        return ""
    return Path(str(data.get("options", {}).get("towers") or TOWERS)).name


def _base_model(source: str) -> str:
    """Return the hub id of the model that a run started from; empty for a folder."""
    identifier, _ = split_revision(split_st_name(HUB_IDS.get(source, source))[0])
    is_folder = expand_home(identifier).exists()
    return identifier if is_hub_id(identifier) and not is_folder else ""


def _training_lines(experiment: Mapping[str, Any], result: Mapping[str, Any]) -> list[str]:
    if not experiment:
        return []
    training, data = experiment.get("training", {}), experiment.get("data", {})
    lines = [
        "",
        "## Training",
        "",
        f"Experiment `{experiment.get('name', '')}` on `{data.get('dataset', '')}`: "
        f"{pluralize(training.get('epochs', 0), 'epoch')}, {training.get('batch_size')} pairs per "
        "batch, rates "
        f"{training['lr_encoder']:g} (towers) and {training['lr_head']:g} (the rest), seed "
        f"{training.get('seed')}.",
    ]
    if training.get("lora_rank"):
        lines.append(
            f"Low-rank changes of rank {training['lora_rank']} are merged into the towers."
        )
    if result.get("selection"):
        lines.append(f"Epoch {result.get('selected_epoch')}: {result['selection']}.")
    if experiment.get("notes"):
        lines.append(" ".join(str(experiment["notes"]).split()))
    return lines


def _result_lines(folder: Path, result: Mapping[str, Any]) -> list[str]:
    rows = []
    if result.get("metrics"):
        title = str(result.get("selected_on", "val"))
        rows.append((folder / RESULT, title, result["metrics"]))
    for path in sorted(folder.glob(EVALUATIONS)):
        record = _read(path)
        rows.append((path, str(record.get("split") or path.stem), record))
    if not rows:
        return []
    lines = [
        "",
        "## Results",
        "",
        "| split | protocol | direction | R@1 | R@5 | R@10 |",
        "|---|---|---|---|---|---|",
    ]
    notes: list[str] = []
    for path, split, record in rows:
        for direction, title in (("t2v", "text to video"), ("v2t", "video to text")):
            with _name_file(path):
                recalls = record[direction]
                cells = " | ".join(f"{recalls[name]:.1f}" for name in ("R@1", "R@5", "R@10"))
                lines.append(f"| {split} | {record.get('protocol', '')} | {title} | {cells} |")
            count = int(record["v2t"].get("queries", FEW_VIDEOS))
            record_notes = [str(note) for note in record.get("notes", ())]
            # Those of an evaluation have the warning.
            warnings = [note for note in few_videos(count) if note not in record_notes]
            notes += [*(f"{split}: {warning}" for warning in warnings), *record_notes]
    for note in dict.fromkeys(notes):
        lines += ["", f"Note: {note}."]
    return lines


@contextmanager
def _name_file(path: Path) -> Iterator[None]:
    """Turn errors about the content of a file into a ``UsageError`` that names the file."""
    try:
        yield
    except KeyError as error:
        raise UsageError(f"{path}: has no {error}; delete it or write it again") from error
    except (TypeError, ValueError, AttributeError, OverflowError) as error:
        raise UsageError(f"{path}: {error}; delete it or write it again") from error


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        content = untrusted.read_json(path)
    except (ValueError, OSError) as error:
        raise UsageError(f"{path}: cannot be read as JSON ({error})") from error
    return content if isinstance(content, dict) else {}


def _copy_model(model: Path, target: Path) -> None:
    """Copy a model folder without hidden files; refuse links, which may lead to private files."""
    try:
        shutil.copytree(model, target, symlinks=True, ignore=shutil.ignore_patterns(".*"))
    except OSError as error:
        raise UsageError(f"{model}: cannot be copied ({error})") from error
    for path in target.rglob("*"):
        if path.is_symlink():
            raise UsageError(
                f"{model / path.relative_to(target)}: a link, which is not uploaded; replace it by "
                "the file itself, or delete it"
            )


def push_model(model: Path, repository: str, card: str, *, private: bool = False) -> str:
    """Create the repository if it is missing, upload the files, and return its URL.

    All files appear in one commit: after an error the repository is as before, or new and empty.
    """
    import huggingface_hub
    from huggingface_hub import constants

    if not is_hub_id(repository) or repository.count("/") != 1:
        raise UsageError(f"{repository!r} is not the name of a repository; write OWNER/NAME")
    api = huggingface_hub.HfApi(endpoint=constants.ENDPOINT)
    with tempfile.TemporaryDirectory(prefix="eaglenet-push-") as name:
        staging = Path(name, "model")
        _copy_model(model, staging)
        (staging / CARD).write_text(card, encoding="utf-8")
        try:
            api.create_repo(repository, private=private, exist_ok=True)
            api.upload_folder(
                repo_id=repository,
                folder_path=staging,
                commit_message=f"Upload a model of eaglenet {__version__}",
            )
        except Exception as error:  # The library has a class for each kind of failure.
            lines = str(error).splitlines() or [type(error).__name__]
            raise UsageError(
                f"{repository}: cannot be written at {constants.ENDPOINT} ({lines[0]}). Log in "
                "with `hf auth login`, check your write access, and push again"
            ) from error
    return f"{constants.ENDPOINT}/{repository}"
