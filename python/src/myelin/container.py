"""Containers in the hosts of a `Network`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Optional, Union

from . import _requests
from ._lazy import types
from .errors import ContainerError, FailedError, bad_argument
from .machine import Place

if TYPE_CHECKING:
    from .client import Client
    from .program import Program

Command = Union[str, Sequence[Union[str, "os.PathLike[str]"]], None]
Image = Union[str, "os.PathLike[str]", None]


def make_request(
    host: str,
    name: str,
    image: Image,
    command: Command,
    cpu: Optional[str],
    memory: Optional[str],
    env: Optional[dict[str, str]],
    watch: str,
) -> types.ContainerRequest:
    """Makes the request for a container. A text goes to `sh`, a list is a program and its arguments."""
    if not isinstance(name, str) or not name:
        raise bad_argument("name", name, "a name", "write text, for example 'server'")
    return types.ContainerRequest(
        host=host,
        name=name,
        image=_to_image(image),
        command=_to_arguments(command, image),
        env=dict(env or {}),
        limits=make_limits(cpu, memory),
        watch_ms=_requests.parse_quantity("watch", watch, "duration") // 1_000_000,
    )


def check(status: types.ContainerStatus) -> types.ContainerStatus:
    """Raises ContainerError if the program failed while it was watched."""
    if status.has_failed:
        raise ContainerError(status)
    return status


def make_limits(cpu: Optional[str], memory: Optional[str]) -> types.ContainerLimits:
    """Makes limits of texts such as "0.25cores" and "64MiB"."""
    return types.ContainerLimits(
        cpu_millicores=None if cpu is None else _requests.parse_quantity("cpu", cpu, "share of the processor"),
        memory_bytes=None if memory is None else _requests.parse_quantity("memory", memory, "size"),
    )


def _to_image(image: Image) -> types.ContainerImage:
    if image is None:
        return "machine"
    if isinstance(image, str) and image and "/" not in image:
        return types.ContainerImageStored(stored=image)
    if image and isinstance(image, (str, os.PathLike)):
        return types.ContainerImageDirectory(directory=os.path.abspath(image))
    raise bad_argument("image", image, "an image", "write the name of an image, a directory with a `/`, or None")


def _to_arguments(command: Command, image: Image) -> list[str]:
    if command is None and isinstance(image, str) and image and "/" not in image:
        return []
    if isinstance(command, str) and command.strip():
        return ["/bin/sh", "-c", command]
    if not isinstance(command, (str, bytes)) and isinstance(command, Sequence) and command:
        return [os.fspath(argument) for argument in command]
    raise bad_argument("command", command, "a command", "write text for `sh`, or a list: a program and its arguments")


class Container(Place):
    """A container in a host. It lies in the host's network, shares the host's limits, and ends with the network.

    `cmd`, `popen` and `run` start further programs in it, with the container's files, rights and environment.
    """

    def __init__(self, client: Client, status: types.ContainerStatus) -> None:
        self._client = client
        self.host = f"{status.topology}/{status.host}"
        """The host: TOPOLOGY/HOST."""
        self.name = status.name
        self.start_ms = status.start_ms
        """Time that the start took, ms."""

    @property
    def path(self) -> str:
        return f"{self.host}/{self.name}"

    def program(self) -> Program:
        return self._client.program

    def _place(self) -> tuple[str, Optional[str]]:
        return self.host, self.name

    def stats(self) -> types.ContainerStatus:
        """The container, its limits, and the processor time and memory that it has used."""
        for status in self._client.containers(self.host):
            if status.name == self.name:
                return status
        raise FailedError(f"host `{self.host}` has no container `{self.name}`", object=self.name)

    @property
    def is_running(self) -> bool:
        """Whether the program runs."""
        return self.stats().end is None

    def logs(self) -> str:
        """The end of the output and the errors, at most 1 MiB."""
        return self._client.container_log(self.host, self.name)

    def set_limits(self, *, cpu: Optional[str] = None, memory: Optional[str] = None) -> types.ContainerStatus:
        """Changes limits while the container runs. What is not named stays."""
        return self._client.limit_container(self.host, self.name, cpu=cpu, memory=memory)

    def remove(self) -> None:
        """Ends the container and removes it."""
        self._client.remove_container(self.host, self.name)

    def __repr__(self) -> str:
        return f"<Container {self.path}>"
