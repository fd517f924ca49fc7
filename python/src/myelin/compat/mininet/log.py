"""`mininet.log`: messages without newlines of their own, on standard error."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from typing import Any, Optional

OUTPUT = 25
LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "output": OUTPUT,
    "warning": logging.WARNING,
    "warn": logging.WARNING,
    "error": logging.ERROR,
    "critical": logging.CRITICAL,
}


class _Log:
    """The logger `lg`."""

    def __init__(self) -> None:
        self.level = OUTPUT

    def setLogLevel(self, levelname: Optional[str] = None) -> None:
        """Sets the least level that is written."""
        if levelname is not None and levelname not in LEVELS:
            raise ValueError(f"setLogLevel: {levelname!r} is not a level: write one of {', '.join(LEVELS)}")
        self.level = OUTPUT if levelname is None else LEVELS[levelname]

    def getEffectiveLevel(self) -> int:
        """Returns the least level that is written."""
        return self.level

    def isEnabledFor(self, level: int) -> bool:
        """Whether a message of this level is written."""
        return level >= self.level

    def _write(self, level: int, parts: tuple[Any, ...]) -> None:
        if self.isEnabledFor(level):
            sys.stderr.write(" ".join(map(str, parts)))
            sys.stderr.flush()

    def _at(level: int) -> Callable[..., None]:  # type: ignore[misc]
        def write(self: _Log, *parts: Any) -> None:
            self._write(level, parts)

        return write

    debug = _at(logging.DEBUG)
    info = _at(logging.INFO)
    output = _at(OUTPUT)
    warning = warn = _at(logging.WARNING)
    error = _at(logging.ERROR)
    critical = _at(logging.CRITICAL)


MininetLogger = _Log
lg = _Log()
debug, info, output, warning, error = lg.debug, lg.info, lg.output, lg.warning, lg.error
warn = warning
setLogLevel = lg.setLogLevel
