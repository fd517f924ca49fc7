#!/usr/bin/env python3
"""A service moves with its state. It counts the client's datagrams, and no datagram is lost or counted twice.

  client - bs1 ------ 8 ms ------ bs2 - e2        the client changes its base station, the service follows
            |                                     with its state hook, which carries the count
           e1

First the state hook hangs: the old service stays. Then it works.

  sudo python3 python/examples/state.py
"""

import subprocess
import time

import myelin

SERVICE = "10.0.0.100"
PORT, CONTROL, STORE = 9000, 9001, 9002
# The service, and the programs of its state hook: `serve`, `serve waits`, `export HOST`, `store`.
PROGRAM = f"""
import select, socket, sys

def serve(*waits):
    service = socket.socket(type=socket.SOCK_DGRAM)
    service.bind(("{SERVICE}", {PORT}))
    control = socket.create_server(("", {CONTROL}))
    count, is_waiting = 0, bool(waits)
    print("serves", flush=True)
    while True:
        ready, _, _ = select.select([control] if is_waiting else [service, control], [], [])
        if service in ready:
            data, client = service.recvfrom(2048)
            count += 1
            service.sendto(data[:4] + count.to_bytes(4, "big"), client)
        elif control in ready:
            peer, _ = control.accept()
            with peer:
                request, *number = peer.makefile().readline().split()
                if request == "state":
                    count, is_waiting = int(number[0]), False
                    peer.sendall(b"stored")
                else:
                    # Serves on when the state hook has ended.
                    peer.sendall(str(count).encode())
                    peer.recv(1)

def export(host):
    with socket.create_connection((host, {STORE})) as store:
        print("ready", flush=True)
        sys.stdin.readline()
        # The packets are steered: the service has answered all that it will get.
        with socket.create_connection(("localhost", {CONTROL})) as service:
            service.sendall(b"export\\n")
            store.sendall(service.recv(64) + b"\\n")
            sys.stdin.read()

def store():
    server = socket.create_server(("", {STORE}))
    print("ready", flush=True)
    peer, _ = server.accept()
    state = peer.makefile().readline()
    with socket.create_connection(("localhost", {CONTROL})) as service:
        service.sendall(b"state " + state.encode())
        assert service.recv(64) == b"stored"

globals()[sys.argv[1]](*sys.argv[2:])
"""
# Sends a datagram each 10 ms, until its input ends. Prints: sent, answered, counted by the service.
CLIENT = f"""
import select, socket, sys, time
sent, answered, counted = 0, 0, 0
with socket.socket(type=socket.SOCK_DGRAM) as client:
    client.connect(("{SERVICE}", {PORT}))
    is_asked, last = True, time.monotonic()
    while is_asked or (answered < sent and time.monotonic() - last < 2):
        if is_asked:
            client.send(sent.to_bytes(4, "big"))
            sent, last = sent + 1, time.monotonic()
        until = time.monotonic() + 0.01
        while (left := until - time.monotonic()) > 0:
            ready, _, _ = select.select([client, *([sys.stdin] if is_asked else [])], [], [], left)
            if client in ready:
                answered, counted = answered + 1, int.from_bytes(client.recv(2048)[4:], "big")
            if sys.stdin in ready:
                is_asked = False
print(sent, answered, counted)
"""


def run(*role: str) -> list[str]:
    """The command for a role of the program."""
    return ["python3", "-c", PROGRAM, *role]


def start(host: myelin.Host, *role: str) -> myelin.Container:
    """Starts the service in a container."""
    service = host.add_container("service", command=run("serve", *role), cpu="0.25cores")
    while "serves" not in service.logs():
        time.sleep(0.01)
    return service


def main() -> None:
    with myelin.Network() as net:
        bs1, bs2 = net.add_switch("bs1"), net.add_switch("bs2")
        client, e1, e2 = net.add_host("client"), net.add_host("e1"), net.add_host("e2")
        net.add_link(bs1, bs2, delay="8ms")
        for host, station in ((client, bs1), (e1, bs1), (e2, bs2)):
            net.add_link(host, station)
        net.start()
        steering = myelin.Steering(net, client, SERVICE, PORT)
        steering.prepare(e1, e2)

        old = start(e1)
        steering.to(e1)
        user = client.popen(["python3", "-c", CLIENT], stdin=subprocess.PIPE)
        client.move(bs2)

        new = start(e2, "waits")
        try:
            myelin.move_state(e1, e2, myelin.StateHook(export="sleep 1000", store=run("store")), steering, timeout_s=2)
        except myelin.CommandError as error:
            print(error)
        print("the service is on", steering.at)
        hook = myelin.StateHook(export=run("export", e2.address), store=run("store"))
        took_ms = myelin.move_state(e1, e2, hook, steering)
        print("the service is on", steering.at)
        print(f"{took_ms:.0f} ms to steer and to move the state")
        old.remove()

        output, _ = user.communicate(b"end\n")
        sent, answered, counted = map(int, (output or b"").split())
        print(f"the client sent {sent} datagrams, {answered} were answered, {counted} counted")
        new.remove()


if __name__ == "__main__":
    main()
