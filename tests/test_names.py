"""One name, one meaning: classes of the package, files that were once called alike, `place`."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "eaglenet"
ONCE_DOUBLED = (
    "features", "folder", "manifest", "media", "metrics", "results", "sampler", "settings",
)  # fmt: skip
"""Names of files that two or three folders had for different things."""
OF_PATHS_AND_DEVICES = {
    "exists", "expanduser", "glob", "is_dir", "is_file", "iterdir", "joinpath", "mkdir", "name",
    "open", "parent", "read_text", "relative_to", "resolve", "rstrip", "startswith", "stat",
    "suffix", "type", "unlink", "with_name",
}  # fmt: skip
MADE_AS_PATHS = re.compile(
    r"Path\(|torch\.device\(|/ ['\"]|/ f['\"]|\.(iterdir|glob|resolve|expanduser)\("
)


def test_a_class_name_means_one_thing() -> None:
    homes: dict[str, list[str]] = defaultdict(list)
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.parse(path.read_text("utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes[node.name].append(str(path.relative_to(SOURCE)))
    assert {name: files for name, files in homes.items() if len(files) > 1} == {}
    assert not {"Any", "Callable", "Protocol", "Sequence"} & set(homes)


def test_a_file_name_that_was_doubled_means_one_thing() -> None:
    files = {name: sorted(SOURCE.rglob(f"{name}.py")) for name in ONCE_DOUBLED}
    assert {name: found for name, found in files.items() if len(found) > 1} == {}


def test_a_place_is_a_number_in_a_row_and_never_a_folder_or_a_device() -> None:
    """Where things are kept is a location, folder or path; where they are computed, a device."""
    wrong = [
        f"{path.relative_to(SOURCE)}:{line}"
        for path in sorted(SOURCE.rglob("*.py"))
        for line in folders_called_place(ast.parse(path.read_text("utf-8")))
    ]
    assert wrong == []


def test_a_folder_that_is_called_place_is_noticed() -> None:
    for code in (
        "def read(place: Path): ...",
        "place = folder / 'a'",
        "place = torch.device('cpu')",
        "for place in folder.iterdir(): ...",
        "found = place.is_dir()",
        "target = place / name",
    ):
        assert folders_called_place(ast.parse(code)) == [1], code
    numbers = "place = count - 1\nfor place, word in enumerate(words):\n    use(rows[place] / 2)"
    assert folders_called_place(ast.parse(numbers)) == []


def is_place(node: ast.AST) -> bool:
    """A variable that is called so."""
    return isinstance(node, ast.Name) and node.id.rpartition("_")[2] in ("place", "places")


def folders_called_place(tree: ast.AST) -> list[int]:
    """Lines in which something called `place` is made or used as a path or a device is."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.arg) and node.arg in ("place", "places") and node.annotation:
            is_wrong = bool(
                re.search(
                    r"^(Path|str|list\[Path\]|list\[str\]|torch\.device)\b",
                    ast.unparse(node.annotation),
                )
            )
        elif isinstance(node, ast.Attribute):
            is_wrong = is_place(node.value) and node.attr in OF_PATHS_AND_DEVICES
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
            is_wrong = is_place(node.left)
        elif isinstance(node, ast.Assign | ast.For | ast.comprehension):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            value = node.value if isinstance(node, ast.Assign) else node.iter
            is_wrong = any(map(is_place, targets)) and bool(
                MADE_AS_PATHS.search(ast.unparse(value))
            )
        else:
            continue
        if is_wrong:
            found.add(getattr(node, "lineno", 0) or value.lineno)
    return sorted(found)
