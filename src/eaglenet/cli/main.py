"""Entry point of the ``eaglenet`` command: loads commands, and prints errors as one line."""

from __future__ import annotations

import errno
import functools
import logging
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from importlib import import_module
from itertools import chain
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from eaglenet.cli.options import make_command
from eaglenet.cli.terminal import SafeFormatter, ShortCommand, end_process, open_standard_streams
from eaglenet.core.errors import EagleNetError, StoppedError, StoreError, UsageError, missing_extra
from eaglenet.core.platform import limit_threads
from eaglenet.core.process import forget_current_folder
from eaglenet.core.registry import import_plugin
from eaglenet.core.text import escape_lines
from eaglenet.store.object_storage import ObjectError

VALUE_NAMES = {
    **dict.fromkeys(("int", "float", "int range", "float range"), "NUMBER"),
    **dict.fromkeys(("list[int]", "list[float]"), "NUMBER"),
    **dict.fromkeys(("str", "list[str]"), "TEXT"),
    **dict.fromkeys(("path", "file", "directory", "list[Path]", "list[path]"), "PATH"),
}
"""Name of a value in the help, by its type in Typer."""
COMMANDS = {
    "Search": ("index", "search", "highlights", "serve", "mcp", "watch", "store", "models", "demo"),
    "Train and compare": ("train", "evaluate", "recipes", "compare", "ablate", "report", "push"),
    "Data and files": ("data", "metrics", "convert", "doctor"),
}
"""Commands by section of the help. Each is a function or a group in the module of its name."""
MODULES = {
    "highlights": "search",
    "mcp": "serve",
    "watch": "index",
    "metrics": "evaluate",
    "ablate": "compare",
    "push": "convert",
    "recipes": "train",
    "report": "compare",
}
"""Modules of the commands that share a module with another command."""
HELP_OPTIONS = {"-h", "--help", "--help-all"}


def name_values(command: Any, context: Any) -> None:
    """Show plain names instead of Python types in the help of ``command`` and its subcommands."""
    for option in command.get_params(context):
        if option.param_type_name != "option":
            option.display_type_rich = lambda ctx: None  # Arguments show only their name.
            continue
        if option.metavar is not None:
            continue
        if getattr(option, "is_flag", False):
            option.metavar = ""
        else:
            # Typer has `display_type` from 0.29 on.
            name_type = getattr(option, "display_type", None) or option.make_metavar
            type_name = name_type(ctx=context)
            option.metavar = VALUE_NAMES.get(type_name.strip("<>"), type_name)
    for subcommand in getattr(command, "commands", {}).values():
        # Typer would truncate it to the width of the terminal.
        subcommand.short_help = first_sentence(subcommand.help or "")
        name_values(subcommand, context)


def name_arguments(command: Any) -> None:
    """Show arguments of ``command`` and its subcommands as ``RUNS...``, not as ``{runs}...``."""
    for parameter in command.params:
        if parameter.param_type_name == "argument":
            parameter.metavar = (parameter.metavar or parameter.name.upper()).strip("[]")
            parameter.make_metavar = functools.partial(_argument_name, parameter)
    for subcommand in getattr(command, "commands", {}).values():
        name_arguments(subcommand)


def _argument_name(argument: Any, ctx: Any = None, *, usage: bool = False) -> str:
    name = f"[{argument.metavar}]" if usage and not argument.required else argument.metavar
    return f"{name}..." if argument.nargs != 1 else str(name)


def first_sentence(text: str) -> str:
    """Return the first sentence of a help text.

    >>> first_sentence("Write report.md: tables\\nand curves. Then stop.")
    'Write report.md: tables and curves.'
    """
    first, stop, _ = " ".join(text.split("\n\n")[0].split()).partition(". ")
    return first + stop.strip()


def group_commands(names: Iterable[str]) -> dict[str, list[str]]:
    """Group names of commands by section; unknown names are last, in the section Others."""
    remaining = list(names)
    sections = {}
    for title, section in COMMANDS.items():
        sections[title] = [name for name in section if name in remaining]
        remaining = [name for name in remaining if name not in section]
    sections["Others"] = remaining
    return {title: section for title, section in sections.items() if section}


class CommandTable(MutableMapping[str, Any]):
    """Commands by name; imports the module of a command when it is first accessed."""

    def __init__(self, commands: Mapping[str, Any]) -> None:
        self._loaded = dict(commands)

    def __getitem__(self, name: str) -> Any:
        if name not in self._loaded and name in self:
            module = import_module(f"eaglenet.cli.{MODULES.get(name, name)}")
            self._loaded[name] = make_command(name, getattr(module, name))
            name_arguments(self._loaded[name])
        return self._loaded[name]

    def __setitem__(self, name: str, command: Any) -> None:
        self._loaded[name] = command

    def __delitem__(self, name: str) -> None:
        del self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys((*chain(*COMMANDS.values()), *self._loaded)))

    def __len__(self) -> int:
        return len(list(iter(self)))

    def __contains__(self, name: object) -> bool:
        return name in list(iter(self))


class Commands(TyperGroup):
    """The group of all commands; accepts ``--import MODULE`` anywhere on the command line."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.commands = CommandTable(self.commands)

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        """Import the modules of ``--import`` before a command needs what they register."""
        modules, arguments = take_imports(args)
        for module in modules:
            import_plugin(module)
        if not arguments or arguments[0] in HELP_OPTIONS:
            name_values(self, ctx)
        elif HELP_OPTIONS & set(arguments):
            name_values(self.commands.get(arguments[0], self), ctx)
        return super().parse_args(ctx, arguments)

    def list_commands(self, ctx: typer.Context) -> list[str]:  # type: ignore[override]
        return list(self.commands)

    def format_commands(self, ctx: typer.Context, formatter: Any) -> None:  # type: ignore[override]
        """List commands by section, with the first sentence of their help."""
        for title, names in group_commands(self.list_commands(ctx)).items():
            with formatter.section(title):
                formatter.write_dl([(name, self.commands[name].short_help or "") for name in names])


def take_imports(arguments: list[str]) -> tuple[list[str], list[str]]:
    """Split off every ``--import MODULE``; return the modules and the other arguments.

    >>> take_imports(["train", "x", "--import", "mine", "--import=mine.methods"])
    (['mine', 'mine.methods'], ['train', 'x'])
    """
    modules: list[str] = []
    other_arguments: list[str] = []
    remaining = iter(arguments)
    for argument in remaining:
        if argument == "--":
            return modules, [*other_arguments, argument, *remaining]
        if argument == "--import":
            module = next(remaining, "")
            if not module:
                raise UsageError("--import needs the name of a module")
            modules.append(module)
        elif argument.startswith("--import="):
            modules.append(argument.removeprefix("--import="))
        else:
            other_arguments.append(argument)
    return modules, other_arguments


RESUMABLE = ("train", "compare", "ablate", "index", "data")
"""Commands that continue after an interruption."""
DISK_FAULTS = (
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EIO,
    errno.EROFS,
    errno.ENODEV,
    errno.ESTALE,
    errno.ENOTCONN,  # a lost mount
)
"""Error numbers of a failing or full disk, which are not bugs."""

app = typer.Typer(
    name="eaglenet",
    cls=Commands,
    help="Search videos with text; train and compare text-video retrieval models.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(is_set: bool) -> None:
    if is_set:
        from eaglenet.version import __version__

        print(f"eaglenet {__version__}")
        raise typer.Exit


@app.callback()
def options(
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Log decisions and their reasons.")
    ] = False,
    _modules: Annotated[
        list[str] | None,
        typer.Option(
            "--import",
            metavar="MODULE",
            help="Import a module that registers methods, datasets, towers or stores; allowed "
            "anywhere on the command line; repeatable.",
        ),
    ] = None,
    store_endpoint: Annotated[
        str | None,
        typer.Option(
            metavar="URL", help="Use S3-compatible storage at this URL; or set AWS_ENDPOINT_URL."
        ),
    ] = None,
    _version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """Apply the options that precede the command."""
    if store_endpoint is not None:
        os.environ["AWS_ENDPOINT_URL"] = store_endpoint
    if debug:
        os.environ["EAGLENET_DEBUG"] = "1"
    level = logging.DEBUG if debug else logging.INFO if verbose else logging.WARNING
    logging.basicConfig(level=level)
    for handler in logging.getLogger().handlers:
        handler.setFormatter(SafeFormatter(verbose=verbose or debug))


def main() -> None:
    """Run the command line. Exit codes: see ``core.errors``; 130 or 143 when interrupted."""
    open_standard_streams()
    forget_current_folder()
    limit_threads()
    try:
        app()
    except KeyboardInterrupt as interrupt:
        print("interrupted", file=sys.stderr)
        end_process(130, interrupt)
    except SystemExit as system_exit:
        # Typer turns an interrupt into this code without a message.
        if system_exit.code == 130:
            command = next((word for word in sys.argv[1:] if not word.startswith("-")), "")
            advice = "; run the same command again to continue"
            print(f"interrupted{advice if command in RESUMABLE else ''}", file=sys.stderr)
            end_process(130, system_exit)
        if ShortCommand.is_running and isinstance(system_exit.code, int | None):
            end_process(system_exit.code or 0)
        raise
    except StoppedError as error:
        print(escape_lines(str(error)), file=sys.stderr)
        end_process(error.exit_code, error)
    except BrokenPipeError:
        # The reader (head, less) has closed the pipe.
        sys.stderr.close()
        sys.exit(0)
    except Exception as error:
        message, exit_code = explain(error)
        if message is None or os.environ.get("EAGLENET_DEBUG"):
            raise
        print(escape_lines(f"error: {message}"), file=sys.stderr)
        sys.exit(exit_code)


def explain(error: Exception) -> tuple[str | None, int]:
    """Return the message and the exit code for an error; no message if it is a bug."""
    if isinstance(error, ModuleNotFoundError):
        error = missing_extra(error, "this command") or error
    if isinstance(error, EagleNetError):
        return str(error), error.exit_code
    if isinstance(error, ObjectError):
        return str(error), StoreError.exit_code
    # A path that cannot be written or a full disk is not a bug.
    if isinstance(error, OSError) and (error.filename or error.errno in DISK_FAULTS):
        is_file = isinstance(error, FileExistsError | NotADirectoryError)
        advice = "check the path, its permissions and the space on its disk"
        cause = f"{error.strerror}; {'expected a folder' if is_file else advice}"
        return f"{error.filename or 'the disk'}: {cause}", 1
    return None, 1
