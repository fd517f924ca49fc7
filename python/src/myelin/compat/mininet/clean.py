"""`mininet.clean`."""

from __future__ import annotations

from typing import Any


def cleanup(*_args: Any, **_kwargs: Any) -> None:
    """Does nothing: a network ends with its script."""


class Cleanup:
    """Nothing of a script stays."""

    cleanup = staticmethod(cleanup)

    @classmethod
    def addCleanupCallback(cls, callback: Any) -> None:
        """Does nothing."""


addCleanupCallback = Cleanup.addCleanupCallback
