"""HTTP/1.1 as the agent speaks it on its Unix socket: one request a connection, JSON in both directions."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar

from ._json import decode, encode
from ._lazy import types
from .errors import ConnectionLostError, FailedError, MyelinError, of_answer

if TYPE_CHECKING:
    from dataclasses import dataclass
else:
    from ._record import dataclass

T = TypeVar("T")

VERSION_HEADER = "myelin-version"


@dataclass(frozen=True)
class Call(Generic[T]):
    """A request, and the type of its answer or of each line of its answer."""

    method: str
    path: str
    answer: Any
    body: Any = None

    def to_bytes(self, upgrade: str = "") -> bytes:
        """Returns the request as it goes over the socket. `upgrade`: the protocol that follows."""
        connection = f"upgrade\r\nupgrade: {upgrade}" if upgrade else "close"
        body = b"" if self.body is None else json.dumps(encode(self.body)).encode()
        head = (
            f"{self.method} {self.path} HTTP/1.1\r\nhost: myelin\r\nconnection: {connection}\r\n"
            f"content-type: application/json\r\n{VERSION_HEADER}: {types.VERSION}\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body


@dataclass(frozen=True)
class Head:
    """The head of an answer."""

    status: int
    is_chunked: bool
    length: int

    @classmethod
    def parse(cls, text: bytes) -> Head:
        """Parses the head, and checks the agent's version.

        Raises FailedError if the agent's version is too far from this package's.
        """
        first, *lines = text.decode("latin-1").split("\r\n")
        fields = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        check_version(fields.get(VERSION_HEADER))
        parts = first.split(" ", 2)
        if len(parts) < 2 or not parts[1].isdigit():
            raise ConnectionLostError(f"the agent's answer begins with {first!r}: is another program at the socket?")
        chunked = fields.get("transfer-encoding", "").lower() == "chunked"
        return cls(int(parts[1]), chunked, int(fields.get("content-length", "0")))


def check_version(agent: str | None) -> None:
    """Accepts an agent whose version differs at most in the last number."""
    ours = types.VERSION
    if agent is not None and (agent == ours or agent.rpartition(".")[0] == ours.rpartition(".")[0]):
        return
    described = "an older version" if agent is None else f"version {agent}"
    raise FailedError(
        f"the agent is {described} and this package `myelin` is version {ours}: nothing was done; run `myelin down --all`, "
        "which stops that agent, or install the package of the agent's version",
        object="agent",
        remedy="run `myelin down --all`, or install the package of the agent's version",
    )


def fail(head: Head, body: bytes) -> NoReturn:
    """Raises the error of an answer."""
    try:
        error = decode(types.ApiError, body)
    except MyelinError:
        raise FailedError(f"the agent answered {head.status}: {body.decode(errors='replace')}") from None
    raise of_answer(error)


def decode_line(call: Call[T], line: bytes) -> T:
    """Parses a line of a stream. Raises the error that ended the stream."""
    value: Any = decode(call.answer, line)
    if isinstance(value, types.EventError):
        raise of_answer(value.error)
    result: T = value
    return result


def lost(reason: object) -> ConnectionLostError:
    """Makes the error of a connection that ended too early."""
    return ConnectionLostError(
        f"lost the connection to the agent: {reason}; check with `myelin ps` whether the agent still runs",
        object="agent",
        remedy="check with `myelin ps` whether the agent still runs",
    )
