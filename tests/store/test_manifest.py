"""What a store was made with: kept whole, compared before clips are added, refused if damaged."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any

import pytest
from made_store import make_manifest

from eaglenet.core.errors import StoreError
from eaglenet.core.frame_spec import FrameSpec, Splitting
from eaglenet.store.manifest import Manifest


def test_a_manifest_is_read_as_it_was_written() -> None:
    splitting = Splitting(6.0, 3.0, frame_step=0.5)
    manifest = make_manifest(splitting=splitting, frame_spec=FrameSpec(num_frames=5, fast=True))
    assert Manifest.from_json(manifest.to_json()) == manifest


def test_moments_are_as_exact_as_frames_are_close() -> None:
    manifest = make_manifest()
    count = manifest.layout.num_frames
    assert count > 1
    assert manifest.moment_seconds == pytest.approx(10.0 / count)
    assert make_manifest(splitting=Splitting(frame_step=0.5)).moment_seconds == 0.5


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"identity": "2e"}, "different weights"),
        ({"identity": "2e", "model": "other"}, "model 'bag' .now 'other'"),
        ({"splitting": Splitting(5.0)}, "clip_seconds 10.0 .now 5.0"),
        ({"frame_spec": FrameSpec(num_frames=4)}, "num_frames"),
    ],
)
def test_other_models_and_settings_do_not_mix(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(StoreError, match=reason) as error:
        make_manifest().require_same(make_manifest(**changes), "here")
    assert "another store" in str(error.value)


def test_a_store_keeps_its_own_step_between_frames() -> None:
    manifest = make_manifest()
    splitting = dataclasses.replace(manifest.splitting, frame_step=0.5)
    assert manifest.differences(dataclasses.replace(manifest, splitting=splitting)) == []


@pytest.mark.parametrize(
    "damage",
    [
        lambda values: values.pop("model"),
        lambda values: values.update(identity=5),
        lambda values: values.update(roots=[None]),
        lambda values: values.update(dim=0),
        lambda values: values.update(dim=True),
        lambda values: values.update(layout=[]),
        lambda values: values.update(splitting={"clip_seconds": "long"}),
        lambda values: values["splitting"].update(frame_step=-1.0),
        lambda values: values["frame_spec"].update(num_frames=10**9),
    ],
)
def test_impossible_manifests_are_refused(damage: Callable[[dict[str, Any]], object]) -> None:
    values = json.loads(make_manifest().to_json())
    damage(values)
    with pytest.raises((ValueError, KeyError, TypeError)):
        Manifest.from_json(json.dumps(values))
