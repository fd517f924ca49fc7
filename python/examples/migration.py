#!/usr/bin/env python3
"""Migration at the edge: a service follows its client, and avoids a busy server. The client notices nothing.

  client - bs1 ------ 8 ms ------ bs2        each server has a quarter of a core
           /|\\                    /|\\         an agent at each base station measures the latency
         e1 e2 a1              e3 e4 a2       of each server as an application sees it: by timestamps

The controller starts the service on the best server, steers the client's packets there, and removes the old one, in this
order. A chain hands the client's packets to the server; the answers pass the switches.

  sudo python3 python/examples/migration.py
"""

import subprocess
import time

import myelin

SERVICE = "10.0.0.100"
PORT = 9000
# Computes for each datagram, as a service does, and answers.
SERVER = f"""
import hashlib, socket, sys
service = socket.socket(type=socket.SOCK_DGRAM)
service.bind((sys.argv[1], {PORT}))
print("serves", flush=True)
while True:
    data, peer = service.recvfrom(2048)
    hashlib.sha256(bytes(20_000)).digest()
    service.sendto(data, peer)
"""
# Prints the median time from a request to its answer, ms: one slow answer does not make a server a slow one. A lost
# answer counts as 1 s.
AGENT = f"""
import socket, statistics, sys, time
times = []
with socket.socket(type=socket.SOCK_DGRAM) as probe:
    probe.settimeout(1)
    probe.connect((sys.argv[1], {PORT}))
    for number in range(20):
        time.sleep(0.02)
        start = time.monotonic_ns()
        probe.send(start.to_bytes(8, "big"))
        try:
            while probe.recv(2048) != start.to_bytes(8, "big"):
                pass
            times.append((time.monotonic_ns() - start) / 1e6)
        except OSError:
            times.append(1e3)
print(statistics.median(times))
"""
# Sends a datagram each 10 ms, until its input ends. Prints how many were answered.
CLIENT = f"""
import select, socket, sys, time
sent, answered = 0, set()
with socket.socket(type=socket.SOCK_DGRAM) as client:
    client.connect(("{SERVICE}", {PORT}))
    is_asked, last = True, time.monotonic()
    while is_asked or time.monotonic() - last < 2:
        if is_asked:
            client.send(sent.to_bytes(4, "big"))
            sent, last = sent + 1, time.monotonic()
        until = time.monotonic() + 0.01
        while (left := until - time.monotonic()) > 0:
            ready, _, _ = select.select([client, *([sys.stdin] if is_asked else [])], [], [], left)
            if client in ready:
                answered.add(client.recv(2048))
            if sys.stdin in ready:
                is_asked = False
print(sent, len(answered))
"""


class Controller:
    """Keeps the service on the best server."""

    def __init__(self, net: myelin.Network, client: myelin.Host, servers: list[myelin.Host]) -> None:
        self.net, self.servers = net, servers
        self.steering = myelin.Steering(net, client, SERVICE, PORT)
        self.at: myelin.Host | None = None

    def latencies(self, agent: myelin.Host) -> dict[str, float]:
        """Asks the agent for the latency of each server, ms."""
        probes = {one.name: agent.popen(["python3", "-c", AGENT, one.address]) for one in self.servers}
        return {name: float((probe.communicate()[0] or b"").strip()) for name, probe in probes.items()}

    def place(self, agent: myelin.Host) -> float:
        """Moves the service to the server that is best for this agent. Returns the time from decision to steered, ms."""
        latencies = self.latencies(agent)
        best = self.net.host(min(latencies, key=lambda name: latencies[name]))
        figures = ", ".join(f"{name} {latency:.1f} ms" for name, latency in latencies.items())
        print(f"{agent.name} measures {figures}", flush=True)
        if best is self.at:
            return 0.0
        start = time.perf_counter()
        service = best.add_container("service", command=["python3", "-c", SERVER, SERVICE], watch="0ms")
        while "serves" not in service.logs():
            time.sleep(0.01)
        self.steering.to(best)
        steered_ms = (time.perf_counter() - start) * 1e3
        print(f"the service runs on {best.name}: steered in {steered_ms:.0f} ms", flush=True)
        if self.at is not None:
            time.sleep(0.1)  # The old service answers what is under way.
            self.net.client.remove_container(self.at.path, "service")
        self.at = best
        return steered_ms


def main() -> None:
    with myelin.Network() as net:
        bs1, bs2 = net.add_switch("bs1"), net.add_switch("bs2")
        net.add_link(bs1, bs2, delay="8ms")
        client, a1, a2 = net.add_host("client"), net.add_host("a1"), net.add_host("a2")
        servers = [net.add_host(f"e{number}", cpu="0.25cores", memory="256MiB") for number in range(1, 5)]
        for station, hosts in ((bs1, [client, a1, *servers[:2]]), (bs2, [a2, *servers[2:]])):
            for host in hosts:
                net.add_link(host, station)
        net.start()
        controller = Controller(net, client, servers)
        controller.steering.prepare(*servers)
        # The agents probe these.
        probed = [server.popen(["python3", "-c", SERVER, server.address]) for server in servers]
        for one in probed:
            assert one.stdout is not None
            one.stdout.readline()  # Until it serves: a start in a quarter of a core would count as latency.
        controller.place(a1)
        user = client.popen(["python3", "-c", CLIENT], stdin=subprocess.PIPE)
        client.move(bs2)
        print("the client moves to bs2", flush=True)
        controller.place(a2)
        assert controller.at is not None
        load = controller.at.add_container("load", command="for _ in 1 2 3 4; do while :; do :; done & done; wait")
        while load.stats().throttled_periods + load.stats().cpu_s < 0.5:
            time.sleep(0.05)
        busy = controller.at
        print(f"{busy.name} is busy", flush=True)
        while controller.at is busy:
            controller.place(a2)
        output, _ = user.communicate(b"end\n")
        sent, answered = map(int, (output or b"").split())
        print(f"the client sent {sent} datagrams, {sent - answered} without an answer")


if __name__ == "__main__":
    main()
