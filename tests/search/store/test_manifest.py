"""What a store says it was made with."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from synthetic_store import (
    BagMethod,
    make_manifest,
)

from eaglenet.core.errors import StoreError
from eaglenet.core.types import FrameSpec
from eaglenet.search.engine import Engine
from eaglenet.search.store.local import StoreFolder
from eaglenet.search.store.manifest import Splitting


def test_a_manifest_survives_writing_and_refuses_to_mix(bag: BagMethod, tmp_path: Path) -> None:
    manifest = make_manifest(bag, roots=("/videos",))
    StoreFolder(tmp_path, manifest).write_manifest()
    assert StoreFolder.open(tmp_path).manifest == manifest
    for other, words in (
        (make_manifest(BagMethod(seed=1), model="other"), "model 'bag'"),
        (dataclasses.replace(manifest, splitting=Splitting(5.0)), "clip_seconds 10.0 .now 5.0"),
        (dataclasses.replace(manifest, frame_spec=FrameSpec(num_frames=4)), "num_frames"),
    ):
        with pytest.raises(StoreError, match=words) as caught:
            manifest.require_same(other, "here")
        assert "--store" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"format": 99}', "newer eaglenet"),
        ('{"format": 1}', "damaged"),
        ("[]", "damaged"),
        ("{", "cannot be read"),
        ('{"model": "x"}', "no store format"),
    ],
)
def test_a_manifest_that_is_not_ours_is_refused_politely(
    text: str, words: str, tmp_path: Path
) -> None:
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(StoreError, match=words):
        Engine.open(tmp_path)
