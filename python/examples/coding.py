#!/usr/bin/env python3
"""Network coding over a lossy link: datagrams without and with it, over the same network.

  h1 --- s1 --- r1 ~~~ loses 10 % ~~~ r2 --- s2 --- h2
            ^                            ^
      chain `encode`                chain `decode`

The routers r1 and r2 know nothing of the code. The encoder sends a combination of the last packets after each second
packet; from it the decoder recovers a lost packet, without asking the sender.

  sudo python3 python/examples/coding.py
"""

import myelin

COUNT = 2000
RECEIVER = """
import socket, sys
receiver = socket.socket(type=socket.SOCK_DGRAM)
receiver.bind(("", 9000))
print("listens", flush=True)
numbers, last = set(), int(sys.argv[1])
receiver.settimeout(20)
try:
    while (number := int.from_bytes(receiver.recv(2048)[:4], "big")) < last:
        numbers.add(number)
except TimeoutError:
    pass
print(len(numbers))
"""
# Numbered datagrams of 1000 bytes, one each millisecond; then the end, again and again, because the link loses some.
SENDER = """
import socket, sys, time
sender, last = socket.socket(type=socket.SOCK_DGRAM), int(sys.argv[2])
for number in [*range(last), *[last] * 20]:
    sender.sendto(number.to_bytes(4, "big") + bytes(996), (sys.argv[1], 9000))
    time.sleep(0.001 if number < last else 0.05)
"""


def build(net: myelin.Network) -> tuple[myelin.Host, myelin.Host, myelin.Host, myelin.Host]:
    """Builds two subnets with a router each, and a lossy link between the routers."""
    h1, h2 = net.add_host("h1", address="10.1.0.1/24"), net.add_host("h2", address="10.2.0.1/24")
    r1, r2 = net.add_host("r1", address="10.1.0.254/24"), net.add_host("r2", address="10.2.0.254/24")
    s1, s2 = net.add_switch("s1"), net.add_switch("s2")
    for host, switch in ((h1, s1), (r1, s1), (r2, s2), (h2, s2)):
        net.add_link(host, switch)
    net.add_link(r1, r2, loss="10%")
    net.start()
    for host, gateway in ((h1, "10.1.0.254"), (h2, "10.2.0.254")):
        host.cmd(f"ip route add default via {gateway}", check=True)
    for router, own, other, subnet in ((r1, 1, 2, "10.2.0.0/24"), (r2, 2, 1, "10.1.0.0/24")):
        router.cmd(
            f"sysctl -q net.ipv4.ip_forward=1 && ip address add 10.3.0.{own}/24 dev eth1 && "
            f"ip route add {subnet} via 10.3.0.{other}",
            check=True,
        )
    return h1, r1, r2, h2


def lost_percent(h1: myelin.Host, h2: myelin.Host) -> float:
    """Sends the datagrams; returns how many are lost."""
    with h2.popen(["python3", "-c", RECEIVER, str(COUNT)]) as receiver:
        assert receiver.stdout is not None
        receiver.stdout.readline()
        h1.cmd(["python3", "-c", SENDER, h2.address, str(COUNT)], check=True)
        received = int(receiver.stdout.readline())
    return 100 * (COUNT - received) / COUNT


def main() -> None:
    with myelin.Network() as net:
        h1, r1, r2, h2 = build(net)
        while net.ping(h1, h2, timeout_s=1).received == 0:
            pass
        plain = lost_percent(h1, h2)
        print(f"without coding: {plain:.1f} % lost")

        match = {"protocol": "udp", "destination": f"{h2.address}/32", "destinationPort": 9000}
        encoder = myelin.Function("encoder", "rlnc-encode", {"window": 16, "redundancy": 0.5})
        decoder = myelin.Function("decoder", "rlnc-decode", {"delivery": "in-order", "timeout": "100ms"})
        net.up(
            myelin.Chain(f"{net.name}-encode", match=match, functions=[encoder], ports=(h1, r1)),
            myelin.Chain(f"{net.name}-decode", match=match, functions=[decoder], ports=(r2, h2)),
            force=True,
        )
        coded = lost_percent(h1, h2)
        print(f"with coding: {coded:.1f} % lost")
        if not coded < plain / 4:
            raise SystemExit("the code does not recover what the link loses: most datagrams must arrive")
        (decoding,) = [status for status in net.client.ps() if status.chain == f"{net.name}-decode"]
        print(f"the decoder recovered {decoding.hops[0].counters['recovered']} datagrams")


if __name__ == "__main__":
    main()
