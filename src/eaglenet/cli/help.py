"""Help that speaks of numbers, text and files, not of Python's types."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

WORDS = {
    "int": "NUMBER",
    "float": "NUMBER",
    "int range": "NUMBER",
    "float range": "NUMBER",
    "str": "TEXT",
    "list[str]": "TEXT",
    "list[int]": "NUMBER",
    "list[float]": "NUMBER",
    "path": "PATH",
    "file": "PATH",
    "directory": "PATH",
    "list[Path]": "PATH",
    "list[path]": "PATH",
}
"""What Typer calls the type of a value -> what it is to a person."""
SECTIONS = {
    "Search": ("index", "search", "serve", "watch", "store", "models", "demo"),
    "Train and compare": ("train", "evaluate", "recipes", "compare", "ablate", "report"),
    "Data and files": ("data", "metrics", "convert"),
}
"""Commands as people come to need them; one that is not here is listed last."""


def speak_plainly(command: Any, context: Any) -> None:
    """Name the values of all options under ``command``; one that is only given or not has none."""
    for option in command.get_params(context):
        if option.param_type_name != "option":
            # Its name is shown, which says enough.
            option.display_type_rich = lambda ctx: None
            continue
        if option.metavar is not None:
            continue
        if getattr(option, "is_flag", False):
            option.metavar = ""
        elif hasattr(option, "display_type"):
            shown = option.display_type(context)
            option.metavar = WORDS.get(shown.strip("<>"), shown)
    for each in getattr(command, "commands", {}).values():
        # Said whole: a short help of its own is not cut to the width of the terminal.
        each.short_help = first_sentence(each.help or "")
        speak_plainly(each, context)


def first_sentence(text: str) -> str:
    """What a list of commands says of one.

    >>> first_sentence("Write report.md: tables\\nand curves. Then stop.")
    'Write report.md: tables and curves.'
    """
    words = " ".join(text.split("\n\n")[0].split())
    first, stop, _ = words.partition(". ")
    return first + stop.strip()


def in_sections(names: Iterable[str]) -> dict[str, list[str]]:
    """Names of commands under the headings of :data:`SECTIONS`."""
    left = list(names)
    found = {title: [name for name in wanted if name in left] for title, wanted in SECTIONS.items()}
    known = {name for section in found.values() for name in section}
    others = [name for name in left if name not in known]
    return {title: section for title, section in {**found, "Others": others}.items() if section}
