"""Runs a program to its end: its output, bounded in time and in size."""

from __future__ import annotations

import os
import selectors
import time
from typing import IO, Optional

from .errors import CommandError
from .process import Process

# Output of one command that is kept in memory.
MAX_OUTPUT = 64 << 20
_READ = 1 << 16


def communicate(process: Process, what: str, timeout: Optional[float]) -> bytes:
    """Reads the output until the program ends, and returns it. Programs that it left behind go on, as in a shell.

    Raises CommandError, and ends the program and its children, if it does not end in time or floods its output.
    """
    assert process.stdout is not None
    with process.stdout as output:
        os.set_blocking(output.fileno(), False)
        try:
            return _read(process, output, what, timeout)
        except BaseException:
            process.end()
            raise


def _read(process: Process, output: IO[bytes], what: str, timeout: Optional[float]) -> bytes:
    deadline = None if timeout is None else time.monotonic() + timeout
    parts: list[bytes] = []
    size = 0
    end = process.fileno()
    with selectors.DefaultSelector() as selector:
        selector.register(output, selectors.EVENT_READ)
        selector.register(end, selectors.EVENT_READ)
        while True:
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                raise CommandError(
                    f"{what}: the program did not end within {timeout} s: give a longer `timeout`, or use `popen`",
                    object=what,
                    remedy="give a longer `timeout`, or use `popen`",
                )
            ready = {key.fd for key, _ in selector.select(left)}
            has_ended = end in ready
            # What the program wrote before its end is in the pipe. A program that it left behind may write on.
            for _ in range(MAX_OUTPUT // _READ if has_ended else 1):
                part = output.read(_READ)
                if part == b"":
                    selector.unregister(output) if output in selector.get_map() else None
                if not part:
                    break
                parts.append(part)
                size += len(part)
            if size > MAX_OUTPUT:
                raise CommandError(
                    f"{what}: the program wrote more than {MAX_OUTPUT >> 20} MiB: send its output to a file",
                    object=what,
                    remedy="send its output to a file",
                )
            if has_ended:
                process.wait()
                return b"".join(parts)
