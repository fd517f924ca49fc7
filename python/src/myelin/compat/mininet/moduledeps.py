"""`mininet.moduledeps`: Myelin needs no kernel modules."""

from __future__ import annotations

from typing import Any


def moduleDeps(*_args: Any, **_kwargs: Any) -> None:
    """Does nothing."""


def pathCheck(*_args: Any, **_kwargs: Any) -> None:
    """Does nothing."""
