"""Makes and removes a star of hosts with the package `myelin`, and runs commands on a host. Prints
the times in ms and the memory of its process in MiB: up, down, memory, `true`, `/bin/true`.

    myelin-star.py NAME HOSTS COMMANDS    an agent runs in MYELIN_RUN_DIR
"""

import os
import statistics
import sys
import time

import myelin


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


name, hosts, commands = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
start = time.monotonic()
net = myelin.Network(name)
switch = net.add_switch("s1")
for number in range(1, hosts + 1):
    net.add_link(net.add_host(f"h{number}"), switch)
net.start()
up = time.monotonic()
memory_kib = proportional_kib(os.getpid())
first = net.host("h1")
cmd_ms, program_ms = (median_ms(first, command) for command in ("true", "/bin/true"))
before = time.monotonic()
net.stop()
down = time.monotonic()
print((up - start) * 1e3, (down - before) * 1e3, memory_kib / 1024, cmd_ms, program_ms)
