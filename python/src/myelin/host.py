"""Hosts, switches and links of a `Network`."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from typing import IO, TYPE_CHECKING, Any, Optional, Union

from . import _requests, _schema, types
from ._command import communicate
from ._entry import Entry
from .errors import CommandError, FailedError, bad_argument

if TYPE_CHECKING:
    from .network import Network

Command = Union[str, Sequence[Union[str, "os.PathLike[str]"]]]


def _to_arguments(command: Command) -> list[str]:
    """A text goes to `sh`, a list is a program and its arguments."""
    if isinstance(command, str) and command.strip():
        return ["/bin/sh", "-c", command]
    if not isinstance(command, (str, bytes)) and isinstance(command, Sequence) and command:
        return [os.fspath(argument) for argument in command]
    raise bad_argument("command", command, "a command", "write text for `sh`, or a list: a program and its arguments")


class Node:
    """A host or a switch."""

    def __init__(self, network: Network, name: str) -> None:
        self.network = network
        self.name = _schema.check_name(type(self).__name__, name)

    @property
    def links(self) -> list[Link]:
        """The links of this node, in their order."""
        return [link for link in self.network.links if self.name in link.ends]

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.network.name}/{self.name}>"

    def __str__(self) -> str:
        return self.name


class Switch(Node):
    """A switch: a kernel bridge."""


class Host(Node):
    """A host: a network namespace. Programs run there as on a machine of their own."""

    def __init__(self, network: Network, name: str, keys: dict[str, Any]) -> None:
        super().__init__(network, name)
        self.keys = {key: value for key, value in keys.items() if value is not None}
        _schema.check_part("Topology", "hosts[]", self.to_keys(), f"Host `{name}`")
        self._entry: Optional[Entry] = None

    def to_keys(self) -> dict[str, Any]:
        """Returns the element of `spec.hosts` of a file."""
        return {"name": self.name, **self.keys}

    @property
    def path(self) -> str:
        """The name for `myelin exec` and for the ports of a chain."""
        return f"{self.network.name}/{self.name}"

    @property
    def status(self) -> types.TopologyHost:
        """The running host, as the agent describes it."""
        return self.network.find_status(self.network.status.hosts, self.name)

    @property
    def address(self) -> str:
        """The first address of `eth0`, without its prefix length."""
        addresses = self.status.addresses
        if not addresses:
            raise FailedError(f"host `{self.path}` has no address", object=self.path)
        return addresses[0].partition("/")[0]

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
    ) -> subprocess.Popen[bytes]:
        """Starts a program on the host, as `subprocess.Popen`. It ends with the network."""
        arguments = _to_arguments(command)
        status = self.status
        directory = cwd or os.getcwd()

        def start(full: list[str]) -> subprocess.Popen[bytes]:
            return subprocess.Popen(
                full, stdin=stdin, stdout=stdout, stderr=stderr, env=env, cwd=directory, start_new_session=new_session
            )

        try:
            if status.cgroup is not None:
                # `myelin exec` enters the groups of a host with limits, and becomes the program.
                return start(self.network.client.program.command("exec", self.path, "--", *arguments))
            if self._entry is None:
                self._entry = Entry(status.netns)
            return self._entry.run(lambda: start(arguments))
        except OSError as error:
            raise CommandError(
                f"{self.path}: cannot run `{arguments[0]}`: {error.strerror}; check that the program is installed",
                object=self.path,
                remedy="check that the program is installed",
            ) from error

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

    def move(self, switch: Union[Switch, str]) -> None:
        """Moves the host's first link to another switch, under traffic. The host keeps its addresses."""
        target = self.network.switch(switch)
        links = self.links
        if not links:
            raise FailedError(f"host `{self.path}` has no link to move: `add_link` makes one", object=self.path)
        links[0].change(types.LinkChangeMove(move=target.name), self.name, target.name)

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


class Link:
    """A link between two nodes."""

    def __init__(self, network: Network, ends: tuple[str, str], keys: dict[str, Any]) -> None:
        self.network = network
        self.ends = ends
        self.keys = {key: value for key, value in keys.items() if value is not None}
        self.name = str(self.keys.get("name", "-".join(ends)))
        _schema.check_part("Topology", "links[]", self.to_keys(), f"Link `{self.name}`")

    def to_keys(self) -> dict[str, Any]:
        """Returns the element of `spec.links` of a file."""
        return {"ends": list(self.ends), **self.keys}

    @property
    def status(self) -> types.TopologyLink:
        """The running link: delay, rate and loss, and the counters of both directions."""
        return self.network.find_status(self.network.read_status().links, self.name)

    def set(
        self,
        *,
        delay: Optional[str] = None,
        jitter: Optional[str] = None,
        bandwidth: Optional[str] = None,
        queue: Optional[int] = None,
        loss: Optional[str] = None,
        burst: Optional[int] = None,
    ) -> types.TopologyLink:
        """Changes delay, rate or loss of both directions, from the next packet on. What is not named stays."""
        return self.change(_requests.impairments(delay, jitter, bandwidth, queue, loss, burst))

    def down(self) -> types.TopologyLink:
        """Sets the link down: it carries no packet."""
        return self.change("down")

    def up(self) -> types.TopologyLink:
        """Sets the link up."""
        return self.change("up")

    def change(self, change: types.LinkChange, stays: str = "", target: str = "") -> types.TopologyLink:
        """Changes the running link; a move says which end stays and where the other end goes."""
        self.network.require_running()
        changed = self.network.client.link(self.name, change, topology=self.network.name)
        if target:
            self.ends = (stays, target) if self.ends[0] == stays else (target, stays)
            self.name = changed.name
        return changed

    def __repr__(self) -> str:
        return f"<Link {self.network.name}/{self.name}>"
