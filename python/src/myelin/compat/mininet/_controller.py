"""Controllers."""

from __future__ import annotations

import socket
from typing import Any, Optional

from .. import NoCounterpart
from ._node import Node
from .log import warn


# Where a controller listens, if the script names no port: that of OpenFlow, and the older one.
_PORTS = (6653, 6633)
# Mininet's program for learning switches.
_LEARNING = "controller"


def _listens(ip: str, port: int) -> bool:
    try:
        socket.create_connection((ip, port), timeout=5).close()
    except OSError:
        return False
    return True


class Controller(Node):
    """A controller. With a `command` or a `start` of its own it steers the switches by OpenFlow. Without, it has nothing
    to do: the switches are bridges, which learn by themselves.
    """

    def __init__(
        self,
        name: str,
        inNamespace: bool = False,
        command: str = _LEARNING,
        cargs: str = "ptcp:%d",
        cdir: Optional[str] = None,
        ip: str = "127.0.0.1",
        port: Optional[int] = None,
        protocol: str = "tcp",
        **params: Any,
    ) -> None:
        self.command, self.cargs, self.cdir, self.ip, self.port, self.protocol = command, cargs, cdir, ip, port, protocol
        super().__init__(name, inNamespace=inNamespace, **({"ip": ip, **params} if inNamespace else params))

    @property
    def steers(self) -> bool:
        """Whether switches connect to it."""
        return self.command != _LEARNING or type(self).start is not Controller.start

    @property
    def target(self) -> str:
        """The address for switches."""
        if self.protocol != "tcp":
            raise NoCounterpart(f"`protocol='{self.protocol}'` of the controller `{self.name}`", "write `protocol='tcp'`")
        # The agent reaches the loopback of a host.
        place = self.made.name if self.is_host and self.made is not None else self.ip
        return f"tcp:{place}:{self.port or _PORTS[0]}"

    def start(self) -> None:
        """Starts the program of `command`, if there is one."""
        if self.steers:
            place = f"cd {self.cdir}; " if self.cdir else ""
            cargs = self.cargs % (self.port or _PORTS[0]) if "%" in self.cargs else self.cargs
            self.cmd(f"{place}{self.command} {cargs} > /tmp/{self.name}.log 2>&1 &")

    def stop(self, *args: Any, **kwargs: Any) -> None:
        """Ends the controller's program and its shell."""
        if self.steers and self.lastPid is not None and not self._has_ended:
            self.cmd("kill %1 && wait")
        self.terminate()

    def isListening(self, ip: str, port: int) -> bool:
        """Whether a program listens at an address."""
        return bool(self.machine.call(lambda: _listens(ip, port)))

    def checkListening(self) -> None:
        """Warns if no program listens."""
        if self.steers and not self.isListening(self.ip, self.port or _PORTS[0]):
            warn(f"Unable to contact the remote controller at {self.ip}:{self.port or _PORTS[0]}\n")

    def IP(self, intf: Any = None) -> Any:
        """Returns the address."""
        return super().IP(intf) if self.intfs else self.ip

    @classmethod
    def isAvailable(cls) -> bool:
        """True: switches learn by themselves."""
        return True

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}: {self.IP()}:{self.port}> "


class OVSController(Controller):
    """A controller for learning switches."""


class RemoteController(Controller):
    """A controller that the script does not start. Without a port: the one of 6653 and 6633 where a program listens."""

    def __init__(self, name: str, ip: str = "127.0.0.1", port: Optional[int] = None, **kwargs: Any) -> None:
        super().__init__(name, ip=ip, port=port, **kwargs)
        if port is None and not self.is_host:
            self.port = next((port for port in _PORTS if self.isListening(ip, port)), _PORTS[0])

    @property
    def steers(self) -> bool:
        """True: switches connect to it."""
        return True

    def start(self) -> None:
        """Warns if no program listens."""
        self.checkListening()

    def stop(self, *args: Any, **kwargs: Any) -> None:
        """Ends the shell. The program goes on."""
        self.terminate()


class _Missing(Controller):
    """A controller whose program Debian has not."""

    def __init__(self, name: str, *_args: Any, **_params: Any) -> None:
        raise NoCounterpart(
            f"the controller `{name}` ({type(self).__name__})",
            "start a controller yourself, such as Debian's `osken-manager`, and write `RemoteController`",
        )


class Ryu(_Missing):
    """Ryu."""


class NOX(_Missing):
    """NOX."""


DefaultControllers = (Controller, OVSController)


def findController(controllers: Any = DefaultControllers) -> Any:
    """Returns the first class of controllers."""
    return controllers[0]


def DefaultController(name: str, controllers: Any = DefaultControllers, **kwargs: Any) -> Any:
    """Makes a controller."""
    return findController(controllers)(name, **kwargs)


def NullController(*_args: Any, **_kwargs: Any) -> None:
    """Makes no controller."""
