#!/usr/bin/env python3
"""A star of hosts around one switch, and the time that it takes.

  sudo python3 python/examples/star.py [HOSTS]
"""

import sys
import time

import myelin


def main(count: int) -> None:
    start = time.perf_counter()
    with myelin.Network() as net:
        switch = net.add_switch("s1")
        for number in range(1, count + 1):
            net.add_link(net.add_host(f"h{number}"), switch)
        net.start()
        up = time.perf_counter()
        answers = net.ping("h1", f"h{count}").received
        measured = time.perf_counter()
    end = time.perf_counter()
    print(f"{count} hosts: up {up - start:.2f} s, stop {end - measured:.2f} s, {answers} answer")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100)
