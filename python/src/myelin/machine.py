"""Runs programs on emulated hosts."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, Optional, TypeVar, Union

from ._command import communicate
from ._entry import Entry
from .errors import CommandError, bad_argument

if TYPE_CHECKING:
    from .program import Program

T = TypeVar("T")

Command = Union[str, Sequence[Union[str, "os.PathLike[str]"]]]


def _to_arguments(command: Command) -> list[str]:
    """A text goes to `sh`, a list is a program and its arguments."""
    if isinstance(command, str) and command.strip():
        return ["/bin/sh", "-c", command]
    if not isinstance(command, (str, bytes)) and isinstance(command, Sequence) and command:
        return [os.fspath(argument) for argument in command]
    raise bad_argument("command", command, "a command", "write text for `sh`, or a list: a program and its arguments")


class Machine:
    """An emulated host: a network namespace. Programs run there as on a machine of their own."""

    _entry: Optional[Entry] = None

    @property
    def path(self) -> str:
        """The name for `myelin exec`: OBJECT/HOST."""
        raise NotImplementedError

    def place(self) -> tuple[str, Optional[str]]:
        """Returns the network namespace, and the control group of a host with limits."""
        raise NotImplementedError

    def program(self) -> Program:
        """Returns the program `myelin` of the host's agent."""
        raise NotImplementedError

    def popen(
        self,
        command: Command,
        *,
        stdin: Union[int, IO[Any], None] = subprocess.DEVNULL,
        stdout: Union[int, IO[Any], None] = subprocess.PIPE,
        stderr: Union[int, IO[Any], None] = subprocess.STDOUT,
        env: Optional[dict[str, str]] = None,
        cwd: Optional[str] = None,
        new_session: bool = True,
        **options: Any,
    ) -> subprocess.Popen[bytes]:
        """Starts a program on the host, as `subprocess.Popen`, which has more `options`. It ends with the network."""
        arguments = _to_arguments(command)
        _, cgroup = self.place()
        directory = cwd or os.getcwd()

        options.update(stdin=stdin, stdout=stdout, stderr=stderr, env=env, cwd=directory, start_new_session=new_session)

        def start(full: list[str]) -> subprocess.Popen[bytes]:
            return subprocess.Popen(full, **options)

        try:
            if cgroup is not None:
                # `myelin exec` enters the groups of a host with limits, and becomes the program.
                return start(self.program().command("exec", self.path, "--", *arguments))
            return self.call(lambda: start(arguments))
        except OSError as error:
            raise CommandError(
                f"{self.path}: cannot run `{arguments[0]}`: {error.strerror}; check that the program is installed",
                object=self.path,
                remedy="check that the program is installed",
            ) from error

    def call(self, work: Callable[[], T]) -> T:
        """Runs a function of this process in the host's network namespace, on a thread of its own.

        A socket that the function opens stays in the namespace: `host.call(socket.socket)`.
        """
        if self._entry is None:
            self._entry = Entry(self.place()[0])
        return self._entry.run(work)

    def cmd(self, command: Command, *arguments: str, timeout: Optional[float] = None, check: bool = False) -> str:
        """Runs a command to its end and returns its output with its errors. `check` raises CommandError if it fails.

        As in Mininet, `cmd("ping", "-c1", "10.0.0.2")` joins its arguments with spaces.
        """
        if arguments:
            if not isinstance(command, str):
                raise bad_argument("command", command, "text", "give one list, or only texts")
            command = " ".join([command, *arguments])
        process = self.popen(command)
        what = f"{self.path}: `{command if isinstance(command, str) else ' '.join(map(str, command))}`"
        output = communicate(process, what, timeout).decode(errors="replace")
        if check and process.returncode != 0:
            last = (output.strip().splitlines() or ["it wrote nothing"])[-1]
            raise CommandError(f"{what}: exit status {process.returncode}: {last}", object=self.path)
        return output

    def run(self, command: Command, *, timeout: Optional[float] = None) -> subprocess.CompletedProcess[str]:
        """Runs a command to its end: its exit status, its output, its errors."""
        arguments = _to_arguments(command)
        process = self.popen(arguments, stderr=subprocess.PIPE)
        try:
            output, errors = process.communicate(timeout=timeout)
        except BaseException:
            process.kill()
            process.communicate()
            raise
        return subprocess.CompletedProcess(
            arguments, process.returncode, output.decode(errors="replace"), errors.decode(errors="replace")
        )

    def interactive(self, command: Command) -> int:
        """Runs a program with this terminal and returns its exit status."""
        sys.stdout.flush()
        stdin = None if sys.stdin is not None and sys.stdin.isatty() else subprocess.DEVNULL
        process = self.popen(command, stdin=stdin, stdout=None, stderr=None, new_session=False)
        while True:
            try:
                return process.wait()
            except KeyboardInterrupt:
                # The terminal has sent the interrupt to the program too.
                continue

    def require(self, tool: str) -> None:
        """Raises CommandError if a program is not installed."""
        import shutil

        if shutil.which(tool) is None:
            raise CommandError(
                f"{self.path}: the program `{tool}` is not installed: install the package `{tool}`",
                object=tool,
                remedy=f"install the package `{tool}`",
            )

    def close(self) -> None:
        """Ends the thread that starts the host's programs."""
        if self._entry is not None:
            self._entry.close()
            self._entry = None


class EndHost(Machine):
    """An end host that Myelin made for a chain (`client`, `server`), or the host of a running network."""

    def __init__(self, program: Program, path: str, netns: str, cgroup: Optional[str], address: str) -> None:
        self._program = program
        self._path = path
        self._place = (netns, cgroup)
        self.address = address
        """The host's first address."""

    @property
    def path(self) -> str:
        return self._path

    def place(self) -> tuple[str, Optional[str]]:
        return self._place

    def program(self) -> Program:
        return self._program

    def __enter__(self) -> EndHost:
        return self

    def __exit__(self, kind: Optional[type], error: Optional[BaseException], trace: Optional[TracebackType]) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<EndHost {self.path}>"
