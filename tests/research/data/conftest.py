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


def activitynet(root: Path) -> Path:
    """``captions.zip``: sentences with leading spaces and a span backwards, as published."""

    def entry(*sentences: str) -> dict[str, object]:
        spans = [[3.0 * n, 3.0 * n + 2.5] for n in range(len(sentences))]
        return {"duration": 82.73, "timestamps": [*spans[:-1], [9.0, 4.0]], "sentences": sentences}

    train = {f"v_train{n}": entry(f"Part one of {n}.", " Part two.") for n in range(5)}
    test = {
        "v_QOlSCBRmfWY": entry("A woman dances.", "  She stops."),
        "v_uqiMw7tQ1Cc": entry("A weight is lifted."),
    }
    write_json(root / "train.json", train)
    write_json(root / "val_1.json", test)
    write_json(root / "val_2.json", test)
    write_json(root / "train_ids.json", list(train))
    write_json(root / "val_ids.json", list(test))
    return root


def lsmdc(root: Path) -> Path:
    """Six columns parted by tabs, no header; a clip of several sentences has several lines."""

    def line(clip: str, sentence: str) -> str:
        times = ["00.00.51.926", "00.00.54.129", "00.00.51.754", "00.00.54.501"]
        return "\t".join([clip, *times, sentence])

    beauty = "0001_American_Beauty_00.00.51.926-00.00.54.129"
    car = "1014_2012_00.01.21.399-00.01.27.106"
    train = [line(beauty, "SOMEONE wakes."), line(car, 'He says "go".'), line(beauty, "He sits.")]
    write_lines(root / "LSMDC16_annos_training.csv", train)
    write_lines(
        root / "LSMDC16_annos_val.csv", [line("0009_Forrest_Gump_00.01.02.000", "He runs.")]
    )
    write_lines(
        root / "LSMDC16_challenge_1000_publictect.csv",
        [line("3009_BATTLE_LOS_ANGELES_00.03.07.170-00.03.09.675", "A jet, far away, turns.")],
    )
    return root


def youcook2(root: Path) -> Path:
    def entry(subset: str, *steps: str) -> dict[str, object]:
        annotations = [
            {"segment": [10 * n, 10 * n + 8], "id": n, "sentence": step}
            for n, step in enumerate(steps)
        ]
        return {
            "duration": 241.62,
            "subset": subset,
            "recipe_type": "113",
            "annotations": annotations,
            "video_url": "https://www.youtube.com/watch?v=GLd3aX16zBg",
        }

    database = {
        "GLd3aX16zBg": entry("training", "spread margarine on bread", "add cheese"),
        "TzvdmRgdTEA": entry("training", "boil water"),
        "4eWzsx1vAi8": entry("training", "cut an onion", " "),
        "xHr8X2Wpmno": entry("validation", "pick the ends off the verdalago", "combine juice"),
    }
    write_json(root / "youcookii_annotations_trainval.json", {"database": database})
    return root


def qvhighlights(root: Path) -> Path:
    def line(number: int, video: str, query: str) -> dict[str, object]:
        return {"qid": number, "query": query, "duration": 150, "vid": video}

    windows = {"relevant_windows": [[0, 16]], "relevant_clip_ids": [0], "saliency_scores": [[2]]}
    first, second = "NUsG9BgSes0_210.0_360.0", "bP5KfdFJzC4_660.0_810.0"
    rows = {
        "train": [{**line(1, "train_0.0_150.0", "A dog digs."), **windows}],
        "val": [
            {**line(9769, first, "A girl and her mother cooked."), **windows},
            {**line(9770, second, "A family plays."), **windows},
            {**line(9771, first, "They wave."), **windows},
        ],
        "test": [line(7940, "ROIMeBnMIMU_60.0_210.0", "A man holds food.")],
    }
    for split, entries in rows.items():
        write_lines(root / f"highlight_{split}_release.jsonl", [json.dumps(row) for row in entries])
    return root


def charades_sta(root: Path) -> Path:
    train = [f"{name} 0.0 6.9##person sits in {name}." for name in ("AO8RW", "Y6R7T", "UPZM8")]
    write_lines(root / "charades_sta_train.txt", [*train, "AO8RW 9.0 7.5##person stands up."])
    test = ["3MSZA 24.3 30.4##person turn a light on.", "3MSZA 0.0 5.1##person opens a door."]
    write_lines(root / "charades_sta_test.txt", test)
    return root


def tgif(root: Path) -> Path:
    """The release's folder: sentences by address, lists of addresses in ``splits``."""
    urls = [
        f"https://38.media.tumblr.com/{folder}/tumblr_{name}_500.gif"
        for folder, name in (("9f6c", "a"), ("9ead", "b"), ("9f43", "c"), ("9f67", "a"))
    ]
    lines = [f"{url}\ta thing {n} moves." for n, url in enumerate(urls)]
    write_lines(root / "data" / "tgif-v1.0.tsv", [*lines, f"{urls[1]}\tit moves again."])
    write_lines(root / "data" / "splits" / "train.txt", urls[:1])
    write_lines(root / "data" / "splits" / "val.txt", urls[2:3])
    write_lines(root / "data" / "splits" / "test.txt", urls[1:2])
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
        activitynet=activitynet,
        lsmdc=lsmdc,
        youcook2=youcook2,
        qvhighlights=qvhighlights,
        charades_sta=charades_sta,
        tgif=tgif,
    )
