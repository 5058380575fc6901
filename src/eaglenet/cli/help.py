"""Help that speaks of numbers, text and files, not of Python's types."""

from __future__ import annotations

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
        speak_plainly(each, context)
