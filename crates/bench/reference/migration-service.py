#!/usr/bin/env python3
"""A server of the experiment `migration`.

  migration-service.py ADDRESS CONTROL-PORT [waits]

Computes for each datagram at ADDRESS, and answers it with the number of datagrams so far: its state. Requests arrive at the
control port (TCP), a line each:

  send HOST PORT BYTES       sends that many bytes to the control port of another server
  export HOST PORT BYTES MS  answers the datagrams that are under way, pauses MS, and sends its state there, made up to BYTES.
                             Serves on if that fails
  store COUNT BYTES          from another server: takes the state. Datagrams that arrive meanwhile are answered afterwards

With `waits`, it serves no datagram before it has a state.
"""

import hashlib
import select
import socket
import sys
import time

PORT = 9000
# Longest wait for another server, s.
PATIENCE_S = 20

address, control_port, is_waiting = sys.argv[1], int(sys.argv[2]), sys.argv[3:] == ["waits"]
service = socket.socket(type=socket.SOCK_DGRAM)
service.bind((address, PORT))
control = socket.create_server(("", control_port))
count = 0


def answer(data, client):
    global count
    count += 1
    hashlib.sha256(bytes(20_000)).digest()
    service.sendto(data[:8] + count.to_bytes(8, "big"), client)


def read_line(peer):
    line = b""
    while not line.endswith(b"\n"):
        byte = peer.recv(1)
        if not byte:
            raise OSError("the peer has left")
        line += byte
    return line.decode().split()


def send(host, port, size):
    with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as peer:
        peer.sendall(f"store {count} {size}\n".encode() + bytes(int(size)))
        return read_line(peer)


def answer_all_under_way():
    service.settimeout(0.01)
    try:
        while True:
            answer(*service.recvfrom(2048))
    except TimeoutError:
        service.settimeout(None)


def store(peer, new_count, size):
    """Takes a state. Returns the datagrams that arrived meanwhile."""
    global count, is_waiting
    arrived = []
    while size > 0:
        ready, _, _ = select.select([peer, service], [], [], PATIENCE_S)
        if not ready:
            raise OSError("the state does not arrive")
        if service in ready:
            arrived.append(service.recvfrom(2048))
        if peer in ready:
            data = peer.recv(min(size, 1 << 17))
            if not data:
                raise OSError("the peer has left")
            size -= len(data)
    if is_waiting:
        count, is_waiting = new_count, False
    return arrived


def obey(peer):
    peer.settimeout(PATIENCE_S)
    request, *arguments = read_line(peer)
    arrived = []
    if request == "store":
        arrived = store(peer, int(arguments[0]), int(arguments[1]))
    elif request == "export":
        answer_all_under_way()
        time.sleep(int(arguments[3]) / 1e3)
        send(*arguments[:3])
    else:
        send(*arguments)
    peer.sendall(b"stored\n")
    for datagram in arrived:
        answer(*datagram)


print("serves", flush=True)
while True:
    for one in select.select([control] if is_waiting else [service, control], [], [])[0]:
        if one is service:
            answer(*service.recvfrom(2048))
            continue
        peer, _ = control.accept()
        with peer:
            try:
                obey(peer)
            except OSError as error:
                print(error, flush=True)
