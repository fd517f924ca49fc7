"""`mininet.topolib`: trees and tori."""

from __future__ import annotations

from typing import Any

from .net import Mininet
from .topo import Topo


class TreeTopo(Topo):
    """A tree of switches with hosts as leaves."""

    def build(self, depth: int = 1, fanout: int = 2, **_opts: Any) -> None:
        self.hostNum = self.switchNum = 1
        self.addTree(depth, fanout)

    def addTree(self, depth: int, fanout: int) -> str:
        """Adds a tree, and returns its root."""
        if depth <= 0:
            host = self.addHost(f"h{self.hostNum}")
            self.hostNum += 1
            return host
        switch = self.addSwitch(f"s{self.switchNum}")
        self.switchNum += 1
        for _ in range(fanout):
            self.addLink(switch, self.addTree(depth - 1, fanout))
        return switch


def TreeNet(depth: int = 1, fanout: int = 2, **kwargs: Any) -> Mininet:
    """Returns the network of a tree."""
    return Mininet(TreeTopo(depth, fanout), **kwargs)


class TorusTopo(Topo):
    """A torus of switches, each with n hosts. It has loops, which switches of Myelin refuse."""

    def build(self, x: int, y: int, n: int = 1) -> None:
        if x < 3 or y < 3:
            raise ValueError(f"TorusTopo: {x} x {y}: write 3 x 3 or more")
        places = [(i, j) for i in range(x) for j in range(y)]
        switches = {}
        for i, j in places:
            at = f"{i + 1}x{j + 1}"
            switches[i, j] = self.addSwitch(f"s{at}", dpid=f"{(i + 1) * 256 + j + 1:x}")
            for k in range(n):
                self.addLink(self.addHost(f"h{at}" if n == 1 else f"h{at}x{k + 1}"), switches[i, j])
        for i, j in places:
            self.addLink(switches[i, j], switches[i, (j + 1) % y])
            self.addLink(switches[i, j], switches[(i + 1) % x, j])
