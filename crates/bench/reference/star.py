"""Makes and removes a star of hosts, and runs commands on a host. Prints the times in ms and the
memory of its processes in MiB: up, down, memory, `true`, `/bin/true`.

    star.py HOSTS COMMANDS         with Mininet
    star.py HOSTS COMMANDS NAME    with the package `myelin`; an agent runs in MYELIN_RUN_DIR
"""

import os
import statistics
import sys
import time

hosts, commands = int(sys.argv[1]), int(sys.argv[2])
if sys.argv[3:]:
    import myelin
else:
    from mininet.log import setLogLevel
    from mininet.net import Mininet
    from mininet.nodelib import LinuxBridge
    from mininet.topo import SingleSwitchTopo

    setLogLevel("error")


def make():
    if not sys.argv[3:]:
        return Mininet(topo=SingleSwitchTopo(hosts), switch=LinuxBridge, controller=None)
    star = myelin.Network(sys.argv[3])
    switch = star.add_switch("s1")
    for number in range(1, hosts + 1):
        star.add_link(star.add_host(f"h{number}"), switch)
    return star


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


start = time.monotonic()
net = make()
net.start()
up = time.monotonic()
# Mininet has a process for each host and switch.
shells = [] if sys.argv[3:] else [node.shell.pid for node in net.hosts + net.switches]
first = net.host("h1") if sys.argv[3:] else net["h1"]
memory_kib = sum(proportional_kib(pid) for pid in [os.getpid(), *shells])
cmd_ms, program_ms = (median_ms(first, command) for command in ("true", "/bin/true"))
before = time.monotonic()
net.stop()
down = time.monotonic()
print((up - start) * 1e3, (down - before) * 1e3, memory_kib / 1024, cmd_ms, program_ms)
