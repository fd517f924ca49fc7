"""The types of the socket, imported when they are first used: they are the largest module."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import types as types
else:

    class _Types:
        def __getattr__(self, name: str) -> Any:
            return getattr(importlib.import_module(".types", __package__), name)

    types = _Types()
