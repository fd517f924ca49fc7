"""`mininet.nodelib`: a bridge, and a router with address translation."""

from __future__ import annotations

from typing import Any

from .. import NoCounterpart
from .node import Node, Switch
from .util import ipStr, netParse


class LinuxBridge(Switch):
    """A switch."""


class NAT(Node):
    """A router that translates the addresses of a subnet, between two switches of a network."""

    def __init__(
        self, name: str, subnet: str = "10.0/8", localIntf: Any = None, flush: bool = False, **params: Any
    ) -> None:
        if not params.get("inNamespace", True):
            raise NoCounterpart(
                f"the NAT `{name}` to the network of this machine",
                "a network has no link to the machine's interfaces: make the NAT in a namespace, between two switches",
            )
        super().__init__(name, **params)
        self.subnet, self.localIntf, self.flush = subnet, localIntf, flush

    def config(self, **params: Any) -> dict[str, Any]:  # type: ignore[override]
        """Forwards packets, and sets the rules."""
        self.localIntf = self.localIntf or self.defaultIntf()
        results = super().config(**params)
        base, length = netParse(self.subnet)
        subnet = f"{ipStr(base)}/{length}"
        rules = f"""
            table ip mininet-nat {{
                chain forward {{
                    type filter hook forward priority 0;
                    iifname "{self.localIntf}" ip daddr {subnet} drop
                }}
                chain translate {{
                    type nat hook postrouting priority 100;
                    ip saddr {subnet} ip daddr != {subnet} masquerade
                }}
            }}"""
        self.machine.cmd(["nft", rules], check=True)
        self.machine.cmd(["sysctl", "-q", "net.ipv4.ip_forward=1"], check=True)
        return results
