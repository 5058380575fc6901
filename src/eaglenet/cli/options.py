"""Options of commands: shared options, and the declaration of options.

An option is declared once, with :func:`.core.settings.option`: as the default of a parameter of a
command (:func:`argument` does the same for arguments), or in the field of a dataclass::

    @dataclass(frozen=True)
    class IndexOptions:
        clip_seconds: float = option(10.0, "Set the length of clips.", metavar="SECONDS")

A command takes the dataclass as a parameter, and :func:`make_command` turns each field that has a
``help`` into an option::

    def index(store: StoreName, *, options: IndexOptions) -> None: ...

Metadata of a field:

======== =======================================================================================
help     help text; a field without it is not an option and keeps its default
option   name of the option, if it differs from the field: ``"--not"``, ``"-k/--results"``
group    heading under which ``--help-all`` lists it; without one, ``--help`` lists it too
metavar  name of the value in the help
min, max limits of a number
type     type of the value, if it differs from the field
parse    function that converts the text of the option to the value of the field
check    function that refuses a wrong value before the command begins
======== =======================================================================================

A ``tuple[X, ...]`` becomes a repeatable option. A field that is itself a dataclass is expanded. A
parameter ``Annotated[dict[str, Any], SomeDataclass]`` receives a dictionary of field values, for a
dataclass that options alone cannot fill. Modules with such dataclasses must import quickly, without
torch.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_origin

import typer
import typer.main
from typer.core import TyperCommand

from eaglenet.core.errors import UsageError
from eaglenet.core.files import expand_home, nearest_existing, require_writable
from eaglenet.core.platform import STORE_VARIABLE, default_store

if TYPE_CHECKING:
    from eaglenet.search.engine import Engine

Settings = Annotated[
    list[str] | None,
    typer.Option("--set", help="Change a setting: section.field=value; repeatable."),
]


def check_output_file(path: Path, suffixes: Sequence[str] = ()) -> None:
    """Refuse a file that cannot be written, before the work whose result it would hold.

    suffixes: the allowed endings of its name; empty: any.
    """
    if suffixes and path.suffix.lower() not in suffixes:
        endings = f"{', '.join(suffixes[:-1])} or {suffixes[-1]}" if suffixes[1:] else suffixes[0]
        raise UsageError(f"{path}: unknown format; use a name that ends in {endings}")
    # Unlike those of Path, these do not raise in folders that may not be entered.
    if os.path.isdir(path):
        raise UsageError(f"{path} is a folder; expected the name of a file")
    if not os.path.exists(path):
        _check_writable(path.parent, path)
    elif not os.access(path, os.W_OK):
        try:
            os.close(os.open(path, os.O_WRONLY))
        except OSError as error:
            raise UsageError(f"{path}: cannot be written: {error.strerror}") from None


SUBTITLES = (".srt", ".vtt")
"""Suffixes of the subtitles that we write."""


def refuse_indexed_file(output: Path, engine: Engine) -> None:
    """Refuse to replace a file of a store, or its subtitles: it may be the only copy."""
    if not os.path.exists(output):
        return
    paths = engine.read(lambda view: [path for paths in view.files.paths for path in paths])
    targets = {output.absolute(), Path(os.path.realpath(output))}
    for path, target in product(paths, targets):
        # Comparing every path of a large store on disk takes minutes. Names on macOS ignore case.
        name = os.path.basename(path).casefold()
        other = target.name.casefold()
        if name == other and os.path.exists(path) and os.path.samefile(path, output):
            raise UsageError(f"{output} is an indexed file; choose another name")
        stem, suffix = os.path.splitext(name)[0], target.suffix.lower()
        if suffix in SUBTITLES and other.startswith(f"{stem}."):
            folder = os.path.dirname(path)
            if os.path.isdir(folder) and os.path.samefile(folder, target.parent):
                raise UsageError(f"{output} may be the subtitles of {path}; choose another name")


def check_output_folder(folder: Path) -> None:
    """Refuse a folder that neither exists nor can be created, or that cannot be written to."""
    _check_writable(nearest_existing(folder.absolute()), folder)


def _check_writable(folder: Path, path: Path) -> None:
    if not os.path.exists(folder):
        raise UsageError(f"{path}: cannot be written: there is no folder {folder}")
    if not os.path.isdir(folder):
        raise UsageError(f"{path}: cannot be written: {folder} is not a folder")
    try:
        require_writable(folder)
    except OSError as error:
        raise UsageError(
            f"{path}: cannot be written: nothing can be created in {folder} ({error.strerror})"
        ) from None


def make_check_callback(check: Callable[[Any], None]) -> Callable[[Any], Any]:
    """Return a callback of an option that refuses wrong values with ``check``.

    It also expands ``~`` in paths, which shells leave in ``--html=~/a.html``.
    """

    def callback(value: Any) -> Any:
        if isinstance(value, Path):
            value = expand_home(value)
        if value is not None:
            check(value)
        return value

    return callback


Output = Annotated[
    Path,
    typer.Option(
        "--output",
        "-o",
        help="Write into this folder.",
        callback=make_check_callback(check_output_folder),
    ),
]
Root = Annotated[
    str, typer.Option("--root", help="Read the dataset or the features in this folder or file.")
]
Device = Annotated[str, typer.Option("--device", help="Compute on auto, cpu, cuda or mps.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Seeds = Annotated[
    int, typer.Option("--seeds", min=1, help="Train with this many seeds (0, 1, ...).")
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Check settings, data and device; train nothing.")
]
Data = Annotated[
    str,
    typer.Option(
        "--data", metavar="NAME", help="Use demo (default), folder, frames, features, experts, "
        "msrvtt, didemo, msvd, vatex, activitynet, lsmdc, youcook2, qvhighlights, charades-sta or "
        "tgif.",
    ),
]  # fmt: skip
Tower = Annotated[
    str,
    typer.Option("--tower", metavar="NAME", help="Use this tower: clip-b16, siglip2-b16, small, "
                 "...; default: the first of the data (`eaglenet recipes`)."),
]  # fmt: skip
Protocol = Annotated[
    str,
    typer.Option("--protocol", metavar="NAME", help="Use paper, released, original or equal; "
                 "default: the first of the data and the tower."),
]  # fmt: skip
Variants = Annotated[
    list[str] | None,
    typer.Option("--variant", metavar="NAME=VALUE", help="Use a variant of the method, such as "
                 "edges=no-f2f; repeatable."),
]  # fmt: skip


def argument(help: str, default: Any = ..., **metadata: Any) -> Any:
    """Declare a parameter of a command as an argument; without a default it is required."""
    return dataclasses.field(
        default=default, metadata={"help": help, "is_argument": True, **metadata}
    )


def root_setting(root: str, *, must_exist: bool = True) -> list[str]:
    """Return ``--root`` as a setting, absolute because a run is evaluated from other folders.

    Raises if it does not exist, before weights are loaded.
    """
    path = expand_home(root)
    if root and must_exist and not path.exists():
        raise UsageError(f"--root {root}: no such folder or file")
    return [f"data.root={path.absolute()}"] if root else []


def print_table(title: str, header: list[str], cells: list[list[str]]) -> None:
    """Print a table; without lines and with one line per row where no terminal shows it."""
    if not sys.stdout.isatty():
        print("\n".join([title, *_plain_rows([header, *cells])]))
        return
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=escape(title), title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    for index, name in enumerate(header):
        table.add_column(
            name.replace(" ", "\n"), justify="left" if index == 0 else "right", no_wrap=True
        )
    for row in cells:
        table.add_row(*map(escape, row))
    console = Console()
    # A wrapped line is better than a number truncated to "13...".
    console.width = max(console.width, Console(width=1000).measure(table).maximum)
    console.print(table)


def _plain_rows(rows: list[list[str]]) -> list[str]:
    # The row of a method that cannot run is shorter.
    widths = [max(map(len, column)) for column in zip_longest(*rows, fillvalue="")]
    lines = []
    for first, *others in rows:
        numbers = map(str.rjust, others, widths[1:])
        lines.append("  ".join([first.ljust(widths[0]), *numbers]).rstrip())
    return lines


StoreName = Annotated[
    str,
    typer.Option(
        "--store",
        envvar=STORE_VARIABLE,
        default_factory=default_store,
        show_default="in your data folder",
        metavar="FOLDER",
        help="Use this store.",
    ),
]

COMMON_SECTIONS = ("Arguments", "Options")
"""Sections of ``--help``; ``--help-all`` also has the groups of options."""
_ALL = "eaglenet.help_all"


class GroupedCommand(TyperCommand):
    """A command whose less common options are shown by ``--help-all`` only."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None:
                group = getattr(param, "rich_help_panel", None) or "Options"
                is_argument = param.param_type_name == "argument"
                sections.setdefault("Arguments" if is_argument else group, []).append(record)
        titles = sections if ctx.meta.get(_ALL) else COMMON_SECTIONS
        for title in dict.fromkeys((*COMMON_SECTIONS, *titles)):
            if title in sections:
                with formatter.section(title):
                    formatter.write_dl(sections[title])


def make_command(name: str, source: Callable[..., None] | typer.Typer) -> Any:
    """Make a command from a function, or from a group of commands; see :func:`expand_options`."""
    app = typer.Typer(rich_markup_mode=None)
    if isinstance(source, typer.Typer):
        for info in source.registered_commands:
            assert info.callback is not None
            info.callback = expand_options(info.callback)
            info.cls = _class_for(info.callback)
        app.add_typer(source, name=name)
    else:
        function = expand_options(source)
        app.command(name, cls=_class_for(function))(function)
    return typer.main.get_group(app).commands[name]


def _class_for(function: Callable[..., None]) -> type[TyperCommand]:
    is_grouped = "help_all" in inspect.signature(function).parameters
    return GroupedCommand if is_grouped else TyperCommand


def expand_options(function: Callable[..., None]) -> Callable[..., None]:
    """Turn parameters that are dataclasses or default to :func:`option` into options."""
    parameters: dict[str, inspect.Parameter] = {}
    dataclass_of: dict[str, tuple[type, bool]] = {}
    is_grouped = False
    for parameter in inspect.signature(function, eval_str=True).parameters.values():
        name, kind, spec = parameter.name, parameter.annotation, parameter.default
        cls, is_dict = _dataclass_of(kind)
        if isinstance(spec, dataclasses.Field):
            parameters[name] = _make_option(name, kind, spec.default, spec.metadata)
            is_grouped = is_grouped or spec.metadata.get("group") is not None
            continue
        if cls is None:
            parameters[name] = parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
            continue
        dataclass_of[name] = cls, is_dict
        for parameter in _options_of(cls):
            assert parameter.name not in parameters, f"two options are called {parameter.name}"
            parameters[parameter.name] = parameter
    own_names = [name for name in parameters if name in inspect.signature(function).parameters]
    if dataclass_of or is_grouped:
        parameters["help_all"] = inspect.Parameter(
            "help_all", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=_HelpAll
        )

    @functools.wraps(function)
    def command(**values: Any) -> None:
        arguments = {name: values[name] for name in own_names}
        for name, (cls, is_dict) in dataclass_of.items():
            fields = _field_values(cls, values)
            arguments[name] = fields if is_dict else cls(**fields)
        function(**arguments)

    command.__signature__ = inspect.Signature(list(parameters.values()))  # type: ignore[attr-defined]
    command.__annotations__ = {name: value.annotation for name, value in parameters.items()}
    del command.__wrapped__
    return command


def _show_all_help(context: typer.Context, is_set: bool) -> None:
    if is_set:
        context.meta[_ALL] = True
        print(context.get_help())
        raise typer.Exit


_HelpAll = Annotated[
    bool,
    typer.Option(
        "--help-all",
        is_eager=True,
        expose_value=True,
        callback=_show_all_help,
        help="Show all options, in groups, and exit.",
    ),
]


def _dataclass_of(annotation: Any) -> tuple[type | None, bool]:
    """Return the dataclass of a parameter, and whether it takes a dictionary of field values."""
    if isinstance(annotation, type) and dataclasses.is_dataclass(annotation):
        return annotation, False
    if get_origin(annotation) is Annotated:
        for extra in get_args(annotation)[1:]:
            if isinstance(extra, type) and dataclasses.is_dataclass(extra):
                return extra, True
    return None, False


def _field_type(cls: type, spec: dataclasses.Field[Any]) -> Any:
    """Evaluate the annotation of one field; other fields may use types that are not imported."""
    if "type" in spec.metadata:
        return spec.metadata["type"]
    if "parse" in spec.metadata:
        return str
    if not isinstance(spec.type, str):
        return spec.type
    return eval(spec.type, vars(sys.modules[cls.__module__]))


def _nested_class(cls: type, spec: dataclasses.Field[Any]) -> type | None:
    if spec.metadata or spec.default_factory is dataclasses.MISSING:
        return None
    return _dataclass_of(spec.default_factory)[0]


def _options_of(cls: type) -> Iterator[inspect.Parameter]:
    for spec in dataclasses.fields(cls):
        nested_class = _nested_class(cls, spec)
        if nested_class is not None:
            yield from _options_of(nested_class)
        elif "help" in spec.metadata:
            kind, default = _field_type(cls, spec), spec.default
            if get_origin(kind) is tuple:
                kind, default = list[get_args(kind)[0]], None  # type: ignore[misc]
            if "parse" in spec.metadata:
                default = None
            yield _make_option(spec.name, kind, default, spec.metadata)


def _make_option(
    name: str, kind: Any, default: Any, metadata: Mapping[str, Any]
) -> inspect.Parameter:
    names = metadata.get("option", f"--{name.replace('_', '-')}").split("/")
    if kind is bool and default is True:
        names = [f"{names[0]}/--no-{names[0].removeprefix('--')}"]
    details: dict[str, Any] = {key: metadata.get(key) for key in ("help", "metavar", "min", "max")}
    if "check" in metadata:
        details["callback"] = make_check_callback(metadata["check"])
    elif kind in (float, float | None):
        details["callback"] = make_check_callback(_refuse_nan)
    if metadata.get("is_argument"):
        option = typer.Argument(**details)
    else:
        option = typer.Option(*names, rich_help_panel=metadata.get("group"), **details)
    is_optional = default is None and type(None) not in get_args(kind)
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=inspect.Parameter.empty if default is ... else default,
        annotation=Annotated[kind | None if is_optional else kind, option],
    )


def _refuse_nan(value: float) -> None:
    # It passes every comparison with a limit.
    if math.isnan(value):
        raise typer.BadParameter("nan is not a number")


def _field_values(cls: type, values: Mapping[str, Any]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for spec in dataclasses.fields(cls):
        nested_class = _nested_class(cls, spec)
        if nested_class is not None:
            result[spec.name] = nested_class(**_field_values(nested_class, values))
            continue
        value = values.get(spec.name)
        if "help" not in spec.metadata or value is None:
            continue  # The field keeps its default.
        if "parse" in spec.metadata:
            if value:
                result[spec.name] = spec.metadata["parse"](value)
        elif isinstance(value, list):
            result[spec.name] = tuple(item for item in value if item != "")
        else:
            result[spec.name] = value
    return result
