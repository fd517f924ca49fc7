"""The interfaces of a node, and their addresses."""

from __future__ import annotations

from typing import Any, Optional

from ._shell import Shell
from .link import Configurable, Link
from .log import warn


class Ends(Shell, Configurable):
    """A node's ends of its links."""

    portBase = 0

    def __init__(self) -> None:
        super().__init__()
        self.intfs: dict[int, Any] = {}
        self.ports: dict[Any, int] = {}
        self.nameToIntf: dict[str, Any] = {}

    def newPort(self) -> int:
        """Returns the next number of an interface."""
        return max(self.ports.values(), default=self.portBase - 1) + 1

    def addIntf(self, intf: Any, port: Optional[int] = None, **_kwargs: Any) -> None:
        """Adds an interface."""
        number = self.newPort() if port is None else port
        self.intfs[number] = intf
        self.ports[intf] = number
        self.nameToIntf[intf.name] = intf

    def delIntf(self, intf: Any) -> None:
        """Forgets an interface."""
        port = self.ports.pop(intf, None)
        if port is not None:
            del self.intfs[port]
            self.nameToIntf.pop(intf.name, None)

    def defaultIntf(self) -> Any:
        """Returns the interface with the lowest number."""
        if not self.intfs:
            warn(f"*** defaultIntf: warning: {self.name} has no interfaces\n")
            return None
        return self.intfs[min(self.intfs)]

    def intf(self, intf: Any = None) -> Any:
        """Returns the interface of this name, by default the first one."""
        if not intf:
            return self.defaultIntf()
        return self.nameToIntf[intf] if isinstance(intf, str) else intf

    def intfList(self) -> list[Any]:
        """Returns the interfaces by number."""
        return [self.intfs[number] for number in sorted(self.intfs)]

    def intfNames(self) -> list[str]:
        """Returns the names of the interfaces by number."""
        return [str(intf) for intf in self.intfList()]

    def connectionsTo(self, node: Any) -> list[tuple[Any, Any]]:
        """Returns the pairs of interfaces of the links to a node."""
        pairs = []
        for intf in self.intfList():
            if intf.link:
                far = intf.link.intf2 if intf is intf.link.intf1 else intf.link.intf1
                pairs += [(intf, far)] if far.node is node else []
        return pairs

    def deleteIntfs(self, checkName: bool = True) -> None:
        """Forgets the interfaces. They go with their network."""

    def linkTo(self, node: Any, link: Any = Link) -> Any:
        """Links the node to another one."""
        return link(self, node)

    def IP(self, intf: Any = None) -> Any:
        """Returns the IPv4 address of an interface."""
        found = self.intf(intf)
        return None if found is None else found.IP()

    def MAC(self, intf: Any = None) -> Any:
        """Returns the MAC address of an interface."""
        return self.intf(intf).MAC()

    def setIP(self, ip: str, prefixLen: int = 8, intf: Any = None, **kwargs: Any) -> Any:
        """Sets the IPv4 address of an interface."""
        return self.intf(intf).setIP(ip, prefixLen, **kwargs)

    def setMAC(self, mac: str, intf: Any = None) -> Any:
        """Sets the MAC address of an interface."""
        return self.intf(intf).setMAC(mac)

    def setARP(self, ip: str, mac: str) -> Any:
        """Adds a neighbour."""
        return self.cmd("ip neighbour replace", ip, "lladdr", mac, "dev", self.defaultIntf())

    def setHostRoute(self, ip: str, intf: Any) -> Any:
        """Adds a route to a host."""
        return self.cmd("ip route add", ip, "dev", intf)

    def setDefaultRoute(self, intf: Any = None) -> Any:
        """Sets the default route: an interface, or text such as `via 10.0.0.1`."""
        way = intf if isinstance(intf, str) and " " in intf else f"dev {intf}"
        return self.cmd("ip route del default 2>/dev/null; ip route add default", way)

    def intfIsUp(self, intf: Any = None) -> Any:
        """Whether an interface is up."""
        return self.intf(intf).isUp()
