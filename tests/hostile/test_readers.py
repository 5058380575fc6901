"""Every reader of files that others made, against thousands of damaged ones."""

from __future__ import annotations

import gzip
import inspect
import io
import json
import pickle
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from campaign import Reader, count, numbers, run
from mutations import mutate_bytes, mutate_json, mutated_json_bytes, mutated_lines
from PIL import Image

from eaglenet.core.errors import DatasetError, EagleNetError
from eaglenet.encoders.clip_files import config_from_hub, load_clip, read_openai_weights
from eaglenet.encoders.tokenizers import ClipTokenizer
from eaglenet.models.folder import load
from eaglenet.research.data.frame_folder import FrameItem
from eaglenet.search.places import _look_up, find_place
from eaglenet.store.manifest import Manifest
from eaglenet.video.recording import read_recording
from raw_file import write_dng


def refuses_some(refused: int, cases: int) -> None:
    """A campaign in which nothing is refused damages nothing."""
    assert refused > cases // 20


@pytest.mark.parametrize(
    ("name", "cases"), [("config.json", 45), ("tokenizer.json", 30), ("model.safetensors", 30)]
)
def test_model_folders(sound_model: Path, name: str, cases: int) -> None:
    mutate = mutate_bytes if name.endswith("safetensors") else mutated_json_bytes
    reader = Reader(f"model-{name}", sound_model / name, mutate, lambda: load(sound_model))
    refuses_some(run(reader, cases), cases)


@pytest.mark.parametrize(
    ("name", "cases"),
    [("config.json", 30), ("preprocessor_config.json", 20), ("model.safetensors", 30)],
)
def test_clip_folders(sound_clip: Path, name: str, cases: int) -> None:
    mutate = mutate_bytes if name.endswith("safetensors") else mutated_json_bytes
    reader = Reader(f"clip-{name}", sound_clip / name, mutate, lambda: load_clip(sound_clip))
    run(reader, cases)


def test_configurations_without_weights(sound_clip: Path) -> None:
    values = json.loads((sound_clip / "config.json").read_text())
    tried = 0
    for number in numbers(800):
        tried += 1
        changed = mutate_json(values, random.Random(number))
        if not isinstance(changed, dict):
            continue
        try:
            config_from_hub(changed)
        except EagleNetError:
            pass
        except Exception as error:
            pytest.fail(f"configuration {number}: {error!r} from {changed}")
    count("hub configurations", tried)


def test_vocabularies(tmp_path: Path, sound_model: Path) -> None:
    content = json.loads((sound_model / "tokenizer.json").read_text())["model"]
    (tmp_path / "vocab.json").write_text(json.dumps(content["vocab"]))
    (tmp_path / "merges.txt").write_text("#version: 0.2\na b\nab c</w>\nd e</w>\n")

    def read() -> None:
        ClipTokenizer.from_folder(tmp_path)(["a dog"])

    vocabulary = json.loads((tmp_path / "vocab.json").read_text())
    for merge in ("ab", "abc</w>", "de</w>"):
        vocabulary[merge] = len(vocabulary)
    (tmp_path / "vocab.json").write_text(json.dumps(vocabulary))
    refuses_some(
        run(Reader("vocab.json", tmp_path / "vocab.json", mutated_json_bytes, read), 80), 80
    )
    refuses_some(run(Reader("merges.txt", tmp_path / "merges.txt", mutated_lines, read), 80), 80)


def test_tables_of_merges(tmp_path: Path) -> None:
    lines = "\n".join(["#version: 0.2", *(f"{a} {b}" for a in "abcdef" for b in "ghijkl")])
    plain, packed = tmp_path / "table.txt", tmp_path / "table.txt.gz"
    plain.write_text(lines)
    packed.write_bytes(gzip.compress(lines.encode()))
    for path, mutate in ((plain, mutated_lines), (packed, mutate_bytes)):
        reader = Reader(
            "merges-table", path, mutate, lambda path=path: ClipTokenizer.from_table(path)
        )
        refuses_some(run(reader, 80), 80)


def test_archives_of_weights(tmp_path: Path) -> None:
    class Inner(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.randn(3, 5))

        def forward(self, value: torch.Tensor) -> torch.Tensor:
            return value @ self.weight

    script, plain = tmp_path / "script.pt", tmp_path / "plain.pt"
    # Traced by hand: scripting is deprecated and warns.
    tree = {"weight": torch.randn(3, 5), "other": torch.randn(7)}
    torch.save(tree, plain)
    with torch.no_grad():
        import warnings

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.jit.trace(Inner(), torch.zeros(2, 3)).save(str(script))
    for path in (script, plain):
        reader = Reader("archive", path, mutate_bytes, lambda path=path: read_openai_weights(path))
        run(reader, 100)


def test_checkpoints_of_training(tmp_path: Path) -> None:
    from eaglenet.research.training.checkpoint import read_checkpoint, write_checkpoint

    path = write_checkpoint(tmp_path, 3, {"weights": {"a": torch.randn(4, 5)}, "note": "x"})
    refuses_some(
        run(Reader("checkpoint", path, mutate_bytes, lambda: read_checkpoint(path)), 100), 100
    )


def dataset_readers(tmp_path: Path, files: Any) -> list[tuple[Path, Callable[[], Any]]]:
    from eaglenet.research.data import DATASETS, own_folder

    names = [name for name in DATASETS if name not in ("demo", "folder")]
    made = {name: getattr(files, name.replace("-", "_"))(tmp_path / name) for name in names}
    own = tmp_path / "own"
    own.mkdir()
    (own / "captions.csv").write_text('path,caption\na.mp4,"one, two"\nb.mp4,three\n')
    lines = [{"video": f"{n}.mp4", "captions": ["x", "y"], "start": 1, "end": 2.5} for n in "ab"]
    (own / "data.jsonl").write_text("\n".join(map(json.dumps, lines)))
    readers: list[tuple[Path, Callable[[], Any]]] = []
    for name, root in made.items():
        for path in sorted(root.rglob("*")):
            if path.suffix in (".json", ".jsonl", ".csv", ".tsv", ".txt", ".pkl"):
                spec: Any = DATASETS[name]
                readers.append((path, lambda spec=spec, root=root: _all(spec, root)))
    for name in ("captions.csv", "data.jsonl"):
        path = own / name
        readers.append((path, lambda path=path: own_folder.load(path, "all")))
    return readers


def _all(spec: Any, root: Path) -> None:
    options = {"hold_out": 1} if "hold_out" in inspect.signature(spec.load).parameters else {}
    for split in ("train", "test"):
        spec.load(root, split, **options)


def mutate_by_name(path: Path) -> Any:
    if path.suffix == ".json":
        return mutated_json_bytes
    if path.suffix == ".pkl":
        return partial(_mutated_pickle, path.read_bytes())
    return mutated_lines


def _mutated_pickle(sound: bytes, content: bytes, chance: random.Random) -> bytes:
    """Only the sound one is unpickled: what is damaged may hold anything."""
    if chance.random() < 0.5:
        return mutate_bytes(content, chance)
    value = pickle.loads(sound)
    plain = json.loads(json.dumps({str(key): list(entry) for key, entry in value.items()}))
    try:
        return pickle.dumps(mutate_json(plain, chance))
    except RecursionError:  # nested more deeply than one can write
        return mutate_bytes(content, chance)


def test_annotations(tmp_path: Path, files: Any) -> None:
    readers = dataset_readers(tmp_path, files)
    assert len(readers) >= 8
    refused = 0
    for path, read in readers:
        refused += run(
            Reader(f"annotation-{path.suffix[1:]}", path, mutate_by_name(path), read), 15
        )
    refuses_some(refused, 20 * len(readers))


def test_lists_of_tags(tmp_path: Path) -> None:
    from eaglenet.indexing.files import read_tags

    path = tmp_path / "tags.csv"
    path.write_text("path,tags\n/a/b.mp4,home;dog\nc.mp4,\n")
    run(Reader("tags", path, mutated_lines, lambda: read_tags(path)), 120)


def test_arrays(tmp_path: Path) -> None:
    from eaglenet.research.data.features import read_array
    from eaglenet.research.evaluation.postprocessing import read_scores, read_video_of_text

    path = tmp_path / "scores.npy"
    np.save(path, np.random.default_rng(0).normal(size=(4, 5)).astype(np.float32))
    refuses_some(run(Reader("npy", path, mutate_bytes, lambda: read_scores(path)), 120), 120)
    refused = run(
        Reader("npy", path, mutate_bytes, lambda: read_array(path, [np.float32])), 120, 300
    )
    refuses_some(refused, 120)
    numbers = tmp_path / "numbers.json"
    numbers.write_text("[0, 1, 2, 3]")
    read = Reader("numbers", numbers, mutated_json_bytes, lambda: read_video_of_text(numbers, 4))
    refuses_some(run(read, 120), 120)


def test_feature_folders(tmp_path: Path) -> None:
    from eaglenet.research.data.features import load_feature_folder

    generator = np.random.default_rng(0)
    np.save(tmp_path / "frame_features.npy", generator.normal(size=(6, 4)).astype(np.float16))
    np.save(tmp_path / "sentence_features.npy", generator.normal(size=(3, 5)).astype(np.float16))
    index = {
        "video_ids": ["a", "b"],
        "frames_per_video": [2, 4],
        "captions_per_video": [1, 2],
        "captions": [["x"], ["y", "z"]],
    }
    path = tmp_path / "index.json"
    path.write_text(json.dumps(index))
    read = Reader("features-index", path, mutated_json_bytes, lambda: load_feature_folder(tmp_path))
    refuses_some(run(read, 160), 160)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF"])
def test_pictures(tmp_path: Path, kind: str) -> None:
    from PIL import Image

    from eaglenet.video.decoding import decode_image

    generator = np.random.default_rng(0)
    pixels = generator.integers(0, 256, (24, 40, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, kind)
    path = tmp_path / "picture"
    path.write_bytes(buffer.getvalue())
    refuses_some(
        run(Reader(f"picture-{kind}", path, mutate_bytes, lambda: decode_image(path, 16)), 80), 80
    )


def test_experiments(tmp_path: Path) -> None:
    from eaglenet.research.experiments.experiment import Experiment
    from tiny import tiny_experiment

    path = tmp_path / "experiment.json"
    tiny_experiment(tmp_path).save(path)
    read = Reader("experiment", path, mutated_json_bytes, lambda: Experiment.load(path))
    refuses_some(run(read, 200), 200)


def test_deep_annotations_are_a_clear_error(tmp_path: Path) -> None:
    from eaglenet.research.data.annotation_files import read_json

    path = tmp_path / "deep.json"
    path.write_text("[" * 10_000)
    # Python 3.14 reads on to the end of the file.
    with pytest.raises(DatasetError, match=r"nested|broken JSON"):
        read_json(path)


def test_tables_of_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = "2867714\tMünchen\tMunchen\tMunich\t48.13743\t11.57549\tP\tPPLA\tDE\t\t02" + "\t" * 4
    table = tmp_path / "cities.txt"
    table.write_text(f"{row}1260391\t\t\tEurope/Berlin\t2024-01-01\n" * 3, "utf-8")
    monkeypatch.setenv("EAGLENET_PLACES", str(table))

    def read() -> None:
        _look_up.cache_clear()
        find_place("Munich")

    read()
    refuses_some(run(Reader("places", table, mutated_lines, read), 80), 80)


@pytest.mark.parametrize("suffix", [".jpg", ".tif", ".dng"])
def test_recordings_of_photographs(tmp_path: Path, suffix: str) -> None:
    exif = Image.Exif()
    exif[0x010F] = "Canon"
    exif.get_ifd(0x8769)[0x9003] = "2021:01:02 03:04:05"
    exif.get_ifd(0x8825).update({1: "N", 2: (48.0, 8.0, 0.0), 3: "E", 4: (11.0, 34.0, 0.0)})
    path, image = tmp_path / f"a{suffix}", Image.new("RGB", (16, 16))
    if suffix == ".dng":
        write_dng(path, image)
    else:
        image.save(path, exif=exif.tobytes())
    assert read_recording(path).camera
    run(Reader(f"recording{suffix}", path, mutate_bytes, lambda: read_recording(path)), 60)


def test_deep_manifests_and_frame_lists_are_refused() -> None:
    with pytest.raises(ValueError, match="nested"):
        Manifest.from_json("[" * 100_000)
    with pytest.raises(DatasetError, match="nested"):
        FrameItem.from_line("[" * 100_000, "index.jsonl")
