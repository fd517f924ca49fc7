#!/usr/bin/env python3
"""A network of two switches and three hosts, measured and changed while it runs.

  sudo python3 python/examples/walkthrough.py
"""

import myelin


def main() -> None:
    with myelin.Network() as net:
        h1, h2, h3 = (net.add_host(name) for name in ("h1", "h2", "h3"))
        s1, s2 = net.add_switch("s1"), net.add_switch("s2")
        net.add_link(h1, s1)
        net.add_link(h2, s1, delay="5ms")
        net.add_link(s1, s2, bandwidth="100Mbit")
        net.add_link(h3, s2)
        net.start()

        print(h1.cmd("ip -brief address show eth0").strip())
        print(net.ping_all())
        print(f"h1 to h3: {net.iperf(h1, h3, seconds=1).received_bps / 1e6:.0f} Mbit/s")

        net.link(h2, s1).set(delay="20ms")
        print(f"h1 to h2: {net.ping(h1, h2).rtt_mean_ms:.0f} ms")

        net.link(s1, s2).down()
        print(f"link down: {net.ping(h1, h3, timeout_s=1).received} answers")
        h3.move(s1)
        print(f"h3 moved: {net.ping(h1, h3, count=3).received} answers")


if __name__ == "__main__":
    main()
