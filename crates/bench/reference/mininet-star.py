"""Makes and removes a star of N hosts with Mininet. Prints both times in ms, and the memory of its
processes in MiB."""

import os
import sys
import time

from mininet.log import setLogLevel
from mininet.net import Mininet
from mininet.nodelib import LinuxBridge
from mininet.topo import SingleSwitchTopo


def proportional_kib(pid):
    with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as rollup:
        return sum(int(line.split()[1]) for line in rollup if line.startswith("Pss:"))


setLogLevel("error")
start = time.monotonic()
net = Mininet(topo=SingleSwitchTopo(int(sys.argv[1])), switch=LinuxBridge, controller=None)
net.start()
up = time.monotonic()
shells = [node.shell.pid for node in net.hosts + net.switches]
memory_kib = sum(proportional_kib(pid) for pid in [os.getpid(), *shells])
before = time.monotonic()
net.stop()
down = time.monotonic()
print((up - start) * 1e3, (down - before) * 1e3, memory_kib / 1024)
