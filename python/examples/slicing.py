#!/usr/bin/env python3
"""Slicing: two tenants share two switches and the link between them. Neither reaches the other, or takes its share.

  r1 --.                            .-- r2     tenant red
        s1 ------- 4 Mbit/s ------ s2          c0: os-ken with examples/openflow/slices.py
  b1 --'                            '-- b2     tenant blue

  sudo python3 python/examples/slicing.py
"""

import os
import subprocess
import time
from pathlib import Path
from typing import Optional

import myelin

PORT = 6653
PROGRAM = Path(__file__).resolve().parents[2] / "examples/openflow/slices.py"
# Sends ten datagrams of 1400 bytes each 4 ms: at most 28 Mbit/s.
FLOOD = """
import socket, sys, time
flood = socket.socket(type=socket.SOCK_DGRAM)
while True:
    for _ in range(10):
        flood.sendto(bytes(1400), (sys.argv[1], 9))
    time.sleep(0.004)
"""


def control(net: myelin.Network, rate_kbps: Optional[int] = None) -> myelin.Process:
    """Starts the controller, and waits until both slices work."""
    env = {**os.environ, **({} if rate_kbps is None else {"RATE_KBPS": str(rate_kbps)})}
    command = ["osken-manager", "--ofp-tcp-listen-port", str(PORT), str(PROGRAM)]
    controller = net.host("c0").popen(command, stdout=subprocess.DEVNULL, env=env)
    while any(one.controller and one.controller.state != "connected" for one in net.read_status().switches):
        if controller.poll() is not None:
            raise SystemExit("osken-manager ended")
        time.sleep(0.1)
    for pair in (("r1", "r2"), ("b1", "b2")):
        # The first packets of a station wait for its controller.
        if not any(net.ping(*pair, timeout_s=1).received for _ in range(60)):
            raise SystemExit(f"{pair[0]} does not reach {pair[1]}: the controller gives no flows")
    return controller


def blue_beside_flood(net: myelin.Network) -> int:
    """Pings 25 times in the slice of blue, while red sends more than the link carries. Returns the number of answers."""
    flood = net.host("r1").popen(["python3", "-c", FLOOD, net.host("r2").address])
    time.sleep(1)  # The queue of the link fills.
    ping = net.ping("b1", "b2", count=25, timeout_s=2)
    flood.end()
    print(f"blue receives {ping.received} of 25 answers, in a mean of {ping.rtt_mean_ms or 0:.1f} ms")
    return ping.received


def main() -> None:
    with myelin.Network() as net:
        s1, s2 = (net.add_switch(name, openflow=f"tcp:c0:{PORT}") for name in ("s1", "s2"))
        r1, b1, r2, b2, c0 = (net.add_host(name) for name in ("r1", "b1", "r2", "b2", "c0"))
        for host, switch in ((r1, s1), (b1, s1), (r2, s2), (b2, s2)):
            net.add_link(host, switch)
        # Each switch's third link: port 3.
        net.add_link(s1, s2, bandwidth="4Mbit", queue=50)
        c0.require("osken-manager", package="python3-os-ken")
        net.start()

        controller = control(net)
        reached = [name for name in ("r2", "b1", "b2") if net.ping("r1", name, timeout_s=1).received]
        print("red's r1 reaches", *reached)
        if reached != ["r2"]:
            raise SystemExit("the slices are not separate: red's r1 must reach r2 alone")
        print("red floods: ", end="", flush=True)
        beside = blue_beside_flood(net)
        controller.end()

        controller = control(net, rate_kbps=1500)
        print("red floods, 1.5 Mbit/s a slice: ", end="", flush=True)
        limited = blue_beside_flood(net)
        controller.end()
        if limited < 25 or beside == 25:
            raise SystemExit("the limit makes no difference: blue must lose answers without it, and none with it")


if __name__ == "__main__":
    main()
