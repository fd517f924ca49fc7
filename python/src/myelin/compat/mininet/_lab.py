"""The Myelin network behind the objects of a script.

Mininet makes each node when the script adds it. A lab collects nodes and links, and makes all of them when the script
first needs one: at the latest when the network starts. What a script adds later, the lab adds to the running network.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

from ...machine import Machine
from ...network import Network
from .. import NoCounterpart
from . import _interface

_NAME_SIZE = 26


class ThisMachine(Machine):
    """The namespace of the script: of switches, controllers, and nodes with `inNamespace=False`."""

    path = "this machine"

    def popen(self, command: Any, *, terminal: bool = False, **options: Any) -> Any:
        """Starts a program, which a terminal controls if `terminal`."""
        if isinstance(command, str):
            command = ["/bin/sh", "-c", command]
        if terminal:
            return subprocess.Popen(["setsid", "--ctty", *command], **options)
        return subprocess.Popen(command, start_new_session=True, **options)

    def call(self, work: Any) -> Any:
        return work()


class Lab:
    """Nodes and links, and the network that has them."""

    # Nodes that a script makes without a `Mininet` share one lab.
    _current: ClassVar[list[Lab]] = []

    def __init__(self) -> None:
        self.network = Network()
        self.nodes: list[Any] = []
        self.links: list[Any] = []
        self.controllers: list[Any] = []
        self.has_stopped = False
        self._collects = False

    @classmethod
    def current(cls) -> Lab:
        """Returns the lab of the node that is being constructed."""
        if not cls._current or cls._current[-1].has_stopped:
            cls._current.append(Lab())
        return cls._current[-1]

    def __enter__(self) -> Lab:
        self._current.append(self)
        return self

    def __exit__(self, *_error: Any) -> None:
        self._current.remove(self)

    @property
    def is_running(self) -> bool:
        """Whether the network runs."""
        return self.network.is_running

    # --- Description ---------------------------------------------------------------------------------------------------

    def add_node(self, node: Any) -> None:
        """Adds a node. A running network gets it when the script needs it."""
        self.nodes.append(node)

    def check_link(self, one: Any, other: Any) -> None:
        """Refuses a link that no network of Myelin has."""
        for node in (one, other):
            if not node.is_switch and not node.is_host:
                raise NoCounterpart(
                    f"a link of `{node}`, which is in the namespace of this machine (inNamespace=False)",
                    "links join hosts and switches of a network: make the node a host, without `inNamespace=False`",
                )
        if one.lab is not other.lab:
            raise NoCounterpart(f"a link between `{one}` and `{other}`, which are of two networks", "link nodes of one network")

    def add_link(self, link: Any) -> None:
        """Adds a link."""
        self.links.append(link)

    def remove_link(self, link: Any) -> None:
        """Removes a link, also of a running network."""
        if self.is_running and link.made is not None:
            self.network.remove_link(link.made)
        link.made = None
        if link in self.links:
            self.links.remove(link)

    def remove_node(self, node: Any) -> None:
        """Removes a node with its links, also of a running network."""
        if self.is_running and node.made is not None:
            (self.network.remove_switch if node.is_switch else self.network.remove_host)(node.made)
            node.made = None
        for link in [link for link in self.links if node in (link.intf1.node, link.intf2.node)]:
            link.made = None
            link.delete()
        if node in self.nodes:
            self.nodes.remove(node)

    # --- Running -------------------------------------------------------------------------------------------------------

    @contextmanager
    def collecting(self) -> Iterator[None]:
        """Makes nothing in the block, unless it runs already: its switches hear of their controllers first."""
        self._collects = not self.is_running
        try:
            yield
        finally:
            self._collects = False
        self.start()

    def start(self) -> None:
        """Makes the network, or what it lacks."""
        if self.has_stopped or self._collects:
            return
        nodes = [node for node in self.nodes if node.made is None and (node.is_host or node.is_switch)]
        # A switch can have its controller on a host.
        nodes.sort(key=lambda node: bool(node.is_switch))
        links = [link for link in self.links if link.made is None]
        if not nodes and not links:
            return
        addresses = self._first_addresses(nodes)
        with self.network.batch():
            for node in nodes:
                name = self._name(node.name)
                if node.is_switch:
                    if node.openflow is not None:
                        node.check_numbers(len(self.network.switches))
                    node.made = self.network.add_switch(name, openflow=node.openflow)
                else:
                    limits = {key: value for key, value in node.limits.items() if value is not None}
                    node.made = self.network.add_host(name, address=addresses.get(node), **limits)
            for link in links:
                link.made = self._add_link(link)
        if not self.is_running:
            self.network.start()
        for link in links:
            self._finish_ends(link, addresses)
        self._name_ports(links)
        for node in nodes:
            node.made_now()

    def stop(self) -> None:
        """Removes the network."""
        self.has_stopped = True
        self.network.stop()

    def _name(self, name: str) -> str:
        """Returns a name of Myelin for a name of a script."""
        short = re.sub(r"[^a-z0-9-]", "-", str(name).lower())[:_NAME_SIZE].strip("-") or "n"
        taken = {node.made.name for node in self.nodes if node.made is not None}
        number, free = 2, short
        while free in taken:
            free, number = f"{short}-{number}", number + 1
        return free

    def _first_addresses(self, nodes: list[Any]) -> dict[Any, str]:
        """Returns the addresses that hosts have from the start: of their first links, if no other host has them."""
        addresses: dict[Any, str] = {}
        seen: set[str] = {str(intf.ip) for node in self.nodes if node.made is not None for intf in node.intfList()}
        for node in nodes:
            first = self._first_intf(node)
            if first is not None and first.ip and ":" not in first.ip and first.ip not in (*seen, "0.0.0.0"):
                seen.add(first.ip)
                addresses[node] = f"{first.ip}/{first.prefixLen}"
        return addresses

    def _first_intf(self, node: Any) -> Any:
        ends = (intf for link in self.links for intf in (link.intf1, link.intf2))
        return next((intf for intf in ends if intf.node is node), None)

    def _add_link(self, link: Any) -> Any:
        one, other = link.intf1.node.made, link.intf2.node.made
        impairments = link.impairments
        if hasattr(link.intf1, "impairments") and not impairments:
            # A delay line takes the packets of a link between hosts only if the link has one from the start.
            impairments = {"delay": "1ns"}
        count = sum(1 for known in self.network.links if set(known.ends) == {one.name, other.name})
        name = f"{one.name}-{other.name}-{count + 1}" if count else None
        return self.network.add_link(one, other, name=name, **impairments)

    def _finish_ends(self, link: Any, addresses: dict[Any, str]) -> None:
        """Gives the ends in hosts their names and addresses."""
        ends = self.network.find_status(self.network.status.links, link.made.name).ends
        for intf, end in zip((link.intf1, link.intf2), ends):
            if not intf.node.is_host:
                continue
            has_address = intf is self._first_intf(intf.node) and intf.node in addresses
            is_first = end.interface == "eth0"

            def finish(intf: Any = intf, name: str = end.interface, skips: bool = has_address, first: bool = is_first) -> None:
                if name != intf.name:
                    _interface.rename(name, intf.name)
                if intf.mac is not None:
                    _interface.set_mac(intf.name, intf.mac)
                if intf.ip and not skips:
                    _interface.set_address(intf.name, intf.ip, intf.prefixLen)
                elif first and not skips:
                    _interface.set_address(intf.name, "0.0.0.0", 0)

            intf.node.machine.call(finish)

    def _name_ports(self, links: list[Any]) -> None:
        """Gives the ports of switches the names of the script as further names, unless another network has them."""
        lines = []
        for link in links:
            ends = self.network.find_status(self.network.status.links, link.made.name).ends
            for intf, end in zip((link.intf1, link.intf2), ends):
                if intf.node.is_switch and not os.path.exists(f"/sys/class/net/{intf.name}"):
                    lines.append(f"link property add dev {end.interface} altname {intf.name}")
        if lines:
            subprocess.run(
                ["ip", "-force", "-batch", "-"], input="\n".join(lines), text=True, capture_output=True, check=False
            )
