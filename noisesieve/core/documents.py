"""JSON documents → typed records. A document may be a stranger's: every value is checked against its field's type."""

from __future__ import annotations

import functools
import math
import types
import typing
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, TypeVar

T = TypeVar("T")
LARGEST_NUMBER = 2**63


def from_json(kind: type[T], value: object, name: str = "the document") -> T:
    """Return a dataclass from a JSON object. Keys that it does not know are ignored.

    Raises ValueError that names what is missing, or of another type.
    """
    if is_dataclass(kind):
        record: T = _dataclass(kind, _require(value, dict, name), name)
        return record
    converted: T = _convert(kind, value, name)
    return converted


def _convert(hint: Any, value: object, name: str) -> Any:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint in (Any, object):
        return value
    if origin in (types.UnionType, typing.Union):
        return _one_of(arguments, value, name)
    if is_dataclass(hint):
        read = getattr(hint, "from_document", None)  # one whose document is not just its fields
        return from_json(typing.cast(Any, hint), value, name) if read is None else read(value)
    if origin in (list, tuple):
        items = [_convert(arguments[0], item, f"an item of {name}") for item in _require(value, list, name)]
        return items if origin is list else tuple(items)
    if origin is dict:
        return {key: _convert(arguments[1], item, f"{name}.{key}") for key, item in _require(value, dict, name).items()}
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value) if abs(value) <= LARGEST_NUMBER else _refuse("too large a number", name)
    if isinstance(value, bool) is not (hint is bool) or not isinstance(value, hint):
        _refuse(value, name)
    if isinstance(value, float) and not math.isfinite(value):
        _refuse(value, name)
    if isinstance(value, int) and abs(value) > LARGEST_NUMBER:
        _refuse("too large a number", name)
    if isinstance(value, str) and not value.isascii():
        value.encode()  # half a character, a lone surrogate, raises a ValueError
    return value


def _one_of(hints: tuple[Any, ...], value: object, name: str) -> Any:
    if value is None and type(None) in hints:
        return None
    error = ValueError(f"{name} is missing")
    for hint in hints:
        if hint is not type(None):
            try:
                return _convert(hint, value, name)
            except ValueError as found:
                error = found
    raise error


def _dataclass(kind: Any, values: dict[str, object], name: str) -> Any:
    parts = {}
    for field, hint in _hints(kind):
        if field.name in values:
            parts[field.name] = _convert(hint, values[field.name], field.name)
        elif field.default is MISSING and field.default_factory is MISSING:
            raise ValueError(f"{name} has no {field.name!r}")
    return kind(**parts)


@functools.cache
def _hints(kind: Any) -> list[tuple[Any, Any]]:
    hints = typing.get_type_hints(kind)
    return [(field, hints[field.name]) for field in fields(kind) if field.init]


def _require(value: object, kind: type[T], name: str) -> T:
    return value if isinstance(value, kind) else _refuse(value, name)


def _refuse(value: object, name: str) -> Any:
    raise ValueError(f"{name} is {type(value).__name__ if isinstance(value, dict | list | str) else value}")
