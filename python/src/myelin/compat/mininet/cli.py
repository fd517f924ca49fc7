"""`mininet.cli`: the prompt of a network."""

from __future__ import annotations

import select
import sys
import time
from typing import Any, Optional

from ...errors import MyelinError
from ...shell import Shell
from .log import error, info, output


class CLI(Shell):
    """Reads Mininet's commands. The name of a node, then a command, runs the command on the node."""

    prompt = "mininet> "
    intro = ""

    def __init__(self, mininet: Any, stdin: Any = sys.stdin, script: Optional[str] = None, **_kwargs: Any) -> None:
        super().__init__(mininet.lab.network, stdin=None if stdin is sys.stdin else stdin)
        self.mn = mininet
        self.locals: dict[str, Any] = {"net": mininet}
        info("*** Starting CLI:\n")
        if script:
            self.do_source(script)
        else:
            self.run()

    def run(self) -> None:
        """Reads commands until the end of the input."""
        while True:
            try:
                for node in self.mn.values():
                    while node.waiting:
                        node.sendInt()
                        node.waitOutput()
                self.cmdloop()
                return
            except KeyboardInterrupt:
                output("\nInterrupt\n")

    def getLocals(self) -> dict[str, Any]:
        """Returns the names that `py` and `px` know."""
        self.locals.update(self.mn.items())
        return self.locals

    # --- Commands ------------------------------------------------------------------------------------------------------

    def do_nodes(self, _: str) -> None:
        """nodes: lists the nodes"""
        output(f"available nodes are: \n{' '.join(sorted(self.mn.keys()))}\n")

    def do_ports(self, _: str) -> None:
        """ports: lists the ports of the switches"""
        from .util import dumpPorts

        dumpPorts(self.mn.switches)

    def do_net(self, _: str) -> None:
        """net: lists the connections of each node"""
        from .util import dumpNodeConnections

        dumpNodeConnections(self.mn.values())

    def do_intfs(self, _: str) -> None:
        """intfs: lists the interfaces of each node"""
        for node in self.mn.values():
            output(f"{node.name}: {','.join(node.intfNames())}\n")

    def do_dump(self, _: str) -> None:
        """dump: describes each node"""
        for node in self.mn.values():
            output(f"{node!r}\n")

    def do_links(self, _: str) -> None:
        """links: lists the links with their state"""
        for link in self.mn.links:
            output(link, link.status(), "\n")

    def do_pingall(self, line: str) -> None:
        """pingall [TIMEOUT]: pings each host from each other"""
        self.mn.pingAll(line or None)

    def do_pingpair(self, _: str) -> None:
        """pingpair: pings between the first two hosts"""
        self.mn.pingPair()

    def do_pingallfull(self, _: str) -> None:
        """pingallfull: pings each host from each other, with all figures"""
        self.mn.pingAllFull()

    def do_pingpairfull(self, _: str) -> None:
        """pingpairfull: pings between the first two hosts, with all figures"""
        self.mn.pingPairFull()

    def _nodes_of(self, names: list[str]) -> Optional[list[Any]]:
        missing = [name for name in names if name not in self.mn]
        for name in missing:
            error(f"node '{name}' not in network\n")
        return None if missing else [self.mn[name] for name in names]

    def do_iperf(self, line: str) -> None:
        """iperf [A B]: measures the throughput of TCP"""
        hosts = self._nodes_of(line.split())
        if hosts is not None:
            self.mn.iperf(hosts or None)

    def do_iperfudp(self, line: str) -> None:
        """iperfudp [RATE A B]: measures the throughput of UDP"""
        rate, *names = line.split() or ["10M"]
        hosts = self._nodes_of(names)
        if hosts is not None:
            self.mn.iperf(hosts or None, l4Type="UDP", udpBw=rate)

    def do_link(self, line: str) -> None:
        """link A B up|down: sets the links between two nodes up or down"""
        words = line.split()
        if len(words) != 3 or words[2] not in ("up", "down"):
            error("invalid number of args: link end1 end2 [up down]\n")
        else:
            self.mn.configLinkStatus(*words)

    def do_px(self, line: str) -> None:
        """px CODE: runs a statement of Python"""
        try:
            exec(line, self.getLocals())
        except Exception as fault:
            output(f"{fault}\n")

    def do_py(self, line: str) -> None:
        """py CODE: writes the value of an expression of Python"""
        try:
            value = eval(line, self.getLocals())
        except Exception as fault:
            output(f"{fault}\n")
            return
        if value:
            output(f"{value if isinstance(value, str) else repr(value)}\n")

    def do_xterm(self, line: str) -> None:
        """xterm NODE...: starts terminal programs"""
        from .term import makeTerms

        nodes = self._nodes_of(line.split())
        if nodes is not None:
            self.mn.terms += makeTerms(nodes)

    do_x = do_gterm = do_xterm

    def do_dpctl(self, line: str) -> None:
        """dpctl: there are no flow tables"""
        for switch in self.mn.switches:
            output(switch.dpctl(*line.split()))

    def do_time(self, line: str) -> None:
        """time COMMAND: measures the time of a command"""
        start = time.monotonic()
        self.onecmd(line)
        print(f"*** Elapsed time: {time.monotonic() - start:0.6f} secs")

    def do_noecho(self, line: str) -> None:
        """noecho NODE COMMAND: runs a command"""
        self.default(line)

    def do_wait(self, _: str) -> None:
        """wait: does nothing, because switches need no controller"""

    # --- Commands of nodes ---------------------------------------------------------------------------------------------

    def default(self, line: str) -> None:
        """Runs a command on a node. Names of nodes stand for their addresses."""
        first, _, rest = line.strip().partition(" ")
        if first not in self.mn:
            error(f"*** Unknown command: {line}\n")
            return
        if not rest.strip():
            error(f"*** Please enter a command for node: {first} <cmd>\n")
            return
        words = [(self.mn[word].IP() or word) if word in self.mn else word for word in rest.split(" ")]
        node = self.mn[first]
        node.sendCmd(" ".join(words))
        self.waitForNode(node)

    def waitForNode(self, node: Any) -> None:
        """Writes the output of a node's command to its end, and gives the command the keys of this terminal."""
        poller = select.poll()
        poller.register(node.stdout.fileno(), select.POLLIN)
        if sys.stdin.isatty() and self.use_rawinput:
            poller.register(sys.stdin.fileno(), select.POLLIN)
        while node.waiting:
            try:
                for fd, _ in poller.poll():
                    if fd == node.stdout.fileno():
                        output(node.monitor())
                    else:
                        node.write(sys.stdin.readline())
            except KeyboardInterrupt:
                node.sendInt()

    def precmd(self, line: str) -> str:
        """Removes comments."""
        return line.partition("#")[0]

    def onecmd(self, line: str) -> bool:
        """Runs a line. An error ends the line, not the prompt."""
        try:
            return super().onecmd(line)
        except MyelinError as fault:
            error(f"*** {fault}\n")
            return False
