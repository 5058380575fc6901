"""Typed settings: dataclasses from JSON values, `a.b=c` overrides, keyword options of functions.

All settings are read here, so invalid values give the same errors everywhere.
"""

from __future__ import annotations

import dataclasses
import inspect
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any, Literal, Self, TypeVar, Union, get_args, get_origin

from eaglenet.core.errors import ConfigError, UsageError
from eaglenet.core.text import did_you_mean, list_unknown
from eaglenet.core.untrusted import parse_json

Settings = TypeVar("Settings")
_TYPE_NAMES = {
    type(None): "none",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
}


def option(default: Any, help: str, *, name: str = "", **metadata: Any) -> Any:
    """Declare a dataclass field that the command line can set.

    name: name of the option, if it differs from the field's. metadata: see
    :mod:`eaglenet.cli.options`.
    """
    option_metadata = {"option": name} if name else {}
    return dataclasses.field(
        default=default, metadata={"help": help, **option_metadata, **metadata}
    )


class NamedFields:
    """Base of dataclasses whose constructor raises ``UsageError`` for unknown fields."""

    def __new__(cls, *values: Any, **fields: Any) -> Self:
        names = [spec.name for spec in dataclasses.fields(cls)]  # type: ignore[arg-type]
        unknown_names = [name for name in fields if name not in names]
        if unknown_names:
            description = list_unknown(unknown_names, names, cls.advise)
            raise UsageError(f"{cls.__name__} has no field {description}")
        return super().__new__(cls)

    def __repr__(self) -> str:
        """Show the fields that differ from their defaults."""
        changes = []
        for spec in dataclasses.fields(self):  # type: ignore[arg-type]
            value, default = getattr(self, spec.name), spec.default
            if spec.default_factory is not dataclasses.MISSING:
                default = spec.default_factory()
            # Values of other types, such as arrays, are not compared with the default.
            if type(value) is not type(default) or value != default:
                changes.append(f"{spec.name}={value!r}")
        return f"{type(self).__name__}({', '.join(changes)})"

    @classmethod
    def advise(cls, name: str) -> str:
        """Return advice about an unknown field; empty if there is none."""
        return ""


def to_plain(value: Any) -> Any:
    """Convert dataclasses to dictionaries and tuples to lists, for ``json.dumps``."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            spec.name: to_plain(getattr(value, spec.name)) for spec in dataclasses.fields(value)
        }
    if isinstance(value, Mapping):
        return {str(key): to_plain(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_plain(entry) for entry in value]
    return value


def from_plain(kind: type[Settings], plain: Any, *, where: str = "") -> Settings:
    """Build the dataclass ``kind`` from the output of :func:`to_plain`; refuse unknown names."""
    if not isinstance(plain, Mapping):
        where = where or kind.__name__
        raise ConfigError(f"{where}: expected a table of settings, got {plain!r:.200}")
    hints = _hints(kind)
    names = [spec.name for spec in dataclasses.fields(kind)]  # type: ignore[arg-type]
    for name in plain:
        if name not in names:
            raise unknown_setting(f"{where}.{name}".lstrip("."), name, names)
    values = {
        name: _coerce(hints[name], entry, f"{where}.{name}".lstrip("."))
        for name, entry in plain.items()
    }
    try:
        return kind(**values)
    except TypeError as error:
        raise ConfigError(f"{where or kind.__name__}: {error}") from error


def override(settings: Any, path: str, text: str, *, where: str = "") -> Any:
    """Return ``settings`` with the field at the dotted ``path`` parsed from ``text``."""
    name, _, rest = path.partition(".")
    full = f"{where}.{name}".lstrip(".")
    if isinstance(settings, Mapping):
        if rest:
            raise ConfigError(f"{full}.{rest}: {full} is a plain table without inner settings")
        return {**settings, name: _guess(text)}
    names = [spec.name for spec in dataclasses.fields(settings)]
    if name not in names:
        raise unknown_setting(full, name, names)
    current = getattr(settings, name)
    if rest:
        if not dataclasses.is_dataclass(current) and not isinstance(current, Mapping):
            raise ConfigError(f"{full}.{rest}: {full} is {current!r} and has no inner settings")
        new_value = override(current, rest, text, where=full)
    elif dataclasses.is_dataclass(current):
        inner = ", ".join(spec.name for spec in dataclasses.fields(current))
        raise ConfigError(f"{full} is a group; set one of its fields: {inner}")
    else:
        new_value = _parse(_hints(type(settings))[name], text, full)
    return dataclasses.replace(settings, **{name: new_value})


def split_assignment(assignment: str, example: str) -> tuple[str, str]:
    """Split `name=value`; ``example`` is a valid assignment for the error message."""
    name, equals, text = assignment.partition("=")
    if not equals or not name:
        raise ConfigError(
            f"cannot read the setting {assignment!r}; write it as name=value, for example {example}"
        )
    return name, text


def read_assignments(assignments: Iterable[str] | None, example: str) -> dict[str, Any]:
    """Parse `name=value` settings without declared types; values are JSON or text."""
    pairs = (split_assignment(assignment, example) for assignment in assignments or ())
    return {name: _guess(text) for name, text in pairs}


def read_options(
    function: Callable[..., Any],
    options: Mapping[str, Any],
    where: str,
    allowed_names: Iterable[str],
) -> dict[str, Any]:
    """Convert ``options`` to the types of ``function``'s arguments in ``allowed_names``."""
    hints = typing.get_type_hints(function)
    parameters = inspect.signature(function).parameters
    names = [name for name in allowed_names if name in parameters]
    values = {}
    for name, value in options.items():
        if name not in names:
            raise unknown_setting(f"{where}.{name}", name, names)
        hint = hints.get(name, Any)
        # Text may come from a command line, where numbers are text too.
        reader = _parse if isinstance(value, str) else _coerce
        values[name] = reader(hint, value, f"{where}.{name}")
    return values


def check_choices(settings: Any) -> None:
    """Refuse a dataclass with a value that its field's ``Literal`` does not list."""
    for name, hint in _hints(type(settings)).items():
        options = _options(hint)
        choices = [
            entry for each in options if get_origin(each) is Literal for entry in get_args(each)
        ]
        value = getattr(settings, name)
        is_none = value is None and type(None) in options
        if choices and value not in choices and not is_none:
            raise ConfigError(f"{name} is {value!r}; expected {_describe(hint)}")


_hints: Callable[[Any], dict[str, Any]] = cache(typing.get_type_hints)
"""Returns the types of a dataclass's fields; Python compiles the annotations at every call."""


def differences(first: Any, second: Any, *, where: str = "") -> list[str]:
    """Return a line `path: first -> second` for each value that differs between two plain trees."""
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        lines: list[str] = []
        for name in dict.fromkeys([*first, *second]):
            inner = f"{where}.{name}".lstrip(".")
            lines += differences(first.get(name), second.get(name), where=inner)
        return lines
    return [] if first == second else [f"{where}: {first!r} -> {second!r}"]


def unknown_setting(full: str, name: str, names: Sequence[str]) -> ConfigError:
    """Return the error about the setting ``name`` at the path ``full``."""
    hint = did_you_mean(name, names)
    known_names = ", ".join(names) or "none"
    return ConfigError(f"unknown setting {full!r}{hint} (known: {known_names})")


def _guess(text: str) -> Any:
    try:
        return parse_json(text)
    except ValueError:
        return text


def _options(hint: Any) -> tuple[Any, ...]:
    if get_origin(hint) in (Union, types.UnionType):
        return get_args(hint)
    return (hint,)


def _parse(hint: Any, text: str, where: str) -> Any:
    """Parse ``text`` from a command line as a value of type ``hint``."""
    options = _options(hint)
    if type(None) in options and text.lower() in ("none", "null"):
        return None
    for option in options:
        origin = get_origin(option)
        if option is str or origin is Literal:
            plain: Any = text
            if origin is Literal and text not in get_args(option):
                plain = _guess(text)
        elif option is bool:
            plain = {"true": True, "yes": True, "false": False, "no": False}.get(text.lower(), text)
        elif _is_list(origin) and not text.startswith("["):
            plain = [_guess(entry) for entry in text.split(",") if entry]
        else:
            plain = _guess(text)
        try:
            return _coerce(option, plain, where)
        except ConfigError:
            continue
    raise ConfigError(f"{where}={text}: expected {_describe(hint)}")


def _coerce(hint: Any, plain: Any, where: str) -> Any:
    """Convert a JSON value to type ``hint``, or raise an error that says what was expected."""
    for option in _options(hint):
        is_match, value = _match(option, plain, where)
        if is_match:
            return value
    raise ConfigError(f"{where}: expected {_describe(hint)}, got {plain!r:.200}")


def _match(option: Any, plain: Any, where: str) -> tuple[bool, Any]:
    origin, arguments = get_origin(option), get_args(option)
    if option is Any:
        return True, plain
    if option is type(None):
        return plain is None, None
    if origin is Literal:
        return any(plain == value and type(plain) is type(value) for value in arguments), plain
    if option is float:
        is_number = isinstance(plain, (int, float)) and not isinstance(plain, bool)
        if isinstance(plain, int) and abs(plain) >= 2**1000:
            is_number = False
        return is_number, float(plain) if is_number else None
    if option is int:
        return isinstance(plain, int) and not isinstance(plain, bool), plain
    if option in (bool, str):
        return isinstance(plain, option), plain
    if _is_list(origin):
        return _match_tuple(
            arguments if origin is tuple else (arguments[0], Ellipsis), plain, where
        )
    if isinstance(option, type) and dataclasses.is_dataclass(option):
        if isinstance(plain, option):
            return True, plain
        return isinstance(plain, Mapping), (
            from_plain(option, plain, where=where) if isinstance(plain, Mapping) else None
        )
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return isinstance(plain, Mapping), dict(plain) if isinstance(plain, Mapping) else None
    return False, None


def _is_list(origin: Any) -> bool:
    return isinstance(origin, type) and issubclass(origin, Sequence)


def _match_tuple(arguments: tuple[Any, ...], plain: Any, where: str) -> tuple[bool, Any]:
    if not isinstance(plain, (list, tuple)):
        return False, None
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        return True, tuple(_coerce(arguments[0], entry, where) for entry in plain)
    if len(arguments) != len(plain):
        return False, None
    pairs = zip(arguments, plain, strict=True)
    return True, tuple(_coerce(argument, entry, where) for argument, entry in pairs)


def _describe(hint: Any) -> str:
    names = []
    for option in _options(hint):
        if get_origin(option) is Literal:
            names += [repr(entry) for entry in get_args(option)]
        elif _is_list(get_origin(option)):
            names.append(f"a list of {_describe(get_args(option)[0]).removeprefix('a ')}s")
        else:
            names.append(_TYPE_NAMES.get(option, getattr(option, "__name__", str(option))))
    return " or ".join(names)
