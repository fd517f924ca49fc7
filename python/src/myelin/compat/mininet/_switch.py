"""Switches."""

from __future__ import annotations

import re
from typing import Any, Optional

from .. import NoCounterpart
from ._node import Node


class Switch(Node):
    """A switch: a kernel bridge, which learns by itself, or an OpenFlow switch with a controller. Its commands run in the
    namespace of this machine.
    """

    portBase = 1
    dpidLen = 16
    is_switch = True
    # Whether a controller can steer it.
    has_flows = False

    def __init__(
        self, name: str, dpid: Optional[str] = None, opts: str = "", listenPort: Optional[int] = None, **params: Any
    ) -> None:
        if params.get("stp"):
            raise NoCounterpart(f"`stp` of the switch `{name}`", "switches form no loop: leave `stp` and the loop out")
        super().__init__(name, **{**params, "inNamespace": False})
        self.dpid = self.defaultDpid(dpid)
        self.opts, self.listenPort = opts, listenPort
        self.controllers: list[Any] = []

    def defaultDpid(self, dpid: Optional[str] = None) -> str:
        """Returns the number of the switch as hexadecimal digits."""
        digits = re.findall(r"\d+", str(self.name))
        number = dpid.replace(":", "") if dpid else f"{int(digits[0]) if digits else 0:x}"
        return number.rjust(self.dpidLen, "0")

    def defaultIntf(self) -> Any:
        """Returns the first interface."""
        return super().defaultIntf() if self.intfs else None

    def start(self, controllers: Any) -> None:
        """Makes the switch with its network. Its controllers are known from here on."""
        self.controllers = [one for one in controllers or [] if one is not None]
        if self.made is None:
            self.lab.start()
        elif self.made.openflow != self.openflow:
            raise NoCounterpart(
                f"another controller of the running switch `{self.name}`", "add the controller before the network starts"
            )

    @property
    def openflow(self) -> Optional[str]:
        """The address of the controller that steers the switch."""
        steering = [one for one in self.controllers or self.lab.controllers if one.steers] if self.has_flows else []
        if len(steering) > 1:
            names = ", ".join(str(one) for one in steering)
            raise NoCounterpart(f"several controllers of the switch `{self.name}` ({names})", "a switch has one: remove the others")
        return steering[0].target if steering else None

    def check_numbers(self, position: int) -> None:
        """Refuses numbers that an OpenFlow switch at this position of its network has not."""
        if int(self.dpid, 16) != position + 1:
            raise NoCounterpart(
                f"the datapath id {self.dpid} of the OpenFlow switch `{self.name}`",
                f"switches are numbered in their order: write `dpid='{position + 1:x}'`, or add the switches in that order",
            )
        if sorted(self.intfs) != list(range(1, 1 + len(self.intfs))):
            raise NoCounterpart(
                f"the ports {sorted(self.intfs)} of the OpenFlow switch `{self.name}`",
                "ports are numbered from 1 on in the order of the links: leave `port1` and `port2` out",
            )

    def stop(self, deleteIntfs: bool = True) -> None:
        """Ends the switch's shell. The switch forwards until its network ends."""
        self.terminate()

    def connected(self) -> bool:
        """Whether the switch forwards: an OpenFlow switch has its controller."""
        if not self.lab.is_running or self.made is None or self.made.openflow is None:
            return self.lab.is_running
        switches = self.lab.network.read_status().switches
        state = next(one.controller for one in switches if one.name == self.made.name)
        return state is not None and state.state == "connected"

    def _no_flows(self, what: str) -> Any:
        raise NoCounterpart(
            f"`{what}` of the switch `{self.name}`",
            "it is a kernel bridge, which learns by itself, or an OpenFlow switch, whose tables its controller knows",
        )

    def sendCmd(self, *args: Any, printPid: bool = False, **kwargs: Any) -> None:
        """Starts a command in the namespace of this machine."""
        first = str(args[0][0] if isinstance(args[0], list) else args[0]).split(" ", 1)[0]
        if first.startswith("ovs-") or first == "dpctl":
            self._no_flows(" ".join(map(str, args)))
        super().sendCmd(*args, printPid=printPid, **kwargs)

    def dpctl(self, *args: Any) -> Any:
        """There are no flow tables."""
        return self._no_flows(f"dpctl {' '.join(map(str, args))}".strip())

    def vsctl(self, *args: Any, **_kwargs: Any) -> Any:
        """There is no Open vSwitch."""
        return self._no_flows(f"ovs-vsctl {' '.join(map(str, args))}".strip())

    def attach(self, intf: Any) -> Any:
        """Does nothing for an interface of this switch."""
        if intf not in self.ports and intf not in self.nameToIntf:
            self._no_flows(f"attach {intf}")
        self.lab.start()

    def detach(self, intf: Any) -> Any:
        """An interface stays at its switch."""
        return self._no_flows("detach")

    def __repr__(self) -> str:
        intfs = ",".join(f"{intf.name}:{intf.IP()}" for intf in self.intfList())
        return f"<{type(self).__name__} {self.name}: {intfs}> "


class OVSSwitch(Switch):
    """A switch, which a controller can steer by OpenFlow."""

    has_flows = True

    @classmethod
    def isOldOVS(cls) -> bool:
        """False: there is no Open vSwitch."""
        return False


class OVSBridge(OVSSwitch):
    """A switch that learns by itself, whatever controllers there are."""

    has_flows = False


class UserSwitch(OVSSwitch):
    """A switch, which a controller can steer by OpenFlow."""


class IVSSwitch(OVSSwitch):
    """A switch, which a controller can steer by OpenFlow."""


OVSKernelSwitch = OVSSwitch
KernelSwitch = OVSSwitch
OVSLegacyKernelSwitch = OVSSwitch
