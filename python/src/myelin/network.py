"""Emulated networks in code. Start reading at `Network`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Optional, TypeVar, Union

from . import _requests, _schema, measuring
from ._agent import StrPath
from ._lazy import types
from .chain import Chain, draw, read_documents
from .client import Client, Lease
from .documents import API_VERSION, Document, to_text
from .errors import ArgumentError, FailedError, FileError, bad_argument
from .host import AgentHost, Host, Link, Node, Router, Switch
from .measuring import Target
from .results import Iperf, Ping, Pings

Named = TypeVar("Named", "types.TopologyHost", "types.TopologyLink")
AnyNode = TypeVar("AnyNode", bound=Node)
AnyHost = Union[Host, str]


def _host_keys(address: Any, gateway: Any, cpu: Any, memory: Any, cpus: Any) -> dict[str, Any]:
    keys = {"address": address, "gateway": gateway, "cpu": cpu, "memory": memory, "cpus": cpus}
    return {key: list(value) if isinstance(value, tuple) else value for key, value in keys.items()}


class Network:
    """A network of hosts and switches on this machine.

    Build it with `add_host`, `add_switch` and `add_link`, then `start` it. What you add or remove later, the running network
    gets or loses at once. It ends with `stop`, with the `with` block, or
    with this process, however that ends.
    """

    def __init__(
        self,
        name: Optional[str] = None,
        *,
        client: Optional[Client] = None,
        run_dir: Optional[StrPath] = None,
        program: Optional[StrPath] = None,
    ) -> None:
        """Without a name, the network has one that no other has, so two scripts never meet."""
        if client is not None and (run_dir is not None or program is not None):
            raise ArgumentError("client: it has a run directory and a program: give only `client`", object="client")
        self.name = _schema.check_name("Network", name if name is not None else f"py-{os.urandom(5).hex()}")
        self.client = client or Client(run_dir, program=program)
        self.directory: Optional[Path] = None
        self.links: list[Link] = []
        self._nodes: dict[str, Node] = {}
        self._lease: Optional[Lease] = None
        self._status: Optional[types.TopologyStatus] = None
        self._made: dict[str, types.TopologyHost] = {}
        self._collects = False

    # --- Building ------------------------------------------------------------------------------------------------------

    def add_host(
        self,
        name: str,
        *,
        address: Union[str, Sequence[str], None] = None,
        gateway: Union[str, Sequence[str], None] = None,
        cpu: Optional[str] = None,
        memory: Optional[str] = None,
        cpus: Union[str, int, Sequence[Union[str, int]], None] = None,
    ) -> Host:
        """Adds a host. `address`: with its prefix length, default the next free one of 10.0.0.0/8, or beside a router of
        the router's network. `gateway`: of the default route, default the only router beside the host. `cpu` ("0.5cores"),
        `memory` ("256MiB") and `cpus` ("0-1") limit the host's programs together.
        """
        return self._add(Host(self, name, _host_keys(address, gateway, cpu, memory, cpus)))

    def add_node(
        self,
        name: str,
        *,
        address: Union[str, Sequence[str], None] = None,
        gateway: Union[str, Sequence[str], None] = None,
        cpu: Optional[str] = None,
        memory: Optional[str] = None,
        cpus: Union[str, int, Sequence[Union[str, int]], None] = None,
    ) -> AgentHost:
        """Adds a node of chains: a host that runs an agent and forwards frames between its links. A running network gets
        no node.
        """
        self._require_stopped("add_node")
        return self._add(AgentHost(self, name, _host_keys(address, gateway, cpu, memory, cpus)))

    def add_router(self, name: str, addresses: Sequence[Union[str, Sequence[str]]]) -> Router:
        """Adds a router: a host that forwards IP packets between its links. `addresses`: for each of its links, in their
        order, an address with its prefix length ("10.1.0.254/24"), or several. A running network gets no router.
        """
        self._require_stopped("add_router")
        listed = [address if isinstance(address, str) else list(address) for address in addresses]
        return self._add(Router(self, name, {"addresses": listed}))

    def add_switch(self, name: str, *, openflow: Optional[str] = None) -> Switch:
        """Adds a switch. `openflow`: the address of its controller, "tcp:HOST:PORT", "tcp:IP:PORT" or "unix:PATH"."""
        return self._add(Switch(self, name, openflow))

    def add_link(
        self,
        one: Union[Node, str],
        other: Union[Node, str],
        *,
        name: Optional[str] = None,
        delay: Optional[str] = None,
        jitter: Optional[str] = None,
        bandwidth: Optional[str] = None,
        queue: Optional[int] = None,
        loss: Optional[str] = None,
        burst: Optional[int] = None,
        back: Optional[dict[str, Any]] = None,
        by: Optional[str] = None,
    ) -> Link:
        """Adds a link. Each direction has the delay ("10ms"), the bandwidth ("10Mbit") and the loss ("1%"); `burst`:
        the mean number of packets lost in a row; `back`: these keys for the direction from the second end to the first,
        if it differs; `by`: "netem" for the kernel's queueing discipline.
        """
        ends = (self.node(one).name, self.node(other).name)
        if ends[0] == ends[1]:
            raise bad_argument("add_link", ends[0], "two nodes", "name two different nodes")
        if burst is not None and loss is None:
            raise ArgumentError("burst: it has no effect without `loss`: give `loss` too", object="burst")
        if any(value is not None for value in (delay, jitter, bandwidth, queue, loss, burst)):
            _requests.impairments(delay, jitter, bandwidth, queue, loss, burst)
        share = loss if burst is None else {"rate": loss, "burst": burst}
        keys = {"name": name, "delay": delay, "jitter": jitter, "bandwidth": bandwidth, "queue": queue}
        link = Link(self, ends, {**keys, "loss": share, "back": back, "by": by})
        if any(known.name == link.name or name is None and set(known.ends) == set(ends) for known in self.links):
            raise ArgumentError(
                f"add_link: the network has a link `{link.name}`: give the second one another `name`",
                object=link.name,
                remedy="give the second link another `name`",
            )
        with self.batch():
            self.links.append(link)
        return link

    def remove_host(self, host: AnyHost) -> None:
        """Removes a host with its links, programs and containers. A chain that has a port there keeps it from going."""
        self._remove(self.host(host))

    def remove_switch(self, switch: Union[Switch, str]) -> None:
        """Removes a switch with its links. A chain that has a port there keeps it from going."""
        self._remove(self.switch(switch))

    def remove_link(self, link: Union[Link, str]) -> None:
        """Removes a link. A host that loses its first link has its addresses on the next one."""
        found = self.link(link.name if isinstance(link, Link) else link)
        with self.batch():
            self.links.remove(found)

    def _remove(self, node: Node) -> None:
        with self.batch():
            self.links = [link for link in self.links if node.name not in link.ends]
            del self._nodes[node.name]

    @contextmanager
    def batch(self) -> Iterator[None]:
        """Collects changes of a running network: at the end of the block the network has all of them, or none."""
        if self._collects or not self.is_running:
            yield
            return
        if self._lease is None:
            raise FailedError(
                f"network `{self.name}` is attached, so this script does not change its parts: change its file, and `up` the file",
                object=self.name,
                remedy="change its file, and `up` the file",
            )
        nodes, links = dict(self._nodes), list(self.links)
        self._collects = True
        try:
            yield
            if (nodes, links) != (self._nodes, self.links):
                self.check()
                self.client.up(self, lease=self._lease)
                self.read_status()
        except BaseException:
            self._nodes, self.links = nodes, links
            raise
        finally:
            self._collects = False

    # --- Nodes ---------------------------------------------------------------------------------------------------------

    @property
    def hosts(self) -> list[Host]:
        """The hosts, in their order, without the nodes of chains and the routers."""
        return [node for node in self._nodes.values() if isinstance(node, Host) and not isinstance(node, (AgentHost, Router))]

    @property
    def nodes(self) -> list[AgentHost]:
        """The nodes of chains, in their order."""
        return [node for node in self._nodes.values() if isinstance(node, AgentHost)]

    @property
    def routers(self) -> list[Router]:
        """The routers, in their order."""
        return [node for node in self._nodes.values() if isinstance(node, Router)]

    @property
    def switches(self) -> list[Switch]:
        """The switches, in their order."""
        return [node for node in self._nodes.values() if isinstance(node, Switch)]

    def node(self, node: Union[Node, str]) -> Node:
        """Returns the node of this name, or checks that a node is of this network."""
        name = node.name if isinstance(node, Node) else node
        found = self._nodes.get(name) if isinstance(name, str) else None
        if found is None or isinstance(node, Node) and found is not node:
            raise ArgumentError(
                f"network `{self.name}` has no node {name!r}: it has {', '.join(self._nodes) or 'none'}",
                object=str(name),
                remedy="name one of its nodes",
            )
        return found

    def host(self, host: AnyHost) -> Host:
        """Returns the host of this name."""
        found = self.node(host)
        if not isinstance(found, Host):
            raise bad_argument("host", found.name, "a host", "name a host of the network")
        return found

    def switch(self, switch: Union[Switch, str]) -> Switch:
        """Returns the switch of this name."""
        found = self.node(switch)
        if not isinstance(found, Switch):
            raise bad_argument("switch", found.name, "a switch", "name a switch of the network")
        return found

    def link(self, one: Union[Node, str], other: Union[Node, str, None] = None) -> Link:
        """Returns the link between two nodes, or the link of this name."""
        if other is None:
            found = [link for link in self.links if link.name == one]
        else:
            ends = {self.node(one).name, self.node(other).name}
            found = [link for link in self.links if set(link.ends) == ends]
        if not found:
            what = str(one) if other is None else f"{one}-{other}"
            names = ", ".join(link.name for link in self.links)
            raise ArgumentError(f"network `{self.name}` has no link `{what}`: it has {names or 'none'}", object=what)
        return found[0]

    def __getitem__(self, name: str) -> Node:
        return self.node(name)

    # --- Running -------------------------------------------------------------------------------------------------------

    def start(self) -> Network:
        """Makes the network, or nothing. Needs root, or an agent that serves this user."""
        self._require_stopped("start")
        self.check()
        lease = self.client.lease()
        try:
            self.client.up(self, lease=lease)
            self._lease = lease
            self.read_status()
        except BaseException:
            self._lease = None
            lease.end()
            raise
        return self

    def stop(self) -> None:
        """Ends all programs on the hosts, and removes the network and the chains that `up` of this network made."""
        lease, self._lease, self._status = self._lease, None, None
        if lease is not None:
            lease.end()

    def up(self, *chains: Chain, force: bool = False) -> list[types.ChainUp]:
        """Deploys chains on the running network, or changes them under traffic. They end with the network."""
        self.require_running()
        if not chains or not all(isinstance(chain, Chain) for chain in chains):
            raise bad_argument("chains", chains, "chains", "give Chain objects")
        return self.client.up(chains, force=force, lease=self._lease)

    @property
    def is_running(self) -> bool:
        """Whether the network runs."""
        return self._status is not None

    @property
    def status(self) -> types.TopologyStatus:
        """The network as the agent described it last."""
        self.require_running()
        assert self._status is not None
        return self._status

    def read_status(self) -> types.TopologyStatus:
        """Asks the agent for the network: its interfaces, the state of its links, their counters."""
        found = [status for status in self.client.topologies() if status.name == self.name]
        if not found:
            raise FailedError(
                f"network `{self.name}` does not run: `start` makes it", object=self.name, remedy="call `start`"
            )
        self._status = found[0]
        self._made = {host.name: host for host in self._status.hosts}
        return self._status

    def has_made(self, host: str) -> bool:
        """Whether the running network has a host of this name."""
        return self.is_running and host in self._made

    def host_status(self, host: str) -> types.TopologyHost:
        """Returns the description of a running host."""
        self.require_running()
        return self._made.get(host) or self.find_status([], host)

    def require_running(self) -> None:
        """Raises FailedError if the network does not run."""
        if self._status is None:
            raise FailedError(
                f"network `{self.name}` does not run: call `start` first", object=self.name, remedy="call `start` first"
            )

    def find_status(self, parts: Iterable[Named], name: str) -> Named:
        """Finds a host or a link in a status."""
        for part in parts:
            if part.name == name:
                return part
        raise FailedError(f"network `{self.name}` runs without `{name}`: stop it and start it again", object=name)

    # --- Measuring -----------------------------------------------------------------------------------------------------

    def ping(self, source: AnyHost, destination: AnyHost, *, count: int = 1, timeout_s: float = 5.0) -> Ping:
        """Pings a host from another."""
        return self._ping([(self.host(source), self.host(destination))], count, timeout_s)[0]

    def ping_all(self, *, count: int = 1, timeout_s: float = 5.0) -> Pings:
        """Pings each host from each other."""
        results = []
        # The pings of one host run at the same time, and wait together for hosts that do not answer.
        for source in self.hosts:
            pairs = [(source, other) for other in self.hosts if source is not other]
            results += self._ping(pairs, count, timeout_s)
        return Pings(results)

    def _ping(self, pairs: list[tuple[Host, Host]], count: int, timeout_s: float) -> list[Ping]:
        measuring.check_ping(count, timeout_s)
        self.require_running()

        def reason(source: Host, other: Host) -> str:
            return next((f"the host `{host.path}` has no link" for host in (source, other) if not host.links), "")

        joined = [pair for pair in pairs if not reason(*pair)]
        targets = [Target(source.name, source, other.name, other.address) for source, other in joined]
        measured = iter(measuring.ping(targets, count=count, timeout_s=timeout_s))
        return [
            Ping.unsent(pair[0].name, pair[1].name, count, reason(*pair)) if reason(*pair) else next(measured)
            for pair in pairs
        ]

    def iperf(
        self, source: AnyHost, destination: AnyHost, *, seconds: int = 5, udp: bool = False, rate: Optional[str] = None
    ) -> Iperf:
        """Measures the throughput from one host to another with iperf3. `rate`: of UDP, default "1Mbit"."""
        client, server = self.host(source), self.host(destination)
        measuring.check_iperf(seconds, rate)
        target = Target(client.name, client, server.name, server.address)
        return measuring.iperf(target, server, seconds=seconds, udp=udp, rate=rate)

    # --- Files ---------------------------------------------------------------------------------------------------------

    def documents(self) -> list[Document]:
        """Returns the document of a topology file."""
        spec: dict[str, Any] = {"hosts": [host.to_keys() for host in self.hosts]}
        if self.nodes:
            spec["nodes"] = [node.to_keys() for node in self.nodes]
        if self.routers:
            spec["routers"] = [router.to_keys() for router in self.routers]
        if self.switches:
            spec["switches"] = [switch.to_keys() for switch in self.switches]
        if self.links:
            spec["links"] = [link.to_keys() for link in self.links]
        return [{"apiVersion": API_VERSION, "kind": "Topology", "metadata": {"name": self.name}, "spec": spec}]

    def check(self) -> None:
        """Refuses a network that the agent would refuse for its keys."""
        if not self.hosts:
            raise ArgumentError(f"network `{self.name}` has no host: `add_host` adds one", object=self.name)
        _schema.check_object(self.documents()[0])

    def save(self, path: StrPath) -> None:
        """Writes the file that the command line takes."""
        Path(path).write_text(to_text(self.documents()), encoding="utf-8")

    @classmethod
    def load(cls, path: StrPath, client: Optional[Client] = None, *, name: Optional[str] = None) -> Network:
        """Reads the only topology of a file. The agent parses YAML; a file that `save` wrote needs none."""
        documents = [one for one in read_documents(path, client) if one.get("kind") == "Topology"]
        if len(documents) != 1:
            raise FileError(f"{path}: {len(documents)} topologies: write a file with one", file=str(path))
        return cls.from_document(documents[0], client, name=name)

    @classmethod
    def from_document(cls, document: Document, client: Optional[Client] = None, *, name: Optional[str] = None) -> Network:
        """Makes the network of a document."""
        _schema.check_object(document)
        network = cls(name or document["metadata"]["name"], client=client)
        spec = document["spec"]
        for kind, add in (("hosts", network.add_host), ("nodes", network.add_node)):
            for keys in spec.get(kind, []):
                described = keys if isinstance(keys, dict) else {"name": str(keys)}
                add(**{**described, "name": str(described["name"])})
        for keys in spec.get("routers", []):
            network.add_router(str(keys["name"]), keys["addresses"])
        for switch in spec.get("switches", []):
            described = switch if isinstance(switch, dict) else {"name": str(switch)}
            network.add_switch(**{**described, "name": str(described["name"])})
        for keys in spec.get("links", []):
            one, other = keys["ends"]
            rest = {key: value for key, value in keys.items() if key != "ends"}
            loss = rest.get("loss")
            if isinstance(loss, dict):
                rest.update(loss=loss["rate"], burst=loss.get("burst"))
            network.add_link(str(one), str(other), **rest)
        return network

    @classmethod
    def attach(cls, name: str, client: Optional[Client] = None) -> Network:
        """Returns a running network, for example of `myelin up`. `stop` leaves it running."""
        network = cls(name, client=client)
        status = network.read_status()
        network._status = None  # Additions describe what runs already.
        for host in status.hosts:
            if host.is_router:
                network.add_router(host.name, host.addresses)
            else:
                network.add_node(host.name) if host.is_node else network.add_host(host.name)
        for switch in status.switches:
            controller = switch.controller
            network.add_switch(switch.name, openflow=controller.address if controller else None)
        for link in status.links:
            one, other = (end.node for end in link.ends)
            network.links.append(Link(network, (one, other), {"name": link.name}))
        network._status = status
        return network

    def svg(self) -> str:
        """Draws the network."""
        return draw(self.client, ["graph"], self.documents(), None, "--svg")

    def _repr_svg_(self) -> str:
        return self.svg()

    def _add(self, node: AnyNode) -> AnyNode:
        if node.name in self._nodes:
            raise ArgumentError(
                f"network `{self.name}` has a node `{node.name}`: choose another name",
                object=node.name,
                remedy="choose another name",
            )
        with self.batch():
            self._nodes[node.name] = node
        return node

    def _require_stopped(self, what: str) -> None:
        if self.is_running:
            raise FailedError(
                f"{what}: network `{self.name}` runs: call `stop` first", object=self.name, remedy="call `stop` first"
            )

    def __enter__(self) -> Network:
        return self

    def __exit__(self, kind: Optional[type], error: Optional[BaseException], trace: Optional[TracebackType]) -> None:
        self.stop()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Network) and self.documents() == other.documents()

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        state = "runs" if self.is_running else "does not run"
        counts = f"{len(self.hosts)} hosts, {len(self.switches)} switches, {len(self.links)} links"
        return f"<Network {self.name}: {counts}, {state}>"
