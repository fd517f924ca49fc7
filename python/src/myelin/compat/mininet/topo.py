"""`mininet.topo`: descriptions of networks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Optional

from .util import irange, natural, naturalSeq


class MultiGraph:
    """Nodes, and edges with keys."""

    def __init__(self) -> None:
        self.node: dict[str, dict[str, Any]] = {}
        self.edge: dict[str, dict[str, dict[Any, dict[str, Any]]]] = {}

    def add_node(self, node: str, attr_dict: Optional[dict[str, Any]] = None, **attrs: Any) -> None:
        """Adds a node with its attributes."""
        self.node[node] = {**(attr_dict or {}), **attrs}

    def add_edge(
        self, src: str, dst: str, key: Any = None, attr_dict: Optional[dict[str, Any]] = None, **attrs: Any
    ) -> Any:
        """Adds an edge, and returns its key: the next number by default."""
        for end in (src, dst):
            self.node.setdefault(end, {})
            self.edge.setdefault(end, {})
        entry = self.edge[src].setdefault(dst, {})
        self.edge[dst][src] = entry
        if key is None:
            key = max([0, *(one for one in entry if isinstance(one, int))]) + 1
        entry[key] = {**(attr_dict or {}), **attrs}
        return key

    def nodes(self, data: bool = False) -> Iterable[Any]:
        """Returns the nodes, with their attributes if `data`."""
        return self.node.items() if data else self.node.keys()

    def edges_iter(self, data: bool = False, keys: bool = False) -> Iterator[Any]:
        """Returns each edge once."""
        seen: set[int] = set()
        for src, entries in self.edge.items():
            for dst, entry in entries.items():
                if id(entry) in seen:
                    continue
                seen.add(id(entry))
                for key, attrs in entry.items():
                    yield (src, dst, *([key] if keys else []), *([attrs] if data else []))

    def edges(self, data: bool = False, keys: bool = False) -> list[Any]:
        """Returns the edges as a list."""
        return list(self.edges_iter(data, keys))

    def __getitem__(self, node: str) -> Any:
        return self.edge[node]

    def __len__(self) -> int:
        return len(self.node)

    def convertTo(self, cls: Any, data: bool = False, keys: bool = False) -> Any:
        """Returns the graph as an object of another class, for example of networkx."""
        graph = cls()
        graph.add_nodes_from(self.nodes(data=data))
        graph.add_edges_from(self.edges(data=True, keys=True) if keys else self.edges(data=data))
        return graph


class Topo:
    """The description of a network. Subclasses describe theirs in `build`."""

    def __init__(self, *args: Any, **params: Any) -> None:
        self.g = MultiGraph()
        self.hopts = params.pop("hopts", {})
        self.sopts = params.pop("sopts", {})
        self.lopts = params.pop("lopts", {})
        self.ports: dict[str, dict[int, tuple[str, int]]] = {}
        self.build(*args, **params)

    def build(self, *args: Any, **params: Any) -> Any:
        """Adds nodes and links; for subclasses."""

    def addNode(self, name: str, **opts: Any) -> str:
        """Adds a node, and returns its name."""
        self.g.add_node(name, **opts)
        return name

    def addHost(self, name: str, **opts: Any) -> str:
        """Adds a host, and returns its name."""
        return self.addNode(name, **(opts or self.hopts))

    def addSwitch(self, name: str, **opts: Any) -> str:
        """Adds a switch, and returns its name."""
        return self.addNode(name, isSwitch=True, **(opts or self.sopts))

    def addLink(
        self, node1: str, node2: str, port1: Optional[int] = None, port2: Optional[int] = None, key: Any = None, **opts: Any
    ) -> Any:
        """Adds a link, and returns its key."""
        port1, port2 = self.addPort(node1, node2, port1, port2)
        ends = {"node1": node1, "node2": node2, "port1": port1, "port2": port2}
        return self.g.add_edge(node1, node2, key, {**(opts or self.lopts), **ends})

    def nodes(self, sort: bool = True) -> list[str]:
        """Returns the names of the nodes."""
        return self.sorted(self.g.nodes()) if sort else list(self.g.nodes())

    def isSwitch(self, n: str) -> bool:
        """Whether a node is a switch."""
        return bool(self.g.node[n].get("isSwitch", False))

    def switches(self, sort: bool = True) -> list[str]:
        """Returns the names of the switches."""
        return [name for name in self.nodes(sort) if self.isSwitch(name)]

    def hosts(self, sort: bool = True) -> list[str]:
        """Returns the names of the hosts."""
        return [name for name in self.nodes(sort) if not self.isSwitch(name)]

    def iterLinks(self, withKeys: bool = False, withInfo: bool = False) -> Iterator[Any]:
        """Returns the links: both ends, then the key and the attributes if they are asked for."""
        for _, _, key, info in self.g.edges_iter(data=True, keys=True):
            yield (info["node1"], info["node2"], *([key] if withKeys else []), *([info] if withInfo else []))

    def links(self, sort: bool = False, withKeys: bool = False, withInfo: bool = False) -> list[Any]:
        """Returns the links as a list."""
        links = list(self.iterLinks(withKeys, withInfo))
        return sorted(links, key=lambda link: naturalSeq(link[: 3 if withKeys else 2])) if sort else links

    def addPort(self, src: str, dst: str, sport: Optional[int] = None, dport: Optional[int] = None) -> tuple[int, int]:
        """Records the ports of a link, by default the next ones. Switches count from 1, hosts from 0."""
        of_src, of_dst = self.ports.setdefault(src, {}), self.ports.setdefault(dst, {})
        sport = len(of_src) + self.isSwitch(src) if sport is None else sport
        dport = len(of_dst) + self.isSwitch(dst) if dport is None else dport
        of_src[sport] = (dst, dport)
        of_dst[dport] = (src, sport)
        return sport, dport

    def port(self, src: str, dst: str) -> Any:
        """Returns the ports of the links between two nodes; a pair if there is one link."""
        ports = [(sport, far) for sport, (node, far) in self.ports[src].items() if node == dst]
        return ports if len(ports) != 1 else ports[0]

    def linkInfo(self, src: str, dst: str, key: Any = None) -> Any:
        """Returns the attributes of a link."""
        entry = self.g[src][dst]
        return entry[min(entry) if key is None else key]

    def setlinkInfo(self, src: str, dst: str, info: dict[str, Any], key: Any = None) -> None:
        """Sets the attributes of a link."""
        entry = self.g[src][dst]
        entry[min(entry) if key is None else key] = info

    def nodeInfo(self, name: str) -> dict[str, Any]:
        """Returns the attributes of a node."""
        return self.g.node[name]

    def setNodeInfo(self, name: str, info: dict[str, Any]) -> None:
        """Sets the attributes of a node."""
        self.g.node[name] = info

    def convertTo(self, cls: Any, data: bool = True, keys: bool = True) -> Any:
        """Returns the graph as an object of another class, for example of networkx."""
        return self.g.convertTo(cls, data=data, keys=keys)

    @staticmethod
    def sorted(items: Iterable[str]) -> list[str]:
        """Sorts names with numbers: h2 before h10."""
        return sorted(items, key=natural)


class SingleSwitchTopo(Topo):
    """One switch with k hosts."""

    def build(self, k: int = 2, **_opts: Any) -> None:
        self.k = k
        switch = self.addSwitch("s1")
        for number in irange(1, k):
            self.addLink(self.addHost(f"h{number}"), switch)


class SingleSwitchReversedTopo(Topo):
    """One switch with k hosts; the first host is at the last port."""

    def build(self, k: int = 2, **_opts: Any) -> None:
        self.k = k
        switch = self.addSwitch("s1")
        for number in irange(1, k):
            self.addLink(self.addHost(f"h{number}"), switch, port1=0, port2=k - number + 1)


class MinimalTopo(SingleSwitchTopo):
    """Two hosts and one switch."""

    def build(self, k: int = 2, **_opts: Any) -> None:
        super().build(k=2)


class LinearTopo(Topo):
    """A row of k switches, each with n hosts."""

    def build(self, k: int = 2, n: int = 1, **_opts: Any) -> None:
        self.k, self.n = k, n
        last: Optional[str] = None
        for i in irange(1, k):
            switch = self.addSwitch(f"s{i}")
            for j in irange(1, n):
                self.addLink(self.addHost(f"h{i}" if n == 1 else f"h{j}s{i}"), switch)
            if last:
                self.addLink(switch, last)
            last = switch
