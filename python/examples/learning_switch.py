#!/usr/bin/env python3
"""A learning switch in software: two OpenFlow switches, and their controller as a program on the host c0.

  h1 - s1 - s2 - h2          c0: os-ken with examples/openflow/learning_switch.py

Without the controller the switches forward nothing. The controller sees the first frames, learns the port of each
station, and gives the switches flows. Then the switches forward without it.

  sudo python3 python/examples/learning_switch.py
"""

import subprocess
import time
from pathlib import Path

import myelin

PORT = 6653
PROGRAM = Path(__file__).resolve().parents[2] / "examples/openflow/learning_switch.py"


def states(net: myelin.Network) -> list[str]:
    """Whether each switch has reached its controller."""
    return [switch.controller.state for switch in net.read_status().switches if switch.controller is not None]


def flows(net: myelin.Network, switch: str) -> list[str]:
    """The flows of a switch that name a station, as Open vSwitch prints them."""
    socket = f"unix:{net.client.run_dir}/{net.name}.openflow/{switch}.mgmt"
    command = ["ovs-ofctl", "--protocols=OpenFlow13", "--no-stats", "dump-flows", socket]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return sorted(line.strip() for line in printed.splitlines() if "dl_dst" in line)


def count_answers(net: myelin.Network, when: str, expected: int) -> None:
    """Prints how many answers of `expected` pings h1 receives, of one ping if none is expected."""
    received = net.ping("h1", "h2", count=max(1, expected), timeout_s=5 if expected else 1).received
    print(f"{when}: {received} answers")
    if received != expected:
        raise SystemExit(f"{when}, h1 must receive {expected} answers of h2")


def main() -> None:
    with myelin.Network() as net:
        h1, h2, c0 = net.add_host("h1"), net.add_host("h2"), net.add_host("c0")
        s1, s2 = (net.add_switch(name, openflow=f"tcp:c0:{PORT}") for name in ("s1", "s2"))
        net.add_link(h1, s1)
        net.add_link(s1, s2, delay="1ms")
        net.add_link(s2, h2)
        c0.require("osken-manager", package="python3-os-ken")
        net.start()
        count_answers(net, "without a controller", 0)

        controller = c0.popen(["osken-manager", "--ofp-tcp-listen-port", str(PORT), str(PROGRAM)], stdout=subprocess.DEVNULL)
        while states(net) != ["connected", "connected"]:
            if controller.poll() is not None:
                raise SystemExit("osken-manager ended")
            time.sleep(0.1)
        if not any(net.ping(h1, h2, timeout_s=1).received for _ in range(60)):
            raise SystemExit("h1 does not reach h2: the controller gives no flows")
        count_answers(net, "with the controller", 3)
        for switch in ("s1", "s2"):
            learned = flows(net, switch)
            print(f"{switch} has learned {len(learned)} flows:", *learned, sep="\n  ")
            if len(learned) != 2:
                raise SystemExit(f"{switch} must have a flow for each direction between h1 and h2")

        controller.end()
        count_answers(net, "the controller has ended", 3)


if __name__ == "__main__":
    main()
