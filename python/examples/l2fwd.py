#!/usr/bin/env python3
"""A chain of unmodified DPDK programs between two emulated hosts: layer-2 forwarding, as DPDK's sample l2fwd does it.

  h1 --- s1 --[ l2fwd-1 ]--[ l2fwd-2 ]-- s1 --- h2

Debian ships no l2fwd, but testpmd (package dpdk-dev). Its mode `mac` forwards as l2fwd: a frame leaves with the
address of the port as its source, and with a given destination. Packet sockets carry the frames, so no hugepages and
no driver are necessary. Each program polls: it occupies a core.

  sudo python3 python/examples/l2fwd.py
"""

import subprocess

import myelin

PORT = 9000
COUNT = 100
# Prints the source addresses of the Ethernet frames with datagrams for the port, and their number.
RECEIVER = f"""
import socket
link = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0800))
link.settimeout(20)
print("listens", flush=True)
sources, received = set(), 0
try:
    while received < {COUNT}:
        frame = link.recv(2048)
        if frame[23] == 17 and frame[36:38] == ({PORT}).to_bytes(2, "big"):
            sources.add(frame[6:12].hex(":"))
            received += 1
except TimeoutError:
    pass
print(received, *sources)
"""
SENDER = f"""
import socket, sys, time
sender = socket.socket(type=socket.SOCK_DGRAM)
for _ in range({COUNT}):
    sender.sendto(b"hello", (sys.argv[1], {PORT}))
    time.sleep(0.02)
"""


def l2fwd(name: str, destination_mac: str) -> myelin.Function:
    """The function that forwards frames to an Ethernet address."""
    environment = ["--no-huge", "--no-shconf", "--no-pci", "--no-telemetry", "--lcores=0,1", "-m64"]
    devices = ["--vdev=net_af_packet0,iface={ingress}", "--vdev=net_af_packet1,iface={egress}"]
    forwarding = ["--forward-mode=mac", f"--eth-peer=1,{destination_mac}", "--total-num-mbufs=4096", "--auto-start"]
    # Keep the packets that arrive before the start, and run on after the end of standard input.
    running = ["--no-flush-rx", "--stats-period=3600"]
    command = ["dpdk-testpmd", *environment, *devices, "--", *forwarding, *running]
    return myelin.Function(name, "external", {"command": command, "startup": "20s"})


def main() -> None:
    with myelin.Network() as net:
        h1, h2, s1 = net.add_host("h1"), net.add_host("h2"), net.add_switch("s1")
        net.add_link(h1, s1)
        net.add_link(h2, s1)
        h1.require("dpdk-testpmd", package="dpdk-dev")
        net.start()
        macs = {host.name: host.cmd("cat /sys/class/net/eth0/address", check=True).strip() for host in (h1, h2)}
        match = {"protocol": "udp", "destination": f"{h2.address}/32", "destinationPort": PORT}
        functions = [l2fwd("l2fwd-1", macs["h2"]), l2fwd("l2fwd-2", macs["h2"])]
        chain = myelin.Chain(f"{net.name}-l2fwd", match=match, functions=functions, ports=(h1, h2))
        (up,) = net.up(chain, force=True)
        print("mapping", up.plan.mapping)

        receiver = h2.popen(["python3", "-c", RECEIVER], stderr=subprocess.STDOUT)
        assert receiver.stdout is not None
        receiver.stdout.readline()
        h1.cmd(["python3", "-c", SENDER, h2.address], check=True)
        received, *sources = receiver.communicate()[0].decode().split()  # type: ignore[union-attr]
        print(f"h2 receives {received} of {COUNT} frames")
        print(f"their source is that of h1: {macs['h1'] in sources}")
        (status,) = [one for one in net.client.ps() if one.chain == chain.name]
        for hop in status.hops:
            print(f"{hop.name}: {hop.packets_in} packets in")
        if int(received) < COUNT or macs["h1"] in sources or any(hop.packets_in < COUNT for hop in status.hops):
            raise SystemExit("both programs must forward each frame, and write a new source into it")


if __name__ == "__main__":
    main()
