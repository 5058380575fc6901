"""The paper map names every option and every difference, and only files that exist."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

from eaglenet.core import types
from eaglenet.energy import energies
from eaglenet.layers import stochastic_text, text_frame_graph
from eaglenet.methods import eaglenet
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


def test_every_method_beside_an_equation_exists() -> None:
    modules = (eaglenet, energies, stochastic_text, text_frame_graph, types)
    equations = TEXT.partition("## Equations")[2].partition("\n## ")[0]
    members = set(re.findall(r"`([A-Z]\w+)\.(\w+)", equations))
    assert len(members) > 8
    for owner, member in members:
        assert any(hasattr(getattr(module, owner, None), member) for module in modules), member
