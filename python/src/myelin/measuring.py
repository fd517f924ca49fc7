"""Pings and throughput between machines."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING, Optional

from . import _requests
from ._command import communicate
from .errors import bad_argument
from .machine import Machine
from .process import Process
from .results import Iperf, Ping

if TYPE_CHECKING:
    from dataclasses import dataclass
else:
    from ._record import dataclass


@dataclass(frozen=True)
class Target:
    """What a machine measures: the way to an address."""

    source: str
    machine: Machine
    destination: str
    address: str


def check_ping(count: int, timeout_s: float) -> None:
    """Checks the arguments of `ping`."""
    if not isinstance(count, int) or count < 1:
        raise bad_argument("count", count, "a number of packets", "write a whole number from 1 on")
    if not isinstance(timeout_s, (int, float)) or not 0 < timeout_s <= 3600:
        raise bad_argument("timeout_s", timeout_s, "a time from 0 to 3600 s", "write a number of seconds")


def ping(targets: list[Target], *, count: int, timeout_s: float) -> list[Ping]:
    """Pings all targets at the same time."""
    check_ping(count, timeout_s)
    started: list[tuple[Target, Process]] = []
    try:
        for target in targets:
            target.machine.require("ping")
            command = ["ping", "-n", "-q", "-i", "0.2", "-c", str(count), "-W", f"{timeout_s:g}", target.address]
            started.append((target, target.machine.popen(command)))
        limit = 30.0 + count * (timeout_s + 0.2)
        outputs = [communicate(process, f"{target.machine.path}: ping", limit) for target, process in started]
    except BaseException:
        for _, process in started:
            process.end()
        raise
    return [
        Ping.parse(target.source, target.destination, output.decode(errors="replace"), count)
        for (target, _), output in zip(started, outputs)
    ]


def check_iperf(seconds: int, rate: Optional[str]) -> Optional[int]:
    """Checks the arguments of `iperf`, and returns the rate in bits a second."""
    if not isinstance(seconds, int) or not 1 <= seconds <= 3600:
        raise bad_argument("seconds", seconds, "1 to 3600", "write a whole number of seconds, as iperf3 takes it")
    return None if rate is None else _requests.parse_quantity("rate", rate, "bit rate")


def iperf(target: Target, server: Machine, *, seconds: int, udp: bool, rate: Optional[str]) -> Iperf:
    """Measures the throughput to a server with iperf3."""
    bps = check_iperf(seconds, rate)
    options = ["-t", str(seconds), "-J", *(["-u"] if udp else []), *(["-b", str(bps)] if bps else [])]
    client = target.machine
    client.require("iperf3")
    listening = server.popen(["iperf3", "-s", "-1", "--forceflush"])
    try:
        assert listening.stdout is not None
        for line in listening.stdout:
            if b"listening" in line:
                break
        sender = client.popen(["iperf3", "-c", target.address, *options], stderr=subprocess.STDOUT)
        output = communicate(sender, f"{client.path}: iperf3", seconds + 60)
    finally:
        listening.end()
        if listening.stdout is not None:
            listening.stdout.close()
    protocol = "udp" if udp else "tcp"
    return Iperf.parse(target.source, target.destination, protocol, output.decode(errors="replace"))
