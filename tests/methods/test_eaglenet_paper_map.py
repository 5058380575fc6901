"""The paper map names every option and every difference, and only files that exist."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

from eaglenet.methods.eaglenet import EagleNetConfig

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "reference" / "paper_map.md").read_text()


def test_every_option_is_in_the_map() -> None:
    missing = [
        spec.name
        for spec in dataclasses.fields(EagleNetConfig)
        if not re.search(rf"`{spec.name}[`=]", TEXT)
    ]
    assert not missing


def test_all_differences_are_in_the_map() -> None:
    numbers = [int(number) for number in re.findall(r"^\| (\d+) \|", TEXT, re.MULTILINE)]
    assert numbers == list(range(1, 53))


def test_every_file_of_the_map_exists() -> None:
    paths = set(re.findall(r"`((?:src|tests)/[\w/.]+)`", TEXT))
    assert len(paths) > 20
    assert not [path for path in paths if not (ROOT / path).exists()]
