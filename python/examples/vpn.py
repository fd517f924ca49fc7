#!/usr/bin/env python3
"""A virtual private network between two hosts, with Debian's wireguard-go. The middle carries it and cannot read it.

  h1 (10.9.0.1 in the tunnel) --- s1 ==== chains ==== s1 --- h2 (10.9.0.2 in the tunnel)

A chain in each direction counts the datagrams of the tunnel. A capture at the link of h2 has the bytes that the middle
carries: of a message without the tunnel, then of the same message in it.

  sudo python3 python/examples/vpn.py
"""

import os
import select
import subprocess
import tempfile
from pathlib import Path

import myelin

PORT = 51820
MESSAGE = "the treasure is under the oak"
RECEIVER = """
import socket
receiver = socket.socket(type=socket.SOCK_DGRAM)
receiver.bind(("", 9000))
print("listens", flush=True)
print(receiver.recv(2048).decode())
"""
SENDER = 'import socket, sys; socket.socket(type=socket.SOCK_DGRAM).sendto(sys.argv[2].encode(), (sys.argv[1], 9000))'


class Tunnel:
    """One end of the tunnel: wireguard-go on a host."""

    def __init__(self, host: myelin.Host, address: str) -> None:
        self.host, self.address = host, address
        # The configuration socket has the interface's name, and all hosts share the machine's files.
        self.interface = f"wg{os.getpid()}{host.name[-1]}"
        self.key = host.cmd("wg genkey", check=True).strip()
        self.public = host.cmd(f"echo {self.key} | wg pubkey", check=True).strip()
        self.daemon = host.popen(["wireguard-go", "--foreground", self.interface], stdout=subprocess.DEVNULL)

    def join(self, other: "Tunnel") -> None:
        """Tells the daemon its key and the other end."""
        while self.host.run(f"wg show {self.interface}").returncode != 0:
            if self.daemon.poll() is not None:
                raise SystemExit(f"wireguard-go ended with status {self.daemon.returncode}")
        peer = f"peer {other.public} endpoint {other.host.address}:{PORT} allowed-ips {other.address}/32"
        self.host.cmd(
            f"echo {self.key} | wg set {self.interface} listen-port {PORT} private-key /dev/stdin {peer};"
            f"ip address add {self.address}/24 dev {self.interface}; ip link set {self.interface} up",
            check=True,
        )

    def end(self) -> None:
        """Ends the daemon, which removes its interface and its socket."""
        self.daemon.terminate()
        self.daemon.wait()


def send(sender: myelin.Host, receiver: myelin.Host, address: str) -> str:
    """Sends the message to an address of the receiver; returns what arrives."""
    with receiver.popen(["python3", "-c", RECEIVER]) as program:
        assert program.stdout is not None
        program.stdout.readline()
        # A datagram may be lost, so the sender repeats it.
        for _ in range(30):
            sender.cmd(["python3", "-c", SENDER, address, MESSAGE], check=True)
            if select.select([program.stdout], [], [], 1)[0]:
                return program.stdout.readline().decode().strip()
        program.kill()
    raise SystemExit(f"no datagram from {sender.name} arrives at {address}")


def send_captured(net: myelin.Network, address: str) -> bytes:
    """Sends the message; returns the capture of the link."""
    with tempfile.TemporaryDirectory() as directory:
        pcap = Path(directory, "middle.pcap")
        with net.link("h2", "s1").capture(pcap):
            print(f"h2 receives: {send(net.host('h1'), net.host('h2'), address)}")
        return pcap.read_bytes()


def chain(name: str, source: myelin.Host, destination: myelin.Host) -> myelin.Chain:
    """Takes the tunnel's datagrams of one direction."""
    match = {"protocol": "udp", "destination": f"{destination.address}/32", "destinationPort": PORT}
    return myelin.Chain(name, match=match, functions=[myelin.Function("count", "monitor", space="kernel")], ports=(source, destination))


def main() -> None:
    with myelin.Network() as net:
        h1, h2, s1 = net.add_host("h1"), net.add_host("h2"), net.add_switch("s1")
        net.add_link(h1, s1)
        net.add_link(h2, s1)
        h1.require("wireguard-go")
        h1.require("wg", package="wireguard-tools")
        net.start()
        net.up(chain(f"{net.name}-to", h1, h2), chain(f"{net.name}-back", h2, h1), force=True)

        if MESSAGE.encode() not in send_captured(net, h2.address):
            raise SystemExit("the capture lacks the message that passed without the tunnel")
        print("the middle reads the message: True")

        ends = [Tunnel(h1, "10.9.0.1"), Tunnel(h2, "10.9.0.2")]
        try:
            ends[0].join(ends[1])
            ends[1].join(ends[0])
            seen = send_captured(net, ends[1].address)
        finally:
            for end in ends:
                end.end()
        if MESSAGE.encode() in seen:
            raise SystemExit("the middle reads the message that passed in the tunnel: it is not encrypted")
        print("the middle reads the message in the tunnel: False")
        for status in net.client.ps():
            if status.chain.startswith(net.name):
                name = status.chain.removeprefix(net.name + "-")
                print(f"{name}: {status.packets_in} encrypted datagrams in, {status.packets_out} out")
                if status.packets_in == 0 or status.packets_out < status.packets_in:
                    raise SystemExit(f"the chain `{name}` does not carry the datagrams of the tunnel")


if __name__ == "__main__":
    main()
