"""The demo world: the same everywhere, true to its sentences, with twins that differ in time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from eaglenet.core.errors import ConfigError, DatasetError, UsageError
from eaglenet.core.types import FrameSpec
from eaglenet.encoders.tokenizers import ClipTokenizer
from eaglenet.research.data.demo import dataset as synthetic
from eaglenet.research.data.demo.dataset import (
    RGB,
    demo_split,
    frame_indices,
    render,
    render_batch,
    render_world,
)
from eaglenet.research.data.demo.world import (
    FAMILY,
    NUM_FRAMES,
    REVERSED,
    DemoWorld,
    Scene,
    vocabulary,
)
from eaglenet.research.data.records import DATASETS

SIZE = 48


@pytest.fixture(scope="module")
def many_scenes() -> list[Scene]:
    """All scenes to train on."""
    return DemoWorld(0).scenes("train", 5000)


@pytest.fixture(scope="module")
def train(many_scenes: list[Scene]) -> list[Scene]:
    """Scenes to look at one by one."""
    return many_scenes[:1200]


@pytest.fixture(scope="module")
def test_scenes() -> list[Scene]:
    """Scenes to test on."""
    return DemoWorld(0).scenes("test", 400)


def mask_of(frame: np.ndarray, colour: str) -> np.ndarray:
    """Pixels near a colour of the world."""
    return np.abs(frame.astype(int) - np.array(RGB[colour])).sum(-1) < 60


def nearest_colour(pixel: list[int]) -> str:
    distances = {
        name: sum((a - b) ** 2 for a, b in zip(pixel, value, strict=True))
        for name, value in RGB.items()
    }
    return min(distances, key=lambda name: distances[name])


def centre_of(frame: np.ndarray, colour: str) -> tuple[float, float]:
    rows, columns = np.nonzero(mask_of(frame, colour))
    return float(columns.mean()), float(rows.mean())


def test_a_seed_gives_the_same_clips_and_pixels_every_time(test_scenes: list[Scene]) -> None:
    again = DemoWorld(0).scenes("test", 400)
    assert again == test_scenes
    assert np.array_equal(render(again[3], SIZE), render(test_scenes[3], SIZE))
    assert DemoWorld(1).scenes("test", 4) != test_scenes[:4]


def test_a_longer_list_begins_with_the_shorter_one(test_scenes: list[Scene]) -> None:
    assert DemoWorld(0).scenes("test", 10) == test_scenes[:10]


def test_there_are_thousands_of_distinct_clips_for_training(many_scenes: list[Scene]) -> None:
    assert len({scene.key for scene in many_scenes}) == 5000


def test_splits_share_no_clip_and_test_has_combinations_never_trained_on(
    many_scenes: list[Scene], test_scenes: list[Scene]
) -> None:
    happens = {tuple(sorted(scene.key)) for scene in many_scenes}
    assert not happens & {tuple(sorted(scene.key)) for scene in test_scenes}

    def combinations(scenes: Any) -> Any:
        return {event.combination for scene in scenes for event in scene.events}

    world = DemoWorld(0)
    unseen = combinations(test_scenes) - combinations(many_scenes)
    assert len(unseen) >= 10
    with_unseen = [s for s in test_scenes if any(e.combination in unseen for e in s.events)]
    assert 0.35 < len(with_unseen) / len(test_scenes) < 0.65
    assert all(world.reserved_split(combination) == "test" for combination in unseen)
    assert all(world.reserved_split(c) == "train" for c in combinations(many_scenes))
    assert not {
        c
        for c in combinations(DemoWorld(0).scenes("val", 200))
        if world.reserved_split(c) == "test"
    }


def test_every_clip_has_its_twin_in_the_gallery(test_scenes: list[Scene]) -> None:
    by_id = {scene.scene_id: scene for scene in test_scenes}
    kinds = set()
    for scene in test_scenes:
        twin = by_id[scene.twin_id]
        assert twin.twin_id == scene.scene_id
        kinds.add(scene.kind)
        if scene.kind == "single":
            assert twin.events[0].motion == REVERSED[scene.events[0].motion]
        else:
            assert twin.events == scene.events[::-1]
    assert kinds == {"sequence", "passage", "single"}


def test_an_odd_count_ends_with_a_clip_that_has_no_order() -> None:
    scenes = DemoWorld(0).scenes("val", 7)
    assert len(scenes) == 7
    assert scenes[-1].twin_id is None
    assert scenes[-1].events[0].motion == "still"


def test_twins_are_made_of_the_same_frames(test_scenes: list[Scene]) -> None:
    by_id = {scene.scene_id: scene for scene in test_scenes}
    for kind in ("sequence", "single"):
        for scene in [scene for scene in test_scenes if scene.kind == kind][:10:2]:
            frames, twin = render(scene, SIZE), render(by_id[scene.twin_id], SIZE)
            assert not np.array_equal(frames, twin)
            # A border pixel may round the other way when a motion is computed backwards.
            first = np.sort(frames.reshape(NUM_FRAMES, -1).astype(int).sum(axis=1))
            second = np.sort(twin.reshape(NUM_FRAMES, -1).astype(int).sum(axis=1))
            assert np.abs(first - second).max() <= 8
    single = next(scene for scene in test_scenes if scene.kind == "single")
    difference = render(single, SIZE).astype(int) - render(by_id[single.twin_id], SIZE)[::-1]
    assert np.abs(difference).max() <= 1


def test_sentences_about_order_are_true_of_the_pixels(test_scenes: list[Scene]) -> None:
    checked = 0
    for scene in [scene for scene in test_scenes if scene.kind == "sequence"][:40]:
        first, second = (event.colour for event in scene.events)
        if first == second:
            continue
        frames = render(scene, SIZE)
        assert mask_of(frames[2], first).sum() > 3
        assert not mask_of(frames[2], second).any()
        assert mask_of(frames[-3], second).sum() > 3
        assert not mask_of(frames[-3], first).any()
        checked += 1
    assert checked > 20


def test_sentences_about_motion_are_true_of_the_pixels(train: list[Scene]) -> None:
    seen = set()
    for scene in [scene for scene in train if scene.kind == "single"][:80]:
        event, frames = scene.events[0], render(scene, SIZE)
        areas = [int(mask_of(frame, event.colour).sum()) for frame in frames]
        if event.motion in ("enter", "leave"):
            ends = (areas[0], areas[-1])
            assert (ends[0] == 0) == (event.motion == "enter")
            assert (ends[1] == 0) == (event.motion == "leave")
        elif event.motion in ("grow", "shrink"):
            assert (areas[-1] > areas[0]) == (event.motion == "grow")
        else:
            x0, y0 = centre_of(frames[0], event.colour)
            x1, y1 = centre_of(frames[-1], event.colour)
            moved = {"left": x0 - x1, "right": x1 - x0, "up": y0 - y1, "down": y1 - y0}
            assert moved[event.motion] > 0.25 * SIZE
            assert moved[event.motion] == max(moved.values())
        seen.add(event.motion)
    assert seen == set(REVERSED)


def test_what_leaves_is_there_before_and_what_enters_is_there_after(train: list[Scene]) -> None:
    passages = [scene for scene in train if scene.kind == "passage"]
    orders = set()
    for scene in passages[:40]:
        if scene.events[0].colour == scene.events[1].colour:
            continue
        frames = render(scene, SIZE)
        for event in scene.events:
            assert mask_of(frames[0], event.colour).any() == (event.motion == "leave")
            assert mask_of(frames[-1], event.colour).any() == (event.motion == "enter")
        orders.add(tuple(event.motion for event in scene.events))
    assert ("leave", "enter") in orders
    assert ("enter", "leave") in orders


def test_captions_paraphrase_one_fact_and_fit_one_clip_only(test_scenes: list[Scene]) -> None:
    captions = [caption for scene in test_scenes for caption in scene.captions]
    assert len(set(captions)) == len(captions)
    scene = next(s for s in test_scenes if s.kind == "sequence")
    assert len(scene.captions) == 4
    for caption in scene.captions:
        for event in scene.events:
            assert f"{event.colour} {event.shape}" in caption
        reversed_mention = " after " in caption
        places = [caption.index(f"{event.colour} {event.shape}") for event in scene.events]
        assert (places[0] > places[1]) == reversed_mention


def test_the_vocabulary_is_small_and_complete(train: list[Scene]) -> None:
    words = vocabulary()
    assert len(words) < 150
    used = {word for scene in train for caption in scene.captions for word in caption.split()}
    assert used <= set(words)


def test_the_shipped_tokenizer_knows_every_word_as_one_token() -> None:
    tokenizer = ClipTokenizer.from_folder(synthetic.demo_tokenizer_folder())
    lengths = tokenizer(vocabulary(), max_length=9).mask.sum(dim=1)
    assert set(lengths.tolist()) == {3}  # start, the word, end


def test_clips_in_memory_are_the_frames_of_the_whole_clip(test_scenes: list[Scene]) -> None:
    clips = render_batch(test_scenes[:5], num_frames=7, size=SIZE)
    assert clips.frames.shape == (5, 7, 3, SIZE, SIZE)
    whole = torch.from_numpy(render(test_scenes[4], SIZE)).movedim(-1, 1)
    assert torch.equal(clips.frames[4], whole[frame_indices(7)])
    assert clips.mask.all()
    assert (clips.seconds.diff(dim=1) > 0).all()


def test_a_split_in_memory_has_a_clip_for_every_record() -> None:
    split = demo_split("val", val=70)
    clips = synthetic.render_clips(split, FrameSpec(num_frames=3, size=16))
    assert len(clips) == len(split) == 70
    assert len(split.texts) == 280
    assert "280 texts x 70 videos" in split.protocol.name
    with pytest.raises(ConfigError, match="per_second"):
        synthetic.render_clips(split, FrameSpec(sampling="per_second"))


def test_families_join_each_motion_with_its_reversal() -> None:
    assert all(FAMILY[motion] == FAMILY[other] for motion, other in REVERSED.items())


def test_unknown_splits_and_empty_worlds_are_refused() -> None:
    with pytest.raises(UsageError, match="no split 'dev'"):
        DemoWorld(0).scenes("dev", 2)
    with pytest.raises(UsageError, match="at least 1"):
        DemoWorld(0).scenes("test", 0)


def test_files_keep_the_colours_and_the_order(tmp_path: Path) -> None:
    from eaglenet.video.decoding import decode, probe

    split = render_world(tmp_path, "test", 12)
    info = probe(split.videos[0].path)
    assert info.codec == "h264"
    assert (info.width, info.height) == (96, 96)
    checked = 0
    for record, scene in zip(split.videos, split.scenes, strict=True):
        decoded = decode(record.path, FrameSpec(num_frames=8, size=96))
        drawn = render_batch([scene], 8, 96)
        difference = (decoded.frames.float() - drawn.frames[0].float()).abs().mean()
        assert difference < 8  # of 255: the codec's loss, not another frame
        if scene.kind == "sequence":
            ends = (decoded.frames[0], decoded.frames[-1])
            for event, frame in zip(scene.events, ends, strict=True):
                pixels = frame.movedim(0, -1).reshape(-1, 3).float()
                background = torch.tensor(scene.background).float()
                far = (pixels - background).abs().sum(-1).topk(20).indices
                colours = [nearest_colour(p) for p in pixels[far].tolist()]
                assert max(set(colours), key=colours.count) == event.colour
                checked += 1
    assert checked


def test_rendering_goes_on_where_it_stopped_and_splits_share_a_folder(tmp_path: Path) -> None:
    first = render_world(tmp_path, "val", 2, size=32)
    stamp = first.videos[0].path.stat().st_mtime_ns
    render_world(tmp_path, "val", 4, size=32)
    render_world(tmp_path, "test", 2, size=32)
    assert first.videos[0].path.stat().st_mtime_ns == stamp
    rows = [json.loads(line) for line in (tmp_path / "captions.jsonl").read_text().splitlines()]
    assert [row["split"] for row in rows] == ["val"] * 4 + ["test"] * 2
    assert not list((tmp_path / "videos").glob(".*"))
    loaded = DATASETS["folder"].load(tmp_path, "val")
    assert len(loaded) == 4
    assert loaded.videos[0].captions == first.videos[0].captions
    assert not loaded.missing
    with pytest.raises(DatasetError, match="another folder"):
        render_world(tmp_path, "val", 2, seed=5, size=32)
    with pytest.raises(DatasetError, match="another folder"):
        render_world(tmp_path, "val", 2, unmentioned=1, size=32)


def test_one_clip_more_never_keeps_the_file_of_another_scene(tmp_path: Path) -> None:
    """The last clip of an odd count is not a clip of a larger count."""
    first = render_world(tmp_path, "val", 3, size=32)
    grown = render_world(tmp_path, "val", 4, size=32)
    scenes = {scene.scene_id: scene for scene in first.scenes}
    assert [scenes.get(scene.scene_id) for scene in grown.scenes] == [*grown.scenes[:2], None, None]


def test_the_world_is_registered_as_the_dataset_demo() -> None:
    assert DATASETS["demo"].splits == ("train", "val", "test")


def test_unmentioned_events_fill_one_half_of_a_clip_and_no_sentence() -> None:
    plain, busy = DemoWorld(0).scenes("val", 20), DemoWorld(0, num_unmentioned=2).scenes("val", 20)
    assert [scene.captions for scene in plain] == [scene.captions for scene in busy]
    halves = set()
    for scene, twin in zip(busy[::2], busy[1::2], strict=True):
        assert scene.unmentioned_events == twin.unmentioned_events
        assert len(scene.all_events) == len(scene.spans()) == len(scene.events) + 2
        told, untold = scene.spans()[: len(scene.events)], scene.spans()[len(scene.events) :]
        first, second = (untold, told) if scene.unmentioned_first else (told, untold)
        assert max(end for _, end in first) == min(start for start, _ in second) == 0.5
        halves.add(scene.unmentioned_first)
    assert halves == {True, False}
    # What is seen in the untold half does not depend on what is told.
    scene = next(s for s in busy if s.unmentioned_first and s.kind == "sequence")
    twin = next(s for s in busy if s.scene_id == scene.twin_id)
    half = len(render(scene, SIZE)) // 2
    assert np.array_equal(render(scene, SIZE)[:half], render(twin, SIZE)[:half])
    assert not np.array_equal(render(scene, SIZE)[half:], render(twin, SIZE)[half:])
