"""Programs on hosts, through the agent. A program reads and writes the caller's own pipes and files: the agent copies
no byte. The stream to the agent carries signals and the program's end; with the stream, the program ends.
"""

from __future__ import annotations

import os
import selectors
import signal as signals
import socket
import subprocess
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Optional, Union

from . import _requests
from ._json import decode, encode
from ._lazy import types
from ._wire import Head, fail, lost
from .errors import CommandError, FailedError, NoAgentError

Stdio = Union[int, IO[Any], None]

_READ = 1 << 16
# A program goes on when the caller drops its object, as with subprocess.
_running: set[Process] = set()


def _open(given: Stdio, standard: int, is_input: bool) -> tuple[int, Optional[int], bool]:
    """Returns the program's descriptor, the caller's end of a new pipe, and whether the first closes after the start."""
    if given is None:
        return standard, None, False
    if given == subprocess.PIPE:
        reading, writing = os.pipe()
        return (reading, writing, True) if is_input else (writing, reading, True)
    if given == subprocess.DEVNULL:
        return os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC), None, True
    return (given if isinstance(given, int) else given.fileno()), None, False


class Process:
    """A program on a host or in a container, with the words of `subprocess.Popen`. It ends with this Python process,
    and with its host. In a container, the exit status after a signal is 128 plus the signal.
    """

    def __init__(
        self,
        run_dir: Path,
        host: str,
        arguments: Sequence[str],
        *,
        container: Optional[str] = None,
        stdin: Stdio = subprocess.DEVNULL,
        stdout: Stdio = subprocess.PIPE,
        stderr: Stdio = subprocess.STDOUT,
        env: Optional[dict[str, str]] = None,
        cwd: Optional[str] = None,
        terminal: bool = False,
    ) -> None:
        self.args = list(arguments)
        self.host = host
        self.pid = 0
        """The process number on the machine."""
        self.returncode: Optional[int] = None
        """The exit status, or the negative number of the signal that ended the program; None: it runs."""
        self._lock = threading.Lock()
        self._pending = b""
        is_inside = container is not None
        variables = dict(env or {}) if is_inside or env is not None else dict(os.environ)
        directory = cwd or ("" if is_inside else os.getcwd())
        request = types.ExecRequest(
            host=host,
            container=container,
            command=self.args,
            env=variables,
            directory=directory,
            is_terminal=terminal,
        )
        opened: list[int] = []
        ends: list[Optional[int]] = []
        self._socket = socket.socket(socket.AF_UNIX)
        try:
            given: list[int] = []
            for descriptor, (stdio, is_input) in enumerate(((stdin, True), (stdout, False), (stderr, False))):
                if descriptor == 2 and stdio == subprocess.STDOUT:
                    given.append(given[1])
                    ends.append(None)
                    continue
                theirs, ours, is_new = _open(stdio, descriptor, is_input)
                given.append(theirs)
                ends.append(ours)
                opened += [theirs] if is_new else []
            self._start(run_dir, request, given)
        except BaseException:
            self._socket.close()
            for end in ends:
                if end is not None:
                    os.close(end)
            raise
        finally:
            for descriptor in opened:
                os.close(descriptor)
        files = [None if end is None else os.fdopen(end, "wb" if n == 0 else "rb") for n, end in enumerate(ends)]
        self.stdin, self.stdout, self.stderr = files
        for process in list(_running) if len(_running) > 64 else []:
            process._update()
        _running.add(self)

    def _start(self, run_dir: Path, request: types.ExecRequest, descriptors: list[int]) -> None:
        call = _requests.exec_(request)
        try:
            self._socket.connect(str(run_dir / "agent.sock"))
            self._socket.sendall(call.to_bytes(upgrade="myelin-exec"))
            answer = b""
            while b"\r\n\r\n" not in answer:
                answer += self._receive("the agent ended before it answered")
            text, _, body = answer.partition(b"\r\n\r\n")
            head = Head.parse(text)
            if head.status != 101:
                while len(body) < head.length:
                    body += self._receive("the agent ended while it answered")
                fail(head, body)
            socket.send_fds(self._socket, [b"\0"], descriptors)
            event = self._next_event()
        except (FileNotFoundError, ConnectionRefusedError):
            raise NoAgentError(f"no agent runs at {run_dir}", object="agent", remedy="run `myelin up FILE`") from None
        except OSError as error:
            raise lost(error) from error
        if isinstance(event, types.ExecEventError):
            message = event.error.message
            raise CommandError(message, object=request.host, remedy="check that the program is installed")
        if isinstance(event, types.ExecEventStarted):
            self.pid = event.started.pid

    def _receive(self, reason: str) -> bytes:
        part = self._socket.recv(_READ)
        if not part:
            raise lost(reason)
        return part

    def _next_event(self) -> types.ExecEvent:
        while b"\n" not in self._pending:
            self._pending += self._receive("the agent ended, and with it the program")
        line, _, self._pending = self._pending.partition(b"\n")
        event: types.ExecEvent = decode(types.ExecEvent, line)
        return event

    def fileno(self) -> int:
        """A descriptor that is readable when the program has ended; -1 after that."""
        return self._socket.fileno()

    def _wait(self, timeout: Optional[float]) -> bool:
        """Waits for the end of the program. Returns whether it has ended."""
        with self._lock:
            if self.returncode is not None:
                return True
            if not self._pending:
                with selectors.DefaultSelector() as selector:
                    selector.register(self._socket, selectors.EVENT_READ)
                    if not selector.select(timeout):
                        return False
            try:
                event = self._next_event()
            except OSError as error:
                self._finish(-signals.SIGKILL)
                raise lost(error) from error
            except FailedError:
                self._finish(-signals.SIGKILL)
                raise
            if isinstance(event, types.ExecEventEnded):
                ended = event.ended
                self._finish(ended.code if ended.code is not None else -(ended.signal or 0))
            return True

    def _finish(self, returncode: int) -> None:
        self.returncode = returncode
        self._socket.close()
        _running.discard(self)

    def _update(self) -> None:
        try:
            self._wait(0)
        except FailedError:
            pass

    def poll(self) -> Optional[int]:
        """Returns the exit status if the program has ended."""
        self._wait(0)
        return self.returncode

    def wait(self, timeout: Optional[float] = None) -> int:
        """Waits for the end of the program. Raises `subprocess.TimeoutExpired`."""
        if not self._wait(timeout) or self.returncode is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        return self.returncode

    def communicate(
        self, input: Optional[bytes] = None, timeout: Optional[float] = None
    ) -> tuple[Optional[bytes], Optional[bytes]]:
        """Sends the input, reads the outputs to their ends, and waits for the program."""
        deadline = None if timeout is None else time.monotonic() + timeout
        outputs: dict[IO[bytes], list[bytes]] = {one: [] for one in (self.stdout, self.stderr) if one is not None}
        left = memoryview(input or b"")
        with selectors.DefaultSelector() as selector:
            for output in outputs:
                selector.register(output, selectors.EVENT_READ)
            if self.stdin is not None:
                os.set_blocking(self.stdin.fileno(), False)
                selector.register(self.stdin, selectors.EVENT_WRITE)
            while selector.get_map():
                remaining = None if deadline is None else deadline - time.monotonic()
                if remaining is not None and remaining <= 0:
                    raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
                for key, _ in selector.select(remaining):
                    if key.fileobj is self.stdin:
                        left = self._feed(left)
                        if not left:
                            selector.unregister(key.fileobj)
                            self.stdin.close()
                    else:
                        part = os.read(key.fd, _READ)
                        outputs[key.fileobj].append(part)  # type: ignore[index]
                        if not part:
                            selector.unregister(key.fileobj)
        self.wait(None if deadline is None else max(0.0, deadline - time.monotonic()))
        for output in outputs:
            output.close()
        both = (self.stdout, self.stderr)
        out, err = (None if one is None else b"".join(outputs[one]) for one in both)
        return out, err

    def _feed(self, left: memoryview) -> memoryview:
        assert self.stdin is not None
        if not left:
            return left
        try:
            return left[os.write(self.stdin.fileno(), left[:_READ]) :]
        except BlockingIOError:
            return left
        except BrokenPipeError:
            # The program reads no more.
            return left[:0]

    def send_signal(self, signal: int) -> None:
        """Sends a signal to the program's process group."""
        if self.poll() is None:
            line = encode(types.ExecSignal(signal=int(signal)))
            try:
                self._socket.sendall(f'{{"signal": {line["signal"]}}}\n'.encode())
            except OSError as error:
                raise lost(error) from error

    def terminate(self) -> None:
        """Asks the program to end (SIGTERM)."""
        self.send_signal(signals.SIGTERM)

    def kill(self) -> None:
        """Ends the program and its children. `wait` waits until they have ended."""
        if self.poll() is None:
            self._socket.shutdown(socket.SHUT_WR)

    def end(self) -> None:
        """Ends the program and its children, and waits for that. An agent that is gone is no error."""
        try:
            self.kill()
            self.wait()
        except (FailedError, OSError):
            pass

    def __enter__(self) -> Process:
        return self

    def __exit__(self, kind: Optional[type], error: Optional[BaseException], trace: Optional[TracebackType]) -> None:
        for file in (self.stdin, self.stdout, self.stderr):
            if file is not None:
                file.close()
        if kind is not None:
            # What the program waits for may never come after a failure of the block.
            self.end()
        self.wait()

    def __repr__(self) -> str:
        state = "runs" if self.returncode is None else f"ended with {self.returncode}"
        return f"<Process {self.host}: {' '.join(self.args)}: {state}>"
