"""Entry point of the `eaglenet` command: registers the commands, turns errors into one line."""

from __future__ import annotations

import errno
import logging
import os
import sys
from collections.abc import Iterable
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from eaglenet.cli.terminal import SafeFormatter, ShortCommand, end_short_command, lines
from eaglenet.core import plugins
from eaglenet.core.errors import EagleNetError, StoppedError, StoreError, UsageError
from eaglenet.core.object_storage import ObjectError
from eaglenet.core.platform import limit_threads
from eaglenet.core.process import forget_current_folder

# Help that speaks of numbers, text and files, not of Python's types.

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


COMMAND_MODULES: tuple[str, ...] = (
    "demo",
    "data",
    "convert",
    "metrics",
    "models",
    "recipes",
    "train",
    "evaluate",
    "ablate",
    "compare",
    "index",
    "watch",
    "search",
    "store",
    "serve",
    "report",
)
"""Modules of this package, each with a ``register(app)``. They import heavy things lazily."""


class Commands(TyperGroup):
    """The commands, each of which takes ``--import MODULE`` wherever it stands."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        """Imports what is asked for before any command looks for a name."""
        modules, rest = take_imports(args)
        plugins.load_installed()
        for module in modules:
            plugins.import_named(module)
        if not rest or {"-h", "--help"} & set(rest):
            speak_plainly(self, ctx)
        return super().parse_args(ctx, rest)

    def format_commands(self, ctx: typer.Context, formatter: Any) -> None:  # type: ignore[override]
        """In sections, each said whole."""
        for title, names in in_sections(self.list_commands(ctx)).items():
            with formatter.section(title):
                formatter.write_dl([(name, self.commands[name].short_help or "") for name in names])


def take_imports(arguments: list[str]) -> tuple[list[str], list[str]]:
    """The modules of every ``--import MODULE``, and the arguments without them.

    >>> take_imports(["train", "x", "--import", "mine", "--import=more.of_it"])
    (['mine', 'more.of_it'], ['train', 'x'])
    """
    modules: list[str] = []
    rest: list[str] = []
    waiting = iter(arguments)
    for argument in waiting:
        if argument == "--":
            return modules, [*rest, argument, *waiting]
        if argument == "--import":
            module = next(waiting, "")
            if not module:
                raise UsageError("--import needs the name of a module")
            modules.append(module)
        elif argument.startswith("--import="):
            modules.append(argument.removeprefix("--import="))
        else:
            rest.append(argument)
    return modules, rest


DISK_FAULTS = (
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EIO,
    errno.EROFS,
    errno.ENODEV,
    errno.ESTALE,
    errno.ENOTCONN,  # a mount that was lost
)

app = typer.Typer(
    name="eaglenet",
    cls=Commands,
    help="Search video with words; train, compare and report text-video retrieval models.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(is_wanted: bool) -> None:
    if is_wanted:
        from eaglenet.version import __version__

        print(f"eaglenet {__version__}")
        raise typer.Exit


@app.callback()
def options(
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Log what is chosen and why.")
    ] = False,
    _modules: Annotated[
        list[str] | None,
        typer.Option(
            "--import",
            metavar="MODULE",
            help="Import a module that registers methods, datasets, towers or stores; anywhere on "
            "the line, repeatable.",
        ),
    ] = None,
    store_endpoint: Annotated[
        str | None,
        typer.Option(help="Address of S3-compatible storage, for s3://; or AWS_ENDPOINT_URL."),
    ] = None,
    _version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """Options that stand before any command."""
    if store_endpoint is not None:
        os.environ["AWS_ENDPOINT_URL"] = store_endpoint
    if debug:
        os.environ["EAGLENET_DEBUG"] = "1"
    level = logging.DEBUG if debug else logging.INFO if verbose else logging.WARNING
    logging.basicConfig(level=level)
    for handler in logging.getLogger().handlers:
        handler.setFormatter(SafeFormatter("%(name)s: %(message)s"))


for _name in COMMAND_MODULES:
    import_module(f"eaglenet.cli.{_name}").register(app)


def main() -> None:
    """Run the command line. Exit codes: see ``core.errors``; 130 or 143 when interrupted."""
    forget_current_folder()
    limit_threads()
    try:
        app()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
    except SystemExit as leaving:
        # Typer turns an interrupt into this code without a word.
        if leaving.code == 130:
            goes_on = "; run the same command again to continue training, indexing or caching"
            print(f"interrupted{'' if ShortCommand.runs else goes_on}", file=sys.stderr)
        if ShortCommand.runs and isinstance(leaving.code, int | None):
            end_short_command(leaving.code or 0)
        raise
    except StoppedError as stopped:
        print(stopped, file=sys.stderr)
        sys.exit(stopped.exit_code)
    except EagleNetError as error:
        if os.environ.get("EAGLENET_DEBUG"):
            raise
        print(lines(f"error: {error}"), file=sys.stderr)
        sys.exit(error.exit_code)
    except BrokenPipeError:
        # The reader (head, less) went away: not an error of ours.
        sys.stderr.close()
        sys.exit(0)
    except ObjectError as error:
        if os.environ.get("EAGLENET_DEBUG"):
            raise
        print(lines(f"error: {error}"), file=sys.stderr)
        sys.exit(StoreError.exit_code)
    except OSError as error:
        # A path that cannot be made or written, a full disk: the machine's fault, not a bug.
        if os.environ.get("EAGLENET_DEBUG") or (
            error.filename is None and error.errno not in DISK_FAULTS
        ):
            raise
        is_file = isinstance(error, FileExistsError | NotADirectoryError)
        advice = "check the path, its permissions and the space on its disk"
        cause = f"{error.strerror}; {'a folder is needed there' if is_file else advice}"
        print(lines(f"error: {error.filename or 'the disk'}: {cause}"), file=sys.stderr)
        sys.exit(1)
