#!/usr/bin/env python3
"""An echo server as a function in the network: h1 - s1 - s2 - h2. The server is a container with a quarter of a core.

  sudo python3 python/examples/echo.py
"""

import myelin

SERVER = """
import socket
server = socket.create_server(("", 65000))
print("listens", flush=True)
while True:
    peer, address = server.accept()
    print(f"a call from {address[0]}", flush=True)
    with peer:
        while data := peer.recv(4096):
            peer.sendall(data)
"""
CLIENT = """
import socket, sys
with socket.create_connection((sys.argv[1], 65000)) as peer:
    peer.sendall(sys.argv[2].encode())
    print(peer.recv(4096).decode())
"""


def main() -> None:
    with myelin.Network() as net:
        h1, h2 = net.add_host("h1"), net.add_host("h2", cpu="0.5cores", memory="128MiB")
        s1, s2 = net.add_switch("s1"), net.add_switch("s2")
        net.add_link(h1, s1, delay="5ms", bandwidth="10Mbit")
        net.add_link(s1, s2, delay="5ms", bandwidth="10Mbit")
        net.add_link(s2, h2)
        net.start()
        server = h2.add_container("echo", command=["python3", "-c", SERVER], cpu="0.25cores")
        while "listens" not in server.logs():
            if not server.is_running:
                raise SystemExit(f"the server ended: {server.logs()}")
        print("the answer:", h1.cmd(["python3", "-c", CLIENT, h2.address, "hello"], check=True).strip())
        print(server.logs().splitlines()[-1])
        server.remove()


if __name__ == "__main__":
    main()
