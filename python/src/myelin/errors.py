"""Errors: each names the object, the place, the cause and the remedy, as far as they are known."""

from __future__ import annotations

import re
from typing import Any, Optional

from ._lazy import types

_PLACE = re.compile(r"(?P<file>[^\s:][^:\n]*):(?P<line>\d+):(?P<column>\d+): ")
_OBJECT = re.compile(r"`([^`]+)`")


class MyelinError(Exception):
    """An error of Myelin. The message has all parts; the attributes have those that are known."""

    exit_status = 1

    def __init__(
        self,
        message: str,
        *,
        object: str = "",
        file: str = "",
        line: Optional[int] = None,
        column: Optional[int] = None,
        remedy: str = "",
        faults: tuple[types.FileFault, ...] = (),
    ) -> None:
        super().__init__(message)
        self.message = message
        self.object = object
        """The chain, topology, host or key with the fault."""
        self.file = file
        """The file with the fault, as the caller named it."""
        self.line = line
        """Line in the file, from 1."""
        self.column = column
        """Column in the line, from 1."""
        self.remedy = remedy
        """What to do."""
        self.faults = faults
        """All faults of the file; the attributes above are of the first."""


class UsageError(MyelinError):
    """Bad usage: a wrong argument, or a request that the agent does not take."""

    exit_status = 2


class ArgumentError(UsageError, ValueError):
    """A wrong argument, found before anything was made."""


class FileError(UsageError):
    """A bad file or object. `faults` has all faults."""


class MissingRequestError(UsageError):
    """The agent is of another version and lacks the request."""


class RefusedError(MyelinError):
    """Admission refuses the chain: this machine cannot keep its contract."""

    exit_status = 3


class FailedError(MyelinError):
    """The request failed."""


class NoAgentError(FailedError):
    """No agent runs, or this user may neither use nor start it."""


class ConnectionLostError(FailedError):
    """The agent ended while it answered."""


class CommandError(FailedError):
    """A program on a host failed, or did not end in time."""


class ContainerError(CommandError):
    """The program of a new container failed while it was watched. The container stays, so `logs` has its output."""

    def __init__(self, status: types.ContainerStatus) -> None:
        path = f"{status.topology}/{status.host}/{status.name}"
        lines = "".join(f"\n  {line}" for line in status.last_lines)
        output = f"last output:{lines}" if lines else "it wrote no output"
        remedy = "correct the command, and add the container again"
        super().__init__(f"container `{path}`: the program {status.end}; {output}", object=path, remedy=remedy)
        self.exit_code = status.exit_code
        """The exit status; None: a signal ended the program."""
        self.last_lines = status.last_lines
        """The last lines of the output."""


def bad_argument(what: str, value: Any, expected: str, remedy: str) -> ArgumentError:
    """Makes the error of a wrong argument."""
    return ArgumentError(f"{what}: {value!r} is not {expected}: {remedy}", object=what, remedy=remedy)


def of_answer(error: types.ApiError) -> MyelinError:
    """Makes the exception for an error of the agent."""
    message = error.message
    if error.faults:
        first = error.faults[0]
        return FileError(
            message,
            object=first.object,
            file=first.file,
            line=first.line,
            column=first.column,
            remedy=first.remedy,
            faults=tuple(error.faults),
        )
    kinds: dict[str, type[MyelinError]] = {"usage": UsageError, "refused": RefusedError}
    kind = kinds.get(error.kind, FailedError)
    if error.kind == "usage" and " and lacks the request " in message:
        kind = MissingRequestError
    return _with_parts(kind, message)


def of_text(text: str, exit_status: int) -> MyelinError:
    """Makes the exception for the message and the exit status of the program `myelin`."""
    message = text.strip().removeprefix("myelin: ")
    kinds: dict[int, type[MyelinError]] = {2: UsageError, 3: RefusedError}
    kind = kinds.get(exit_status, FailedError)
    if exit_status == 2 and _PLACE.match(message):
        kind = FileError
    return _with_parts(kind, message)


def _with_parts(kind: type[MyelinError], message: str) -> MyelinError:
    place = _PLACE.match(message)
    named = _OBJECT.search(message)
    part_of = re.search(r"= in (?:\S+ of )?(.*)", message)
    help_line = re.search(r"= help: (.*(?:\n {7}.*)*)", message)
    remedy = re.sub(r"\s+", " ", help_line[1]) if help_line else ""
    if not remedy and "\n" not in message:
        parts = re.split(r"; |: ", message)
        remedy = parts[-1] if len(parts) > 1 else ""
    return kind(
        message,
        object=part_of[1].strip() if part_of else named[1] if named else "",
        file=place["file"] if place else "",
        line=int(place["line"]) if place else None,
        column=int(place["column"]) if place else None,
        remedy=remedy,
    )
