"""Forwards IPv4 packets from one interface to another, and XORs the payload of UDP:
`python-forward.py FROM TO KEY`. Prints a line when it forwards."""

import gc
import socket
import sys

ETH_P_IP = 0x0800
# Ethernet, IPv4 without options, UDP.
CHECKSUM, PAYLOAD = slice(40, 42), 42


def open_socket(interface, protocol):
    # Bound before it takes packets: protocol 0 takes none.
    opened = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    opened.bind((interface, protocol))
    return opened


def main():
    receiver = open_socket(sys.argv[1], ETH_P_IP)
    sender = open_socket(sys.argv[2], 0)
    key = int(sys.argv[3])
    altered = bytes(byte ^ key for byte in range(256))
    buffer = bytearray(2048)
    view = memoryview(buffer)
    receive, send = receiver.recv_into, sender.send
    gc.disable()
    print("ready", flush=True)
    while True:
        length = receive(buffer)
        # UDP over IPv4 may have no checksum, which is the fastest correct one.
        buffer[CHECKSUM] = b"\0\0"
        buffer[PAYLOAD:length] = buffer[PAYLOAD:length].translate(altered)
        send(view[:length])


main()
