"""Small files in the formats of the real datasets."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from types import SimpleNamespace

import pytest


def write_lines(path: Path, lines: list[str]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def write_json(path: Path, content: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def touch(folder: Path, *names: str) -> None:
    """Files that look like videos from outside."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).write_bytes(b"not a video")


def msrvtt(root: Path, num_videos: int = 12, captions: int = 3) -> Path:
    """Videos 0-8 in 9k, 0-6 in 7k, 9-11 in 1k-A; 7-11 are the full test, as in the real lists."""
    ids = [f"video{index}" for index in range(num_videos)]
    sentences = [
        {"caption": f"caption {number} of {video_id}", "video_id": video_id, "sen_id": number}
        for video_id in ids
        for number in range(captions)
    ]
    videos = [{"video_id": video_id, "split": "train", "id": 0} for video_id in ids]
    write_json(root / "MSRVTT_data.json", {"info": {}, "videos": videos, "sentences": sentences})
    write_lines(root / "MSRVTT_train.9k.csv", ["video_id", *ids[:9]])
    write_lines(root / "MSRVTT_train.7k.csv", ["video_id", *ids[:7]])
    write_lines(root / "MSRVTT_train.full.csv", ["video_id", *ids[:5]])
    write_lines(root / "MSRVTT_val.full.csv", ["video_id", *ids[5:7]])
    write_lines(root / "MSRVTT_test.full.csv", ["video_id", *ids[7:]])
    rows = [f"ret{n},msr{n},{video},test query of {video}" for n, video in enumerate(ids[9:])]
    write_lines(root / "MSRVTT_JSFUSION_test.csv", ["key,vid_key,video_id,sentence", *rows])
    return root


def msvd(root: Path) -> Path:
    root.mkdir(parents=True, exist_ok=True)
    captions = {
        "-a_1_2": [["a", "cat", "sits"], ["one", "cat"]],
        "b_3_4": [["a", "dog"], ["dogs", "run"], ["it", "barks"]],
        "c_5_6": [["rain"]],
    }
    (root / "raw-captions.pkl").write_bytes(pickle.dumps(captions, protocol=2))
    write_lines(root / "train_list.txt", ["b_3_4"])
    write_lines(root / "val_list.txt", ["c_5_6"])
    write_lines(root / "test_list.txt", ["c_5_6", "-a_1_2"])
    return root


def vatex(root: Path) -> Path:
    captions = {name: [f"{name} caption {n}" for n in range(4)] for name in ("v1", "v2", "v3")}
    write_json(root / "ref_captions.json", captions)
    write_lines(root / "train_list.txt", ["v3"])
    write_lines(root / "val_list.txt", ["v1"])
    write_lines(root / "test_list.txt", ["v2", "v1"])
    return root


def didemo(root: Path) -> Path:
    def entry(video: str, description: str) -> dict[str, object]:
        return {"video": video, "description": description, "times": [[0, 0]], "num_segments": 6}

    test = [
        entry("x@N0_1.mov", "A dog runs."),
        entry("y@N0_2.", "a cat"),
        entry("x@N0_1.mov", "it stops. "),
        entry("unlisted@N0_3.avi", "nobody asks"),
    ]
    write_json(root / "test_data.json", test)
    write_json(root / "val_data.json", [entry("z@N0_4.3gp", "the sea")])
    train = [entry("t@N0_5.mp4", "one"), entry("t@N0_5.mp4", "two")]
    write_json(root / "train_data.derived.json", train)
    write_lines(root / "test_list.txt", ["y@N0_2.", "x@N0_1.mov"])
    write_lines(root / "val_list.txt", ["z@N0_4.3gp"])
    write_lines(root / "train_list.txt", ["t@N0_5.mp4", "nocaption@N0_6.mov"])
    return root


@pytest.fixture(scope="session")
def files() -> SimpleNamespace:
    """Writers of small datasets: ``files.msrvtt(root)`` and so on."""
    return SimpleNamespace(
        write_lines=write_lines,
        write_json=write_json,
        touch=touch,
        msrvtt=msrvtt,
        msvd=msvd,
        vatex=vatex,
        didemo=didemo,
    )
