#!/usr/bin/env python3
"""A chain with a contract between two hosts of a network: its plan, and its figures under traffic.

  sudo python3 python/examples/contract.py
"""

import myelin


def main() -> None:
    with myelin.Network() as net:
        h1, h2, switch = net.add_host("h1"), net.add_host("h2"), net.add_switch("s1")
        net.add_link(h1, switch)
        net.add_link(h2, switch)
        net.start()
        chain = myelin.Chain(
            f"{net.name}-chain",
            match={"protocol": "udp", "destination": f"{h2.address}/32"},
            functions=[
                myelin.Function("filter", "firewall", {"rules": [{"action": "deny", "source": "192.0.2.0/24"}]}),
                myelin.Function("count", "monitor"),
            ],
            sla=myelin.Sla(rate="20kpps", burst=32, latency="500ms", loss="0.1%"),
            ports=(h1, h2),
        )
        (up,) = net.up(chain, force=True)
        print(f"deployed in {up.rendering_ms:.0f} ms, on {up.plan.hops[0].space} space")
        sender = "import socket, time; s = socket.socket(type=socket.SOCK_DGRAM)\nfor _ in range(500): s.sendto(b'x', ('{}', 9)); time.sleep(0.001)"
        h1.cmd(["python3", "-c", sender.format(h2.address)], check=True)
        (status,) = net.client.ps(chain.name)
        print(f"{status.packets_in} packets in, {status.packets_out} out")
        if status.sojourn is not None:
            print(f"99 % within {status.sojourn.p99_us:.0f} us")


if __name__ == "__main__":
    main()
