"""Dataclasses that are made when they are first used.

To make a dataclass takes the time of a small module, and so does the module `dataclasses`. An import needs few of the
classes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class field:  # noqa: N801
    """A default that `dataclasses.field` makes later."""

    def __init__(self, default_factory: Callable[[], Any]) -> None:
        self.default_factory = default_factory


class _Fields:
    """Makes a class a dataclass when somebody asks for its fields."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._options = options

    def __get__(self, instance: Any, owner: Any) -> Any:
        import dataclasses

        for name, value in list(vars(owner).items()):
            if isinstance(value, field):
                setattr(owner, name, dataclasses.field(default_factory=value.default_factory))
        del owner.__dataclass_fields__, owner.__init__
        dataclasses.dataclass(**self._options)(owner)
        return owner.__dataclass_fields__


def _init(self: Any, *arguments: Any, **values: Any) -> None:
    cls = type(self)
    _ = cls.__dataclass_fields__
    cls.__init__(self, *arguments, **values)


def dataclass(decorated: Any = None, **options: Any) -> Any:
    """Makes a class a dataclass at its first use. The options are those of `dataclasses.dataclass`."""

    def prepare(cls: Any) -> Any:
        cls.__dataclass_fields__ = _Fields(options)
        cls.__init__ = _init
        return cls

    return prepare if decorated is None else prepare(decorated)


class Record:
    """Text and comparison of all types of the socket."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]
