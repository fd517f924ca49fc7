"""A shell for a network, with Mininet's words: `myelin shell [FILE]`, or `python3 -m myelin.shell [FILE]`."""

from __future__ import annotations

import argparse
import cmd
import os
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any, Optional

from .chain import Chain, read_documents
from .client import Client
from .errors import MyelinError
from .host import Host
from .network import Network

_IMPAIRMENTS = ("delay", "jitter", "bandwidth", "queue", "loss", "burst")


class Shell(cmd.Cmd):
    """Reads commands. The name of a host, then a command, runs the command on the host; in its arguments, names of
    hosts stand for their addresses.
    """

    prompt = "myelin> "
    intro = "`help` lists the commands; `h1 ping -c1 h2` runs a program on a host; Ctrl-D ends the shell."

    def __init__(self, network: Network, *, stdin: Any = None) -> None:
        super().__init__(stdin=stdin)
        self.network = network
        self.use_rawinput = stdin is None
        self.has_failed = False
        self._names: dict[str, Any] = {}

    # --- Commands ------------------------------------------------------------------------------------------------------

    def do_nodes(self, _: str) -> None:
        """nodes: lists the hosts and switches"""
        print(" ".join(node.name for node in [*self.network.hosts, *self.network.switches]))

    def do_links(self, _: str) -> None:
        """links: lists the links, with their state, delay, rate and loss"""
        for link in self.network.read_status().links:
            state = "up" if link.is_up else "down"
            print(f"{link.ends[0].node} - {link.ends[1].node}: {state}{_describe(link)}")

    def do_net(self, _: str) -> None:
        """net: lists each node with its neighbours"""
        for node in [*self.network.hosts, *self.network.switches]:
            others = (end for link in node.links for end in link.ends if end != node.name)
            print(f"{node.name}: {' '.join(others)}")

    def do_dump(self, _: str) -> None:
        """dump: lists the hosts with their addresses and network namespaces"""
        for host in self.network.hosts:
            print(f"{host.name}: {' '.join(host.status.addresses)} {host.status.netns}")

    def do_pingall(self, _: str) -> None:
        """pingall: pings each host from each other"""
        print(self.network.ping_all())

    def do_iperf(self, line: str) -> None:
        """iperf [A B]: measures the throughput of TCP from A to B; default: the first and the last host"""
        names = line.split() or [self.network.hosts[0].name, self.network.hosts[-1].name]
        if len(names) != 2:
            return self._usage("iperf A B")
        result = self.network.iperf(names[0], names[1])
        print(f"{result.source} -> {result.destination}: {result.received_bps / 1e6:.1f} Mbit/s")

    def do_link(self, line: str) -> None:
        """link A B up|down, link A B delay=10ms bandwidth=10Mbit loss=1%: changes a link"""
        words = line.split()
        if len(words) < 3:
            return self._usage("link A B up|down, or link A B delay=10ms")
        link = self.network.link(words[0], words[1])
        if words[2:] == ["up"]:
            link.up()
        elif words[2:] == ["down"]:
            link.down()
        else:
            pairs: dict[str, Any] = dict(word.split("=", 1) for word in words[2:] if "=" in word)
            if len(pairs) != len(words) - 2 or not set(pairs) <= set(_IMPAIRMENTS):
                return self._usage(f"link A B up|down, or KEY=VALUE with {', '.join(_IMPAIRMENTS)}")
            whole = {key: int(value) for key, value in pairs.items() if key in ("queue", "burst") and value.isdigit()}
            link.set(**{**pairs, **whole})

    def do_move(self, line: str) -> None:
        """move HOST SWITCH: moves the host's link to the switch"""
        words = line.split()
        if len(words) != 2:
            return self._usage("move HOST SWITCH")
        self.network.host(words[0]).move(words[1])

    def do_ps(self, _: str) -> None:
        """ps: lists the running chains"""
        for status in self.network.client.ps():
            print(f"{status.chain}: {status.state}, {status.packets_in} packets in, {status.packets_out} out")

    def do_py(self, line: str) -> None:
        """py CODE: runs Python; `net` is the network, and each node has its name. Variables stay"""
        names = self._names
        names.update({node.name.replace("-", "_"): node for node in self._nodes()})
        names.update(net=self.network, client=self.network.client)
        try:
            try:
                result = eval(line, names)
            except SyntaxError:
                exec(line, names)
            else:
                if result is not None:
                    print(result)
        except MyelinError:
            raise
        except Exception:
            traceback.print_exc(limit=0)
            self.has_failed = True

    def do_sh(self, line: str) -> None:
        """sh COMMAND: runs a command on this machine"""
        subprocess.run(["/bin/sh", "-c", line], check=False)

    def do_source(self, line: str) -> None:
        """source FILE: runs the commands of a file"""
        for command in Path(line.strip()).read_text(encoding="utf-8").splitlines():
            if self.onecmd(command):
                return

    def do_exit(self, _: str) -> bool:
        """exit: ends the shell and its network"""
        return True

    do_quit = do_exit

    def do_EOF(self, _: str) -> bool:
        """Ctrl-D: ends the shell and its network"""
        if self.use_rawinput:
            print()
        return True

    # --- Reading -------------------------------------------------------------------------------------------------------

    def default(self, line: str) -> None:
        """Runs a command on a host."""
        name, _, command = line.strip().partition(" ")
        if name.startswith("#"):
            return
        host = next((host for host in self.network.hosts if host.name == name), None)
        if host is None or not command.strip():
            self._usage(f"no command and no host `{name}`: `help` lists the commands, `nodes` the hosts")
            return
        host.interactive(self._with_addresses(command))

    def emptyline(self) -> bool:
        return False

    def onecmd(self, line: str) -> bool:
        """Runs a line. An error ends the line, not the shell."""
        try:
            return bool(super().onecmd(line))
        except (MyelinError, OSError, ValueError) as error:
            print(f"myelin: {error}", file=sys.stderr)
            self.has_failed = True
        except KeyboardInterrupt:
            print()
        return False

    def completenames(self, text: str, *ignored: Any) -> list[str]:
        names = [name for name in self.get_names() if name.startswith("do_") and name != "do_EOF"]
        words = [name[3:] for name in names] + [host.name for host in self.network.hosts]
        return [f"{word} " for word in sorted(words) if word.startswith(text)]

    def completedefault(self, text: str, line: str, begin: int, end: int) -> list[str]:
        words = [node.name for node in self._nodes()]
        if line.startswith("link ") and len(line[:begin].split()) == 3:
            words = ["up", "down", *(f"{key}=" for key in _IMPAIRMENTS)]
        elif line.split(" ", 1)[0] in (host.name for host in self.network.hosts) and len(line[:begin].split()) == 1:
            words = sorted(_programs(text))
        return [word for word in words if word.startswith(text)]

    def _with_addresses(self, command: str) -> str:
        program, *arguments = command.split(" ")
        addresses = {host.name: host.address for host in self.network.hosts}
        return " ".join([program, *(addresses.get(word, word) for word in arguments)])

    def _nodes(self) -> list[Any]:
        return [*self.network.hosts, *self.network.switches]

    def _usage(self, text: str) -> None:
        print(f"myelin: {text}", file=sys.stderr)
        self.has_failed = True


def _describe(link: Any) -> str:
    """Describes delay, rate and loss of a link."""
    if link.back is None:
        return _describe_direction(link.impairments)
    back = _describe_direction(link.back).removeprefix(", ") or "unimpaired"
    return f"{_describe_direction(link.impairments)}, back {back}"


def _describe_direction(impairments: Any) -> str:
    parts = []
    if impairments.delay_ns:
        parts.append(f"delay {impairments.delay_ns / 1e6:g} ms")
    if impairments.rate_bps:
        parts.append(f"{impairments.rate_bps / 1e6:g} Mbit/s")
    if impairments.loss_ppm:
        parts.append(f"loss {impairments.loss_ppm / 1e4:g}%")
    return "".join(f", {part}" for part in parts)


def _programs(prefix: str) -> set[str]:
    found: set[str] = set()
    for directory in os.environ.get("PATH", "").split(":"):
        try:
            found.update(name for name in os.listdir(directory) if name.startswith(prefix))
        except OSError:
            continue
    return found


def open_network(client: Client, what: Optional[str]) -> tuple[Network, list[Chain]]:
    """Returns the network of a file, a running network of this name, or a new one: h1 - s1 - h2."""
    if what is None:
        network = Network(client=client)
        switch = network.add_switch("s1")
        for name in ("h1", "h2"):
            network.add_link(network.add_host(name), switch)
        return network, []
    if not os.path.exists(what):
        return Network.attach(what, client), []
    documents = read_documents(what, client)
    directory = Path(what).absolute().parent
    chains = [Chain.from_document(one, directory) for one in documents if one.get("kind") == "ServiceChain"]
    return Network.load(what, client), chains


def main(arguments: Optional[list[str]] = None) -> int:
    """Runs the shell until its end; exit status 1 if a line of standard input that is no terminal failed."""
    parser = argparse.ArgumentParser(prog="myelin shell", description="A shell for a network, with Mininet's words.")
    parser.add_argument("network", nargs="?", help="a file, or the name of a running network; default: h1 - s1 - h2")
    parser.add_argument("--run-dir", help="directory of the agent's socket")
    parsed = parser.parse_args(arguments)
    try:
        network, chains = open_network(Client(parsed.run_dir), parsed.network)
        with network:
            if not network.is_running:
                network.start()
            if chains:
                network.up(*chains)
            is_terminal = sys.stdin.isatty()
            shell = Shell(network, stdin=None if is_terminal else sys.stdin)
            if not is_terminal:
                shell.prompt, shell.intro = "", ""
            shell.cmdloop()
            return 1 if shell.has_failed and not is_terminal else 0
    except MyelinError as error:
        print(f"myelin: {error}", file=sys.stderr)
        return error.exit_status


if __name__ == "__main__":
    sys.exit(main())
