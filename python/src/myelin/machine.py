"""Runs programs on emulated hosts and in containers."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Optional, TypeVar, Union

from ._command import communicate
from .errors import CommandError, bad_argument
from .process import Process, Stdio

if TYPE_CHECKING:
    from .program import Program

T = TypeVar("T")

_CLONE_NEWNET = 0x40000000

Command = Union[str, Sequence[Union[str, "os.PathLike[str]"]]]


def _to_arguments(command: Command) -> list[str]:
    """A text goes to `sh`, a list is a program and its arguments."""
    if isinstance(command, str) and command.strip():
        return ["/bin/sh", "-c", command]
    if not isinstance(command, (str, bytes)) and isinstance(command, Sequence) and command:
        return [os.fspath(argument) for argument in command]
    raise bad_argument("command", command, "a command", "write text for `sh`, or a list: a program and its arguments")


def _enter(netns: str) -> None:
    """Moves the calling thread into a network namespace."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    with open(f"/run/netns/{netns}", "rb") as file:
        if libc.setns(file.fileno(), _CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), f"cannot enter the network namespace {netns}: run as root")


class Place:
    """Where programs run: an emulated host, or a container in one."""

    @property
    def path(self) -> str:
        """The full name: OBJECT/HOST, or OBJECT/HOST/CONTAINER."""
        raise NotImplementedError

    def program(self) -> Program:
        """Returns the program `myelin` of the agent."""
        raise NotImplementedError

    def _place(self) -> tuple[str, Optional[str]]:
        """Returns the host, and the container in it."""
        return self.path, None

    def popen(
        self,
        command: Command,
        *,
        stdin: Stdio = subprocess.DEVNULL,
        stdout: Stdio = subprocess.PIPE,
        stderr: Stdio = subprocess.STDOUT,
        env: Optional[dict[str, str]] = None,
        cwd: Optional[str] = None,
        terminal: bool = False,
    ) -> Process:
        """Starts a program there, with the words of `subprocess.Popen`. It ends with this process, and with the
        network. `terminal`: the input is a terminal, which controls the program.
        """
        run_dir, (host, container) = self.program().run_dir, self._place()
        return Process(
            run_dir, host, _to_arguments(command), container=container,
            stdin=stdin, stdout=stdout, stderr=stderr, env=env, cwd=cwd, terminal=terminal,
        )  # fmt: skip

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
            process.end()
            raise
        texts = [(part or b"").decode(errors="replace") for part in (output, errors)]
        return subprocess.CompletedProcess(arguments, process.wait(), *texts)

    def interactive(self, command: Command) -> int:
        """Runs a program with this terminal and returns its exit status."""
        sys.stdout.flush()
        stdin = None if sys.stdin is not None and sys.stdin.isatty() else subprocess.DEVNULL
        host, container = self._place()
        words = ["exec", host] if container is None else ["container", "exec", host, container]
        arguments = self.program().command(*words, "--", *_to_arguments(command))
        with subprocess.Popen(arguments, stdin=stdin) as process:
            while True:
                try:
                    return process.wait()
                except KeyboardInterrupt:
                    # The terminal has sent the interrupt to the program too.
                    continue


class Machine(Place):
    """An emulated host: a network namespace. Programs run there as on a machine of their own."""

    @property
    def netns(self) -> str:
        """The network namespace, as in `ip netns`."""
        raise NotImplementedError

    def call(self, work: Callable[[], T]) -> T:
        """Runs a function of this process in the host's network namespace, on a thread of its own. It needs root.

        A socket that the function opens stays in the namespace: `host.call(socket.socket)`.
        """
        results: list[T] = []
        errors: list[BaseException] = []

        def run() -> None:
            try:
                _enter(self.netns)
                results.append(work())
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        if errors:
            raise errors[0]
        return results[0]

    def require(self, tool: str, package: Optional[str] = None) -> None:
        """Raises CommandError if a program is not installed. `package`: Debian's, if it has another name."""
        import shutil

        if shutil.which(tool, path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin") is None:
            remedy = f"install the package `{package or tool}`"
            raise CommandError(
                f"{self.path}: the program `{tool}` is not installed: {remedy}", object=tool, remedy=remedy
            )


class EndHost(Machine):
    """An end host that Myelin made for a chain (`client`, `server`), or the host of a running network."""

    def __init__(self, program: Program, path: str, netns: str, address: str) -> None:
        self._program = program
        self._path = path
        self._netns = netns
        self.address = address
        """The host's first address."""

    @property
    def path(self) -> str:
        return self._path

    @property
    def netns(self) -> str:
        return self._netns

    def program(self) -> Program:
        return self._program

    def __repr__(self) -> str:
        return f"<EndHost {self.path}>"
