"""Throughput between two hosts: TCP with iperf3, UDP with iperf as Mininet does. iperf3 has a TCP connection beside the
datagrams, which fails on a link with much loss.
"""

from __future__ import annotations

import re
from typing import Any, Optional

from ...errors import bad_argument
from ...measuring import Target, iperf
from .log import debug

# The server writes its report when the client's last datagram arrives. If all repetitions of that datagram are lost, the
# server writes its report at an interrupt.
_SILENCE_MS = 5000


def measure(
    client: Any, server: Any, l4Type: str, udpBw: str, fmt: Optional[str], seconds: int, port: int
) -> list[str]:
    """Returns the rates of server and client as text, for UDP after the rate that was asked."""
    if l4Type == "UDP":
        return [udpBw, *_measure_udp(client, server, udpBw, fmt, seconds, port)]
    if l4Type != "TCP":
        raise bad_argument("l4Type", l4Type, "a protocol", "write `TCP` or `UDP`")
    target = Target(client.name, client.machine, server.name, server.IP())
    measured = iperf(target, server.machine, seconds=seconds, udp=False, rate=None)
    return [_rate(measured.received_bps), _rate(measured.sent_bps)]


def _measure_udp(client: Any, server: Any, rate: str, fmt: Optional[str], seconds: int, port: int) -> list[str]:
    """Runs iperf in the shells of both hosts."""
    client.machine.require("iperf")
    common = f"iperf -u -p {port}" + (f" -f {fmt}" if fmt else "")
    server.sendCmd(f"{common} -s")
    received = ""
    while server.waiting and "listening" not in received:
        received += server.monitor()
    try:
        sent = client.cmd(f"{common} -c {server.IP()} -t {seconds} -b {rate}")
        while server.waiting and "/sec" not in received:
            part = server.monitor(timeoutms=_SILENCE_MS)
            if not part:
                break
            received += part
    finally:
        # A server that ended by itself left its shell at the prompt, which an interrupt would repeat.
        if server.waiting:
            server.sendInt()
            received += server.waitOutput()
    debug(f"Client output: {sent}\nServer output: {received}\n")
    return [_last_rate(received), _last_rate(sent)]


def _last_rate(output: str) -> str:
    """Returns the last rate that iperf wrote; '' if it wrote none."""
    rates = re.findall(r"[\d.]+ \w+/sec", output)
    return rates[-1] if rates else ""


def _rate(bps: float) -> str:
    """Writes a rate as iperf does."""
    return f"{bps / 1e9:.2f} Gbits/sec" if bps >= 1e9 else f"{bps / 1e6:.2f} Mbits/sec"
