"""Converts between JSON and the dataclasses of `types`."""

from __future__ import annotations

import json
import types as builtin_types
import typing
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Literal, TypeVar, Union, cast

from ._lazy import types
from .errors import FailedError

T = TypeVar("T")
Decoder = Callable[[Any], Any]


def decode(kind: Any, text: bytes) -> Any:
    """Parses JSON text as a value of this type. Fields of a newer version are dropped.

    Raises FailedError if the text is not such a value.
    """
    try:
        return decoder(kind)(json.loads(text))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise FailedError(
            f"cannot parse the agent's answer ({error}): the agent may be another build of version {types.VERSION}; "
            "`myelin down --all` stops the agent"
        ) from error


def encode(value: Any) -> Any:
    """Returns a value as data for JSON. Fields that are None are absent."""
    import dataclasses

    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = ((field.name.rstrip("_"), getattr(value, field.name)) for field in dataclasses.fields(value))
        return {name: encode(item) for name, item in fields if item is not None}
    if isinstance(value, dict):
        return {key: encode(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [encode(item) for item in value]
    return value


def _keep(value: Any) -> Any:
    return value


@lru_cache(maxsize=None)
def decoder(kind: Any) -> Decoder:
    """Returns the function that makes a value of this type from parsed JSON."""
    import dataclasses

    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if dataclasses.is_dataclass(kind):
        return _object_decoder(cast(type, kind))
    if origin is list:
        item = decoder(arguments[0])
        return _keep if item is _keep else lambda value: [item(one) for one in value]
    if origin is tuple:
        items = [decoder(argument) for argument in arguments]
        return lambda value: tuple(item(one) for item, one in zip(items, value, strict=True))
    if origin is dict:
        item = decoder(arguments[1])
        return _keep if item is _keep else lambda value: {key: item(one) for key, one in value.items()}
    if origin in (Union, builtin_types.UnionType):
        return _union_decoder(arguments)
    return _keep


def _object_decoder(kind: type) -> Decoder:
    hints = typing.get_type_hints(kind)
    fields = {name.rstrip("_"): (name, decoder(hint)) for name, hint in hints.items()}
    has_extra = "extra" in hints

    def read(value: Any) -> Any:
        known, extra = {}, {}
        for key, item in value.items():
            if key in fields:
                name, make = fields[key]
                known[name] = None if item is None else make(item)
            else:
                extra[key] = item
        if has_extra:
            known["extra"] = extra
        return kind(**known)

    return read


def _union_decoder(arguments: tuple[Any, ...]) -> Decoder:
    import dataclasses

    classes: list[Any] = [argument for argument in arguments if dataclasses.is_dataclass(argument)]
    others = [argument for argument in arguments if argument is not type(None) and argument not in classes]
    if not classes:
        return _keep if all(typing.get_origin(other) in (None, Literal) for other in others) else decoder(others[0])
    by_key = {}
    for one in classes:
        needed = [field.name for field in dataclasses.fields(one) if field.default is dataclasses.MISSING]
        by_key[needed[0] if needed else ""] = decoder(one)
    only = decoder(classes[0]) if len(classes) == 1 else None

    def read(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        if only is not None:
            return only(value)
        for key, make in by_key.items():
            if key in value:
                return make(value)
        raise KeyError(f"none of {', '.join(by_key)}")

    return read
