"""Makes and removes a star of hosts with Mininet, and runs commands on a host. Prints the times in
ms and the memory of its processes in MiB: up, down, memory, `true`, `/bin/true`.

    mininet-star.py HOSTS COMMANDS
"""

import os
import statistics
import sys
import time

from mininet.log import setLogLevel
from mininet.net import Mininet
from mininet.nodelib import LinuxBridge
from mininet.topo import SingleSwitchTopo


def proportional_kib(pid):
    with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as rollup:
        return sum(int(line.split()[1]) for line in rollup if line.startswith("Pss:"))


def median_ms(host, command):
    times = []
    for _ in range(commands):
        before = time.monotonic()
        host.cmd(command)
        times.append(time.monotonic() - before)
    return statistics.median(times) * 1e3


hosts, commands = int(sys.argv[1]), int(sys.argv[2])
setLogLevel("error")
start = time.monotonic()
net = Mininet(topo=SingleSwitchTopo(hosts), switch=LinuxBridge, controller=None)
net.start()
up = time.monotonic()
shells = [node.shell.pid for node in net.hosts + net.switches]
memory_kib = sum(proportional_kib(pid) for pid in [os.getpid(), *shells])
first = net["h1"]
cmd_ms, program_ms = (median_ms(first, command) for command in ("true", "/bin/true"))
before = time.monotonic()
net.stop()
down = time.monotonic()
print((up - start) * 1e3, (down - before) * 1e3, memory_kib / 1024, cmd_ms, program_ms)
