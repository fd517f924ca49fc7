"""Hosts, switches and links of a `Network`."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Optional, Union

from . import _requests, _schema
from ._agent import StrPath
from ._lazy import types
from .errors import FailedError, bad_argument, of_text
from .machine import Machine

if TYPE_CHECKING:
    from .container import Command, Container, Image
    from .network import Network
    from .program import Program


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
    """A switch: a kernel bridge, or an OpenFlow switch with a controller."""

    def __init__(self, network: Network, name: str, openflow: Optional[str] = None) -> None:
        super().__init__(network, name)
        self.openflow = openflow
        if openflow is not None:
            _schema.check_part("Topology", "switches[]", self.to_keys(), f"Switch `{name}`")

    def to_keys(self) -> Any:
        """Returns the element of `spec.switches` of a file."""
        return self.name if self.openflow is None else {"name": self.name, "openflow": self.openflow}


class Host(Node, Machine):
    """A host: a network namespace. Programs run there as on a machine of their own."""

    _part = "hosts[]"

    def __init__(self, network: Network, name: str, keys: dict[str, Any]) -> None:
        super().__init__(network, name)
        self.keys = {key: value for key, value in keys.items() if value is not None}
        _schema.check_part("Topology", self._part, self.to_keys(), f"{type(self).__name__} `{name}`")

    def to_keys(self) -> dict[str, Any]:
        """Returns the element of `spec.hosts` or `spec.nodes` of a file. A running host writes the addresses that it has."""
        keys = {"name": self.name, **self.keys}
        if self.is_made:
            keys["address"] = list(self.status.addresses)
        return keys

    @property
    def is_made(self) -> bool:
        """Whether the host runs."""
        return self.network.has_made(self.name)

    @property
    def path(self) -> str:
        """The name for `myelin exec` and for the ports of a chain."""
        return f"{self.network.name}/{self.name}"

    @property
    def status(self) -> types.TopologyHost:
        """The running host, as the agent describes it."""
        return self.network.host_status(self.name)

    @property
    def address(self) -> str:
        """The first address of `eth0`, without its prefix length."""
        addresses = self.status.addresses
        if not addresses:
            raise FailedError(f"host `{self.path}` has no address", object=self.path)
        return addresses[0].partition("/")[0]

    def add_container(
        self,
        name: str,
        image: Image = None,
        command: Command = None,
        *,
        cpu: Optional[str] = None,
        memory: Optional[str] = None,
        env: Optional[dict[str, str]] = None,
        watch: str = "100ms",
    ) -> Container:
        """Starts a program as a container in this host, whose limits and network it shares. Raises ContainerError if the
        program fails within the time `watch`.
        """
        self.network.require_running()
        client = self.network.client
        return client.add_container(self.path, name, image, command, cpu=cpu, memory=memory, env=env, watch=watch)

    @property
    def containers(self) -> list[Container]:
        """The containers in this host."""
        from .container import Container

        client = self.network.client
        return [Container(client, status) for status in client.containers(self.path)]

    @property
    def netns(self) -> str:
        return self.status.netns

    def program(self) -> Program:
        return self.network.client.program

    def move(self, switch: Union[Switch, str]) -> None:
        """Moves the host's first link to another switch, under traffic. The host keeps its addresses."""
        target = self.network.switch(switch)
        links = self.links
        if not links:
            raise FailedError(f"host `{self.path}` has no link to move: `add_link` makes one", object=self.path)
        links[0].change(types.LinkChangeMove(move=target.name), self.name, target.name)


class AgentHost(Host):
    """A node of chains: a host that runs an agent and forwards frames between its links."""


class Router(Host):
    """A router: a host that forwards IP packets between its links, with addresses on each."""

    _part = "routers[]"

    def to_keys(self) -> dict[str, Any]:
        """Returns the element of `spec.routers` of a file."""
        return {"name": self.name, **self.keys}


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
        direction: Union[Node, str, None] = None,
    ) -> types.TopologyLink:
        """Changes delay, rate or loss of both directions, from the next packet on. What is not named stays.
        `direction`: only of the packets that this end sends.
        """
        end = None if direction is None else str(direction)
        if end is not None and end not in self.ends:
            raise bad_argument("direction", end, "an end of the link", f"write {' or '.join(self.ends)}")
        return self.change(_requests.impairments(delay, jitter, bandwidth, queue, loss, burst), direction=end)

    def down(self) -> types.TopologyLink:
        """Sets the link down: it carries no packet."""
        return self.change("down")

    def up(self) -> types.TopologyLink:
        """Sets the link up."""
        return self.change("up")

    @contextmanager
    def capture(self, path: StrPath) -> Iterator[None]:
        """Writes the frames of both directions to a pcap file, as long as the `with` block runs."""
        self.network.require_running()
        command = self.network.client.program.command("pcap", f"{self.network.name}/{self.name}", os.fspath(path))
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as capture:
            assert capture.stderr is not None
            try:
                begin = capture.stderr.readline()
                if not begin.startswith("capturing"):
                    raise of_text(begin + capture.stderr.read(), capture.wait())
                yield
            finally:
                # The capture ends with the frames that have passed until now.
                capture.send_signal(signal.SIGINT)
        if capture.returncode != 0:
            raise FailedError(f"link `{self.name}`: the capture ended before the block", object=self.name)

    def change(
        self, change: types.LinkChange, stays: str = "", target: str = "", direction: Optional[str] = None
    ) -> types.TopologyLink:
        """Changes the running link; a move says which end stays and where the other end goes."""
        self.network.require_running()
        changed = self.network.client.link(self.name, change, topology=self.network.name, direction=direction)
        if target:
            self.ends = (stays, target) if self.ends[0] == stays else (target, stays)
            self.name = changed.name
        return changed

    def __repr__(self) -> str:
        return f"<Link {self.network.name}/{self.name}>"
