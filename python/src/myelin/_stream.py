"""Answers of the agent, read from a connected socket."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Generic, Optional, TypeVar

from ._wire import Call, Head, decode_line, fail, lost
from .errors import NoAgentError

T = TypeVar("T")


class Answer:
    """The answer to one request; `body` or `lines` reads it."""

    def __init__(self, run_dir: Path, request: bytes) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._file = self._socket.makefile("rb")
        try:
            try:
                self._socket.connect(str(run_dir / "agent.sock"))
                self._socket.sendall(request)
                self.head = Head.parse(self._read_head())
            except (FileNotFoundError, ConnectionRefusedError):
                raise NoAgentError(f"no agent runs at {run_dir}", object="agent", remedy="run `myelin up FILE`") from None
            except OSError as error:
                raise lost(error) from error
            if not 200 <= self.head.status < 300:
                fail(self.head, self.body())
        except BaseException:
            self.close()
            raise

    def body(self) -> bytes:
        """Reads the whole answer."""
        try:
            return b"".join(self._chunks()) if self.head.is_chunked else self._read(self.head.length)
        except OSError as error:
            raise lost(error) from error

    def lines(self) -> Iterator[bytes]:
        """Reads line after line, as they come."""
        pending = b""
        try:
            for chunk in self._chunks():
                *lines, pending = (pending + chunk).split(b"\n")
                yield from lines
        except (OSError, ValueError) as error:
            raise lost(error) from error

    def close(self) -> None:
        """Ends the connection. The agent then cancels the request's work."""
        try:
            # Also ends a read of another thread.
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self._file.close()
        self._socket.close()

    def _read_head(self) -> bytes:
        lines = []
        while (line := self._file.readline(65536)) != b"\r\n":
            if not line.endswith(b"\n"):
                raise lost("the agent ended before it answered")
            lines.append(line)
        return b"".join(lines).rstrip(b"\r\n")

    def _read(self, length: int) -> bytes:
        read = self._file.read(length)
        if len(read) < length:
            raise lost("the agent ended while it answered")
        return read

    def _chunks(self) -> Iterator[bytes]:
        while True:
            size = self._file.readline(64)
            if not size.endswith(b"\n"):
                raise lost("the agent ended while it answered")
            chunk = self._read(int(size, 16) + 2)[:-2]
            if not chunk:
                return
            yield chunk


class Stream(Generic[T]):
    """An iterator over the lines of an answer. Leaving it (`close`, `with`, or the end of the last reference) ends the
    work of the agent.
    """

    def __init__(self, call: Call[T], answer: Answer) -> None:
        self._call = call
        self._answer = answer
        self._lines = answer.lines()
        self._is_closed = False

    def __iter__(self) -> Stream[T]:
        return self

    def __next__(self) -> T:
        if self._is_closed:
            raise StopIteration
        try:
            return decode_line(self._call, next(self._lines))
        except BaseException:
            was_closed = self._is_closed
            self.close()
            if was_closed:
                raise StopIteration from None
            raise

    def close(self) -> None:
        """Leaves the stream; also from another thread."""
        self._is_closed = True
        self._answer.close()

    def __enter__(self) -> Stream[T]:
        return self

    def __exit__(self, kind: Optional[type], error: Optional[BaseException], trace: Optional[TracebackType]) -> None:
        self.close()

    def __del__(self) -> None:
        self._answer.close()
