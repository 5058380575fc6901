"""One name, one meaning: classes of the package, files that were once called alike, `place`."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "eaglenet"
ONCE_DOUBLED = (
    "features", "folder", "manifest", "media", "metrics", "results", "sampler", "settings",
)  # fmt: skip
"""Names of files that two or three folders had for different things."""


def test_a_class_name_means_one_thing() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.parse(path.read_text("utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(str(path.relative_to(SOURCE)))
    assert {name: files for name, files in places.items() if len(files) > 1} == {}
    assert not {"Any", "Callable", "Protocol", "Sequence"} & set(places)


def test_a_file_name_that_was_doubled_means_one_thing() -> None:
    files = {name: sorted(SOURCE.rglob(f"{name}.py")) for name in ONCE_DOUBLED}
    assert {name: found for name, found in files.items() if len(found) > 1} == {}
