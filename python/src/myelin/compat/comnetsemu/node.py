"""`comnetsemu.node`: hosts with limits, and the containers in them."""

from __future__ import annotations

import shlex
import subprocess
from typing import Any, NamedTuple, Optional

from ...container import Container
from ...errors import ContainerError, bad_argument
from .. import NoCounterpart
from ..mininet.log import warn
from ..mininet.node import Host
from ..mininet.util import numCores

# What a docker container has and Myelin's containers need not.
_WITHOUT_EFFECT = {
    "name", "hostname", "detach", "tty", "stdin_open", "init", "network_mode", "labels", "privileged", "cap_add",
    "working_dir", "command", "pid_mode", "remove", "auto_remove",
}  # fmt: skip
_SIZES = {"b": "B", "k": "KiB", "m": "MiB", "g": "GiB"}
# Programs that wait for somebody who types.
_SHELLS = (None, "", "bash", "sh", "/bin/bash", "/bin/sh")


def read_limits(what: str, args: Optional[dict[str, Any]]) -> dict[str, Any]:
    """Reads `docker_args`: returns `cpu`, `memory`, `cpus` and `env` of Myelin, as far as they are given."""
    given = dict(args or {})
    limits: dict[str, Any] = {}
    period = given.pop("cpu_period", 100_000)
    quota = given.pop("cpu_quota", None)
    nano = given.pop("nano_cpus", None)
    if quota is not None and quota > 0:
        limits["cpu"] = f"{max(10, round(1000 * quota / period))}m"
    elif nano:
        limits["cpu"] = f"{max(10, round(nano / 1e6))}m"
    memory = given.pop("mem_limit", None)
    if memory is not None:
        text = str(memory).lower()
        limits["memory"] = f"{text[:-1]}{_SIZES[text[-1]]}" if text[-1] in _SIZES else f"{text}B"
    cpus = given.pop("cpuset_cpus", None)
    if cpus is not None:
        limits["cpus"] = str(cpus).split(",") if "," in str(cpus) else str(cpus)
    env = given.pop("environment", None)
    if env is not None:
        limits["env"] = dict(env if isinstance(env, dict) else (one.split("=", 1) for one in env))
    if "volumes" in given:
        raise NoCounterpart(
            f"`volumes` of {what}", "a container sees the machine's files: name them by the paths that they have there"
        )
    other = sorted(set(given) - _WITHOUT_EFFECT)
    if other:
        raise NoCounterpart(f"`{other[0]}` in the docker_args of {what}", "leave it out")
    return limits


class DockerHost(Host):
    """A host with limits. Its programs see the machine's files."""

    def __init__(
        self,
        name: str,
        dimage: Optional[str] = None,
        dcmd: Optional[str] = None,
        docker_args: Optional[dict[str, Any]] = None,
        **kwargs: Any,
    ) -> None:
        if "ip" in kwargs and kwargs["ip"] and "/" not in kwargs["ip"]:
            kwargs["ip"] = f"{kwargs['ip']}/8"
        super().__init__(name, **kwargs)
        self.dimage, self.dcmd = dimage, dcmd
        limits = read_limits(f"the host `{name}`", docker_args)
        limits.pop("env", None)
        # A group for the containers of the host, whose limit they share.
        self.limits = limits or {"cpu": f"{numCores() * 1000}m"}


class DockerContainer:
    """A container in a host."""

    def __init__(self, name: str, dhost: Any, dimage: Optional[str], dcmd: Any, container: Container) -> None:
        self.name, self.dhost, self.dimage, self.dcmd = name, str(dhost), dimage, dcmd
        self.container = container
        """The container of Myelin (an addition)."""
        self.dins = _Instance(container)

    @property
    def dhost_name(self) -> str:
        """The name of the host."""
        return self.dhost

    def getLogs(self) -> str:
        """Returns the end of the output and the errors."""
        return self.container.logs()

    def cmd(self, *args: Any, **_kwargs: Any) -> str:
        """Runs a command in the container and returns its output."""
        return self.container.cmd(*args)

    def updateCpuLimit(self, cpu_quota: int = -1, cpu_period: int = 100_000, **_other: Any) -> None:
        """Changes the limit of processor time."""
        if cpu_quota <= 0:
            raise bad_argument("cpu_quota", cpu_quota, "a time in a period", "write microseconds from 1000 on")
        self.container.set_limits(cpu=f"{max(10, round(1000 * cpu_quota / cpu_period))}m")

    def updateMemoryLimit(self, mem_limit: int = -1, **_other: Any) -> None:
        """Changes the limit of memory, bytes."""
        self.container.set_limits(memory=f"{mem_limit}B")

    def __repr__(self) -> str:
        return f"<DockerContainer {self.name} in {self.dhost}>"


class ExecResult(NamedTuple):
    """The exit status and the output of `exec_run`."""

    exit_code: Optional[int]
    output: bytes


class _Instance:
    """`container.dins`: what scripts ask the container of Docker's package for."""

    def __init__(self, container: Container) -> None:
        self._container = container

    @property
    def status(self) -> str:
        """`running` or `exited`."""
        return "running" if self._container.is_running else "exited"

    @property
    def id(self) -> str:
        """The container's name in `runc list`."""
        return self._container.stats().id

    name = id

    def logs(self, **_options: Any) -> bytes:
        """Returns the end of the output and the errors."""
        return self._container.logs().encode()

    def reload(self) -> None:
        """Does nothing: each call asks the agent."""

    def exec_run(self, cmd: Any, environment: Any = None, workdir: Optional[str] = None, **options: Any) -> ExecResult:
        """Runs a further program in the container. As in Docker, a text is split into words."""
        for option in ("stream", "socket", "demux"):
            if options.get(option):
                raise NoCounterpart(f"`{option}` of `exec_run`", "read the output at its end, or use `container.popen(...)`")
        words = shlex.split(cmd) if isinstance(cmd, str) else list(cmd)
        env = dict(environment if isinstance(environment, dict) else (one.split("=", 1) for one in environment or ()))
        if options.get("detach"):
            self._container.popen(words, env=env, cwd=workdir, stdout=subprocess.DEVNULL)
            return ExecResult(None, b"")
        process = self._container.popen(words, env=env, cwd=workdir)
        output, _ = process.communicate()
        return ExecResult(process.returncode, output or b"")


APPContainer = DockerContainer


def _find_image(client: Any, dimage: Optional[str]) -> Optional[str]:
    """Returns the stored image of this name (`-` for `_`), a directory, or None: the machine's files."""
    if not dimage:
        return None
    if dimage.startswith(("/", "./")):
        return dimage
    wanted = dimage.replace("_", "-")
    return next((image.name for image in client.images() if image.name in (dimage, wanted)), None)


def start_container(
    host: Any, name: str, dimage: Optional[str], dcmd: Any, docker_args: Optional[dict[str, Any]]
) -> DockerContainer:
    """Starts a container in a host."""
    limits = read_limits(f"the container `{name}`", docker_args)
    if "cpus" in limits:
        raise NoCounterpart(f"`cpuset_cpus` of the container `{name}`", "give the cores to its host")
    machine = host.machine
    image = _find_image(machine.network.client, dimage)
    if dimage and image is None:
        warn(f"*** The container {name} sees the machine's files instead of the image {dimage}.\n")
    command = dcmd
    if dcmd in _SHELLS:
        # A shell without a terminal ends at once. An image may have a command of its own.
        command = None if image is not None and "/" not in image and not dcmd else "exec sleep infinity"
    try:
        made = machine.add_container(name, image, command, **limits)
    except ContainerError as error:
        # As with Docker, the container stays, and its script goes on.
        warn(f"*** {error}\n")
        made = next(one for one in machine.containers if one.name == name)
    return DockerContainer(name, host, dimage, dcmd, made)
