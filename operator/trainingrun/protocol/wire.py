"""JSON form of the protocol's dataclasses: snake_case fields become camelCase keys; nothing is guessed.

`from_json` ignores keys that it does not know (a newer peer may send more) and raises `WireError` for a missing or
ill-typed one, naming its path.
"""

from __future__ import annotations

import dataclasses
import functools
import re
import types
import typing
from enum import Enum
from typing import Any, TypeVar

T = TypeVar("T")


class WireError(ValueError):
    """A message that does not have the shape it must have."""


def camel(name: str) -> str:
    return re.sub(r"_([a-z0-9])", lambda match: match[1].upper(), name)


def to_json(value: Any) -> Any:
    """Plain JSON data (dict, list, str, int, float, bool, None) of a dataclass tree."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {camel(f.name): to_json(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, dict):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(item) for item in value]
    return value


@functools.cache
def _hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def from_json(cls: type[T], data: Any, path: str = "$") -> T:
    """An instance of the dataclass `cls` from plain JSON data."""
    return typing.cast(T, _parse(cls, data, path))


def _parse(kind: Any, data: Any, path: str) -> Any:
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return data
    if origin in (types.UnionType, typing.Union):
        if data is None and type(None) in args:
            return None
        return _parse(next(arg for arg in args if arg is not type(None)), data, path)
    if origin is tuple:
        if not isinstance(data, list):
            raise WireError(f"{path}: expected a list, got {data!r}")
        kinds = [args[0]] * len(data) if len(args) == 2 and args[1] is Ellipsis else list(args)
        if len(kinds) != len(data):
            raise WireError(f"{path}: expected {len(kinds)} items, got {len(data)}")
        return tuple(
            _parse(item_kind, item, f"{path}[{i}]")
            for i, (item_kind, item) in enumerate(zip(kinds, data, strict=True))
        )
    if origin is dict:
        if not isinstance(data, dict):
            raise WireError(f"{path}: expected an object, got {data!r}")
        return {key: _parse(args[1], item, f"{path}.{key}") for key, item in data.items()}
    if dataclasses.is_dataclass(kind):
        return _parse_dataclass(typing.cast(type, kind), data, path)
    if isinstance(kind, type) and issubclass(kind, Enum):
        try:
            return kind(data)
        except ValueError:
            raise WireError(f"{path}: {data!r} is none of {[item.value for item in kind]}") from None
    if kind is float and isinstance(data, int) and not isinstance(data, bool):
        return float(data)
    if not isinstance(data, kind) or (kind is int and isinstance(data, bool)):
        raise WireError(f"{path}: expected {kind.__name__}, got {data!r}")
    return data


def _parse_dataclass(cls: type, data: Any, path: str) -> Any:
    if not isinstance(data, dict):
        raise WireError(f"{path}: expected an object, got {data!r}")
    values: dict[str, Any] = {}
    for field in dataclasses.fields(cls):
        key = camel(field.name)
        if key in data:
            values[field.name] = _parse(_hints(cls)[field.name], data[key], f"{path}.{key}")
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise WireError(f"{path}.{key}: missing")
    return cls(**values)
