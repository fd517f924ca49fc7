"""Moves a service between hosts: steers the client's packets, and carries the service's state with its own state hook."""

from __future__ import annotations

import os
import selectors
import subprocess
import time
from dataclasses import dataclass
from typing import Optional

from .chain import Chain, Function
from .errors import CommandError, bad_argument
from .host import Host
from .machine import Command
from .network import Network
from .process import Process


class Steering:
    """Hands a client's packets for a service to the host that serves, whichever it is, without a gap.

    All hosts that may serve have the service's address, and answer no ARP request for it. A chain between the client and
    the host gives the packets the host's MAC address. Two chains take turns: the more specific one wins, so no packet is
    without a chain.
    """

    def __init__(self, network: Network, client: Host, address: str, port: int, *, protocol: str = "udp") -> None:
        if not isinstance(port, int) or not 0 < port < 65536:
            raise bad_argument("port", port, "a port", "write a number from 1 to 65535")
        self.network, self.client, self.address, self.port, self.protocol = network, client, address, port, protocol
        self.at: Optional[Host] = None
        """The host that gets the packets."""
        self._turns = 0

    def prepare(self, *servers: Host) -> None:
        """Gives the service's address to hosts that may serve. None answers who has it; the client needs no answer."""
        for server in servers:
            server.cmd(f"sysctl -q net.ipv4.conf.all.arp_ignore=1; ip address add {self.address}/32 dev lo", check=True)
        self.client.cmd(f"ip neighbour replace {self.address} lladdr 02:00:00:00:00:01 dev eth0", check=True)

    def to(self, host: Host) -> None:
        """Hands the packets to a host, from now on."""
        if host is self.at:
            return
        is_special = self._turns % 2 == 1
        match: dict[str, object] = {"protocol": self.protocol, "destination": f"{self.address}/32"}
        if is_special:
            match["destinationPort"] = self.port
        mac = host.cmd(["cat", "/sys/class/net/eth0/address"], check=True).strip()
        routes = [{"prefix": f"{self.address}/32", "mac": mac}]
        steer = Function("steer", "router", {"routes": routes}, space="kernel")
        name, old = (self._chain_name(one) for one in (is_special, not is_special))
        self.network.up(Chain(name, match=match, functions=[steer], ports=(self.client, host)), force=True)
        if self.at is not None:
            self.network.client.down(old)
        self.at = host
        self._turns += 1

    def _chain_name(self, is_special: bool) -> str:
        return f"{self.network.name}-{self.client.name}-{self.port}{'-port' if is_special else ''}"


@dataclass(frozen=True)
class StateHook:
    """The service's own programs for its state. Each prints the line `ready` when it is ready.

    `export` runs on the old host. It then reads a line, stops the service, and sends the state to the new host. The service
    must serve on when this program ends, whatever the reason. `store` runs on the new host, and ends with status 0 when
    the new service has the state.
    """

    export: Command
    store: Command


def move_state(old: Host, new: Host, hook: StateHook, steering: Steering, *, timeout_s: float = 30.0) -> float:
    """Moves the state of a service to a new one, which runs and waits for it. Returns the time without a service, ms.

    The client's packets are steered when both programs of the state hook are ready, so they wait at the new service. If a program
    fails or does not end in time, the packets are steered back, the old service stays, and CommandError says why.
    """
    if timeout_s <= 0:
        raise bad_argument("timeout_s", timeout_s, "a time", "write seconds above zero")
    started: list[Process] = []
    try:
        deadline = time.monotonic() + timeout_s
        for host, command in ((new, hook.store), (old, hook.export)):
            started.append(host.popen(command, stdin=subprocess.PIPE))
            _wait_until_ready(started[-1], deadline)
        store, export = started
        start = time.perf_counter()
        steering.to(new)
        try:
            _export(export, store, deadline)
        except BaseException:
            export.end()
            steering.to(old)
            raise
        return (time.perf_counter() - start) * 1e3
    finally:
        for process in started:
            process.end()
            for file in (process.stdin, process.stdout):
                if file is not None:
                    file.close()


def _wait_until_ready(process: Process, deadline: float) -> None:
    assert process.stdout is not None
    line = b""
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while not line.endswith(b"\n") and len(line) < 4096:
            if not selector.select(max(0.0, deadline - time.monotonic())):
                raise _failed(process, "it is not ready in time")
            byte = os.read(process.stdout.fileno(), 1)
            if not byte:
                break
            line += byte
    if line.strip() != b"ready":
        said = line.decode(errors="replace").strip() or "nothing"
        raise _failed(process, f"it is not ready: it printed {said!r} in place of 'ready'")


def _export(export: Process, store: Process, deadline: float) -> None:
    """Starts the transfer, and waits until the new service has the state."""
    assert export.stdin is not None
    try:
        os.write(export.stdin.fileno(), b"go\n")
    except BrokenPipeError:
        pass
    with selectors.DefaultSelector() as selector:
        for process in (export, store):
            selector.register(process.fileno(), selectors.EVENT_READ, process)
        while True:
            ended = selector.select(max(0.0, deadline - time.monotonic()))
            if store.poll() == 0:
                return
            if store.returncode is not None:
                raise _failed(store, f"exit status {store.returncode}")
            if export.poll():
                raise _failed(export, f"exit status {export.returncode}")
            if not ended:
                raise _failed(store, "the state does not arrive in time")
            for key, _ in ended:
                if key.data.returncode is not None:
                    # Its last bytes may still be under way.
                    selector.unregister(key.fileobj)


def _failed(process: Process, reason: str) -> CommandError:
    command = " ".join(" ".join(process.args).split())
    shown = command if len(command) <= 80 else f"{command[:80]}..."
    return CommandError(
        f"{process.host}: the state hook `{shown}`: {reason}; the old service stays",
        object=process.host,
        remedy="run the program of the state hook by hand on the host",
    )
