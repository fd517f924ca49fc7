"""`mininet.term`: terminals of hosts."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any, Optional

from .. import NoCounterpart


def makeTerm(
    node: Any, title: str = "Node", term: str = "xterm", display: Optional[str] = None, cmd: str = "bash"
) -> list[Any]:
    """Starts a terminal program with a shell on a node."""
    screen = display or os.environ.get("DISPLAY")
    if not screen:
        raise NoCounterpart(f"{term} for {node}", "there is no display: write commands at the prompt, or set DISPLAY")
    words = [term, "-title", f"{title}: {node.name}", "-display", screen, "-e", cmd]
    return [node.popen(words)]


def makeTerms(nodes: Iterable[Any], title: str = "Node", term: str = "xterm") -> list[Any]:
    """Starts a terminal program for each node."""
    return [popen for node in nodes for popen in makeTerm(node, title, term)]


def cleanUpScreens() -> None:
    """Does nothing: terminals end with the network."""
