"""Starts programs in network namespaces.

A thread for each namespace enters it once; programs that this thread starts are in the namespace. So starting a program
costs what it costs outside, and other threads of the process stay where they are.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable
from typing import Any, Optional, TypeVar

from .errors import FailedError

T = TypeVar("T")

# A result, or an error.
_Replies = queue.SimpleQueue[tuple[Any, Optional[BaseException]]]

_CLONE_NEWNS = 0x00020000
_CLONE_NEWNET = 0x40000000
_MS_REC = 0x4000
_MS_SLAVE = 1 << 19
_MNT_DETACH = 2


def _call(function: Any, *arguments: Any) -> None:
    if function(*arguments) != 0:
        import ctypes

        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _enter(path: str) -> None:
    """Moves the calling thread into the namespace, with its own /sys, as `ip netns exec` does."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        _call(libc.setns, descriptor, _CLONE_NEWNET)
    finally:
        os.close(descriptor)
    _call(libc.unshare, _CLONE_NEWNS)
    _call(libc.mount, None, b"/", None, ctypes.c_ulong(_MS_SLAVE | _MS_REC), None)
    # It is no error if /sys is not mounted.
    libc.umount2(b"/sys", _MNT_DETACH)
    _call(libc.mount, b"sysfs", b"/sys", b"sysfs", ctypes.c_ulong(0), None)


class Entry:
    """A thread in a network namespace."""

    def __init__(self, netns: str) -> None:
        self._netns = netns
        self._work: queue.SimpleQueue[Optional[tuple[Callable[[], Any], _Replies]]] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=f"myelin {netns}", daemon=True)
        self._thread.start()
        try:
            self.run(lambda: _enter(f"/run/netns/{netns}"))
        except OSError as error:
            self.close()
            raise FailedError(
                f"cannot enter network namespace `{netns}`: {error}; check that the network runs and that you are root",
                object=netns,
                remedy="check that the network runs and that you are root",
            ) from error

    def run(self, work: Callable[[], T]) -> T:
        """Runs `work` on the thread in the namespace."""
        replies: _Replies = queue.SimpleQueue()
        self._work.put((work, replies))
        result, error = replies.get()
        if error is not None:
            raise error
        value: T = result
        return value

    def close(self) -> None:
        """Ends the thread."""
        self._work.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (item := self._work.get()) is not None:
            work, replies = item
            try:
                replies.put((work(), None))
            except BaseException as error:
                replies.put((None, error))
            del item, work, replies
