"""Nodes and hosts."""

from __future__ import annotations

from typing import Any, Optional

from ...errors import FailedError
from .. import NoCounterpart
from ._ends import Ends
from ._lab import Lab, ThisMachine
from .util import numCores


class Node(Ends):
    """A machine with a shell, which starts with the first command."""

    is_switch = False

    def __init__(self, name: str, inNamespace: bool = True, **params: Any) -> None:
        self.name = params.get("name", name)
        self.inNamespace = params.get("inNamespace", inNamespace)
        self.privateDirs = params.get("privateDirs") or []
        self.params = params
        self.limits: dict[str, Any] = {}
        super().__init__()
        self.lab = Lab.current()
        # The host or switch of Myelin.
        self.made: Any = None
        self.lab.add_node(self)

    @property
    def is_host(self) -> bool:
        """Whether the node has a network namespace of its own."""
        return bool(self.inNamespace) and not self.is_switch

    @property
    def machine(self) -> Any:
        """The machine where the node's programs run."""
        if not self.is_host:
            return ThisMachine()
        self.lab.start()
        if self.made is None:
            raise FailedError(f"the host `{self.name}` has ended: start its network again", object=self.name)
        return self.made

    def made_now(self) -> None:
        """The lab calls it when the node has its counterpart."""

    @classmethod
    def setup(cls) -> None:
        """Does nothing: Myelin needs no programs for nodes."""

    checkSetup = setup

    # --- Configuration -------------------------------------------------------------------------------------------------

    def config(
        self,
        mac: Optional[str] = None,
        ip: Optional[str] = None,
        defaultRoute: Optional[str] = None,
        lo: str = "up",
        **_params: Any,
    ) -> dict[str, Any]:
        """Sets addresses and the default route. Subclasses override it."""
        results: dict[str, Any] = {}
        self.setParam(results, "setMAC", mac=mac)
        self.setParam(results, "setIP", ip=ip)
        self.setParam(results, "setDefaultRoute", defaultRoute=defaultRoute)
        if lo != "up":
            self.cmd("ip link set lo", lo)
        return results

    def configDefault(self, **moreParams: Any) -> None:
        """Configures the node with its parameters."""
        self.params.update(moreParams)
        self.config(**self.params)

    def stop(self, deleteIntfs: bool = False) -> None:
        """Ends the node."""
        self.terminate()

    def __repr__(self) -> str:
        intfs = ",".join(f"{intf.name}:{intf.IP()}" for intf in self.intfList())
        return f"<{type(self).__name__} {self.name}: {intfs} pid={self.pid}> "

    def __str__(self) -> str:
        return str(self.name)


class Host(Node):
    """A host: a network namespace."""


class CPULimitedHost(Host):
    """A host with a limit of processor time: `cpu`, the share of all cores, and `cores`."""

    def __init__(self, name: str, sched: str = "cfs", **kwargs: Any) -> None:
        if sched == "rt":
            raise NoCounterpart(
                f"`sched='rt'` of the host `{name}`",
                "the agent limits hosts by the kernel's fair scheduler: write `sched='cfs'`",
            )
        super().__init__(name, **kwargs)
        self.sched = sched
        self.setCPUFrac(kwargs.get("cpu") or -1)
        self.setCPUs(kwargs.get("cores"))

    def _limit(self, key: str, value: Any) -> None:
        if self.made is not None:
            raise NoCounterpart(f"a new limit of the running host `{self.name}`", "set limits before the network starts")
        self.limits[key] = value

    def setCPUFrac(self, f: float, sched: Optional[str] = None) -> None:
        """Limits the host to a share of all cores; -1: no limit."""
        if f is not None and f > 0:
            self._limit("cpu", f"{max(10, round(f * numCores() * 1000))}m")

    def setCPUs(self, cores: Any, mems: int = 0) -> None:
        """Sets the cores of the host."""
        if cores is not None and cores != []:
            self._limit("cpus", list(cores) if isinstance(cores, (list, tuple)) else str(cores))

    @classmethod
    def init(cls) -> None:
        """Does nothing: the agent makes the groups."""
