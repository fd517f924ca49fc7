"""The traffic of an interface against a rate and a burst: `myelin conform`."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from dataclasses import dataclass, fields
from types import TracebackType
from typing import Any, Literal, Optional

from .errors import ArgumentError, FailedError, bad_argument, of_text

_RATE = re.compile(r"[0-9.]+ *([kMG]?pps|[kMG]?bit(/s)?|[kMG]?bps)(, *[0-9.]+ *([kMG]?pps|[kMG]?bit(/s)?|[kMG]?bps))?")
_TIME = re.compile(r"[0-9.]+ *(ns|us|ms|s)")


@dataclass(kw_only=True)
class Conformance:
    """What to check, and how long."""

    interface: str
    rate: str
    """Packets, bits, or both a second: `20kpps`, `20kpps,100Mbit`."""
    burst: Optional[str] = None
    """Packets, bits, or both: `32`, `32,64kbit`."""
    direction: Literal["in", "out"] = "in"
    host: Optional[str] = None
    """The end host of the interface: `client`, `CHAIN/client`, or a topology's host."""
    netns: Optional[str] = None
    """The network namespace of the interface."""
    match: Optional[dict[str, Any]] = None
    """Only these packets: keys of a chain's `match`."""
    tolerance: str = "0us"
    duration: Optional[str] = None
    """Stop after this time."""
    count: Optional[int] = None
    """Stop after this number of packets."""

    def __post_init__(self) -> None:
        if not isinstance(self.interface, str) or not self.interface or self.interface.startswith("-"):
            raise bad_argument("interface", self.interface, "the name of an interface", "see `ip link`")
        if not isinstance(self.rate, str) or not _RATE.fullmatch(self.rate):
            raise bad_argument("rate", self.rate, "a rate with its unit", "write `20kpps`, `100Mbit` or both")
        for what, value in (("tolerance", self.tolerance), ("duration", self.duration)):
            if value is not None and not (isinstance(value, str) and _TIME.fullmatch(value)):
                raise bad_argument(what, value, "a duration with its unit", "write text such as `10s`")
        if self.direction not in ("in", "out"):
            raise bad_argument("direction", self.direction, "a direction", "write `in` or `out`")
        if self.count is not None and (not isinstance(self.count, int) or self.count < 1):
            raise bad_argument("count", self.count, "a number of packets", "write a whole number from 1 on")
        if self.host is not None and self.netns is not None:
            raise ArgumentError("host, netns: both name the interface's namespace: give one of them", object="host")

    def check_end(self) -> None:
        """Refuses a measurement that would never end."""
        if self.duration is None and self.count is None:
            raise ArgumentError(
                "duration, count: the measurement would never end: give one of them, or use `follow_conform`",
                object="duration",
                remedy="give `duration` or `count`",
            )

    def arguments(self) -> list[str]:
        """Returns the arguments of `myelin`."""
        match = None if self.match is None else ",".join(f"{key}={value}" for key, value in self.match.items())
        options = {
            "--rate": self.rate,
            "--burst": self.burst,
            "--direction": self.direction,
            "--host": self.host,
            "--netns": self.netns,
            "--match": match,
            "--tolerance": self.tolerance,
            "--duration": self.duration,
            "--count": self.count,
        }
        given = [f"{option}={value}" for option, value in options.items() if value is not None]
        return ["conform", "--json", *given, self.interface]


@dataclass(kw_only=True)
class ConformReport:
    """The verdict of `myelin conform` and its figures."""

    interface: str
    netns: Optional[str]
    direction: str
    match: Optional[str]
    tolerance_ns: int
    packets: int
    bytes: int
    span_s: float
    mean_pps: float
    mean_bps: float
    buckets: list[dict[str, Any]]
    above: int
    above_with_tolerance: int
    conforms_strictly: bool
    conforms: Optional[bool]
    """The verdict. None without packets."""
    violations: int
    first_violations: list[dict[str, Any]]

    @classmethod
    def parse(cls, text: str) -> ConformReport:
        """Parses the program's JSON."""
        try:
            values = json.loads(text)
            return cls(**{field.name: values[field.name] for field in fields(cls)})
        except (ValueError, KeyError, TypeError) as error:
            raise FailedError(f"cannot parse the report of `myelin conform`: {error}") from error


class ConformStream:
    """An iterator over reports. Leaving it ends the measurement."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self._is_closed = False

    def __iter__(self) -> ConformStream:
        return self

    def __next__(self) -> ConformReport:
        if self._process.stdout is None or self._process.stderr is None or self._is_closed:
            raise StopIteration
        line = self._process.stdout.readline()
        if line:
            return ConformReport.parse(line.decode())
        message = self._process.stderr.read().decode(errors="replace")
        status = self._process.wait()
        self.close()
        if status in (0, 5):
            raise StopIteration
        raise of_text(message.split("\nmyelin: ")[-1], status)

    def close(self) -> None:
        """Ends the measurement."""
        self._is_closed = True
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(5)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        for pipe in (self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()

    def __enter__(self) -> ConformStream:
        return self

    def __exit__(self, kind: Optional[type], error: Optional[BaseException], trace: Optional[TracebackType]) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()
