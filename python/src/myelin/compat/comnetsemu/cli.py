"""`comnetsemu.cli`: the prompt of a network."""

from __future__ import annotations

from typing import Any

from .. import NoCounterpart
from ..mininet.cli import CLI as CLI
from ..mininet.term import makeTerm


def spawnXtermDocker(container_name: str, **_options: Any) -> Any:
    """A container has no second program."""
    raise NoCounterpart(
        f"a terminal in the container `{container_name}`", "run `myelin exec HOST -- COMMAND` for a program beside it"
    )


__all__ = ["CLI", "makeTerm", "spawnXtermDocker"]
