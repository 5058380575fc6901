"""`eaglenet data features`, `demo-experts` and `teach`: features made once, by several models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from eaglenet.cli.data_options import EXAMPLE, AsJson, Dataset, Settings, VideoFolders
from eaglenet.cli.progress import shown_progress
from eaglenet.errors import UsageError
from eaglenet.settings import read_assignments


def register(app: typer.Typer) -> None:
    """Add the commands to `eaglenet data`."""
    app.command("features")(features)
    app.command("demo-experts")(demo_experts)
    app.command("teach")(teach)


def features(
    model: Annotated[
        str, typer.Argument(help="Whose towers to use: a CLIP folder or hub id, a model or a run.")
    ],
    dataset: Dataset,
    output: Annotated[Path, typer.Option("--output", help="The features folder to write.")],
    root: Annotated[str, typer.Option("--root", help="Folder (or file) of the dataset.")] = "",
    split: Annotated[str, typer.Option("--split", help="train, val or test.")] = "train",
    videos: VideoFolders = None,
    settings: Settings = None,
    experts: Annotated[
        list[str] | None,
        typer.Option("--expert", help="Another model as NAME=MODEL; repeatable."),
    ] = None,
    words: Annotated[
        bool, typer.Option("--words", help="Also every word, as the text tower sees it.")
    ] = False,
    device: Annotated[str, typer.Option("--device", help="auto, cpu or cuda.")] = "auto",
    as_json: AsJson = False,
) -> None:
    """Encode a split once; heads then train on the features without towers, in minutes.

    Train with ``eaglenet train features/xpool --root OUTPUT``, evaluate with
    ``eaglenet evaluate RUN --features OUTPUT``. With --expert the folder holds what each of several
    models sees, for ``eaglenet train experts/mmt --root OUTPUT``.
    """
    from eaglenet.experiments.feature_export import export_features

    options = read_assignments(settings, EXAMPLE)
    if videos:
        options["video_folders"] = [str(folder) for folder in videos]
    with shown_progress(quiet=as_json) as announce:
        source = export_features(
            model,
            dataset,
            root,
            output,
            split=split,
            options=options,
            experts=parse_experts(experts),
            words=words,
            device=device,
            progress=announce("features"),
        )
    if as_json:
        print(json.dumps({"output": str(output), **source.describe()}, indent=2))
        return
    print(f"{source.num_texts:,} texts and {source.num_videos:,} videos in {output}")
    if source.missing:
        print(f"{len(source.missing):,} videos of the split are missing, first {source.missing[0]}")


def demo_experts(
    output: Annotated[Path, typer.Option("--output", help="The experts folder to write.")],
    split: Annotated[str, typer.Option("--split", help="train, val or test.")] = "train",
    count: Annotated[int, typer.Option("--count", min=2, help="Clips of the split.")] = 600,
    seed: Annotated[int, typer.Option("--seed", help="Another seed is another world.")] = 0,
    missing: Annotated[
        float, typer.Option(help="Share of videos without an expert, 0 to 0.5.")
    ] = 0.3,
    as_json: AsJson = False,
) -> None:
    """Write the demo world as five experts see it, each blind in part and often missing.

    Train with ``eaglenet train experts/ce --root OUTPUT``.
    """
    from eaglenet.data.demo.experts import WIDTHS, write_experts

    records = write_experts(output, split, count=count, seed=seed, missing=missing)
    content = {"output": str(output), "videos": len(records), "texts": len(records.texts)}
    if as_json:
        print(json.dumps({**content, "experts": WIDTHS}, indent=2))
        return
    print(f"{len(records):,} videos, {len(records.texts):,} texts, {', '.join(WIDTHS)} in {output}")


def teach(
    model: Annotated[str, typer.Argument(help="The teacher: a run or a model folder.")],
    root: Annotated[Path, typer.Option("--root", help="The features folder it teaches on.")],
    name: Annotated[str, typer.Option("--name", help="Name of the teacher in that folder.")],
    as_json: AsJson = False,
) -> None:
    """Write a trained model's vectors into a features folder, for students to learn from.

    Train the student with ``eaglenet train experts/teachtext --root ROOT``.
    """
    from eaglenet.experiments.teaching import write_teacher

    texts, videos = write_teacher(model, root, name)
    if as_json:
        print(json.dumps({"root": str(root), "teacher": name, "texts": texts, "videos": videos}))
        return
    print(f"teacher {name}: {texts:,} texts and {videos:,} videos in {root}")


def parse_experts(given: list[str] | None) -> dict[str, str]:
    """``NAME=MODEL`` pairs."""
    pairs = [entry.partition("=") for entry in given or ()]
    for name, equals, model in pairs:
        if not (name and equals and model):
            raise UsageError(f"--expert {name + equals + model!r}: expected NAME=MODEL")
    if len({name for name, _, _ in pairs} | {"frames"}) != len(pairs) + 1:
        raise UsageError("--expert: each name once, and not 'frames', which is the first model")
    return {name: model for name, _, model in pairs}


def check_features(root: Path, as_json: bool) -> None:
    """A feature folder has no files to miss: reading it checks it."""
    from eaglenet.data.experts import load_expert_folder

    split = load_expert_folder(root)
    missing = {
        name: int((packed.count == 0).sum()) for name, packed in sorted(split.experts.items())
    }
    content = {
        "dataset": "features",
        "root": str(root),
        "protocol": split.protocol.name,
        "num_videos": split.num_videos,
        "num_captions": split.num_texts,
        "frame_dim": split.frame_dim,
        "text_dim": split.text_dim,
        "max_frames": split.max_frames,
        "experts": split.expert_widths,
        "videos_missing_experts": missing,
        "words": {name: packed.values.shape[1] for name, packed in split.words.items()},
        "has_graphs": split.graphs is not None,
        "teachers": 0 if split.text_teachers is None else split.text_teachers.shape[1],
        "metadata": dict(split.metadata),
        "exit_code": 0,
    }
    if as_json:
        print(json.dumps(content, indent=2))
        return
    print(
        f"{split.protocol.name}: frames {split.frame_dim} wide, up to {split.max_frames} "
        f"per video; sentences {split.text_dim} wide; all numbers finite"
    )
    for name, count in missing.items():
        print(f"  expert {name}: {split.expert_widths[name]} wide, missing for {count:,} videos")
    for name, packed in split.words.items():
        print(f"  words {name}: {packed.values.shape[1]} wide, up to {packed.most} per text")
