"""`mininet.net`: the network of a script."""

from __future__ import annotations

import random
import select
import time
from collections.abc import Iterator
from typing import Any, Optional

from ...errors import ArgumentError, FailedError, bad_argument
from ...measuring import Target, ping
from .. import NoCounterpart
from . import _iperf
from ._lab import Lab
from .link import Intf, Link
from .log import debug, error, info, output, warn
from .node import Controller, DefaultController, Host, Node, OVSKernelSwitch
from .nodelib import NAT
from .util import fixLimits, ipAdd, macColonHex, netParse, numCores

VERSION = "2.3.0"
# As the program ping without `-W`.
_PING_TIMEOUT_S = 10.0
# Each host of more remembers each other, and the kernel remembers 512 neighbours by default.
_MANY_HOSTS = 22


class Mininet:
    """A network of hosts and switches."""

    def __init__(
        self,
        topo: Any = None,
        switch: Any = OVSKernelSwitch,
        host: Any = Host,
        controller: Any = DefaultController,
        link: Any = Link,
        intf: Any = Intf,
        build: bool = True,
        xterms: bool = False,
        cleanup: bool = False,
        ipBase: str = "10.0.0.0/8",
        inNamespace: bool = False,
        autoSetMacs: bool = False,
        autoStaticArp: bool = False,
        autoPinCpus: bool = False,
        listenPort: Optional[int] = None,
        waitConnected: Any = False,
    ) -> None:
        if inNamespace:
            raise NoCounterpart("`inNamespace=True` of a network", "switches are kernel bridges of the machine: leave it out")
        self.topo, self.switch, self.host, self.controller = topo, switch, host, controller
        self.link, self.intf = link, intf
        self.ipBase = ipBase
        self.ipBaseNum, self.prefixLen = netParse(ipBase)
        self.nextIP = ((0xFFFFFFFF >> self.prefixLen) & self.ipBaseNum) or 1
        self.inNamespace, self.xterms, self.cleanup = inNamespace, xterms, cleanup
        self.autoSetMacs, self.autoStaticArp, self.autoPinCpus = autoSetMacs, autoStaticArp, autoPinCpus
        self.numCores, self.nextCore = numCores(), 0
        self.listenPort, self.waitConn = listenPort, waitConnected
        self.hosts: list[Any] = []
        self.switches: list[Any] = []
        self.controllers: list[Any] = []
        self.links: list[Any] = []
        self.nameToNode: dict[str, Any] = {}
        self.terms: list[Any] = []
        self.built = False
        self.lab = Lab()
        if topo is not None and build:
            self.build()

    @classmethod
    def init(cls) -> None:
        """Does nothing: the agent is ready."""

    # --- Building ------------------------------------------------------------------------------------------------------

    def _add(self, nodes: list[Any], cls: Any, name: Any, params: dict[str, Any]) -> Any:
        if name in self.nameToNode:
            raise ArgumentError(f"the network has a node `{name}`: choose another name", object=str(name))
        with self.lab:
            node = cls(name, **params)
        nodes.append(node)
        self.nameToNode[name] = node
        return node

    def addHost(self, name: str, cls: Any = None, **params: Any) -> Any:
        """Adds a host."""
        defaults: dict[str, Any] = {
            "ip": f"{ipAdd(self.nextIP, ipBaseNum=self.ipBaseNum, prefixLen=self.prefixLen)}/{self.prefixLen}"
        }
        if self.autoSetMacs:
            defaults["mac"] = macColonHex(self.nextIP)
        if self.autoPinCpus:
            defaults["cores"] = self.nextCore
            self.nextCore = (self.nextCore + 1) % self.numCores
        self.nextIP += 1
        return self._add(self.hosts, cls or self.host, name, {**defaults, **params})

    def addSwitch(self, name: str, cls: Any = None, **params: Any) -> Any:
        """Adds a switch."""
        params.pop("isSwitch", None)
        defaults = {"listenPort": self.listenPort, "inNamespace": self.inNamespace}
        return self._add(self.switches, cls or self.switch, name, {**defaults, **params})

    def addController(self, name: Any = "c0", controller: Any = None, **params: Any) -> Any:
        """Adds a controller."""
        if isinstance(name, Controller):
            self.controllers.append(name)
            self.lab.controllers.append(name)
            self.nameToNode[name.name] = name
            return name
        with self.lab:
            made = (controller or self.controller)(name, **params)
        if made is not None:
            self.controllers.append(made)
            self.lab.controllers.append(made)
            self.nameToNode[name] = made
        return made

    def addNAT(self, name: str = "nat0", connect: Any = True, inNamespace: bool = False, **params: Any) -> Any:
        """Adds a router with address translation."""
        nat = self.addHost(name, cls=NAT, inNamespace=inNamespace, subnet=self.ipBase, **params)
        if connect:
            self.addLink(nat, connect if isinstance(connect, Node) else self.switches[0])
            address = nat.params["ip"].split("/")[0]
            for host in self.hosts:
                if host.inNamespace and host is not nat:
                    host.setDefaultRoute(f"via {address}")
        return nat

    def addLink(
        self, node1: Any, node2: Any, port1: Optional[int] = None, port2: Optional[int] = None, cls: Any = None, **params: Any
    ) -> Any:
        """Adds a link."""
        one, other = (self[node] if isinstance(node, str) else node for node in (node1, node2))
        options = {"intf": self.intf, **params}
        options.update({key: port for key, port in (("port1", port1), ("port2", port2)) if port is not None})
        link = (cls or self.link)(one, other, **options)
        self.links.append(link)
        return link

    @staticmethod
    def randMac() -> str:
        """Returns a random local MAC address."""
        return macColonHex(random.getrandbits(46) << 2 >> 2 & 0xFCFFFFFFFFFF | 0x020000000000)

    def delNode(self, node: Any, nodes: Optional[list[Any]] = None) -> None:
        """Removes a node with its links, also of a running network."""
        self.links = [link for link in self.links if node not in (link.intf1.node, link.intf2.node)]
        if node in self.lab.controllers:
            self.lab.controllers.remove(node)
        self.lab.remove_node(node)
        for known in [nodes] if nodes else [self.hosts, self.switches, self.controllers]:
            if node in known:
                known.remove(node)
        node.stop()
        self.nameToNode.pop(node.name, None)

    delHost = delSwitch = delController = delNode

    def delLink(self, link: Any) -> None:
        """Removes a link, also of a running network."""
        link.delete()
        self.links.remove(link)

    def linksBetween(self, node1: Any, node2: Any) -> list[Any]:
        """Returns the links between two nodes."""
        return [link for link in self.links if {link.intf1.node, link.intf2.node} == {node1, node2}]

    def delLinkBetween(self, node1: Any, node2: Any, index: int = 0, allLinks: bool = False) -> Any:
        """Removes links between two nodes."""
        links = self.linksBetween(node1, node2)
        links = links if allLinks else [links[index]]
        for link in links:
            self.delLink(link)
        return links

    def buildFromTopo(self, topo: Any = None) -> None:
        """Adds the nodes and links of a description."""
        described = topo or self.topo
        info("*** Creating network\n")
        if not self.controllers and self.controller:
            info("*** Adding controller\n")
            classes = self.controller if isinstance(self.controller, list) else [self.controller]
            for number, cls in enumerate(classes):
                self.addController(cls) if isinstance(cls, Controller) else self.addController(f"c{number}", cls)
        info("*** Adding hosts:\n")
        for name in described.hosts():
            self.addHost(name, **described.nodeInfo(name))
            info(f"{name} ")
        info("\n*** Adding switches:\n")
        for name in described.switches():
            self.addSwitch(name, **described.nodeInfo(name))
            info(f"{name} ")
        info("\n*** Adding links:\n")
        for one, other, params in described.links(sort=True, withInfo=True):
            self.addLink(**params)
            info(f"({one}, {other}) ")
        info("\n")

    def configHosts(self) -> None:
        """Configures the hosts."""
        for host in self.hosts:
            info(f"{host.name} ")
            if host.intfs:
                host.configDefault()
            else:
                host.configDefault(ip=None, mac=None)
        info("\n")

    def build(self) -> None:
        """Adds what the description has, and configures the hosts."""
        if self.topo is not None:
            self.buildFromTopo(self.topo)
        info("*** Configuring hosts\n")
        self.configHosts()
        if self.autoStaticArp:
            self.staticArp()
        if self.xterms:
            self.startTerms()
        self.built = True

    def startTerms(self) -> None:
        """Starts a terminal program for each node."""
        from .term import makeTerms

        self.terms += makeTerms(self.hosts, "host")

    def stopXterms(self) -> None:
        """Ends the terminal programs."""
        for term in self.terms:
            term.kill()
        self.terms = []

    def staticArp(self) -> None:
        """Gives each host the MAC addresses of the others."""
        self.lab.start()
        known = [(host, host.IP(), host.MAC()) for host in self.hosts if host.intfs and host.IP()]
        for host in self.hosts:
            lines = [f"neighbour replace {ip} lladdr {mac} dev {host.defaultIntf()}" for own, ip, mac in known if own is not host]
            if host.intfs and lines:
                host.machine.popen(["sh", "-c", "ip -batch - <<X\n" + "\n".join(lines) + "\nX"]).communicate()

    # --- Running -------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Starts the network."""
        if not self.built:
            self.build()
        if len(self.hosts) > _MANY_HOSTS:
            fixLimits(len(self.hosts) ** 2)
        info("*** Starting controller\n")
        for controller in self.controllers:
            info(f"{controller.name} ")
            controller.start()
        info("\n")
        info(f"*** Starting {len(self.switches)} switches\n")
        with self.lab.collecting():
            for switch in self.switches:
                info(f"{switch.name} ")
                switch.start(self.controllers)
        info("...\n")
        if self.waitConn:
            self.waitConnected(None if self.waitConn is True else self.waitConn)

    def stop(self) -> None:
        """Removes the network."""
        info(f"*** Stopping {len(self.controllers)} controllers\n")
        for controller in self.controllers:
            controller.stop()
        self.stopXterms()
        info(f"*** Stopping {len(self.links)} links, {len(self.switches)} switches and {len(self.hosts)} hosts\n")
        try:
            for node in [*self.switches, *self.hosts]:
                node.stop(deleteIntfs=True) if node in self.switches else node.terminate()
        finally:
            self.lab.stop()
        info("*** Done\n")

    def run(self, test: Any, *args: Any, **kwargs: Any) -> Any:
        """Starts the network, calls a function, and removes the network."""
        self.start()
        try:
            return test(*args, **kwargs)
        finally:
            self.stop()

    def waitConnected(self, timeout: Optional[float] = None, delay: float = 0.5) -> bool:
        """Waits until each switch has its controller: True if so, False after the timeout in seconds."""
        info("*** Waiting for switches to connect\n")
        end = None if timeout is None else time.monotonic() + timeout
        waiting = list(self.switches)
        while waiting:
            for switch in [switch for switch in waiting if switch.connected()]:
                info(f"{switch} ")
                waiting.remove(switch)
            if waiting and end is not None and time.monotonic() > end:
                warn(f"Timed out after {timeout} seconds: {', '.join(map(str, waiting))} not connected\n")
                return False
            if waiting:
                time.sleep(delay)
        info("\n")
        return True

    def monitor(self, hosts: Any = None, timeoutms: Optional[float] = -1) -> Iterator[tuple[Any, Any]]:
        """Yields output of the commands of hosts as it comes."""
        nodes = hosts or self.hosts
        poller = select.poll()
        for node in nodes:
            poller.register(node.stdout.fileno(), select.POLLIN)
        while True:
            ready = poller.poll(timeoutms)
            for fd, _ in ready:
                host = Node.fdToNode(fd)
                yield host, host.monitor()
            if not ready:
                yield None, None

    def interact(self) -> Any:
        """Starts the network with its prompt, and removes the network."""
        from .cli import CLI

        return self.run(CLI, self)

    # --- Nodes ---------------------------------------------------------------------------------------------------------

    def getNodeByName(self, *args: str) -> Any:
        """Returns nodes by their names."""
        found = [self[name] for name in args]
        return found[0] if len(found) == 1 else found

    get = getNodeByName

    def __getitem__(self, key: str) -> Any:
        return self.nameToNode[key]

    def __delitem__(self, key: str) -> None:
        self.delNode(self[key])

    def __iter__(self) -> Iterator[str]:
        for node in [*self.hosts, *self.switches, *self.controllers]:
            yield node.name

    def __len__(self) -> int:
        return len(self.hosts) + len(self.switches) + len(self.controllers)

    def __contains__(self, item: object) -> bool:
        return item in self.nameToNode

    def keys(self) -> list[str]:
        """Returns the names of the nodes."""
        return list(self)

    def values(self) -> list[Any]:
        """Returns the nodes."""
        return [self[name] for name in self]

    def items(self) -> list[tuple[str, Any]]:
        """Returns the nodes with their names."""
        return [(name, self[name]) for name in self]

    # --- Measuring -----------------------------------------------------------------------------------------------------

    def _ping(self, hosts: Any, timeout: Any) -> list[tuple[Any, Any, Any]]:
        """Pings each host from each other. The pings of one host run at the same time."""
        nodes = hosts or self.hosts
        if not hosts:
            output("*** Ping: testing ping reachability\n")
        limit = float(str(timeout).rstrip("s")) if timeout else _PING_TIMEOUT_S
        results = []
        for node in nodes:
            output(f"{node.name} -> ")
            others = [other for other in nodes if other is not node and other.intfs and other.IP()]
            targets = [Target(node.name, node.machine, other.name, other.IP()) for other in others]
            found = [self._ping_one(target, limit) for target in targets] if len(targets) == 1 else self._pings(targets, limit)
            results += [(node, other, result) for other, result in zip(others, found)]
            output("".join(f"{other.name} " if result and result.received else "X " for other, result in zip(others, found)))
            output("\n")
        return results

    def _pings(self, targets: list[Target], limit: float) -> list[Any]:
        try:
            return list(ping(targets, count=1, timeout_s=limit))
        except FailedError:
            # One of the hosts has no route.
            return [self._ping_one(target, limit) for target in targets]

    def _ping_one(self, target: Target, limit: float) -> Any:
        try:
            return ping([target], count=1, timeout_s=limit)[0]
        except FailedError as fault:
            debug(f"{fault}\n")
            return None

    def ping(self, hosts: Any = None, timeout: Any = None) -> float:
        """Pings each host from each other, and returns the percentage of lost packets."""
        results = [result for _, _, result in self._ping(hosts, timeout)]
        received = sum(int(result.received) for result in results if result)
        if not results:
            output("*** Warning: No packets sent\n")
            return 0.0
        loss = 100.0 * (len(results) - received) / len(results)
        output(f"*** Results: {int(loss)}% dropped ({received}/{len(results)} received)\n")
        return loss

    def pingFull(self, hosts: Any = None, timeout: Any = None) -> list[Any]:
        """Pings each host from each other, and returns all figures."""
        results = []
        for one, other, result in self._ping(hosts, timeout):
            times = (result.rtt_min_ms, result.rtt_mean_ms, result.rtt_max_ms) if result and result.received else (0.0,) * 3
            results.append((one, other, (1, result.received if result else 0, *times, 0.0)))
        output("*** Results: \n")
        for one, other, (sent, received, least, mean, most, deviation) in results:
            output(f" {one}->{other}: {sent}/{received}, ")
            output(f"rtt min/avg/max/mdev {least:0.3f}/{mean:0.3f}/{most:0.3f}/{deviation:0.3f} ms\n")
        return results

    def pingAll(self, timeout: Any = None) -> float:
        """Pings each host from each other, and returns the percentage of lost packets."""
        return self.ping(timeout=timeout)

    def pingPair(self) -> float:
        """Pings between the first two hosts."""
        return self.ping(hosts=self.hosts[:2])

    def pingAllFull(self) -> list[Any]:
        """Pings each host from each other, and returns all figures."""
        return self.pingFull()

    def pingPairFull(self) -> list[Any]:
        """Pings between the first two hosts, and returns all figures."""
        return self.pingFull(hosts=self.hosts[:2])

    def iperf(
        self, hosts: Any = None, l4Type: str = "TCP", udpBw: str = "10M", fmt: Any = None, seconds: int = 5, port: int = 5001
    ) -> list[str]:
        """Measures the throughput between two hosts: the rates of server and client as text. UDP needs iperf."""
        client, server = hosts or (self.hosts[0], self.hosts[-1])
        output(f"*** Iperf: testing {l4Type} bandwidth between {client} and {server} \n")
        result = _iperf.measure(client, server, l4Type, udpBw, fmt, seconds, port)
        output(f"*** Results: {result}\n")
        return result

    def runCpuLimitTest(self, cpu: float, duration: int = 5) -> list[float]:
        """Occupies the processors on each host, and returns the shares of all cores that each host had, in percent."""
        info(f"*** Testing CPU {cpu * 100:.0f}% bandwidth limit\n")
        busy = [host.popen(["sh", "-c", "while :; do :; done"]) for host in self.hosts]
        shares: list[float] = []
        try:
            before = [_cpu_time_s(process.pid) for process in busy]
            for _ in range(duration):
                time.sleep(1)
                now = [_cpu_time_s(process.pid) for process in busy]
                shares += [100 * (late - early) / self.numCores for early, late in zip(before, now)]
                before = now
        finally:
            for process in busy:
                process.kill()
                process.communicate()
        output(f"*** Results: {shares}\n")
        return shares

    def configLinkStatus(self, src: str, dst: str, status: str) -> None:
        """Sets the links between two nodes up or down."""
        for what, name in (("src", src), ("dst", dst)):
            if name not in self.nameToNode:
                error(f"{what} not in network: {name}\n")
                return
        pairs = self[src].connectionsTo(self[dst])
        if not pairs:
            error(f"src and dst not connected: {src} {dst}\n")
        for one, _ in pairs:
            self.lab.start()
            one.link.made.change(status)


def _cpu_time_s(pid: int) -> float:
    """Returns the processor time of a process."""
    with open(f"/proc/{pid}/schedstat", encoding="ascii") as file:
        return float(file.read().split()[0]) / 1e9
