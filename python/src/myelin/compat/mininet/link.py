"""`mininet.link`: links and their interfaces."""

from __future__ import annotations

import re
from typing import Any, Optional

from ...errors import bad_argument
from .. import NoCounterpart
from . import _interface
from .log import debug


class Configurable:
    """An object whose `config` calls a method for each parameter."""

    def setParam(self, results: dict[str, Any], method: str, **param: Any) -> Any:
        """Calls a method with the value of a parameter, unless the value is None."""
        ((name, value),) = param.items()
        function = getattr(self, method, None)
        if value is None or function is None:
            return None
        if isinstance(value, list):
            results[name] = function(*value)
        elif isinstance(value, dict):
            results[name] = function(**value)
        else:
            results[name] = function(value)
        return results[name]


class Intf(Configurable):
    """One end of a link."""

    def __init__(
        self,
        name: str,
        node: Any = None,
        port: Optional[int] = None,
        link: Any = None,
        mac: Optional[str] = None,
        **params: Any,
    ) -> None:
        if node is not None and link is None and name != "lo":
            raise NoCounterpart(
                f"the interface `{name}` of the machine at `{node}`",
                "a chain has real interfaces: write `ports: { ingress: IFACE, egress: IFACE }` into its file",
            )
        self.node, self.name, self.link = node, name, link
        self.mac: Optional[str] = mac
        self.ip: Optional[str] = None
        self.prefixLen: Optional[int] = None
        params.pop("moveIntfFn", None)
        if node is not None:
            node.addIntf(self, port=port)
        self.params = params
        self.config(**params)

    # --- What the interface has ----------------------------------------------------------------------------------------

    @property
    def _is_made(self) -> bool:
        """Whether the interface is in a running network, in a host."""
        return self.node is not None and self.node.is_host and self.node.lab.is_running

    def _ask(self, request: Any, *arguments: Any) -> Any:
        return self.node.machine.call(lambda: request(self.name, *arguments))

    def setMAC(self, macstr: str) -> str:
        """Sets the MAC address."""
        if not re.fullmatch(r"([0-9a-fA-F]{2}:){5}[0-9a-fA-F]{2}", macstr):
            raise bad_argument("setMAC", macstr, "a MAC address", "write six bytes such as 00:00:00:00:00:01")
        self.mac = macstr
        if self._is_made:
            self._ask(_interface.set_mac, macstr)
        return ""

    def setIP(self, ipstr: str, prefixLen: Optional[int] = None) -> str:
        """Sets the IPv4 address, as text with its prefix length, or with `prefixLen`."""
        address, _, length = str(ipstr).partition("/")
        size = int(length) if length else prefixLen
        if size is None:
            raise bad_argument("setIP", ipstr, "an address with its prefix length", "write for example 10.0.0.1/8")
        before = self.ip, self.prefixLen
        self.ip, self.prefixLen = address, size
        if self._is_made and before != (address, size):
            self._ask(_interface.set_address, address, size)
        return ""

    def updateIP(self) -> Optional[str]:
        """Reads the address from the kernel."""
        if self.node is not None and self.node.is_host and self.name != "lo":
            self.node.lab.start()
            found = self._ask(_interface.address)
            self.ip, self.prefixLen = found if found else (None, None)
        return self.ip

    def updateMAC(self) -> Optional[str]:
        """Reads the MAC address from the kernel."""
        if self.node is not None and self.node.is_host:
            self.node.lab.start()
            self.mac = self._ask(_interface.mac)
        return self.mac

    def updateAddr(self) -> tuple[Optional[str], Optional[str]]:
        """Reads both addresses from the kernel."""
        return self.updateIP(), self.updateMAC()

    def IP(self) -> Optional[str]:
        """Returns the IPv4 address."""
        return self.ip

    def MAC(self) -> Optional[str]:
        """Returns the MAC address."""
        return self.mac or self.updateMAC()

    def isUp(self, setUp: bool = False) -> bool:
        """Whether the interface is up."""
        if setUp:
            self.ifconfig("up")
        if self.node.is_host:
            self.node.lab.start()
            return bool(self._ask(_interface.is_up))
        return self.link is None or bool(self.link.made.status.is_up)

    def ifconfig(self, *args: Any) -> str:
        """Sets the interface up or down, or runs ifconfig with these arguments."""
        if args in (("up",), ("down",)):
            self.node.lab.start()
            if self.node.is_host:
                self._ask(_interface.set_up, args == ("up",))
            else:
                self.link.made.change(args[0])
            return ""
        return str(self.cmd("ifconfig", self.name, *args))

    def rename(self, newname: str) -> str:
        """Renames the interface."""
        if self._is_made:
            self._ask(_interface.rename, newname)
        del self.node.nameToIntf[self.name]
        self.name = newname
        self.node.nameToIntf[newname] = self
        return ""

    def cmd(self, *args: Any, **kwargs: Any) -> Any:
        """Runs a command on the node."""
        return self.node.cmd(*args, **kwargs)

    # --- Configuration -------------------------------------------------------------------------------------------------

    def config(
        self, mac: Optional[str] = None, ip: Any = None, ifconfig: Any = None, up: bool = True, **_params: Any
    ) -> dict[str, Any]:
        """Sets addresses and state."""
        results: dict[str, Any] = {}
        self.setParam(results, "setMAC", mac=mac)
        self.setParam(results, "setIP", ip=ip)
        self.setParam(results, "ifconfig", ifconfig=ifconfig)
        return results

    def delete(self) -> None:
        """Forgets the interface. It goes with its network."""
        self.node.delIntf(self)

    def status(self) -> str:
        """Returns `OK`, or `MISSING` after the end of the network."""
        return "OK" if self.node.lab.is_running else "MISSING"

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"

    def __str__(self) -> str:
        return self.name


def _delay(what: str, value: Any) -> Optional[str]:
    """Writes a delay with its unit. As in `tc`, a number is in microseconds."""
    if value is None:
        return None
    text = str(value).replace(" ", "").replace("msec", "ms").replace("sec", "s").replace("usec", "us")
    if re.fullmatch(r"[0-9.]+(us|ms|s)", text):
        return text
    if re.fullmatch(r"[0-9.]+", text):
        return f"{text}us"
    raise bad_argument(what, value, "a delay", "write for example '5ms'")


class TCIntf(Intf):
    """An interface with bandwidth, delay and loss."""

    def config(  # type: ignore[override]
        self,
        bw: Optional[float] = None,
        delay: Any = None,
        jitter: Any = None,
        loss: Any = None,
        max_queue_size: Optional[int] = None,
        enable_ecn: bool = False,
        enable_red: bool = False,
        **params: Any,
    ) -> dict[str, Any]:
        """Sets `bw` (Mbit/s), `delay` and `jitter` ('5ms'), `loss` (percent) and `max_queue_size` (packets). What is not
        given is off. The kinds of shapers (`use_htb`, `use_hfsc`, `use_tbf`) make no difference: the delay line shapes.
        """
        if enable_ecn or enable_red:
            raise NoCounterpart("`enable_ecn` and `enable_red` of a link", "the queue of a link drops its newest packet")
        result = super().config(**params)
        percent = None if loss is None else f"{str(loss).rstrip('%')}%"
        self.impairments = {
            "bandwidth": None if bw is None else f"{bw:.6f}Mbit",
            "delay": _delay("delay", delay),
            "jitter": _delay("jitter", jitter),
            "queue": max_queue_size if bw is not None else None,
            "loss": percent,
        }
        if self.link is not None:
            self.link.impair(self)
        return result


class Link:
    """A link between two nodes."""

    def __init__(
        self,
        node1: Any,
        node2: Any,
        port1: Optional[int] = None,
        port2: Optional[int] = None,
        intfName1: Optional[str] = None,
        intfName2: Optional[str] = None,
        addr1: Optional[str] = None,
        addr2: Optional[str] = None,
        intf: Any = Intf,
        cls1: Any = None,
        cls2: Any = None,
        params1: Optional[dict[str, Any]] = None,
        params2: Optional[dict[str, Any]] = None,
        fast: bool = True,
        **params: Any,
    ) -> None:
        node1.lab.check_link(node1, node2)
        self.made: Any = None
        self.intf1: Any = None
        self.intf2: Any = None
        sides = (
            (node1, port1, intfName1, addr1, cls1 or intf, params1),
            (node2, port2, intfName2, addr2, cls2 or intf, params2),
        )
        ends = []
        for node, port, name, mac, cls, own in sides:
            given = {**(own or {}), **params}
            number = given.pop("port", None) if port is None else port
            given.pop("port", None)
            number = node.newPort() if number is None else number
            name = name or self.intfName(node, number)
            ends.append(cls(name=name, node=node, port=number, link=self, mac=mac, **given))
        self.intf1, self.intf2 = ends
        node1.lab.add_link(self)

    def intfName(self, node: Any, n: int) -> str:
        """Returns the default name of an interface."""
        return f"{node.name}-eth{n}"

    @property
    def impairments(self) -> dict[str, Any]:
        """Bandwidth, delay and loss of both directions, for `Network.add_link`. An interface is about the packets that it
        sends.
        """
        first, second = (getattr(intf, "impairments", {}) for intf in (self.intf1, self.intf2))
        one, other = ({key: value for key, value in side.items() if value is not None} for side in (first, second))
        return one if one == other else {**one, "back": other}

    def config(self, **params: Any) -> None:
        """Changes bandwidth, delay and loss of both directions (an addition of Myelin)."""
        self.intf1.config(**params)
        self.intf2.config(**params)

    def impair(self, intf: Any) -> None:
        """Applies bandwidth, delay and loss of an interface to the packets that it sends over the running link."""
        if self.made is None or not self.intf1.node.lab.is_running:
            return
        off = {"bandwidth": "0Mbit", "delay": "0ms", "jitter": "0ms", "queue": 0, "loss": "0%"}
        change = {**off, **{key: value for key, value in intf.impairments.items() if value is not None}}
        debug(f"link {self}, {intf}: {change}\n")
        self.made.set(**change, direction=intf.node.made)

    def delete(self) -> None:
        """Removes the link."""
        self.intf1.node.lab.remove_link(self)
        self.intf1.delete()
        self.intf2.delete()

    def stop(self) -> None:
        """Removes the link."""
        self.delete()

    def status(self) -> str:
        """Returns the state of both ends."""
        return f"({self.intf1.status()} {self.intf2.status()})"

    def __str__(self) -> str:
        return f"{self.intf1}<->{self.intf2}"


class TCLink(Link):
    """A link with bandwidth, delay and loss."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs.setdefault("cls1", TCIntf)
        kwargs.setdefault("cls2", TCIntf)
        super().__init__(*args, **kwargs)


class TCULink(TCLink):
    """A `TCLink`: Myelin's delay line needs no kernel modules."""


class OVSIntf(Intf):
    """An interface."""


class OVSLink(Link):
    """A link."""
