"""Results of `Network.ping_all` and `Network.iperf`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Optional

from .errors import CommandError

if TYPE_CHECKING:
    from dataclasses import dataclass
else:
    from ._record import dataclass

if TYPE_CHECKING:
    import pandas

_COUNTS = re.compile(r"(\d+) packets transmitted, (\d+) (?:packets )?received")
_TIMES = re.compile(r"(?:rtt|round-trip) min/avg/max(?:/mdev)? = ([0-9.]+)/([0-9.]+)/([0-9.]+)")


@dataclass(frozen=True, kw_only=True)
class Ping:
    """The result of a ping between two hosts."""

    source: str
    destination: str
    sent: int
    received: int
    rtt_min_ms: Optional[float]
    rtt_mean_ms: Optional[float]
    rtt_max_ms: Optional[float]
    reason: str = ""
    """Why the source could send no packet."""

    @classmethod
    def unsent(cls, source: str, destination: str, count: int, reason: str) -> Ping:
        """Makes the result of a ping whose packets have no way: all are lost."""
        return cls(
            source=source, destination=destination, sent=count, received=0,
            rtt_min_ms=None, rtt_mean_ms=None, rtt_max_ms=None, reason=reason,
        )  # fmt: skip

    @classmethod
    def parse(cls, source: str, destination: str, output: str, count: int) -> Ping:
        """Parses the output of ping, which sends `count` packets."""
        counts = _COUNTS.search(output)
        if counts is None:
            last = (output.strip().splitlines() or ["no output"])[-1]
            if "unreachable" in last:
                return cls.unsent(source, destination, count, last)
            raise CommandError(f"{source}: ping {destination}: {last}", object=source)
        times = _TIMES.search(output)
        least, mean, most = (float(times[index]) if times else None for index in (1, 2, 3))
        return cls(
            source=source,
            destination=destination,
            sent=int(counts[1]),
            received=int(counts[2]),
            rtt_min_ms=least,
            rtt_mean_ms=mean,
            rtt_max_ms=most,
        )


@dataclass(frozen=True)
class Pings:
    """The results of all pings."""

    results: list[Ping]

    @property
    def sent(self) -> int:
        """Packets sent."""
        return sum(ping.sent for ping in self.results)

    @property
    def received(self) -> int:
        """Answers received."""
        return sum(ping.received for ping in self.results)

    @property
    def loss_percent(self) -> float:
        """The share of packets without an answer."""
        return 0.0 if self.sent == 0 else 100.0 * (self.sent - self.received) / self.sent

    def frame(self) -> pandas.DataFrame:
        """Returns the results as a frame (extra `frames`)."""
        from .frames import frame

        return frame(self.results)

    def __iter__(self) -> Iterator[Ping]:
        return iter(self.results)

    def __len__(self) -> int:
        return len(self.results)

    def __str__(self) -> str:
        rows: dict[str, list[str]] = {}
        for ping in self.results:
            rows.setdefault(ping.source, []).append(ping.destination if ping.received == ping.sent else "X")
        lines = [f"{source} -> {' '.join(reached)}" for source, reached in rows.items()]
        reasons = dict.fromkeys(f"{ping.source}: {ping.reason}" for ping in self.results if ping.reason)
        return "\n".join([*lines, *reasons, f"{self.loss_percent:.0f}% lost ({self.received}/{self.sent} received)"])


@dataclass(frozen=True, kw_only=True)
class Iperf:
    """The result of iperf3 between two hosts."""

    source: str
    destination: str
    protocol: str
    duration_s: float
    sent_bps: float
    received_bps: float
    loss_percent: Optional[float]
    """Only for UDP."""
    retransmits: Optional[int]
    """Only for TCP."""

    @classmethod
    def parse(cls, source: str, destination: str, protocol: str, output: str) -> Iperf:
        """Parses the JSON of iperf3."""
        try:
            report: dict[str, Any] = json.loads(output)
            if "error" in report:
                raise CommandError(f"{source}: iperf3 to {destination}: {report['error']}", object=source)
            end = report["end"]
            total = end.get("sum", {})
            sent, received = end.get("sum_sent", total), end.get("sum_received", total)
            received_bps = received["bits_per_second"]
            if protocol == "udp" and "sum_received" not in end:
                received_bps *= 1 - total["lost_percent"] / 100
            return cls(
                source=source,
                destination=destination,
                protocol=protocol,
                duration_s=sent["seconds"],
                sent_bps=sent["bits_per_second"],
                received_bps=received_bps,
                loss_percent=total.get("lost_percent"),
                retransmits=sent.get("retransmits"),
            )
        except (ValueError, KeyError, TypeError) as error:
            last = (output.strip().splitlines() or ["no output"])[-1]
            raise CommandError(f"{source}: iperf3 to {destination}: {last}", object=source) from error
