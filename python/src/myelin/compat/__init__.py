"""Runs scripts of Mininet and ComNetsEmu unmodified on Myelin: `python3 -m myelin.compat SCRIPT`.

`myelin.compat.mininet` and `myelin.compat.comnetsemu` have their modules. What has no counterpart raises `NoCounterpart`.
"""

from __future__ import annotations

from ..errors import UsageError


class NoCounterpart(UsageError):
    """Mininet or ComNetsEmu has it, and Myelin does not."""

    def __init__(self, what: str, remedy: str) -> None:
        super().__init__(f"{what}: it has no counterpart in Myelin: {remedy}", object=what, remedy=remedy)
